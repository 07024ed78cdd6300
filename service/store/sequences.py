"""Ids, and reading without gaps.

The invariant: *an id below the mark can never later become a document that a reader has not been
offered.*

The failure it excludes: ids are handed out before the documents that carry them can be seen. A
reader that meets id 11 before id 10 exists moves its cursor past 10 and never sees it.

One document an organization in `sequences` holds `next`, the next free id; `now`, the date of the
newest batch, which never decreases; and `open`, the batches in flight.

1. `allocate` takes n ids and enters the batch in `open`, in one atomic step.
2. The outputs store writes the batch, durably.
3. `release` takes the batch out of `open`. Only then is the writer's request answered.
4. `mark` is the lowest id still in flight for a group, or the one after its newest change. Every
   page ends below it. It is read *before* the page: whatever was released by then is visible in
   the page. For the same reason a mark that is remembered from earlier is as safe as a new one,
   only lower.
5. `reap` ends batches whose writer has died. Past their deadline it puts tombstones on their ids
   and then takes them out of `open`. A late write of the dead batch meets a tombstone in the
   unique index on (organization_id, group_id, id) and fails, instead of landing behind readers.
   Clocks decide only when this happens, never whether it is safe.

Every step is a majority write and every read a majority read, so no failover takes back what a
reader or writer has built on. Only `release` does not wait for the journal: losing it in a crash
leaves the batch to the reaper.
"""

from __future__ import annotations

import asyncio
import contextvars
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, KeysView
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pymongo import ReturnDocument
from pymongo.errors import BulkWriteError, DuplicateKeyError

from service.store.connection import COMMITTED, DURABLE, MAJORITY, Collection, Database
from service.store.contract import stored

DUPLICATE_KEY = 11000
TOMBSTONE_AGE = timedelta(days=7)
# Marks are 3 numbers each: 10,000 of them are about 2 MB.
REMEMBERED_MARKS = 10_000


class Batch(NamedTuple):
    """Ids `first` to `first + size - 1` of a group, all dated `date`."""

    organization_id: int
    group_id: str
    token: str
    first: int
    size: int
    date: datetime


class Mark(NamedTuple):
    """Where a group's readers must stop, and which state of the group that shows.

    `version` is the id of the newest change that a page below `end` can hold: two marks of one
    version show the same outputs.
    """

    end: int
    version: int


class InFlight(NamedTuple):
    """The batches in flight of all organizations, and the age of the oldest."""

    batches: int
    oldest_seconds: float


START = Mark(end=1, version=0)


async def _no_step(name: str) -> None:
    """Do nothing; the checker in `scripts/` puts its delays and crashes here."""


