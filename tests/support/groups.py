"""A group that is written and read through the store itself, and writers that stop or fail at a step."""

from __future__ import annotations

import asyncio
import copy
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from schemas.outputs import OutputInput
from service.settings import Settings
from service.store import Group as StoredGroup
from service.store import Patch, Place, Query, Store, StoreUnavailable
from service.store.connection import server_time
from service.store.outputs.ids import Batch
from tests.support.api import make_output

DATABASE = f"store_{os.getpid()}"
# Of the stores in tests/store: nothing reaps there unless a test does, so a short lease ends nobody's batch by chance.
LEASE = 0.1


class Group:
    """A group of the test's organization, written and read through any store."""

    def __init__(self, organization: int, group_id: str = "lamps") -> None:
        self.organization, self.group_id = organization, group_id
        self.key = StoredGroup(organization, group_id)
        self.owner = self.key.owner

    # -- what a client does -------------------------------------------------------------------

    async def write(self, store: Store, *items: dict[str, Any]) -> list[dict[str, Any]]:
        return await store.outputs.write(self.key, await self.encoded(store, *items))

    async def encoded(self, store: Store, *items: dict[str, Any]) -> list[Any]:
        """Return items as a handler hands them on."""
        encode = await store.outputs.encoder(self.key)
        return list(map(encode, OutputInput(many=True).load(copy.deepcopy(list(items)))))

    async def patch(self, store: Store, *patches: Patch) -> list[dict[str, Any]]:
        return await store.outputs.patch(self.key, list(patches))

    async def delete(self, store: Store, *items: dict[str, Any], if_id: int | None = None) -> list[str]:
        """Delete items by their output_id; return the results."""
        if_ids = None if if_id is None else frozenset([if_id])
        done = [await store.outputs.delete(self.key, item["output_id"], if_ids) for item in items]
        return [result["result"] for result in done]

    async def delete_matching(self, store: Store, **query: Any) -> int:
        """Delete what a query selects, in as many calls as it takes; return how many items."""
        place: Place | None = await store.outputs.deletion.begin(self.key)
        deleted = 0
        while place is not None:
            items, place = await store.outputs.deletion.run(self.key, Query(**query), place)
            deleted += items
        return deleted

    async def remove(self, store: Store) -> None:
        """Delete the group, as the route does."""
        await self.delete_matching(store)
        await store.reviews.remove(self.key)
        await store.groups.remove(self.key, (await store.outputs.watermark(self.key)).allocated)

    async def read(self, store: Store, **query: Any) -> list[dict[str, Any]]:
        """Return the items of one page."""
        page = await store.outputs.page(self.key, Query(**{"limit": 1000, **query}))
        return page.items()

    async def walk(self, store: Store, **query: Any) -> list[dict[str, Any]]:
        """Return the items of all pages from a cursor on."""
        found: list[dict[str, Any]] = []
        wanted = Query(**{"limit": 1000, **query})
        while True:
            page = await store.outputs.page(self.key, wanted)
            assert len(page.documents) <= wanted.limit
            found += page.items()
            if page.next_cursor is None:
                return found
            assert wanted.newest_first or page.next_cursor > wanted.cursor
            wanted = wanted._replace(cursor=page.next_cursor)

    async def stats(self, store: Store) -> dict[str, Any]:
        return await store.groups.one(self.key)

    async def jobs(self, store: Store) -> dict[str, dict[str, Any]]:
        return {job["job_id"]: job async for some in store.jobs.batches(self.key, 1000) for job in some}

    # -- what is in the database --------------------------------------------------------------

    async def document(self, store: Store) -> dict[str, Any]:
        return await store.database["groups"].find_one(self.owner) or {}

    async def stored(self, store: Store) -> list[dict[str, Any]]:
        """Return everything stored, tombstones and deletion records too."""
        return await store.database["outputs"].find(self.owner).sort("id").to_list(None)

    async def in_flight(self, store: Store) -> list[dict[str, Any]]:
        return list((await self.document(store)).get("open", []))

    async def batch_in_flight(self, store: Store) -> Batch:
        """Return the only batch in flight."""
        (entry,) = await self.in_flight(store)
        return Batch(self.key, entry["token"], entry["first"], entry["n"], entry["date"])

    async def set(self, store: Store, **changes: Any) -> None:
        """Change fields of the group's document by hand."""
        await store.database["groups"].update_one(self.owner, {"$set": changes})

    async def assert_counts_are_exact(self, store: Store) -> None:
        """Compare the counts kept with what is really there."""
        stored = [document for document in await self.stored(store) if "tombstone" not in document]
        live = [document for document in stored if not document.get("deleted")]
        kept = await self.document(store)
        assert kept.get("items", 0) == len(live)
        assert kept.get("approved", 0) == sum(document["is_approved"] for document in live)
        assert kept.get("deleted", 0) == len(stored) - len(live)
        jobs = {job_id: job["items"] for job_id, job in (await self.jobs(store)).items() if job["items"]}
        assert jobs == {
            job_id: sum(document["root_job_id"] == job_id for document in live)
            for job_id in {document["root_job_id"] for document in live}
        }
        assert sum(day["net"] for day in (await self.stats(store))["days"]) == len(live)


