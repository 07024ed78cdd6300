"""Measure what a sync costs in a large group: `python -m scripts.checker.sync_cost`.

Fills a group, changes a few of its items, and reads the changes by cursor and by `created_after`.
What the database examined is counted by the database itself, over everything that the read did.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from datetime import datetime
from typing import Any

from scripts.checker.services import mongo
from service.settings import Settings
from service.store import Group, Query, Store

GROUP = Group(1, "lamps")
CHANGED = 100


def make(number: int, version: int = 0) -> dict[str, Any]:
    return {
        "source_url": f"https://shop.example/p/{number}",
        "data": {"title": f"Lamp {number}", "version": version},
        "root_job_id": f"job-{number % 7}",
        "key_hash": f"key-{number}",
        "is_approved": False,
        "tags": {"country": "Germany"},
        "files": [],
    }


async def write(store: Store, items: list[dict[str, Any]]) -> None:
    for start in range(0, len(items), 1000):
        encode = await store.outputs.encoder(GROUP)
        await store.outputs.write(GROUP, list(map(encode, items[start : start + 1000])))


async def examined(store: Store) -> tuple[int, int]:
    """Return how many index keys and documents the database has examined so far."""
    status = await store.client["admin"].command("serverStatus")
    counts = status["metrics"]["queryExecutor"]
    return counts["scanned"], counts["scannedObjects"]


async def measure(store: Store, name: str, query: Query) -> list[dict[str, Any]]:
    before, started = await examined(store), time.perf_counter()
    page = await store.outputs.page(GROUP, query)
    seconds = time.perf_counter() - started
    after = await examined(store)
    keys, documents = (b - a for a, b in zip(before, after, strict=True))
    count = len(page.documents)
    print(f"{name}: {count} items, {documents} documents and {keys} keys examined, {1000 * seconds:.1f} ms")
    return page.items()


async def run(url: str, items: int) -> int:
    store = Store.connect(Settings(mongo_database="sync-cost", mongo_timeout=60), url)
    await store.ensure_indexes()
    started = time.perf_counter()
    for start in range(0, items, 10_000):
        await write(store, [make(number) for number in range(start, min(items, start + 10_000))])
    print(f"{items} items written in {time.perf_counter() - started:.0f} s", flush=True)
    last = (await store.outputs.watermark(GROUP)).position
    await asyncio.sleep(0.01)
    chosen = random.Random(1).sample(range(items), CHANGED)
    await write(store, [make(number, version=1) for number in chosen])

    # A process that has just started: it remembers no mark.
    new = Store.connect(Settings(mongo_database="sync-cost"), url)
    await new.ensure_indexes()
    by_cursor = await measure(new, "by cursor", Query(cursor=last, limit=1000))
    moment: datetime = by_cursor[0]["update_date"]
    by_date = await measure(new, "by created_after", Query(created_after=moment, limit=1000))
    await measure(new, "nothing new", Query(cursor=by_cursor[-1]["id"], limit=1000))
    right = {item["key_hash"] for item in by_cursor} == {f"key-{number}" for number in chosen} and by_cursor == by_date
    await new.close()
    await store.close()
    print("ok" if right else "FAILED: not exactly what changed")
    return 0 if right else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.checker.sync_cost", description=__doc__)
    parser.add_argument("--items", type=int, default=1_000_000)
    items = parser.parse_args().items
    with mongo() as (url, _):
        return asyncio.run(run(url, items))


if __name__ == "__main__":
    sys.exit(main())
