"""Measure the service; without an argument, beside its peers."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from scripts.bench import checks, compare, life
from scripts.bench.capacity import capacity
from scripts.bench.clients import clients
from scripts.bench.crawls import crawls, history
from scripts.bench.judging import judging
from scripts.bench.latency import latency
from scripts.bench.leases import leases

# Items in the database and seconds of one run: full, and with --quick.
_SIZES: dict[str, tuple[int, int, float, float]] = {
    "compare": (200_000, 50_000, 6, 1),
    "deep": (1_000_000, 50_000, 0, 0),
    "compression": (10_000, 5_000, 0, 0),
    "workers": (200_000, 20_000, 6, 2),
    "fair": (100_000, 20_000, 15, 4),
    "overload": (50_000, 10_000, 10, 4),
    "latency": (20_000, 5_000, 10, 3),
    "capacity": (100_000, 20_000, 0, 0),
    "retention": (100_000, 10_000, 20, 5),
    "deletion": (1_000_000, 20_000, 20, 5),
    "crawls": (50_000, 5_000, 0, 0),
    "history": (20_000, 5_000, 0, 0),
    "judging": (100_000, 20_000, 0, 0),
    "clients": (20_000, 5_000, 0, 0),
    "leases": (10_000, 5_000, 15, 3),
}
_OF_ITEMS = {"crawls": crawls, "history": history, "judging": judging, "clients": clients}
_CASES = ["reads", "writes", "recrawl"]
_HELP = {
    "compare": "this service beside FastAPI with Beanie, Fastify, Eve and the floor",
    "deep": "pages at 99 % of the items against the first, for each filter",
    "compression": "what compressing costs",
    "workers": "more processes, with the database's share",
    "fair": "/healthz and memory while 16 readers take pages of 1000, and while large bodies are written",
    "capacity": "disk per item, memory per connection and waiting reader, wake-up",
    "latency": "with the database 5 ms away in each direction",
    "overload": "up to three times what the service can carry",
    "retention": "8 writers while all old items of their group expire",
    "deletion": "8 writers while another group is deleted and a worker killed",
    "clients": "push of the TypeScript and the Python client against the plain fetch of Node.js",
    "crawls": "new and changed items with and without ignore, rules and history_days",
    "history": "crawls that change every item without history, and with up to 20 older versions of each",
    "judging": "verdicts over 100,000 items and by 100 rules, and the pages of another organization beside them",
    "leases": "16 workers that lease and release sessions, beside a bare loop of the same updates",
}


def main() -> None:
    """Run one measurement."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench",
        description=__doc__,
        epilog="; ".join(f"{name}: {text}" for name, text in _HELP.items()),
    )
    names = [compare.OURS, compare.FLOOR, compare.FASTAPI, compare.FASTIFY, compare.EVE]
    names += [compare.FASTAPI_UPSERTS, compare.FASTIFY_UPSERTS]
    parser.add_argument("measurement", nargs="?", choices=_SIZES, default="compare")
    parser.add_argument("--quick", action="store_true", help="less data and shorter runs")
    parser.add_argument("--items", type=int, help="in the database")
    parser.add_argument("--seconds", type=float, help="of one run")
    parser.add_argument("--repeats", type=int, default=3, help="runs of which the median counts (compare)")
    parser.add_argument("--servers", nargs="+", choices=names, default=names, help="only these (compare)")
    parser.add_argument("--cases", nargs="+", choices=_CASES, default=_CASES, help="only these (compare)")
    parser.add_argument("--before", metavar="FOLDER", type=Path, help="a checkout of an earlier version (compare)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    full_items, quick_items, full_seconds, quick_seconds = _SIZES[options.measurement]
    # A page of 1000 at three quarters of the items needs 4,000 of them.
    items = max(5_000, options.items or (quick_items if options.quick else full_items))
    seconds = options.seconds or (quick_seconds if options.quick else full_seconds)
    if options.measurement == "compare":
        compare.run(items, seconds, options.repeats, options.servers, options.cases, options.before)
    elif options.measurement == "capacity":
        capacity(items, readers=1000 if options.quick else 5000)
    elif options.measurement in _OF_ITEMS:
        _OF_ITEMS[options.measurement](items)
    elif options.measurement == "leases":
        leases(items, seconds)
    elif options.measurement == "latency":
        latency(items, seconds)
    elif options.measurement in ("retention", "deletion"):
        getattr(life, options.measurement)(items, seconds)
    elif options.measurement in ("deep", "compression"):
        getattr(checks, options.measurement)(items)
    else:
        getattr(checks, options.measurement)(items, seconds)


if __name__ == "__main__":
    main()
