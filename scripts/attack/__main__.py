"""Attack a service on this machine and print how it reacted: `python -m scripts.attack`.

Starts a service and a database of its own, unless `--pid` names a running one. With `--minutes` the attacks
continue in turn for that long while another tenant reads and writes; its response times are compared with those before.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import aiohttp

from scripts.attack.attacks import Caller, Target
from scripts.attack.catalogue import ATTACKS
from scripts.bench.load import percentile
from scripts.bench.machine import ALL_CPUS, DATABASE, Engine, engine, service
from service.settings import Settings
from service.store import Store

GROUPS = 200_000
# The other tenant: its concurrent requests, and the seconds without attacks.
_WORKERS = 4
_PAUSE_SECONDS = 0.05
_UNDISTURBED_SECONDS = 30.0


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
            failed |= stall > options.max_stall or growth > options.max_growth * 2**20
            print(f"{name:<5} {stall * 1000:>5.0f} ms {growth / 2**20:>5.0f} MB  {title}; {target.facts}", flush=True)
    return int(failed)


async def attack_for_minutes(options: argparse.Namespace) -> int:
    """Let another tenant work, first alone, then during the attacks; return 1 if they slowed it too much."""
    async with _session() as session, _session() as others:
        tenant = _Tenant(Caller(others, options.url, options.other_token))
        workers = [asyncio.create_task(tenant.work(number)) for number in range(_WORKERS)]
        await asyncio.sleep(3)
        tenant.begin()
        await asyncio.sleep(_UNDISTURBED_SECONDS)
        alone = tenant.report("undisturbed")
        tenant.begin()
        started, turns = time.monotonic(), 0
        while time.monotonic() < started + 60 * options.minutes:
            for name in options.names or ATTACKS:
                await ATTACKS[name][1](_target(session, options))
                turns += 1
                if time.monotonic() > started + 60 * options.minutes:
                    break
            tenant.report(f"{time.monotonic() - started:.0f} s, {turns} attacks")
        attacked = tenant.report("while attacked")
        for worker in workers:
            worker.cancel()
    refused = sum(count for status, count in tenant.statuses.items() if status != 200)
    print(f"p99 {attacked / alone:.1f} times that without attacks; {refused} requests of the other tenant failed")
    return int(attacked > 5 * alone or refused > 0)


class _Tenant:
    """A tenant that reads and writes all the time."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.begin()

    def begin(self) -> None:
        self.times: list[float] = []
        self.statuses = Counter[int]()

    async def work(self, number: int) -> None:
        item = {"source_url": "https://shop.example", "root_job_id": "job", "data": {"text": "x" * 500}}
        for turn in range(10**9):
            items = [{**item, "key_hash": f"{number}-{(turn + n) % 500}", "tags": {"turn": turn}} for n in range(10)]
            for send in (
                partial(self._caller.post, "/v1/outputs/own", items),
                partial(self._caller.get, "/v1/outputs/own?limit=100"),
                partial(self._caller.get, "/v1/cookies"),
            ):
                began = time.perf_counter()
                self.statuses[await send()] += 1
                self.times.append((time.perf_counter() - began) * 1000)
                await asyncio.sleep(_PAUSE_SECONDS)

    def report(self, when: str) -> float:
        p99 = percentile(self.times, 0.99)
        print(
            f"{when}: {len(self.times)} requests, median {statistics.median(self.times):.1f} ms, p99 {p99:.1f} ms, "
            f"longest {max(self.times):.0f} ms, statuses {dict(self.statuses)}",
            flush=True,
        )
        return p99


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(300))


def _target(session: aiohttp.ClientSession, options: argparse.Namespace) -> Target:
    attacker, other = (Caller(session, options.url, token) for token in (options.token, options.other_token))
    return Target(options.url, options.pid, attacker, other, options.scale)


@contextmanager
def _started(options: argparse.Namespace) -> Iterator[None]:
    """Start a service for the attacks; the one who attacks has very many groups."""
    with engine() as mongo:
        server = service(mongo.url, ALL_CPUS)
        try:
            options.url, options.pid = server.url, server.tree.pid
            options.token, options.other_token = asyncio.run(_tokens(mongo))
            _make_groups(mongo, int(GROUPS * options.scale))
            yield
        finally:
            server.stop()


async def _tokens(mongo: Engine) -> tuple[str, str]:
    store = Store.connect(Settings(mongo_database=DATABASE), mongo.url)
    try:
        scopes = ["read", "write", "delete", "state"]
        return await store.tokens.create(1, scopes), await store.tokens.create(2, scopes)
    finally:
        await store.close()


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
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="address of the service, on this machine")
    parser.add_argument("--pid", type=int, help="process of the service; without it one is started")
    parser.add_argument("--token", help="of the tenant that attacks: read, write, delete")
    parser.add_argument("--other-token", help="of another tenant: read, write")
    parser.add_argument("--scale", type=float, default=1.0, help="1: the sizes that were found to work once")
    parser.add_argument("--max-stall", type=float, default=0.1, help="seconds")
    parser.add_argument("--max-growth", type=float, default=150, help="MB")
    options = parser.parse_args()
    if unknown := set(options.names) - set(ATTACKS):
        parser.error(f"unknown attacks: {', '.join(sorted(unknown))}")
    attack = attack_for_minutes if options.minutes else attack_once
    if options.pid is not None:
        return asyncio.run(attack(options))
    with _started(options):
        return asyncio.run(attack(options))


if __name__ == "__main__":
    sys.exit(main())
