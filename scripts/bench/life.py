"""What happens to data later: a retention run, the deletion of a group, a crawl that finds nothing new."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from scripts.bench import data
from scripts.bench.load import percentile
from scripts.bench.machine import ALL_CPUS, PeakMemory, Server, describe, engine, service

WRITERS = 8
BATCH = 20
PAUSE_SECONDS = 0.1
DAYS = 30
# Periods of a deletion that are compared with as many seconds without one, in turns, and how long they are: machines
# are noisy, and the median of the periods says more than one stall of the disk.
_PERIODS = 8
_PERIOD_SECONDS = 8
_OLD, _NEW = "2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z"


@dataclass
class Writers:
    """Scrapers that write to a group at a steady pace, and how long each of their requests took."""

    url: str
    group: str
    headers: dict[str, str]
    times: list[float] = field(default_factory=list)
    written: int = 0

    async def begin(self, session: aiohttp.ClientSession, seconds: float) -> Callable[[], Awaitable[None]]:
        """Start to write and report the times for some seconds; return a function that stops it."""
        print(f"\n| {WRITERS} writers, {BATCH} items per request | requests | p50 | p99 |\n|---|---:|---:|---:|")
        stop = asyncio.Event()
        tasks = [asyncio.create_task(self._run(session, stop, number)) for number in range(WRITERS)]
        await asyncio.sleep(2)
        self.times = []
        await asyncio.sleep(seconds)
        self.report("before", self.taken())

        async def end() -> None:
            stop.set()
            await asyncio.gather(*tasks)

        return end

    def taken(self) -> list[float]:
        """Return the times since they were last taken."""
        times, self.times = self.times, []
        return times

    @staticmethod
    def report(case: str, *periods: list[float]) -> None:
        """Print the times of some periods: the medians of their percentiles."""
        p50, p99 = (statistics.median(percentile(times, share) for times in periods) for share in (0.5, 0.99))
        print(f"| {case} | {sum(map(len, periods))} | {p50:.1f} ms | {p99:.1f} ms |", flush=True)

    async def _run(self, session: aiohttp.ClientSession, stop: asyncio.Event, number: int) -> None:
        made = data.templates(100)
        while not stop.is_set():
            items = []
            for _ in range(BATCH):
                self.written += 1
                items.append(orjson.loads(made[self.written % 100].replace("@@", f"{number}-{self.written}")))
            for item in items:
                item["last_scraped_date"] = _NEW
            started = time.perf_counter()
            await call(session, "POST", f"{self.url}/v1/outputs/{self.group}", self.headers, items)
            self.times.append((time.perf_counter() - started) * 1000)
            await asyncio.sleep(PAUSE_SECONDS)


async def call(session: aiohttp.ClientSession, method: str, url: str, headers: dict[str, str], body: Any = None) -> Any:
    """Send a request until it succeeds: one to a service that has just been killed goes again."""
    raw = None if body is None else orjson.dumps(body)
    deadline = time.monotonic() + 60
    while True:
        try:
            async with session.request(
                method, url, data=raw, headers={**headers, "Content-Type": "application/json"}
            ) as response:
                if response.status < 300:
                    return await response.json()
                if response.status != 503:
                    raise SystemExit(f"{method} {url}: {response.status} {(await response.text())[:300]}")
        except aiohttp.ClientConnectionError:
            pass
        if time.monotonic() > deadline:
            raise SystemExit(f"{method} {url}: nothing but failures for a minute")
        await asyncio.sleep(0.2)


def retention(items: int, seconds: float) -> None:
    """Measure writers before and while a retention run deletes all items that the group had."""
    print(describe())
    with engine() as mongo:
        loaded = data.load(mongo, items)
        old = {"organization_id": data.ORGANIZATION, "group_id": data.GROUP}
        mongo.database["outputs"].update_many(old, [{"$set": {"last_scraped_date": {"$toDate": _OLD}}}])
        with service(mongo.url, ALL_CPUS) as server:
            asyncio.run(_retention(server, loaded.headers, items, seconds))


async def _retention(server: Server, headers: dict[str, str], items: int, seconds: float) -> None:
    writers = Writers(server.url, data.GROUP, headers)
    group = f"{server.url}/v1/groups/{data.GROUP}"
    async with aiohttp.ClientSession() as session:
        stop = await writers.begin(session, seconds)
        started = time.monotonic()
        await call(session, "PUT", group, headers, {"retention_days": DAYS})
        while (await call(session, "GET", f"{group}/stats", headers))["items"] > writers.written + items // 100:
            await asyncio.sleep(0.5)
        took = time.monotonic() - started
        writers.report("while items expire", writers.taken())
        await stop()
        while (left := (await call(session, "GET", f"{group}/stats", headers))["items"]) > writers.written:
            if time.monotonic() > started + 2 * took + 60:
                raise SystemExit(f"{left} items are left of {writers.written} that are not expired")
            await asyncio.sleep(0.5)
    if left < writers.written:
        raise SystemExit(f"{writers.written - left} items were deleted that had not expired")
    print(f"\n{items:,} items expired in {took:.0f} s; all {writers.written:,} that had not are there.")


def deletion(items: int, seconds: float) -> None:
    """Measure writers of another group before and while a large group is deleted, and kill the service in between."""
    print(describe())
    with engine() as mongo:
        loaded = data.load(mongo, items)
        with service(mongo.url, ALL_CPUS, workers=2) as server:
            with PeakMemory(server.tree) as memory:
                before = memory.mb
                asyncio.run(_deletion(server, loaded.headers, seconds))
            print(f"memory of the service: {before:.0f} MB before, {memory.mb:.0f} MB at most")
        live = mongo.database["outputs"].count_documents(
            {"organization_id": data.ORGANIZATION, "group_id": data.GROUP, "deleted": {"$exists": False}}
        )
        print(f"items of the group left: {live}")
        if live:
            raise SystemExit(1)


async def _deletion(server: Server, headers: dict[str, str], seconds: float) -> None:
    writers = Writers(server.url, "others", headers)
    group = f"{server.url}/v1/groups/{data.GROUP}"
    quiet: list[list[float]] = []
    beside: list[list[float]] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session:
        stop = await writers.begin(session, seconds)
        started, calls, deleted, killed = time.monotonic(), 0, 0, False
        began, more = started, True
        while more:
            done = await call(session, "DELETE", group, headers)
            calls, deleted, more = calls + 1, deleted + done["deleted"], done["more"]
            if not more or killed or time.monotonic() < began + _PERIOD_SECONDS:
                continue
            beside.append(writers.taken())
            await asyncio.sleep(_PERIOD_SECONDS)
            quiet.append(writers.taken())
            began = time.monotonic()
            if len(quiet) == _PERIODS:
                os.kill(server.tree.pids()[-1], signal.SIGKILL)
                killed = True
        took = time.monotonic() - started
        last = writers.taken()
        await stop()
    if quiet:
        writers.report(f"medians of {len(quiet)} periods without a deletion", *quiet)
        writers.report(f"medians of {len(beside)} periods beside it", *beside)
    writers.report("after a worker was killed" if killed else "to the end of the deletion", last)
    print(f"\n{deleted:,} deletions acknowledged in {calls} calls and {took:.0f} s; workers killed: {int(killed)}")
