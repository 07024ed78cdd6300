"""What judging a crawl by rules takes, and what another organization notices of it."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import threading
import time
import urllib.request
from typing import Any

from scripts.bench import data
from scripts.bench.load import percentile
from scripts.bench.machine import DATABASE, Engine, Server, describe, engine, service
from service.settings import Settings
from service.store import Group, Store

ORGANIZATION = 2
TURNS = 3
_LOADED, _HEAVY_ITEMS, _HEAVY_BYTES = 5_000, 2_000, 100_000
_PATHS = [
    *("title", "price.amount", "price.currency", "brand", "sku"),
    *("stock", "rating", "category", "seller.name", "description"),
]
_MORE = [f"attributes.a{number}" for number in range(90)]
# Groups with the paths of their rules.
GROUPS = {"many": _PATHS, "heavy": [*_PATHS, *_MORE]}
# Seconds before and after a verdict that belong to neither.
_EDGE = 0.5


def judging(items: int) -> None:
    """Print how long verdicts take, and the latency of another organization's pages beside them."""
    print(describe())
    with engine() as mongo:
        headers = data.load(mongo, _LOADED).headers
        own = {"Authorization": f"Bearer {asyncio.run(_fill(mongo, items))}", "Content-Type": "application/json"}
        with service(mongo.url) as server:
            mongo.step_aside()
            print("\n| group | items | judged | rules | seconds | pages of others: p50, p99, longest in ms | alone |")
            print("|---|---:|---:|---:|---:|---:|---:|")
            for group, paths in GROUPS.items():
                print(_row(server, own, headers, group, paths))


def _row(server: Server, own: dict[str, str], others: dict[str, str], group: str, paths: list[str]) -> str:
    def put(path: str, value: dict[str, Any]) -> dict[str, Any]:
        address = f"{server.url}/v1/groups/{group}{path}"
        request = urllib.request.Request(address, json.dumps(value).encode(), own, method="PUT")
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)  # type: ignore[no-any-return]

    put("", {"rules": [{"path": path, "min_fill": 0.9 if path in _PATHS else 0.0} for path in paths]})
    reader = _Reader(f"{server.url}/v1/outputs/{data.GROUP}?limit=50", others)
    verdicts = []
    for _ in range(TURNS):
        put("/jobs/crawl", {"state": "running"})
        time.sleep(3)
        began = time.perf_counter()
        job = put("/jobs/crawl", {"state": "finished"})
        verdicts.append((began, time.perf_counter()))
    reader.stop()
    beside = [took for at, took in reader.pages if any(begin <= at <= end for begin, end in verdicts)]
    alone = [took for at, took in reader.pages if not any(b - _EDGE <= at <= e + _EDGE for b, e in verdicts)]
    seconds = statistics.median(end - begin for begin, end in verdicts)
    counts = f"{job['items']:,} | {job['judged']:,} | {len(paths)} | {seconds:.2f}"
    return f"| {group} | {counts} | {_latency(beside)} | {_latency(alone)} |"


def _latency(pages: list[float]) -> str:
    return ", ".join(f"{1000 * value:.0f}" for value in (percentile(pages, 0.5), percentile(pages, 0.99), max(pages)))


class _Reader:
    """Reads one page after the other in a thread; `pages` holds when each was asked for and what it took."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self.pages: list[tuple[float, float]] = []
        self._request = urllib.request.Request(url, headers=headers)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(0.01):
            began = time.perf_counter()
            with urllib.request.urlopen(self._request, timeout=60) as response:
                response.read()
            self.pages.append((began, time.perf_counter() - began))

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


async def _fill(mongo: Engine, items: int) -> str:
    """Write the items of both groups; return a token of their organization."""
    store = Store.connect(Settings(mongo_database=DATABASE), mongo.url)
    await store.ensure_indexes()
    dice = random.Random(3)
    for name, count, size, at_once in (("many", items, 400, 1000), ("heavy", _HEAVY_ITEMS, _HEAVY_BYTES, 100)):
        group = Group(ORGANIZATION, name)
        encode = await store.outputs.encoder(group)
        for first in range(0, count, at_once):
            batch = range(first, min(first + at_once, count))
            await store.outputs.write(group, [encode(_item(dice, number, size)) for number in batch])
    token = await store.tokens.create(ORGANIZATION, ["read", "write"], "bench")
    await store.close()
    return token


def _item(dice: random.Random, number: int, size: int) -> dict[str, Any]:
    return {
        "source_url": f"https://shop.example/p/{number}",
        "key_hash": f"key-{number}",
        "root_job_id": "crawl",
        "tags": {},
        "files": [],
        "data": {
            "title": f"Lamp {number} of oak, with a shade of linen",
            "price": {"amount": number % 1000 + 0.5, "currency": "EUR"},
            "brand": f"brand {number % 100}",
            "sku": f"s{number}",
            "stock": number % 50,
            "rating": number % 5,
            "category": f"category {number % 30}",
            "seller": {"name": f"seller {number % 300}", "country": "DE"},
            "description": dice.randbytes(size // 2).hex(),
            "attributes": {f"a{one}": one for one in range(0, 90, 10)},
        },
    }
