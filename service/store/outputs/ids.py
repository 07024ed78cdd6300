"""Ids, and reading without gaps.

The invariant: *an id below the watermark can never later become a document that a reader has not
been offered.*

The failure it excludes: ids are handed out before the documents that carry them can be seen. A
reader that meets id 11 before id 10 exists moves its cursor past 10 and never sees it.

The document of a group in `groups` holds `next`, the next free id; `now`, the date of the newest
batch, which never decreases; `open`, the batches in flight; `last_id`, the newest change; and the
counts.

1. `allocate` takes n ids and enters the batch in `open`, in one atomic step.
2. A round (`writing.py`) writes the batch, durably. Ids that it does not need are never used.
3. `finish` takes the batch out of `open` and adds what it changed to the counts, in one atomic
   step. Only then is the writer's request answered. A batch is counted once, whoever finishes it.
   Where another round of the group waits, the same step allocates its ids: one write less per round.
4. `watermark` is the lowest id still in flight, or the one after the newest change. Every page ends
   below it. It is read *before* the page, and the page is read from a snapshot no older than the
   one the watermark came from: after a failover a new primary may have an older one for a moment.
   A watermark that is remembered from earlier is as safe as a new one, only lower.
5. `recovery.py` ends batches whose writer has failed: it puts tombstones on their ids and then
   finishes them. A late write of the dead batch meets a tombstone in the unique index on
   (organization_id, group_id, id) and fails, instead of landing behind readers. Clocks decide only
   when this happens, never whether it is safe.

Every step is a majority write, so no failover takes back what a reader or writer has built on.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pymongo import ReturnDocument
from pymongo.errors import AutoReconnect, DuplicateKeyError

from service.store.connection import COMMITTED, DURABLE, MAJORITY, Collection, Database
from service.store.contract import stored
from service.store.errors import StoreError, StoreUnavailable
from service.store.jobs import Jobs, job_field
from service.store.time_budget import time_budget

log = logging.getLogger("service.store")

# How long after a change its group is looked at: counts of jobs are gathered that long.
UPKEEP_DELAY = timedelta(seconds=10)
# A watermark is about 200 bytes: 10,000 of them are 2 MB.
_MAX_REMEMBERED = 10_000
# A database clock that is further ahead than this would date everything after it wrongly, for good.
_MAX_CLOCK_SKEW = timedelta(days=1)
# Counts of jobs that wait in the group's document, about 600 jobs: every round rewrites it, and it may have 16 MB.
MAX_PENDING_BYTES = 64 * 1024
_HAS_ROOM = {"$expr": {"$lte": [{"$bsonSize": {"$ifNull": ["$pending_jobs", {"$literal": {}}]}}, MAX_PENDING_BYTES]}}
# Others may fill the room that a gathering makes, each time with the jobs of one round.
_MAX_GATHERINGS = 10

GroupKey = tuple[int, str]


class Batch(NamedTuple):
    """Ids `first` to `first + size - 1` of a group, all dated `date`."""

    organization_id: int
    group_id: str
    token: str
    first: int
    size: int
    date: datetime

    @property
    def key(self) -> GroupKey:
        return self.organization_id, self.group_id

    @property
    def owner(self) -> dict[str, Any]:
        return {"organization_id": self.organization_id, "group_id": self.group_id}


class Claim(NamedTuple):
    """How many ids a round wants, and the token that its batch is to have."""

    token: str
    size: int

    @property
    def entry(self) -> dict[str, Any]:
        """What to read of the group's document once they are given."""
        return {"_id": 0, "open": {"$elemMatch": {"token": self.token}}, "day.date": 1}


class Watermark(NamedTuple):
    """Where a group's readers must stop, and which state of the group that shows.

    `version` is the id of the newest change that a page below `end` can hold: two watermarks of one
    version show the same outputs. `hidden` is how many records readers pass over; `expired_id` the
    newest deletion record that was removed; `in_flight` the first ids of the batches in flight.
    """

    end: int = 1
    version: int = 0
    time: Any = None  # of the snapshot that it was read from; None on a server without replica set
    hidden: int = 0
    expired_id: int = 0
    in_flight: frozenset[int] = frozenset()