def version(number: int, **changes: Any) -> dict[str, Any]:
    """Return a version of the item `key-1`."""
    return make_output(1, data={"version": number}, **changes)


def at(step: str, action: Callable[[], Awaitable[Any]], times: int = 1) -> Callable[[str], Awaitable[None]]:
    """Return a hook that does something the first times that a step comes."""
    left = times

    async def hook(name: str) -> None:
        nonlocal left
        if name == step and left:
            left -= 1
            await action()

    return hook


def fail(kind: type[Exception] = StoreUnavailable) -> Callable[[], Awaitable[None]]:
    async def action() -> None:
        raise kind("injected")

    return action


@asynccontextmanager
async def stopped_at(store: Store, step: str, work: Awaitable[Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """Run `work` up to a step; it goes on when the block is left."""
    there, go_on = asyncio.Event(), asyncio.Event()

    async def stop() -> None:
        there.set()
        await go_on.wait()

    store.outputs.ids.step = at(step, stop)
    task = asyncio.ensure_future(work)
    await asyncio.wait_for(there.wait(), 60)
    try:
        yield task
    finally:
        go_on.set()
        await asyncio.wait([task], timeout=60)


async def killed_at(store: Store, step: str, work: Awaitable[Any]) -> None:
    """Run a write up to a step at which its process is killed: nobody ends its batch."""

    async def kill() -> None:
        raise asyncio.CancelledError

    store.outputs.ids.step = at(step, kill)
    with pytest.raises(asyncio.CancelledError):
        await work


async def open_batch(store: Store, group: Group, size: int) -> Batch:
    """Take ids that nobody will use, as a writer does that dies at once."""
    batch, _ = await store.outputs.ids.turn(group.key, None, size, uuid.uuid4().hex)
    assert batch is not None
    return batch


async def race(group: Group, stores: list[Store], items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write one item through each store, all having looked up the key before any writes."""
    start = asyncio.Barrier(len(stores))
    for store in stores:
        store.outputs.ids.step = at("before write", start.wait)
    pairs = zip(stores, items, strict=True)
    results = await asyncio.gather(*(group.write(store, item) for store, item in pairs))
    return [result[0] for result in results]


async def lease_over(store: Store, group: Group) -> None:
    """Wait until the lease of every batch of a group is over, by the database's own clock."""
    async with asyncio.timeout(60):
        while True:
            now = await server_time(store.database)
            if all(batch["deadline"] < now for batch in await group.in_flight(store)):
                return
            await asyncio.sleep(LEASE / 5)


async def reap(store: Store, group: Group) -> None:
    """Let every lease of a group end, then end the batches."""
    await lease_over(store, group)
    await store.outputs.recovery.reap()


async def look_after(store: Store, group: Group) -> None:
    """Let the upkeep look at a group now, and again while it found something to do at once."""
    for _ in range(10):
        if not (await group.document(store)).get("due"):
            return
        await look_after_once(store, group)
        due = (await group.document(store)).get("due")
        if due is None or due > datetime.now(UTC) + timedelta(seconds=6):
            return
    raise AssertionError("the upkeep does not come to an end")


async def look_after_once(store: Store, group: Group) -> None:
    """Let the upkeep look at a group once, and at no other."""
    await group.set(store, due=datetime(2020, 1, 1, tzinfo=UTC))
    await store.upkeep.inspect(await group.document(store))


async def opened(settings: Settings, keys: str) -> Store:
    """Return a store whose secrets are sealed with these keys."""
    store = Store.connect(replace(settings, secret_keys=keys), settings.mongo_url)
    await store.ensure_indexes()
    return store


async def groups_of(store: Store, organization_id: int, since: str = "") -> list[dict[str, Any]]:
    """Return the groups of an organization as they are listed."""
    listing = await store.groups.listing(organization_id, since, None, None)
    return [group async for chunk in listing.chunks for group in chunk.open()]
