"""Attack a service and print how it reacted: `python -m scripts.attack`.

Starts a service and a database of its own. With `--minutes` the attacks continue in turn for that long while another
tenant reads and writes; its response times are compared with those between the attacks.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp

from scripts.attack.attacks import Caller, Target
from scripts.attack.catalogue import ATTACKS
from scripts.attack.probe import PAUSE
from scripts.attack.tenant import Tenant, Times
from scripts.bench.load import percentile
from scripts.bench.machine import ALL_CPUS, DATABASE, Engine, engine, service
from service.store import SCOPES
from tests.support.processes import make_token

GROUPS = 200_000
_MAX_STALL_SECONDS, _MAX_GROWTH = 0.1, 150 * 2**20
# The other tenant works alone before each attack, so that both are measured in the same minutes: machines change their
# speed. First the attack before has to be over.
_SETTLING_SECONDS, _ALONE_SECONDS = 2.0, 5.0
# With --minutes nobody reads what the probe measures: 400 calls per second, during attacks only, would count as a part
# of them.
_PROBE_PAUSE = 1.0


async def attack_once(options: argparse.Namespace) -> int:
    """Run the attacks one after the other; return 1 if one of them stalled or filled the service."""
    failed = False
    print(f"{'attack':<5} {'stall':>8} {'growth':>8}  what")
    async with _session() as session:
        for name in options.names or ATTACKS:
            target = _target(session, options)
            title, attack = ATTACKS[name]
            await attack(target)
            assert target.probe is not None
            stall, growth = target.probe.stall, target.probe.growth
            failed |= stall > _MAX_STALL_SECONDS or growth > _MAX_GROWTH
            print(f"{name:<5} {stall * 1000:>5.0f} ms {growth / 2**20:>5.0f} MB  {title}; {target.facts}", flush=True)
    return int(failed)


async def attack_for_minutes(options: argparse.Namespace) -> int:
    """Let another tenant work, in turns alone and during an attack; return 1 if the attacks slowed it too much."""
    undisturbed: Times = []
    during: dict[str, Times] = {}
    seconds = 0.0
    async with _session() as session, Tenant.working(options.url, options.other_token) as tenant:
        os.nice(19)  # attackers have machines of their own: they must not take CPU time from the others here
        for name in itertools.cycle(options.names or ATTACKS):
            await asyncio.sleep(_SETTLING_SECONDS)
            await tenant.times()
            await asyncio.sleep(_ALONE_SECONDS)
            undisturbed += await tenant.times()
            started = time.monotonic()
            await ATTACKS[name][1](_target(session, options))
            during.setdefault(name, []).extend(await tenant.times())
            seconds += time.monotonic() - started
            if seconds > 60 * options.minutes:
                break
    for name, times in during.items():
        _report(f"{name:<4} {ATTACKS[name][0]}", times)
    alone = _report("undisturbed", undisturbed)
    times = [pair for pairs in during.values() for pair in pairs]
    attacked = _report(f"all, {seconds:.0f} s", times)
    refused = sum(status != 200 for status, _ in times)
    print(f"p99 {attacked / alone:.1f} times that without attacks; {refused} requests of the other tenant failed")
    return int(attacked > 2.5 * alone or refused > 0)


def _report(when: str, times: Times) -> float:
    """Print how long the other tenant's requests took; return the 99th percentile."""
    took = [milliseconds for _, milliseconds in times]
    p99 = percentile(took, 0.99)
    print(
        f"{when}: {len(took)} requests, median {statistics.median(took):.1f} ms, p99 {p99:.1f} ms, "
        f"longest {max(took):.0f} ms, statuses {dict(Counter(status for status, _ in times))}",
        flush=True,
    )
    return p99


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(300))


def _target(session: aiohttp.ClientSession, options: argparse.Namespace) -> Target:
    attacker, other = (Caller(session, options.url, token) for token in (options.token, options.other_token))
    pause = _PROBE_PAUSE if options.minutes else PAUSE
    return Target(options.url, options.pid, attacker, other, options.scale, pause)


@contextmanager
def _started(options: argparse.Namespace) -> Iterator[None]:
    """Start a service for the attacks; the one who attacks has very many groups."""
    with engine() as mongo, service(mongo.url, ALL_CPUS, workers=options.workers) as server:
        options.url, options.pid = server.url, server.tree.pid
        tokens = (make_token(mongo.url, organization, *SCOPES, database=DATABASE) for organization in (1, 2))
        options.token, options.other_token = tokens
        _make_groups(mongo, int(GROUPS * options.scale))
        yield


def _make_groups(mongo: Engine, count: int) -> None:
    """Write groups into the database itself: over HTTP it would take an hour."""
    now = datetime.now(UTC)
    groups: list[dict[str, Any]] = []
    for number in range(count):
        owner = {"organization_id": 1, "group_id": f"group-{number}"}
        changed = now - timedelta(seconds=number)
        day = {"date": f"{changed:%Y-%m-%d}", "created": 1, "changed": 0}
        groups.append({**owner, "next": 2, "now": changed, "open": [], "last_id": 1, "items": 1, "approved": 0})
        groups[-1] |= {"deleted": 0, "tombstones": 0, "last_change": changed, "day": day, "rounds": 1}
        if len(groups) == 10_000 or number == count - 1:
            mongo.database["groups"].insert_many(groups)
            groups = []


def main() -> int:
    """Read the command line and attack."""
    parser = argparse.ArgumentParser(prog="python -m scripts.attack", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which attacks, of {', '.join(ATTACKS)}; all if none is given")
    parser.add_argument("--minutes", type=float, help="attack for so long while another tenant works")
    parser.add_argument("--workers", type=int, default=1, help="processes of the service, with --minutes")
    parser.add_argument("--scale", type=float, default=1.0, help="1: the sizes that were found to work once")
    options = parser.parse_args()
    if unknown := set(options.names) - set(ATTACKS):
        parser.error(f"unknown attacks: {', '.join(sorted(unknown))}")
    if options.workers > 1 and not options.minutes:
        parser.error("stall and growth are measured in one process: --workers needs --minutes")
    attack = attack_for_minutes if options.minutes else attack_once
    with _started(options):
        return asyncio.run(attack(options))


if __name__ == "__main__":
    sys.exit(main())
