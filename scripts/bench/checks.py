"""Measurements of this service alone: deep pages, compression, workers, fairness, overload."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import multiprocessing
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlencode

import aiohttp

from scripts.bench import data, load
from scripts.bench.machine import ALL_CPUS, PATIENT, PeakMemory, Server, describe, engine, service
from scripts.large_bodies import make_body


def _outputs(**query: Any) -> str:
    return f"/v1/outputs/{data.GROUP}?{urlencode(query)}"


# -- deep pages ------------------------------------------------------------------------------------


def deep(items: int) -> None:
    """Compare the time of a page at 99 % of the items with one at the start, for each filter."""
    print(describe())
    with engine() as mongo:
        loaded = data.load(mongo, items)
        # Each filter must leave more than a page behind the cursor: 10,000 items do.
        share = min(0.99, 1 - 10_000 / items)
        since = loaded.last_batch_date - timedelta(milliseconds=1)
        recent = since.strftime("%Y-%m-%dT%H:%M:%S.%f")[:23] + "Z"
        filters = {
            "no filter": {},
            "job_id": {"job_id": "job-3"},
            "url": {"url": data.LISTING},
            "region": {"region": "DE-BE"},
            "country": {"country": "Germany"},
        }
        with service(mongo.url, **PATIENT) as server:
            mongo.step_aside()
            for limit in (10, 100):
                print(
                    f"\n| {limit} items a page | start, p50 ms | at {share:.0%}, p50 ms | ratio |\n|---|---:|---:|---:|"
                )
                deep_ = {name: _outputs(limit=limit, cursor=loaded.cursor(share), **f) for name, f in filters.items()}
                start = {name: _outputs(limit=limit, cursor=0, **f) for name, f in filters.items()}
                start["created_after the last 1,000"] = start["no filter"]
                deep_["created_after the last 1,000"] = _outputs(limit=limit, created_after=recent)
                for name in start:
                    first, last = _alternate(server, loaded.headers, [start[name], deep_[name]], 400, limit)
                    print(f"| {name} | {first:.2f} | {last:.2f} | {last / first:.2f} |", flush=True)


def _alternate(server: Server, headers: dict[str, str], paths: list[str], rounds: int, limit: int) -> list[float]:
    """Return the median time of each path, asked for in turn over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    times: list[list[float]] = [[] for _ in paths]
    for number in range(rounds + 20):
        for path, spent in zip(paths, times, strict=True):
            began = time.perf_counter()
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read()
            if number >= 20:  # after the warm-up
                spent.append((time.perf_counter() - began) * 1000)
            if response.status != 200 or body.count(b'"output_id"') != limit:
                raise SystemExit(f"{path}: {response.status}, not {limit} items: {body[:300]!r}")
    connection.close()
    return [statistics.median(spent) for spent in times]


# -- compression -----------------------------------------------------------------------------------


def compression(items: int) -> None:
    """Measure what compressing costs the service, as a page and as a stream."""
    print(describe())
    with engine() as mongo:
        loaded = data.load(mongo, items)
        mongo.step_aside()
        with service(mongo.url, **PATIENT) as server:
            cases = {
                "page of 1000": _outputs(limit=1000),
                "NDJSON of 1000": _outputs(limit=1000).replace("?", "/export?format=ndjson&"),
            }
            print("\n| | plain MB | gzip MB | CPU ms plain | CPU ms gzip | CPU ms a MB for compressing |")
            print("|---|---:|---:|---:|---:|---:|")
            for name, path in cases.items():
                sizes, cpus = [], []
                for coding in ("identity", "gzip"):
                    headers = {**loaded.headers, "Accept-Encoding": coding}
                    what = load.Requests(server.url + path, headers, connections=4)
                    load.send(what, 16)
                    runs = []
                    for _ in range(3):
                        before = server.tree.cpu_seconds()
                        result = load.send(what, 150)
                        runs.append((server.tree.cpu_seconds() - before) * 1000 / result.requests)
                    cpus.append(statistics.median(runs))
                    sizes.append(result.bytes / result.requests / 1e6)
                cost = (cpus[1] - cpus[0]) / sizes[0]
                print(
                    f"| {name} | {sizes[0]:.2f} | {sizes[1]:.2f} | {cpus[0]:.1f} | {cpus[1]:.1f} | {cost:.1f} |",
                    flush=True,
                )


