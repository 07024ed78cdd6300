"""The options of a run."""

from __future__ import annotations

import argparse
import os
import random


def parse(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.checker", description=description)
    parser.add_argument("--versions", type=int, default=60_000, help="item versions to acknowledge at least")
    parser.add_argument("--writers", type=int, default=24)
    parser.add_argument("--readers", type=int, default=2, help="plain readers, beside one of each other kind")
    parser.add_argument("--services", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=80, help="maximum seconds of writing")
    parser.add_argument("--largest", type=int, default=100, help="maximum number of items in one request")
    parser.add_argument("--lease", type=float, default=4.0, help="LEASE_SECONDS of the services")
    parser.add_argument("--kill-every", type=float, default=8.0, help="seconds between kill -9 of a service; 0: none")
    parser.add_argument("--kills", type=int, default=0, help="end after this many kill -9, with no other crashes")
    parser.add_argument("--nodes", type=int, default=0, help="mongods to start; default: MONGO_URL, else 1")
    parser.add_argument("--failovers", action="store_true", help="kill, freeze, step down and cut off primaries")
    parser.add_argument("--failover-every", type=float, default=10.0, help="seconds between two failovers")
    parser.add_argument("--min-failovers", type=int, default=0, help="write on until there were this many")
    parser.add_argument("--no-mark", action="store_true", help="switch the mark off: must report misses")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="repeats the writers' choices")
    parser.add_argument("--long", action="store_true", help="1,000,000 versions, for an hour at most, 4 plain readers")
    options = parser.parse_args()
    if options.long:
        options.versions, options.largest, options.readers = 1_000_000, 300, 4
        options.seconds, options.kill_every, options.lease = 3600, 40.0, 16.0
    if not options.nodes and not os.environ.get("MONGO_URL"):
        options.nodes = 1
    if options.failovers and options.nodes < 3:
        parser.error("--failovers needs --nodes 3 or more: a majority must be left")
    return options
