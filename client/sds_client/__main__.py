"""The command line: `sds`, or `python -m sds_client`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from sds_client.cli import commands
from sds_client.cli.parser import Parser, parse, top_parser


def parser() -> Parser:
    """Return the parser of every command."""
    whole = top_parser(description="Client of the Scraping Data Service.")
    commands.add(whole.add_subparsers(required=True, metavar="COMMAND"))
    return whole


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    options = parse(parser(), arguments)
    if options is None:
        return 0
    command: Callable[..., int] = options.pop("command")
    return command(**options)


if __name__ == "__main__":
    sys.exit(main())