# -- workers ---------------------------------------------------------------------------------------


def workers(items: int, seconds: float) -> None:
    """Measure how the rate grows with processes, and what the database takes meanwhile."""
    print(describe())
    counts = (1, 2) if len(ALL_CPUS) <= 2 else (1, 2, 4, len(ALL_CPUS))
    with engine() as mongo:
        loaded = data.load(mongo, items)
        print("\n| limit | workers | requests/s | items/s | p99 ms | service, cores | database, cores | peak MB |")
        print("|---:|---:|---:|---:|---:|---:|---:|---:|")
        for limit in (10, 100, 1000):
            for count in counts:
                with service(mongo.url, ALL_CPUS, workers=count, **PATIENT) as server:
                    path = _outputs(limit=limit, cursor=loaded.cursor(0.75))
                    what = load.Requests(server.url + path, loaded.headers, connections=32)
                    rate = load.send(what, 96).rate
                    with PeakMemory(server.tree) as memory:
                        before, database = server.tree.cpu_seconds(), mongo.tree.cpu_seconds()
                        result = load.send(what, int(rate * seconds))
                        used = (server.tree.cpu_seconds() - before) / result.seconds
                        database = (mongo.tree.cpu_seconds() - database) / result.seconds
                print(
                    f"| {limit} | {count} | {result.rate:,.0f} | {result.rate * limit:,.0f} | {result.p99:.0f} "
                    f"| {used:.2f} | {database:.2f} | {memory.mb:.0f} |",
                    flush=True,
                )


# -- fairness --------------------------------------------------------------------------------------


def fair(items: int, seconds: float) -> None:
    """Measure /healthz while 16 readers take pages of 1000 or large bodies are written, and the memory for that."""
    print(describe())
    with engine() as mongo:
        loaded = data.load(mongo, items)
        mongo.step_aside()
        with service(mongo.url, **PATIENT) as server:
            print(
                "\n| while | requests/s | /healthz p50 ms | p99 ms | max ms | peak MB |\n|---|---:|---:|---:|---:|---:|"
            )
            for name, coding in (("nobody reads", None), ("16 readers", "identity"), ("16 readers, gzip", "gzip")):
                headers = {**loaded.headers, "Accept-Encoding": coding or "identity"}
                path = _outputs(limit=1000, cursor=loaded.cursor(0.5))
                what = load.Requests(server.url + path, headers, connections=16)
                rate = load.send(what, 48).rate if coding else 0.0
                with PeakMemory(server.tree) as memory, _Probe(server) as probe:
                    if coding:
                        rate = load.send(what, int(rate * seconds)).rate
                    else:
                        time.sleep(seconds / 2)
                _print_row(name, rate, probe, memory)
        for name, at_once, turns, body in (
            ("40 bodies of 9 MB", 40, 1, partial(make_body, size=9_000_000)),
            # As many bytes, records and values as are allowed.
            ("2 bodies of 16 MB", 2, 4, partial(make_body, size=16_500_000, values_each=330, text="x" * 40)),
        ):
            bodies = [[body(turn * at_once + n) for n in range(at_once)] for turn in range(turns)]
            with service(mongo.url, ALL_CPUS) as server:  # with the limits that it has by default
                with PeakMemory(server.tree) as memory, _Probe(server) as probe:
                    began = time.perf_counter()
                    for some in bodies:
                        # In a process of its own: the probe must not wait for it.
                        sending = multiprocessing.get_context("fork").Process(target=_post, args=(server, loaded, some))
                        sending.start()
                        sending.join()
                    rate = at_once * turns / (time.perf_counter() - began)
                _print_row(name, rate, probe, memory)


