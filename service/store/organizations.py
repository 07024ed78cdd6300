"""All that belongs to one organization: counted, and deleted for good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from service.store.backup import COLLECTIONS, COUNTERS
from service.store.connection import COMMITTED, Database, opened
from service.store.contract import stored, without_time_limit

# Documents deleted at once: a second of work for the database.
_BATCH = 5000
# Seconds in which the processes of the service notice that a token has gone, and end the requests that used it.
_SETTLE_SECONDS = 5.0
# A crawler's last request, or the upkeep at work on a group, may write until then.
_MAX_PASSES = 20
# The organizations of a large collection are found by their documents here: each has a group or a record of its own.
_SMALL = ("tokens", "groups", "cookies", "local_storage", "origins", "pools", "webhooks", "reviews")

Progress = Callable[[str, int], None]


class Organizations:
    """The organizations that have a token or any record."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @stored
    @without_time_limit
    async def list(self) -> list[dict[str, int]]:
        """Return each organization with the number of its tokens, groups and items."""
        ids: set[int] = set()
        for name in _SMALL:
            ids.update(await self._database[name].distinct("organization_id"))
        return [await self._summary(organization) for organization in sorted(ids)]

    async def _summary(self, organization: int) -> dict[str, int]:
        own = {"organization_id": organization}
        pipeline: list[dict[str, Any]] = [
            {"$match": own},
            {"$group": {"_id": None, "groups": {"$sum": 1}, "items": {"$sum": "$items"}}},
        ]
        groups = await (await opened(self._database["groups"].aggregate(pipeline))).to_list(1)
        tokens = await self._database["tokens"].count_documents(own)
        counts = groups[0] if groups else {"groups": 0, "items": 0}
        return {"organization": organization, "tokens": tokens, "groups": counts["groups"], "items": counts["items"]}

    @stored
    @without_time_limit
    async def count(self, organization: int) -> dict[str, int]:
        """Return how many documents each collection has of an organization; those without any are left out."""
        counts = {name: await self._database[name].count_documents(_of(name, organization)) for name in COLLECTIONS}
        return {name: number for name, number in counts.items() if number}

    @stored
    @without_time_limit
    async def delete(self, organization: int, progress: Progress, settle: float = _SETTLE_SECONDS) -> bool:
        """Delete every document of an organization, its tokens first; return whether nothing was left at the end.

        May be interrupted and called again. What a request writes that was under way is deleted by a later pass.
        """
        names = sorted(COLLECTIONS, key=lambda name: (name != "tokens", name == "groups", name == COUNTERS))
        for _ in range(_MAX_PASSES):
            deleted = 0
            for name in names:
                async for number in self._deleted(name, organization):
                    deleted += number
                    progress(name, number)
                if name == "tokens" and deleted:
                    await asyncio.sleep(settle)
            if not deleted:
                return True
            await asyncio.sleep(settle)
        return False

    async def _deleted(self, name: str, organization: int) -> AsyncIterator[int]:
        """Delete the documents of one collection, and yield how many after each batch."""
        collection: Any = self._database.get_collection(name, write_concern=COMMITTED)
        where = _of(name, organization)
        while ids := [one["_id"] for one in await collection.find(where, ["_id"]).limit(_BATCH).to_list(_BATCH)]:
            result = await collection.delete_many({**where, "_id": {"$in": ids}} if "_id" not in where else where)
            yield result.deleted_count


def _of(name: str, organization: int) -> dict[str, Any]:
    """Return the filter of an organization's documents in a collection."""
    return {"_id": organization} if name == COUNTERS else {"organization_id": organization}