class Sequences:
    """Hands out ids, and tells readers how far they may go."""

    def __init__(self, database: Database, lease_seconds: float) -> None:
        self._sequences: Collection = database.get_collection("sequences", write_concern=DURABLE, read_concern=MAJORITY)
        self._releases: Collection = database.get_collection("sequences", write_concern=COMMITTED)
        self._tombstones: Collection = database.get_collection("outputs", write_concern=DURABLE)
        self.lease_seconds = lease_seconds
        self._remembered: dict[tuple[int, str], Mark] = {}
        self.step: Callable[[str], Awaitable[None]] = _no_step

    @stored
    async def allocate(self, organization_id: int, group_id: str, count: int) -> Batch:
        """Take `count` ids for a group and enter them as in flight."""
        token = uuid.uuid4().hex
        entry = {
            "token": token,
            "group_id": {"$literal": group_id},
            "from": "$next",
            "n": count,
            "date": "$now",
            "deadline": {"$add": ["$$NOW", int(self.lease_seconds * 1000)]},
        }
        pipeline = [
            {"$set": {"now": {"$max": ["$now", "$$NOW"]}, "next": {"$ifNull": ["$next", 1]}}},
            {
                "$set": {
                    "open": {"$concatArrays": [{"$ifNull": ["$open", []]}, [entry]]},
                    "next": {"$add": ["$next", count]},
                }
            },
        ]
        document = await self._upsert(organization_id, pipeline, {"next": 1, "now": 1, "_id": 0})
        await self.step("allocated")
        return Batch(organization_id, group_id, token, document["next"] - count, count, document["now"])

    @stored
    async def release(self, batch: Batch) -> None:
        """Take a batch out of flight: whatever it will ever write is visible now."""
        await self.step("before release")
        await self._releases.update_one({"_id": batch.organization_id}, {"$pull": {"open": {"token": batch.token}}})

    @stored
    async def mark(self, organization_id: int, group_id: str) -> Mark:
        """Read how far the readers of a group may go now, and remember it."""
        # One round trip for both; the group is looked up after the sequence. `last_id` is raised
        # before a batch is released, so it may be ahead of the batches in flight, never behind.
        pipeline: list[dict[str, Any]] = [
            {"$match": {"_id": organization_id}},
            {"$project": {"next": 1, "open.group_id": 1, "open.from": 1}},
            {
                "$lookup": {
                    "from": "groups",
                    "pipeline": [
                        {"$match": {"organization_id": organization_id, "group_id": group_id}},
                        {"$project": {"_id": 0, "last_id": 1}},
                    ],
                    "as": "group",
                }
            },
        ]
        found = await self._sequences.aggregate(pipeline).to_list(1)
        if not found:
            return START
        sequence = found[0]
        in_flight = [b["from"] for b in sequence.get("open", ()) if b["group_id"] == group_id]
        end = min(in_flight, default=sequence.get("next", 1))
        if not sequence["group"]:
            return Mark(end, version=0)
        # Not up to `next`, though nothing is between: a crash of a single server can take back ids
        # that are not in its journal yet, for a remembered mark to be beyond what comes next.
        end = min(end, sequence["group"][0]["last_id"] + 1)
        mark = Mark(end, version=end - 1)
        self._remember((organization_id, group_id), mark)
        return mark

    def remembered(self, organization_id: int, group_id: str) -> Mark:
        """Return a mark read earlier; as safe as a new one, but lower."""
        return self._remembered.get((organization_id, group_id), START)

    @stored
    async def count(self, organization_id: int, name: str, count: int) -> int:
        """Take `count` numbers from a plain counter and return the first."""
        document = await self._upsert(
            organization_id,
            [{"$set": {name: {"$add": [{"$ifNull": [f"${name}", 0]}, count]}}}],
            {name: 1, "_id": 0},
        )
        return int(document[name]) - count + 1

    @stored
    async def in_flight(self) -> InFlight:
        """Return how many batches are in flight, and for how long at most."""
        pipeline: list[dict[str, Any]] = [
            {"$match": {"open.0": {"$exists": True}}},
            {"$unwind": "$open"},
            {"$group": {"_id": None, "batches": {"$sum": 1}, "oldest": {"$min": "$open.date"}}},
            {"$project": {"batches": 1, "millis": {"$subtract": ["$$NOW", "$oldest"]}}},
        ]
        for found in await self._sequences.aggregate(pipeline).to_list(1):
            return InFlight(found["batches"], max(0.0, found["millis"] / 1000))
        return InFlight(0, 0.0)

    @stored
    async def expired(self) -> list[Batch]:
        """Return the batches in flight past their deadline."""
        pipeline: list[dict[str, Any]] = [
            {"$match": {"open.0": {"$exists": True}}},
            {
                "$project": {
                    "open": {
                        "$filter": {
                            "input": "$open",
                            "cond": {"$lt": ["$$this.deadline", "$$NOW"]},
                        }
                    }
                }
            },
        ]
        return [
            Batch(found["_id"], b["group_id"], b["token"], b["from"], b["n"], b["date"])
            async for found in self._sequences.aggregate(pipeline)
            for b in found["open"]
        ]

    @stored
    async def fence(self, batch: Batch) -> None:
        """Put a tombstone on every id of a batch that no document holds."""
        tombstones = [
            {
                "organization_id": batch.organization_id,
                "group_id": batch.group_id,
                "id": batch.first + offset,
                "tombstone": batch.date,
            }
            for offset in range(batch.size)
        ]
        try:
            await self._tombstones.insert_many(tombstones, ordered=False)
        except BulkWriteError as error:
            if error.details.get("writeConcernErrors") or any(
                e["code"] != DUPLICATE_KEY for e in error.details["writeErrors"]
            ):
                raise

    @stored
    async def sweep(self) -> None:
        """Remove tombstones so old that no writer of their batch can be alive."""
        newest = await self._sequences.find_one({}, {"now": 1}, sort=[("now", -1)])
        if newest and "now" in newest:
            await self._tombstones.delete_many({"tombstone": {"$lt": newest["now"] - TOMBSTONE_AGE}})

    async def _upsert(
        self, organization_id: int, pipeline: list[dict[str, Any]], projection: dict[str, int]
    ) -> dict[str, Any]:
        for last_try in (False, True):
            try:
                document: dict[str, Any] = await self._sequences.find_one_and_update(
                    {"_id": organization_id},
                    pipeline,
                    projection,
                    upsert=True,
                    return_document=ReturnDocument.AFTER,
                )
                return document
            except DuplicateKeyError:
                # Two first writers of an organization: the other one made the document.
                if last_try:
                    raise
        raise AssertionError("unreachable")

    def _remember(self, group: tuple[int, str], mark: Mark) -> None:
        if len(self._remembered) >= REMEMBERED_MARKS and group not in self._remembered:
            self._remembered.pop(next(iter(self._remembered)))
        if mark.end >= self._remembered.get(group, START).end:
            self._remembered[group] = mark