def _print_row(name: str, rate: float, probe: _Probe, memory: PeakMemory) -> None:
    p50, p99 = load.percentile(probe.times, 0.5), load.percentile(probe.times, 0.99)
    print(f"| {name} | {rate:.1f} | {p50:.1f} | {p99:.1f} | {max(probe.times):.1f} | {memory.mb:.0f} |", flush=True)


def _post(server: Server, loaded: data.Loaded, bodies: list[bytes]) -> None:
    """Send bodies at once; a response is 200, or 503 because there is no room for all of them."""

    def post(body: bytes) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        headers = {**loaded.headers, "Content-Type": "application/json"}
        with contextlib.suppress(ConnectionError):  # a refused body is not read to its end
            connection.request("POST", "/v1/outputs/large", body, headers)
        assert connection.getresponse().status in (200, 503)

    with ThreadPoolExecutor(len(bodies)) as pool:
        list(pool.map(post, bodies))


class _Probe:
    """Calls /healthz 50 times per second, from a thread of its own."""

    def __init__(self, server: Server) -> None:
        self._port, self._stop = server.port, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.times: list[float] = []

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        while not self._stop.wait(0.02):
            began = time.perf_counter()
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            self.times.append((time.perf_counter() - began) * 1000)
        connection.close()

    def __enter__(self) -> _Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


# -- overload --------------------------------------------------------------------------------------


def overload(items: int, seconds: float) -> None:
    """Send twice what the service can carry, at a steady pace whatever comes back."""
    print(describe())
    with engine() as mongo:
        loaded = data.load(mongo, items)
        mongo.step_aside()
        with service(mongo.url) as server:
            url = server.url + _outputs(limit=100, cursor=loaded.cursor(0.5))
            what = load.Requests(url, loaded.headers, connections=16)
            load.send(what, 64)
            best = max(load.send(what, int(load.send(what, 200).rate * seconds / 2)).rate for _ in range(2))
            print(f"\nbest: {best:.0f} requests/s of 100 items")
            print(
                "| offered/s | for s | completed/s | of best | refused with 503 | failed | p50 ms | p99 ms | max ms |"
            )
            print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
            for times in (0.5, 1, 2, 3):
                done = asyncio.run(_offer(url, loaded.headers, best * times, seconds))
                accepted = done[200] or [0.0]
                others = sum(len(spent) for status, spent in done.items() if status not in (200, 503))
                rate = len(done[200]) / seconds
                p50, p99 = load.percentile(accepted, 0.5) * 1000, load.percentile(accepted, 0.99) * 1000
                print(
                    f"| {best * times:.0f} | {seconds:g} | {rate:.0f} | {rate / best:.0%} "
                    f"| {len(done[503])} | {others} | {p50:.0f} | {p99:.0f} | {max(accepted) * 1000:.0f} |",
                    flush=True,
                )


# The queue needs this long to fill; what is completed is counted from then on.
_FILLING = 3.0


async def _offer(url: str, headers: dict[str, str], rate: float, seconds: float) -> dict[int, list[float]]:
    """Start `rate` requests per second, none waiting for another; return the times by status, 0 for no response."""
    done: dict[int, list[float]] = {200: [], 503: []}
    seconds += _FILLING
    began = time.perf_counter()

    async def one(session: aiohttp.ClientSession) -> None:
        sent, status = time.perf_counter(), 0
        try:
            async with session.get(url, headers=headers) as response:
                await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError):
            pass
        ended = time.perf_counter()
        if status != 200 or _FILLING <= ended - began <= seconds:  # completed in the time, not after it
            done.setdefault(status, []).append(ended - sent)

    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=30)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session,
        asyncio.TaskGroup() as group,
    ):
        sent = 0
        while (now := time.perf_counter() - began) < seconds:
            while sent < now * rate:
                group.create_task(one(session))
                sent += 1
            await asyncio.sleep(0.002)
    return done
