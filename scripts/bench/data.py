"""Lifelike items, and a database full of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from typing import Any

import bson
import orjson

from scripts.bench.machine import DATABASE, Engine
from service.runtime.demo_items import item
from service.settings import Settings
from service.store import Group, Store

ORGANIZATION = 1
GROUP = "shop"
JOBS = 7
BATCH = 1000
# Every fiftieth item is of one URL, so that a filter by URL has deep pages too.
LISTING = "https://shop.example/listing"
_PLACE = 9_999_999  # stands for the number in a template


@dataclass
class Loaded:
    """What is in the database."""

    items: int
    last_id: int
    token: str
    last_batch_date: datetime
    bson_bytes: float
    json_bytes: float

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def cursor(self, share: float) -> int:
        """Return the cursor after a share of the items."""
        return int(self.last_id * share)


def templates(
    count: int, job: str = "job", dates: Sequence[datetime | None] = (), *, picture: bool = True
) -> list[str]:
    """Return the JSON of items with `@@` where each has its number: the same, whatever their jobs and dates."""
    dice = random.Random(7)
    made = []
    for n, date in zip(range(count), dates or repeat(None), strict=False):
        output = item(dice, _PLACE, f"{job}-{n % JOBS}")
        if not picture:
            del output["data"]["thumbnail"]
        if date is not None:
            output["last_scraped_date"] = date
        made.append(orjson.dumps(output).decode().replace(str(_PLACE), "@@"))
    return made


def load(engine: Engine, items: int) -> Loaded:
    """Write items through the service's own store, as scrapers would."""
    return asyncio.run(_load(engine, items))


async def _load(engine: Engine, items: int) -> Loaded:
    settings = Settings(mongo_database=DATABASE)
    store = Store.connect(settings, engine.url)
    await store.ensure_indexes()
    made, started = templates(1000), time.monotonic()
    for first in range(0, items, BATCH):
        batch = [_item(made, number) for number in range(first, min(first + BATCH, items))]
        # A second group lies between, as in a real collection: one item in fifty.
        beside = [_item(made, items + first + n) for n in range(len(batch) // 50)]
        for group_id, some in ((GROUP, batch), ("beside", beside)):
            group = Group(ORGANIZATION, group_id)
            await store.outputs.write(group, list(map(await store.outputs.encoder(group), some)))
        print(f"\rloading {first + len(batch):,} of {items:,} items", end="", flush=True)
    print(f" in {time.monotonic() - started:.0f} s")
    token = await store.tokens.create(ORGANIZATION, ["read", "write", "delete", "state"], "bench")
    await store.close()
    outputs = engine.database["outputs"]
    mine = {"organization_id": ORGANIZATION, "group_id": GROUP}
    last = outputs.find_one(mine, sort=[("id", -1)], hint="id")
    assert last is not None
    sample = list(outputs.find(mine, limit=500, hint="id"))
    return Loaded(
        items,
        last["id"],
        token,
        last["update_date"],
        sum(len(bson.encode(document)) for document in sample) / len(sample),
        sum(len(orjson.dumps(document, default=str)) for document in sample) / len(sample),
    )


def _item(made: list[str], number: int) -> dict[str, Any]:
    item: dict[str, Any] = orjson.loads(made[number % len(made)].replace("@@", str(number)))
    if number % 50 == 0:
        item["source_url"] = LISTING
    return item