class Joinable(Protocol):
    """A write of some bytes that can share a round with others, as long as no key is in both."""

    @property
    def keys(self) -> KeysView[str]: ...

    @property
    def size(self) -> int: ...

    done: asyncio.Future[Any]


W = TypeVar("W", bound=Joinable)


@dataclass
class GroupCommit(Generic[W]):
    """Joins writes to one group that arrive while another is under way into one round.

    A round costs 5 round trips and 2 journal flushes whether it writes one item or a thousand.
    """

    commit: Callable[[tuple[int, str], list[W]], Awaitable[None]]
    join: bool = True
    # A round of more gains nothing, and takes long enough to outlive its lease.
    most_keys: int = 1000
    most_bytes: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        self._waiting: dict[tuple[int, str], deque[W]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, group: tuple[int, str], write: W) -> Any:
        """Return the write's result once its round is durable; go on if the caller is cancelled."""
        if not self.join:
            self._start(self._run(group, [write]))
        elif group in self._waiting:
            self._waiting[group].append(write)
        else:
            self._waiting[group] = deque([write])
            self._start(self._drain(group))
        return await asyncio.shield(write.done)

    async def close(self) -> None:
        """Wait until every write under way is done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def in_flight(self) -> int:
        return len(self._tasks)

    def _start(self, work: Any) -> None:
        # In a context of its own: a round must not end with the time of the request that began it.
        task = asyncio.create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self, group: tuple[int, str]) -> None:
        waiting = self._waiting[group]
        try:
            while waiting:
                await self._run(group, self._next_round(waiting))
        finally:
            del self._waiting[group]
            for write in waiting:  # none, unless this task was cancelled
                write.done.cancel()

    def _next_round(self, waiting: deque[W]) -> list[W]:
        writes = [waiting.popleft()]
        keys, size = set(writes[0].keys), writes[0].size
        while waiting:
            write = waiting[0]
            size += write.size
            if len(keys) + len(write.keys) > self.most_keys or size > self.most_bytes:
                break
            if not keys.isdisjoint(write.keys):
                break
            keys.update(write.keys)
            writes.append(waiting.popleft())
        return writes

    async def _run(self, group: tuple[int, str], writes: list[W]) -> None:
        try:
            await self.commit(group, writes)
        except Exception as error:
            for write in writes:
                if not write.done.done():
                    write.done.set_exception(error)
                    write.done.exception()  # the caller may be gone: no "never retrieved" noise
        finally:
            for write in writes:
                write.done.cancel()  # no effect on what is done