START = Watermark()


@dataclass
class Change:
    """What one batch changed in its group: added to the counts when the batch is finished."""

    last_id: int = 0
    items: int = 0
    approved: int = 0
    created: int = 0
    changed: int = 0
    deleted: int = 0
    tombstones: int = 0
    recount: bool = False
    jobs: dict[str, Counter[str]] = field(default_factory=dict)

    def job(self, job_id: str) -> Counter[str]:
        counts = self.jobs.get(job_id)
        if counts is None:
            counts = self.jobs[job_id] = Counter()
        return counts


def new_token() -> str:
    """Return a token that no other batch has."""
    return uuid.uuid4().hex


async def _no_step(name: str) -> None:
    """Do nothing; the checker in `scripts/` puts its delays and crashes here."""


class Ids:
    """Hands out the ids of a group, and tells readers how far they may go."""

    def __init__(self, database: Database, jobs: Jobs, lease_seconds: float, timeout: float) -> None:
        self._database, self._jobs = database, jobs
        self._timeout = timeout
        self._groups: Collection = database.get_collection("groups", write_concern=DURABLE)
        self._finished: Collection = database.get_collection("groups", write_concern=COMMITTED)
        self.lease_seconds = lease_seconds
        self._remembered: dict[GroupKey, Watermark] = {}
        self._days: dict[GroupKey, str] = {}
        self._reading: dict[GroupKey, asyncio.Task[Watermark]] = {}
        self._reading_next: dict[GroupKey, asyncio.Task[Watermark]] = {}
        self.step: Callable[[str], Awaitable[None]] = _no_step
        self.clock: datetime | None = None  # None: the clock of the database

    @stored
    async def allocate(self, organization_id: int, group_id: str, count: int, token: str = "") -> Batch:
        """Take `count` ids of a group and enter them as in flight, under a new token if none is given."""
        key, claim = (organization_id, group_id), Claim(token or new_token(), count)
        owner = {"organization_id": organization_id, "group_id": group_id}
        batch = self._allocated(key, claim, await self._upsert(owner, self._allocation(key, claim), claim.entry))
        if batch is None:
            log.error(
                "no id was given: the clock of the database is more than a day ahead of the clock of this machine; "
                "set the clocks, then run `python -m service clock`"
            )
            raise StoreUnavailable("database clock")
        await self.step("allocated")
        return batch

    def _allocated(self, key: GroupKey, claim: Claim, document: dict[str, Any]) -> Batch | None:
        """Return the batch that a claim was given; None if the database's clock cannot be right."""
        # By its token: a reply to a command that the driver has sent again holds the whole document, all its batches.
        entry = next((entry for entry in document.get("open", ()) if entry["token"] == claim.token), None)
        if entry is None:
            return None
        self._remember_day(key, document.get("day", {}).get("date", ""))
        return Batch(*key, claim.token, entry["first"], claim.size, entry["date"])

    def _allocation(self, key: GroupKey, claim: Claim) -> list[dict[str, Any]]:
        """Return the update that allocates; on a new day it also sets the counts of the last day aside."""
        present = datetime.now(UTC)
        sane = {"$lte": ["$$NOW", present + _MAX_CLOCK_SKEW]}
        entry = {
            "token": claim.token,
            "first": "$next",
            "n": claim.size,
            "date": "$now",
            "deadline": {"$add": ["$$NOW", int(self.lease_seconds * 1000)]},
        }
        open_ = {"$ifNull": ["$open", []]}
        changes: dict[str, Any] = {
            "open": {"$cond": [sane, {"$concatArrays": [open_, [entry]]}, open_]},
            "next": {"$add": ["$next", {"$cond": [sane, claim.size, 0]}]},
        }
        if self._days.get(key) != present.strftime("%Y-%m-%d"):
            today = {"$dateToString": {"format": "%Y-%m-%d", "date": "$now"}}
            unchanged = {"$or": [{"$eq": ["$day.date", today]}, {"$eq": [{"$type": "$day.date"}, "missing"]}]}
            past = {"$ifNull": ["$past", []]}
            changes["day"] = {
                "$cond": [{"$eq": ["$day.date", today]}, "$day", {"date": today, "created": 0, "changed": 0}]
            }
            changes["past"] = {"$cond": [unchanged, past, {"$concatArrays": [past, ["$day"]]}]}
        now = {"$cond": [sane, {"$max": ["$now", self.clock or "$$NOW"]}, "$now"]}
        return [{"$set": {"now": now, "next": {"$ifNull": ["$next", 1]}}}, {"$set": changes}]

    async def finish(self, batch: Batch, change: Change) -> bool:
        """Take a batch out of flight and count what it changed; return False if that was done before."""
        return await self._finish(batch, change) is not None

    async def finish_and_allocate(self, batch: Batch, change: Change, claim: Claim) -> Batch | None:
        """Finish a batch and give the next round its ids in the same step; None if it has to ask for them itself."""
        document = await self._finish(batch, change, claim)
        return None if document is None else self._allocated(batch.key, claim, document)

    @stored
    async def _finish(self, batch: Batch, change: Change, claim: Claim | None = None) -> dict[str, Any] | None:
        """Return what a claim was given, None if the batch was finished before."""
        await self.step("before finish")
        others = {"$filter": {"input": "$open", "cond": {"$ne": ["$$this.token", batch.token]}}}
        # `rounds` tells `watch.py` that something may have become readable.
        counted = {**_counted(change, batch.date), "open": others, "rounds": _sum("rounds", 1)}
        update = [{"$set": counted}, *(self._allocation(batch.key, claim) if claim else ())]
        where = {**batch.owner, "open.token": batch.token}
        for _ in range(_MAX_GATHERINGS if change.jobs else 0):
            done = await self._update({**where, **_HAS_ROOM}, update, claim)
            if done is not None or await self._finished.find_one(where, {"_id": 1}) is None:
                return done
            with contextlib.suppress(StoreError):  # nothing but the database may keep a batch open
                await self._jobs.gather(batch.organization_id, batch.group_id)
        return await self._update(where, update, claim)

    async def _update(
        self, where: dict[str, Any], update: list[dict[str, Any]], claim: Claim | None
    ) -> dict[str, Any] | None:
        if claim is None:
            return {} if (await self._finished.update_one(where, update)).matched_count else None
        after = ReturnDocument.AFTER
        return await self._groups.find_one_and_update(where, update, claim.entry, return_document=after)

    @stored
    async def watermark(self, organization_id: int, group_id: str) -> Watermark:
        """Read how far the readers of a group may go now, and remember it.

        Callers that come while one read is under way share the next one: a read that began before
        the caller asked may not show what the caller knows to be written.
        """
        key = (organization_id, group_id)
        task = self._reading_next.get(key)
        if task is None:
            # In a context of its own: it must not end with the time of the request that began it.
            work = self._read_after(self._reading.get(key), key)
            task = asyncio.create_task(work, context=contextvars.Context())
            # All callers may be out of time by its end: no "never retrieved" noise.
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            self._reading_next[key] = task
        return await asyncio.shield(task)

    async def _read_after(self, earlier: asyncio.Task[Watermark] | None, key: GroupKey) -> Watermark:
        if earlier is not None:
            await asyncio.wait([earlier])
        task = asyncio.current_task()
        assert task is not None
        self._reading[key] = task
        del self._reading_next[key]
        try:
            with time_budget(self._timeout):
                return await self._read(*key)
        finally:
            if self._reading.get(key) is task:
                del self._reading[key]

    @stored
    async def _read(self, organization_id: int, group_id: str) -> Watermark:
        reply = await self.command(
            {
                "find": "groups",
                "filter": {"organization_id": organization_id, "group_id": group_id},
                "projection": _WATERMARK_FIELDS,
                "limit": 1,
                "singleBatch": True,
            }
        )
        found = reply["cursor"]["firstBatch"]
        if not found:
            return Watermark(time=reply.get("operationTime"))
        group = found[0]
        in_flight = frozenset(batch["first"] for batch in group.get("open", ()))
        # Not up to `next`, though nothing is between: a crash of a single server can take back ids
        # that are not in its journal yet, for a remembered watermark to be beyond what comes next.
        end = min([*in_flight, group.get("last_id", 0) + 1])
        watermark = Watermark(
            end,
            version=end - 1,
            time=reply.get("operationTime"),
            hidden=group.get("deleted", 0) + group.get("tombstones", 0),
            expired_id=group.get("expired_id", 0),
            in_flight=in_flight,
        )
        self._remember((organization_id, group_id), watermark)
        return watermark

    async def command(self, command: dict[str, Any], since: Any = None, **options: Any) -> Any:
        """Run a read on the primary, from a committed snapshot no older than `since`.

        A command, not a cursor: it takes 70 µs less, a fifteenth of a page of 10 items, and its
        reply has the time of the snapshot.
        """
        concern = MAJORITY.document if since is None else {**MAJORITY.document, "afterClusterTime": since}
        command = {**command, "readConcern": concern}
        try:
            return await self._database.command(command, **options)
        except AutoReconnect:  # once more, as the driver itself does for cursors
            return await self._database.command(command, **options)

    async def kill_cursor(self, collection: str, cursor: int) -> None:
        """Let the server forget a cursor whose rest is not wanted."""
        await self._database.command({"killCursors": collection, "cursors": [cursor]})

    def remembered(self, organization_id: int, group_id: str) -> Watermark:
        """Return a watermark read earlier; as safe as a new one, but lower."""
        return self._remembered.get((organization_id, group_id), START)

    def _remember(self, key: GroupKey, watermark: Watermark) -> None:
        if len(self._remembered) >= _MAX_REMEMBERED and key not in self._remembered:
            self._remembered.pop(next(iter(self._remembered)))
        if watermark.end >= self._remembered.get(key, START).end:
            self._remembered[key] = watermark

    def _remember_day(self, key: GroupKey, day: str) -> None:
        if len(self._days) >= _MAX_REMEMBERED and key not in self._days:
            self._days.pop(next(iter(self._days)))
        self._days[key] = day

    async def _upsert(
        self, where: dict[str, Any], update: list[dict[str, Any]], projection: dict[str, Any]
    ) -> dict[str, Any]:
        for last_try in (False, True):
            try:
                document: dict[str, Any] = await self._groups.find_one_and_update(
                    where, update, projection, upsert=True, return_document=ReturnDocument.AFTER
                )
                return document
            except DuplicateKeyError:
                # Two first writers of a group: the other one made the document.
                if last_try:
                    raise
        raise AssertionError("unreachable")


