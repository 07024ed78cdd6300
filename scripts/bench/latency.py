"""What a database that is 5 ms away costs: round trips per request, and rounds in flight."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from scripts.bench import data, load
from scripts.bench.machine import ALL_CPUS, PATIENT, describe, engine, service
from tests.support.fault_proxy import FaultProxy

ONE_WAY_SECONDS = 0.005
ROUND_TRIP_MS = 2000 * ONE_WAY_SECONDS


@contextlib.contextmanager
def delaying_proxy(mongo_url: str) -> Iterator[FaultProxy]:
    """Run a proxy to the database that holds every message back, in a thread of its own."""
    proxy, loop = FaultProxy(mongo_url, fault="latency", latency=ONE_WAY_SECONDS), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    running = proxy.running()
    asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result()
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def latency(items: int, seconds: float) -> None:
    """Measure single requests and throughput with the database 5 ms away in each direction."""
    print(describe())
    with engine() as mongo, load.template_file(data.templates(1000)) as templates:
        loaded = data.load(mongo, items)
        headers = loaded.headers
        with delaying_proxy(mongo.url) as proxy, service(proxy.url, ALL_CPUS, **PATIENT) as server:
            ingest = f"{server.url}/v1/outputs/far"
            page = f"{server.url}/v1/outputs/{data.GROUP}?limit=10&cursor={loaded.cursor(0.5)}"
            _single(
                proxy,
                {
                    "POST of 1 new item": load.Requests(ingest, headers, 1, templates, 1),
                    "POST of 100 new items": load.Requests(ingest, headers, 1, templates, 100),
                    "page of 10": load.Requests(page, headers, 1),
                },
            )
            alone = load.send(load.Requests(ingest, headers, 1, templates, 10), 100).rate * 10
            what = load.Requests(ingest, headers, 32, templates, 10)
            rate = load.send(what, 64).rate
            joined = load.send(what, max(200, int(rate * seconds))).rate * what.batch
        print(f"\nbatches of 10: {joined:,.0f} items/s from 32 connections, {alone:,.0f} from one")


def _single(proxy: FaultProxy, cases: dict[str, load.Requests]) -> None:
    """Print how long requests take one after the other, and how many round trips the distance has cost them."""
    print("\n| request | p50 ms | p50 ms without distance | round trips of 10 ms |\n|---|---:|---:|---:|")
    for name, what in cases.items():
        p50 = {}
        for proxy.latency in (0.0, ONE_WAY_SECONDS):
            load.send(what, 10)
            p50[proxy.latency] = load.send(what, 100).p50
        near, far = p50.values()
        print(f"| {name} | {far:.1f} | {near:.1f} | {(far - near) / ROUND_TRIP_MS:.1f} |", flush=True)
