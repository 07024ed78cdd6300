"""Two writers that make the same document at the same moment: the database lets the second one update it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from service.store import Store
from tests.support.api import make_cookie, make_entry, make_output
from tests.support.groups import Group

HANG = "hangBeforeUpsertPerformsInsert"

WRITES: dict[str, Callable[[Store, Group], Awaitable[Any]]] = {
    "the first item of a group": lambda store, group: group.write(store, make_output(1)),
    "the settings of a group": lambda store, group: store.groups.set(group.key, {"retention_days": 1}),
    "a job without items": lambda store, group: store.crawls.declare(group.key, "job", {"state": "running"}),
    "a cookie": lambda store, group: store.cookies.set(group.organization, [make_cookie(expires=None)]),
    "an entry": lambda store, group: store.local_storage.set(group.organization, [make_entry(expires=None)]),
    "a review": lambda store, group: store.reviews._counters.take(group.organization, "reviews", 1),
}


@asynccontextmanager
async def held_upserts(store: Store) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Hold upserts before they insert; yield what waits for one more of them."""
    admin = store.client.admin
    entered = (await admin.command("configureFailPoint", HANG, mode="alwaysOn"))["count"]

    async def wait_for_one() -> None:
        nonlocal entered
        entered += 1
        await admin.command("waitForFailPoint", HANG, timesEntered=entered, maxTimeMS=30_000)

    try:
        yield wait_for_one
    finally:
        await admin.command("configureFailPoint", HANG, mode="off")


@pytest.mark.parametrize("name", WRITES)
async def test_two_writers_that_make_the_same_document_at_once_both_succeed(
    store: Store, other: Store, group: Group, name: str
) -> None:
    async with held_upserts(store) as wait_for_one:
        tasks = []
        for writer in (store, other):
            tasks.append(asyncio.ensure_future(WRITES[name](writer, group)))
            await wait_for_one()
    await asyncio.gather(*tasks)