def _sum(field: str, amount: int) -> dict[str, Any]:
    return {"$add": [{"$ifNull": [f"${field}", 0]}, amount]}


def _counted(change: Change, date: datetime) -> dict[str, Any]:
    """Return what adds a change to its group's counts and says when `upkeep.py` is to look at it."""
    amounts: dict[str, int] = {
        "items": change.items,
        "approved": change.approved,
        "deleted": change.deleted,
        "tombstones": change.tombstones,
        "day.created": change.created,
        "day.changed": change.changed,
    }
    newest: dict[str, Any] = {"last_id": change.last_id, "last_change": date} if change.last_id else {}
    oldest: dict[str, Any] = {}
    for job_id, counts in change.jobs.items():
        name = f"pending_jobs.{job_field(job_id)}"
        amounts.update((f"{name}.{kind}", count) for kind, count in counts.items())
        if any(counts[kind] > 0 for kind in ("created", "changed", "unchanged")):
            newest[f"{name}.last_write"] = oldest[f"{name}.first_write"] = date
    if change.jobs or change.deleted or change.tombstones or change.recount:
        oldest["due"] = date + UPKEEP_DELAY
    return {
        **{name: _sum(name, amount) for name, amount in amounts.items() if amount},
        **{name: {"$max": [f"${name}", value]} for name, value in newest.items()},
        **{name: {"$min": [f"${name}", value]} for name, value in oldest.items()},
        **({"recount": True} if change.recount else {}),
    }


_WATERMARK_FIELDS = {
    "_id": 0,
    "open.first": 1,
    "last_id": 1,
    "deleted": 1,
    "tombstones": 1,
    "expired_id": 1,
}
