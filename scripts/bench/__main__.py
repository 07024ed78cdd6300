"""The command line of the measurements."""

from __future__ import annotations

import argparse

from scripts.bench import compare


def main() -> None:
    """Run one measurement."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=__doc__)
    commands = parser.add_subparsers(metavar="MEASUREMENT")
    parser.set_defaults(run=_compare)
    _add_compare(parser)
    both = commands.add_parser("compare", help="this service beside its peers (the default)")
    _add_compare(both)
    options = parser.parse_args()
    options.run(options)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    names = [compare.OURS, compare.FLOOR, compare.FLOOR_UVLOOP, compare.FASTAPI, compare.EVE]
    parser.add_argument("--quick", action="store_true", help="two minutes instead of ten")
    parser.add_argument("--items", type=int)
    parser.add_argument("--seconds", type=float, help="of one run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--servers", nargs="+", choices=names, default=names)
    parser.add_argument("--save", help="a JSON file for the medians")
    parser.set_defaults(run=_compare)


def _compare(options: argparse.Namespace) -> None:
    items = options.items or (50_000 if options.quick else 200_000)
    seconds = options.seconds or (1.0 if options.quick else 6.0)
    compare.run(items, seconds, options.repeats, options.servers, options.save)


if __name__ == "__main__":
    main()
