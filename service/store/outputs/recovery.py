"""Ending the batches of writers that failed, so that readers can go on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import UTC

from pymongo.errors import BulkWriteError

from service.store.clock import now
from service.store.connection import DURABLE, Collection, Database, server_time
from service.store.contract import stored
from service.store.errors import StoreError, duplicates
from service.store.group import Group
from service.store.indexes import Indexes
from service.store.outputs.counts import Change
from service.store.outputs.ids import Batch, BatchEnded, Ids
from service.store.time_budget import time_budget

log = logging.getLogger("service.store")

# Pauses before each attempt to end a batch of this process; after the last one, `reap` does it.
_PAUSES = (0.0, 0.3, 1.0, 3.0)
# Batches of dead writers that are ended at the same time: each keeps the readers of its group waiting.
_ENDED_AT_ONCE = 4


class Recovery:
    """Fences and finishes batches: those of this process at once, those of dead processes after their lease."""

    def __init__(self, database: Database, ids: Ids, indexes: Indexes, timeout: float) -> None:
        self._database = database
        # Local read concern: a committed fence means that everything before it is committed, while the majority
        # snapshot of a new primary may be older than the fence.
        self._outputs: Collection = database.get_collection("outputs", write_concern=DURABLE)
        self._groups: Collection = database["groups"]
        self._ids, self._indexes, self._timeout = ids, indexes, timeout

    async def recover(self, group: Group, token: str, *, begun: bool) -> None:
        """End a batch of this process whose round has failed, so that readers need not wait for its lease.

        `begun` means that it certainly has its ids. If it cannot be ended now, `reap` does it later.
        """
        for pause in _PAUSES if begun else _PAUSES[:1]:
            await asyncio.sleep(pause)
            with contextlib.suppress(StoreError), time_budget(self._timeout):
                return await self.end(group, token)

    async def reap(self) -> int:
        """End the batches whose lease is over, a few at once; return how many.

        One that fails or takes long does not stop the others.
        """
        places = asyncio.Semaphore(_ENDED_AT_ONCE)
        expired = await self._expired()
        return sum(await asyncio.gather(*(self._reap_one(group, token, places) for group, token in expired)))

    async def _reap_one(self, group: Group, token: str, places: asyncio.Semaphore) -> bool:
        async with places:
            try:
                await self.end(group, token)
                return True
            except StoreError as error:
                log.warning("a batch of a dead writer could not be ended yet", extra={"error": str(error)})
            except Exception as error:
                # A defect; but it must not stop the other batches.
                log.error("ending a batch of a dead writer failed", extra={"error": type(error).__name__})
            return False

    @stored
    async def _expired(self) -> list[tuple[Group, str]]:
        # Deadlines were set by the database's clock, so they are compared with it.
        now = await server_time(self._database)
        fields = ["organization_id", "group_id", "open"]
        return [
            (Group.of(found), entry["token"])
            async for found in self._groups.find({"open.deadline": {"$lt": now}}, fields, hint="deadline")
            for entry in found["open"]
            if entry["deadline"] < now
        ]

    @stored
    async def end(self, group: Group, token: str) -> None:
        """Finish a batch that may be written in part, once no more of its writes can succeed."""
        self._indexes.require("outputs")  # without the unique index a fence stops no write
        found = await self._groups.find_one({**group.owner, "open.token": token}, {"open.$": 1})
        if found is None:  # it was finished before
            return
        (entry,) = found["open"]
        batch = Batch(group, token, entry["first"], entry["n"], entry["date"].replace(tzinfo=None))
        tombstones = await self.fence(batch)
        change = await self._written(batch)
        change.tombstones = tombstones
        with contextlib.suppress(BatchEnded):
            await self._ids.turn(group, (batch, change), 0)

    async def fence(self, batch: Batch) -> int:
        """Put a tombstone on every id of a batch that no document holds; return how many."""
        await self._ids.step("before fence")
        placed = max(now(), batch.date.replace(tzinfo=UTC))  # this machine's clock may be behind
        ids = range(batch.first, batch.first + batch.size)
        if not ids:
            return 0
        try:
            await self._outputs.insert_many(
                [{**batch.group.owner, "id": id, "tombstone": placed} for id in ids], ordered=False
            )
            return batch.size
        except BulkWriteError as error:
            return batch.size - len(duplicates(error))

    async def _written(self, batch: Batch) -> Change:
        """Return what a batch changed, as far as it can be seen; a recount finds the rest."""
        change = Change(recount=True)
        ids = {"$gte": batch.first, "$lt": batch.first + batch.size}
        where = {
            **batch.group.owner,
            # Items that it created may have been changed since and have a higher id; this can be no
            # more documents than are written during one lease.
            "id": {"$gte": batch.first},
            "$or": [{"id": ids, "tombstone": {"$exists": False}}, {"first_id": ids}],
        }
        names = ("id", "first_id", "root_job_id", "is_approved", "deleted", "changed_by")
        fields = {**dict.fromkeys(names, 1), "size": {"$bsonSize": "$$ROOT"}}
        seen = set()
        async for document in self._outputs.find(where, fields, hint="id"):
            if document["_id"] in seen:  # changed during this read, and found again at its new id
                continue
            seen.add(document["_id"])
            change.largest = max(change.largest, document["size"])
            job, in_place = document["root_job_id"], document["id"] < batch.first + batch.size
            if in_place:
                change.last_id = max(change.last_id, document["id"])
                if "changed_by" in document:
                    change.sight(document["changed_by"], batch.first, batch.first + batch.size - 1)
            if document.get("first_id", 0) >= batch.first:
                change.created += 1
                change.items += 1
                change.job(job, items=1, created=0)  # 0 shows that the job has written; the recount adds the number
                # If it was changed since, the later batch has counted its approval.
                change.approved += in_place and document.get("is_approved", False)
            elif document.get("deleted"):
                change.items -= 1
                change.deleted += 1
                change.job(job, items=-1)
            else:
                change.changed += 1
        return change
