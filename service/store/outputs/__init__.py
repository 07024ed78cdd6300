"""Outputs of the groups of an organization: one face for reading, writing and their life after that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

from service.settings import Settings
from service.store.connection import DURABLE, Client, Collection, Database, server_time
from service.store.contract import stored
from service.store.indexes import Indexes
from service.store.jobs import Jobs
from service.store.outputs.documents import Page
from service.store.outputs.ids import Ids, Watermark
from service.store.outputs.items import prepare
from service.store.outputs.reading import Query, Reading
from service.store.outputs.recovery import Recovery
from service.store.outputs.writing import Delete, Patch, Put, Result, Writing, in_order
from service.store.watch import Watch

__all__ = ["Ids", "Outputs", "Page", "Patch", "Query", "Recovery", "Result", "Watermark"]

# Patches of tags that are looked up at once: tags may be 1 MiB each.
_TAGS_AT_ONCE = 50
_DELETED_AT_ONCE = 500
# While others write, a deletion makes small rounds and pauses this many times as long as the last one took.
_DELETED_BESIDE_OTHERS = 100
_PAUSE = 3
# A deletion by filter ends with `more` after this long.
_DELETE_SECONDS = 2.0
# Unfinished deletions whose place is remembered.
_MAX_DELETING = 1000
# Far more ids than any group can have given out since a backup was made.
RESTORED_GAP = 1_000_000_000


class Outputs:
    """Reads and writes the outputs of a group."""

    def __init__(
        self, client: Client, database: Database, jobs: Jobs, indexes: Indexes, watch: Watch, settings: Settings
    ) -> None:
        self._database = database
        self._groups: Collection = database.get_collection("groups", write_concern=DURABLE)
        self._outputs: Collection = database.get_collection("outputs", write_concern=DURABLE)
        self._indexes, self._max_item_bytes = indexes, settings.max_item_bytes
        self._deleting: dict[tuple[int, str, Query], int] = {}
        self.ids = Ids(database, jobs, settings.lease_seconds, settings.mongo_timeout)
        self.recovery = Recovery(database, self.ids, settings.mongo_timeout)
        self._writing = Writing(database, self.ids, self.recovery, settings)
        self._reading = Reading(database, self.ids, watch, settings)

    # -- reading ------------------------------------------------------------------------------

    async def page(self, organization_id: int, group_id: str, query: Query) -> Page:
        """Return the page after `query.cursor`, in the order of ids, without gaps."""
        self._indexes.require("outputs", "groups")
        return await self._reading.page(organization_id, group_id, query)

    def pages(
        self, organization_id: int, group_id: str, query: Query, max_items: int | None = None
    ) -> AsyncIterator[Page]:
        """Yield pages from the cursor to the present end, or `max_items` items of them."""
        self._indexes.require("outputs", "groups")
        return self._reading.pages(organization_id, group_id, query, max_items)

    def fitting(self, organization_id: int, group_id: str) -> int:
        """Return how many items of a group make about a megabyte, as far as it is known."""
        return self._reading.fitting(organization_id, group_id)

    def expected_bytes(self, organization_id: int, group_id: str, limit: int) -> int:
        """Return about how many bytes some items of a group are, as far as it is known."""
        return self._reading.expected_bytes(organization_id, group_id, limit)

    async def one(self, organization_id: int, group_id: str, output_id: str) -> Page | None:
        """Return one item as a page of its own; None when there is none."""
        self._indexes.require("outputs", "groups")
        return await self._reading.one(organization_id, group_id, output_id)

    async def version(self, organization_id: int, group_id: str) -> int:
        """Return the version that a page read now would show."""
        self._indexes.require("outputs", "groups")
        return await self._reading.version(organization_id, group_id)

    async def wait(self, organization_id: int, group_id: str, cursor: int, seconds: float) -> None:
        """Return as soon as something after a cursor may be readable, or after some seconds."""
        self._indexes.require("outputs", "groups")
        await self._reading.wait(organization_id, group_id, cursor, seconds)

    # -- writing ------------------------------------------------------------------------------

    def prepare(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Give validated items their hashes, in place; for a thread, where there are many. Raises ItemTooLarge."""
        return prepare(items, self._max_item_bytes)

    async def write(self, organization_id: int, group_id: str, items: list[dict[str, Any]]) -> list[Result]:
        """Create, update or leave each prepared item by its key; return the results in order.

        Returns when all of it is durable. The last of several items with one key wins.
        """
        self._indexes.require("outputs", "groups")
        puts = [Put(item) for item in items]
        return in_order(puts, await self._writing.apply(organization_id, group_id, puts))

    async def patch(self, organization_id: int, group_id: str, patches: list[Patch]) -> list[Result]:
        """Change approvals and tags; return the results in order.

        A result is `updated`, `unchanged`, `not_found`, `conflict` (an id not in `if_ids`) or
        `too_large`. The last of several patches of one item wins.
        """
        self._indexes.require("outputs", "groups")
        results: dict[str, Result] = {}
        last = {patch.key: patch for patch in patches}.values()
        of_tags = [patch for patch in last if patch.tags is not None]
        others = [patch for patch in last if patch.tags is None]
        for some in [others, *(of_tags[n : n + _TAGS_AT_ONCE] for n in range(0, len(of_tags), _TAGS_AT_ONCE))]:
            results |= await self._writing.apply(organization_id, group_id, some)
        return in_order(patches, results)

    async def delete(
        self, organization_id: int, group_id: str, output_id: str, if_ids: frozenset[int] | None = None
    ) -> Result:
        """Delete one item: `updated`, `not_found` or `conflict`."""
        self._indexes.require("outputs", "groups")
        delete = Delete("output_id", output_id, if_ids)
        return (await self._writing.apply(organization_id, group_id, [delete]))[delete.key]

    async def delete_matching(self, organization_id: int, group_id: str, query: Query) -> tuple[int, bool]:
        """Delete what a query selects, for a limited time; return how many, and whether there is more."""
        self._indexes.require("outputs", "groups")
        place = (organization_id, group_id, query)
        # Where the last call for the same ended: one that finds little must not look at the same again.
        cursor = self._deleting.pop(place, 0)
        deadline, deleted = time.monotonic() + _DELETE_SECONDS, 0
        at_once = _DELETED_BESIDE_OTHERS
        while (started := time.monotonic()) < deadline:
            rounds = self._writing.rounds_begun
            some = query._replace(cursor=cursor, limit=at_once)
            count, next_cursor = await self.delete_some(organization_id, group_id, some)
            deleted += count
            if next_cursor is None:
                return deleted, False
            cursor = next_cursor
            others_write = self._writing.rounds_begun > rounds + 1  # one of them was its own
            at_once = _DELETED_BESIDE_OTHERS if others_write else _DELETED_AT_ONCE
            if others_write:
                await asyncio.sleep(min(_PAUSE * (time.monotonic() - started), _DELETE_SECONDS))
        while len(self._deleting) >= _MAX_DELETING:
            self._deleting.pop(next(iter(self._deleting)))
        self._deleting[place] = cursor
        return deleted, True

    async def delete_some(self, organization_id: int, group_id: str, query: Query) -> tuple[int, int | None]:
        """Delete up to `limit` items that a query selects; return how many, and the cursor to go on with."""
        keys, next_cursor = await self._reading.keys(organization_id, group_id, query)
        deletes = [Delete("key_hash", key, frozenset([id]), query.job_id, query.scraped_before) for key, id in keys]
        results = await self._writing.apply(organization_id, group_id, deletes)
        return sum(result["result"] == "updated" for result in results.values()), next_cursor

    def set_clock(self, moment: datetime | None) -> None:
        """Date what this process writes at a moment in the past, for demo data; None: now again."""
        self.ids.clock = moment

    async def close(self) -> None:
        """Wait for the writes under way."""
        await self._writing.close()
        await self.recovery.close()

    @property
    def rounds_in_flight(self) -> int:
        return self._writing.rounds_in_flight

    @stored
    async def set_clocks_back(self) -> int:
        """Bring groups that a database clock has dated into the future back to the present; return how many.

        Items dated later than now get the present date: they stay in order, all being the newest.
        """
        present = min(await server_time(self._database), datetime.now(UTC))
        groups = 0
        ahead = {"now": {"$gt": present + timedelta(minutes=1)}}
        async for group in self._groups.find(ahead, ["organization_id", "group_id"]):
            owner = {"organization_id": group["organization_id"], "group_id": group["group_id"]}
            late = {**owner, "update_date": {"$gt": present}}
            await self._outputs.update_many(late, {"$set": {"update_date": present}}, hint="updated")
            await self._groups.update_one(owner, {"$set": {"now": present}, "$min": {"last_change": present}})
            groups += 1
        return groups

    @stored
    async def skip_ids(self, count: int = RESTORED_GAP) -> int:
        """Raise every group's next id after a backup was restored; return how many groups there are."""
        done = await self._groups.update_many({"next": {"$exists": True}}, {"$inc": {"next": count}})
        return done.matched_count
