"""Ending the batches of writers that failed, so that readers can go on."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from datetime import UTC, datetime
from typing import Any

from pymongo.errors import BulkWriteError

from service.store.connection import DURABLE, Collection, Database, server_time
from service.store.contract import stored
from service.store.errors import DUPLICATE_KEY, StoreError
from service.store.outputs.ids import Batch, Change, GroupKey, Ids
from service.store.time_budget import time_budget

log = logging.getLogger("service.store")

# Pauses before each try to end a batch of this process; after the last one it is left to `reap`.
_PAUSES = (0.0, 0.3, 1.0, 3.0)
# Batches of dead writers that are ended at once: each keeps the readers of its group waiting.
_ENDED_AT_ONCE = 4


class Recovery:
    """Fences and finishes batches: at once those of this process, after their lease those of dead ones."""

    def __init__(self, database: Database, ids: Ids, timeout: float) -> None:
        self._database = database
        # Read as the primary has it: everything before a fence is committed when the fence is, while a majority
        # snapshot of a new primary may be older than the fence.
        self._outputs: Collection = database.get_collection("outputs", write_concern=DURABLE)
        self._groups: Collection = database["groups"]
        self._ids, self._timeout = ids, timeout
        self._tasks: set[asyncio.Task[None]] = set()

    def recover_soon(self, key: GroupKey, token: str, *, allocated: bool) -> None:
        """End a batch of this process whose round has failed, in the background.

        `allocated` says whether it is known to have its ids.
        """
        # In a context of its own: the time of the request that failed may be over.
        work = self._recover(key, token, allocated)
        task = asyncio.create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait for the batches that are being ended, for a limited time: the rest is left to `reap`."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self._timeout)
            for task in late:
                task.cancel()

    async def _recover(self, key: GroupKey, token: str, allocated: bool) -> None:
        for pause in _PAUSES:
            await asyncio.sleep(pause)
            try:
                with time_budget(self._timeout):
                    batch = await self._open(key, token)
                    if batch is not None:
                        await self.end(batch)
                    elif not allocated:
                        continue  # it may still land
                return
            except StoreError:
                continue

    async def reap(self) -> int:
        """End the batches whose lease is over, a few at once; return how many.

        One that fails or takes long does not stop the others.
        """
        places = asyncio.Semaphore(_ENDED_AT_ONCE)
        return sum(await asyncio.gather(*(self._reap_one(batch, places) for batch in await self._expired())))

    async def _reap_one(self, batch: Batch, places: asyncio.Semaphore) -> bool:
        async with places:
            try:
                await self.end(batch)
                return True
            except StoreError as error:
                log.warning("a batch of a dead writer could not be ended yet", extra={"error": str(error)})
                return False

    @stored
    async def _expired(self) -> list[Batch]:
        # Deadlines are the database's clock's: so is what they are compared with.
        now = await server_time(self._database)
        fields = ["organization_id", "group_id", "open"]
        return [
            _batch(found["organization_id"], found["group_id"], entry)
            async for found in self._groups.find({"open.deadline": {"$lt": now}}, fields, hint="deadline")
            for entry in found["open"]
            if entry["deadline"] < now
        ]

    async def end(self, batch: Batch) -> None:
        """Take a batch out of flight that was written in part, when no more of it can land."""
        if await self._open(batch.key, batch.token) is None:
            return
        tombstones = await self.fence(batch)
        change = await self._written(batch)
        change.tombstones = tombstones
        await self._ids.finish(batch, change)

    @stored
    async def _open(self, key: GroupKey, token: str) -> Batch | None:
        """Return a batch by its token if it is in flight."""
        where = {"organization_id": key[0], "group_id": key[1], "open.token": token}
        found = await self._groups.find_one(where, {"open.$": 1})
        return _batch(*key, found["open"][0]) if found else None

    @stored
    async def fence(self, batch: Batch) -> int:
        """Put a tombstone on every id of a batch that no document holds; return how many."""
        await self._ids.step("before fence")
        placed = datetime.now(UTC)
        tombstones = [{**batch.owner, "id": batch.first + offset, "tombstone": placed} for offset in range(batch.size)]
        try:
            return len((await self._outputs.insert_many(tombstones, ordered=False)).inserted_ids)
        except BulkWriteError as error:
            failed = error.details["writeErrors"]
            if error.details.get("writeConcernErrors") or any(e["code"] != DUPLICATE_KEY for e in failed):
                raise
            return batch.size - len(failed)

    @stored
    async def _written(self, batch: Batch) -> Change:
        """Return what a batch changed, as far as it can be seen; the rest is left to a recount."""
        change = Change(recount=True)
        ids = {"$gte": batch.first, "$lt": batch.first + batch.size}
        where = {
            **batch.owner,
            # What it created may have been changed since, and have a higher id; no more than a
            # lease's worth of documents have.
            "id": {"$gte": batch.first},
            "$or": [{"id": ids, "tombstone": {"$exists": False}}, {"first_id": ids}],
        }
        fields = ["id", "first_id", "root_job_id", "is_approved", "deleted"]
        seen = set()
        async for document in self._outputs.find(where, fields, hint="id"):
            if document["_id"] in seen:  # changed while this reads, and met again at its new id
                continue
            seen.add(document["_id"])
            created = document.get("first_id", 0) >= batch.first
            in_place = document["id"] < batch.first + batch.size
            if in_place:
                change.last_id = max(change.last_id, document["id"])
            if created:
                change.created += 1
                change.items += 1
                change.job(document["root_job_id"])["items"] += 1
                change.job(document["root_job_id"])["created"] += 1
                # Changed since: whoever did that has counted from what this batch wrote.
                change.approved += in_place and document.get("is_approved", False)
            elif document.get("deleted"):
                change.items -= 1
                change.deleted += 1
                change.job(document["root_job_id"])["items"] -= 1
            else:
                change.changed += 1
                change.job(document["root_job_id"])["changed"] += 1
        return change


def _batch(organization_id: int, group_id: str, entry: dict[str, Any]) -> Batch:
    """Return the batch of an entry of `open`."""
    return Batch(organization_id, group_id, entry["token"], entry["first"], entry["n"], entry["date"])
