"""Ids, and reading without gaps; docs/architecture.md has the steps of a write.

The invariant: *once the watermark is above an id, no document with that id can appear any more.* Otherwise a reader
that meets id 11 before id 10 exists would move its cursor past 10 and never see it.

Every step is a majority write, so no failover takes back what a reader or writer has built on.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from service.bounded import Bounded
from service.command import command
from service.store.clock import now
from service.store.connection import Database, durably, read_committed
from service.store.contract import stored
from service.store.errors import Misconfigured, StoreUnavailable
from service.store.group import Group
from service.store.outputs.comparing import FIELDS
from service.store.outputs.counts import MAX_REPLY, MAX_WAITING_BYTES, RECOUNT, WAITING_BYTES, Change, plus
from service.store.time_budget import time_budget

log = logging.getLogger("service.store")

# A watermark is about 200 bytes: 10,000 of them are 2 MB.
_MAX_REMEMBERED = 10_000
# A database clock that is further ahead than this would give all later items wrong dates, for ever.
_MAX_CLOCK_SKEW = timedelta(days=1)
# Seconds between attempts while a group takes no writes.
_PAUSED_SECONDS = 0.05


class Batch(NamedTuple):
    """Ids `first` to `first + size - 1` of a group, all dated `date` (naive, UTC)."""

    group: Group
    token: str
    first: int
    size: int
    date: datetime


Finished = tuple[Batch, Change]  # a batch that is written, and what it changed


class BatchEnded(StoreUnavailable):
    """A batch is no longer in flight: another process has ended it, or a turn whose reply was lost."""


class Watermark(NamedTuple):
    """How far the readers of a group may read.

    `position` is the highest id that a page may show: two watermarks of one position show the same outputs. `hidden` is
    the number of deletion records and tombstones; `expired_id` and `expired_date` are those of the newest deletion
    record that was removed; `in_flight` tells whether there are batches in flight; `last_id` is the newest change,
    readable or not; `allocated` the newest id that was given to a batch; no item up to `position` has more bytes than
    `largest`.
    """

    position: int = 0
    time: Any = None  # of the snapshot that it was read from
    hidden: int = 0
    expired_id: int = 0
    expired_date: datetime | None = None
    in_flight: bool = False
    last_id: int = 0
    allocated: int = 0
    largest: int = 0


async def _no_step(name: str) -> None:
    """Do nothing; the checker in `scripts/` puts its delays and crashes here."""


class Ids:
    """Allocates the ids of a group, and tells readers how far they may read."""

    def __init__(
        self, database: Database, lease_seconds: float, timeout: float, collect: Callable[[Group], Awaitable[None]]
    ) -> None:
        self._database = database
        self._timeout = timeout
        self.lease_seconds = lease_seconds
        self._remembered: Bounded[Group, Watermark] = Bounded(_MAX_REMEMBERED)
        self._next_reads: dict[Group, asyncio.Task[Watermark]] = {}  # not begun yet
        self._locks: WeakValueDictionary[Group, asyncio.Lock] = WeakValueDictionary()
        self.step: Callable[[str], Awaitable[None]] = _no_step
        # Moves the counts in a group's document to those of its jobs.
        self.collect: Callable[[Group], Awaitable[None]] = collect
        self.clock: datetime | None = None  # None: the clock of the database
        self.first = 1  # the first id of a new group

    @stored
    async def turn(
        self, group: Group, finished: Finished | None, size: int, token: str = ""
    ) -> tuple[Batch | None, dict[str, Any]]:
        """Finish a batch, count what it changed, and take `size` ids for the next one, in one atomic step.

        Return the next batch, and the fields of the group's document that its write queue needs. Raises BatchEnded, and
        has the group recounted, if the batch to finish is no longer in flight.
        """
        if finished is not None:
            await self.step("before finish")
        while True:
            document = await self._update(group, finished, size, token)
            if document is None:
                recount = {"q": group.owner, "u": [{"$set": RECOUNT}]}
                await durably(self._database, {"update": "groups", "updates": [recount]})
                raise BatchEnded("the batch was ended before it was finished")
            if not size:
                return None, document
            finished = None
            if document.get("open"):
                break
            if document["waiting_bytes"] > MAX_WAITING_BYTES:
                await self.collect(group)
                continue
            if "paused" not in document:
                log.error(
                    "no id was given: the clock of the database is more than a day ahead of the clock of this "
                    f"machine; set the clocks, then run `{command('clock')}`"
                )
                raise Misconfigured("database clock")
            await asyncio.sleep(_PAUSED_SECONDS)
        await self.step("allocated")
        (entry,) = document["open"]
        return Batch(group, token, entry["first"], size, entry["date"]), document

    async def _update(self, group: Group, finished: Finished | None, size: int, token: str) -> dict[str, Any] | None:
        """Send one turn; return the group's document, reduced for its queue; None if the batch is not in flight."""
        where, update = group.owner, []
        if finished is not None:
            batch, change = finished
            where["open.token"] = batch.token
            others = {"$filter": {"input": "$open", "cond": {"$ne": ["$$this.token", batch.token]}}}
            # `rounds` tells `watch.py` that something may have become readable.
            update.append({"$set": {**change.update(batch.date), "open": others, "rounds": plus("rounds", 1)}})
        if size:
            update.append(self._allocation(size, token))
        fields = {"open": {"$elemMatch": {"token": token}}, **_LANE_FIELDS}
        command = {"findAndModify": "groups", "query": where, "update": update, "fields": fields, "new": True}
        command["upsert"] = finished is None
        return (await durably(self._database, command))["value"]  # type: ignore[no-any-return]

    def _allocation(self, size: int, token: str) -> dict[str, Any]:
        """Return the stage that takes ids, unless the database's clock is wrong or the group takes no writes now."""
        sane = {"$lte": ["$$NOW", now() + _MAX_CLOCK_SKEW]}
        has_room = {"$lte": [WAITING_BYTES, MAX_WAITING_BYTES]}
        allowed = {"$and": [sane, has_room, {"$lte": [{"$ifNull": ["$paused", "$$NOW"]}, "$$NOW"]}]}
        first, date = {"$ifNull": ["$next", self.first]}, {"$max": ["$now", self.clock or "$$NOW"]}
        deadline = {"$add": ["$$NOW", int(self.lease_seconds * 1000)]}
        entry = {"token": token, "first": first, "n": size, "date": date, "deadline": deadline}
        open_ = {"$concatArrays": [{"$ifNull": ["$open", []]}, [entry]]}
        changes = {"now": date, "next": {"$add": [first, size]}, "open": open_}
        return {"$set": {name: {"$cond": [allowed, value, f"${name}"]} for name, value in changes.items()}}

    @stored
    async def watermark(self, group: Group) -> Watermark:
        """Read how far the readers of a group may read now, and remember it.

        A caller never shares a read that began before it asked, which may miss a write that it knows of: all who come
        during a read share the next one.
        """
        task = self._next_reads.get(group)
        if task is None:
            # In a context of its own: it must not end with the time of the request that began it.
            task = asyncio.create_task(self._read_in_turn(group), context=contextvars.Context())
            # All callers may have timed out by then: avoid the warning "exception was never retrieved".
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            self._next_reads[group] = task
        return await asyncio.shield(task)

    async def _read_in_turn(self, group: Group) -> Watermark:
        async with self._locks.setdefault(group, asyncio.Lock()):
            del self._next_reads[group]
            with time_budget(self._timeout):
                return await self._read(group)

    @stored
    async def _read(self, group: Group) -> Watermark:
        wanted = {"find": "groups", "filter": group.owner, "projection": _WATERMARK_FIELDS}
        reply = await read_committed(self._database, {**wanted, "limit": 1, "singleBatch": True})
        document: dict[str, Any] = next(iter(reply["cursor"]["firstBatch"]), {})
        has_largest = document.get("has_largest", "last_id" not in document)
        watermark = Watermark(
            readable(document),
            time=reply["operationTime"],
            hidden=document.get("deleted", 0) + document.get("tombstones", 0),
            expired_id=document.get("expired_id", 0),
            expired_date=document.get("expired_date"),
            in_flight=bool(document.get("open")),
            last_id=document.get("last_id", 0),
            allocated=document.get("next", self.first) - 1,
            largest=document.get("largest", 0) if has_largest else MAX_REPLY,
        )
        if document and watermark.position >= self.remembered(group).position:
            self._remembered[group] = watermark
        return watermark

    def remembered(self, group: Group) -> Watermark:
        """Return a watermark read earlier. It may be too low; it is never too high."""
        return self._remembered.get(group, Watermark())


def readable(group: dict[str, Any]) -> int:
    """Return the newest id of a group that a reader can see: a batch in flight hides itself and all after it."""
    # Not `next - 1`: a crash of a single server can take back ids that are not journaled, and a remembered
    # watermark would then be above the ids of new items.
    first: int = min([*(batch["first"] for batch in group.get("open", ())), group.get("last_id", 0) + 1])
    return first - 1


# What a write queue needs of a group's document besides its batch.
_LANE_FIELDS = {"_id": 0, "paused": 1, "waiting_bytes": WAITING_BYTES, **FIELDS}
_WATERMARK_FIELDS = {"_id": 0} | dict.fromkeys(
    (
        *("open.first", "next", "last_id", "deleted", "tombstones", "expired_id", "expired_date"),
        *("largest", "has_largest"),
    ),
    1,
)
