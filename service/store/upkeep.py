"""Background work on groups; each group is looked at when its `due` date has come.

Every step may be interrupted and repeated, by this process or another one: moves of counts have numbers, and removals
are noted before they are made.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from pymongo import ReturnDocument
from pymongo.errors import OperationFailure

from service.settings import Settings
from service.store.clock import now
from service.store.connection import COMMITTED, MAJORITY, Client, Collection, Database, opened, server_time
from service.store.contract import stored, without_time_limit
from service.store.errors import SNAPSHOT_TOO_OLD, StoreError
from service.store.group import Group
from service.store.jobs import JOB_COUNTS, Jobs, summed
from service.store.outputs.counts import KINDS, RECOUNT, Change, plus
from service.store.outputs.deletion import Deletion, Place
from service.store.outputs.query import Query

log = logging.getLogger("service.store")

# Groups that one pass looks at, and how long a process reserves one.
_GROUPS_PER_PASS = 100
_CLAIM = timedelta(seconds=20)
# A claim for a recount lasts longer. If its process dies, no job of the group can be finished until the claim ends.
_CLAIM_PER_ITEM, _MAX_CLAIM = timedelta(microseconds=50), timedelta(minutes=3)
# Longer than any writer can live.
_TOMBSTONE_AGE = timedelta(days=7)
_REMOVED_AT_ONCE = 1000
# Expired items are deleted for some seconds per pass, so that a busy group does not grow for ever.
_EXPIRING_SECONDS = 3.0
# Seconds that writers wait at most for a recount to begin.
_PAUSE = 2.0
_RECOUNT_AGAIN = timedelta(seconds=5)
_JOBS_AT_ONCE = 1000
_RETENTION_EVERY = timedelta(hours=6)
_DAILY = timedelta(days=1)

Late = Callable[[], Awaitable[None]]


class Upkeep:
    """Looks after groups: counts, finished days, old tombstones and deletion records, retention; ended jobs."""

    def __init__(
        self,
        client: Client,
        database: Database,
        jobs: Jobs,
        deletion: Deletion,
        late: Iterable[Late],
        settings: Settings,
    ) -> None:
        self._client, self._database, self._jobs, self._deletion, self._late = client, database, jobs, deletion, late
        self.failures = 0
        self._history_days = settings.history_days
        self._deleted_age = timedelta(days=settings.deleted_days)
        options: dict[str, Any] = {"write_concern": COMMITTED, "read_concern": MAJORITY}
        self._groups: Collection = database.get_collection("groups", **options)
        self._outputs: Collection = database.get_collection("outputs", **options)
        self._job_documents: Collection = database.get_collection("jobs", **options)
        self._versions: Collection = database.get_collection("versions", **options)

    async def run(self) -> None:
        """Look at the groups whose time has come, each once; one that fails does not stop the others."""
        for late in self._late:
            await self._try(late())
        seen: set[Any] = set()
        while len(seen) < _GROUPS_PER_PASS:
            group = await self._due()  # each time: a large group takes long, and another may be urgent by then
            if group is None or group["_id"] in seen:  # its writers must go on before it is looked at again
                return
            seen.add(group["_id"])
            await self._try(self.inspect(group))

    async def _try(self, work: Awaitable[None]) -> None:
        try:
            await work
        except StoreError as error:
            self.failures += 1
            log.warning("upkeep failed and will be tried again", extra={"error": str(error)})

    @stored
    async def _due(self) -> dict[str, Any] | None:
        """Return the group that has waited longest."""
        due = {"due": {"$lte": await self._now()}}
        fields = ["organization_id", "group_id", "due", "items", "recount"]
        found: dict[str, Any] | None = await self._groups.find_one(due, fields, sort=[("due", 1)], hint="due")
        return found

    @stored
    async def seconds_late(self) -> float:
        """Return how long the group that is due first has waited; 0 where none is due."""
        first = await self._groups.find_one({"due": {"$exists": True}}, ["due"], sort=[("due", 1)], hint="due")
        return 0.0 if first is None else max(0.0, (await self._now() - first["due"]).total_seconds())

    async def _now(self) -> datetime:
        """Return the earlier time of the database's and this machine's clock: a wrong one must remove nothing."""
        return min(await server_time(self._database), now())

    @stored
    @without_time_limit
    async def inspect(self, group: dict[str, Any]) -> None:
        """Look after a group as it was found due, unless another process has taken it since."""
        owner = Group.of(group).owner
        now = await self._now()
        items = max(0, group.get("items", 0)) if group.get("recount") else 0
        claim = now + min(_CLAIM + _CLAIM_PER_ITEM * items, _MAX_CLAIM)
        # Read again: its retention may have changed since it was found due.
        claimed = await self._groups.find_one_and_update(
            {**owner, "due": group["due"]}, {"$set": {"due": claim}}, return_document=ReturnDocument.AFTER
        )
        if claimed is None:
            return
        group = claimed
        await self._jobs.collect(Group.of(group))
        if "last_id" in group and "has_largest" not in group:  # from before it was kept
            await self._groups.update_one(owner, [{"$set": {**RECOUNT, "has_largest": False}}])
        next_due = [
            await self._remove_tombstones(owner, group, now),
            await self._remove_deletions(owner, group, now),
            await self._delete_expired(owner, group, now),
            await self._remove_versions(owner, group, now),
            await self._recount(owner, group, now),
        ]
        due = min((date for date in next_due if date is not None), default=None)
        if due is not None and due <= now:  # there is more to do; its own deletions must not put that off
            await self._groups.update_one(owner, {"$min": {"due": due}})
            return
        # Only if no new work was added meanwhile.
        change = {"$unset": {"due": ""}} if due is None else {"$set": {"due": due}}
        await self._groups.update_one({**owner, "due": claim, "rounds": group.get("rounds")}, change)

    async def _remove_tombstones(self, owner: dict[str, Any], group: dict[str, Any], now: datetime) -> datetime | None:
        if group.get("tombstones", 0) <= 0:
            return None
        done = await self._outputs.delete_many({**owner, "tombstone": {"$lt": now - _TOMBSTONE_AGE}})
        await self._subtract(owner, group, "tombstones", done.deleted_count)
        return now + _DAILY

    async def _subtract(self, owner: dict[str, Any], group: dict[str, Any], name: str, count: int) -> None:
        """Lower a count; where a recount may have done so since the group was read, ask for another one."""
        if not count:
            return
        same = {**owner, "recounts": group.get("recounts"), "recount": {"$exists": False}}
        if not (await self._groups.update_one(same, {"$inc": {name: -count}})).matched_count:
            await self._groups.update_one(owner, [{"$set": RECOUNT}])

    async def _remove_deletions(self, owner: dict[str, Any], group: dict[str, Any], now: datetime) -> datetime | None:
        """Remove old deletion records except the newest; first note which, so that late readers get an error.

        The newest one stays so that a walk which finds nothing else ends there, and its reader can continue from it.
        """
        if group.get("deleted", 0) <= 0:
            return None
        old = {**owner, "update_date": {"$lt": now - self._deleted_age}, "deleted": True}
        found = self._outputs.find(old, ["id", "update_date"], hint="deleted").sort([("update_date", 1), ("id", 1)])
        records = await found.limit(_REMOVED_AT_ONCE).to_list(None)
        removed = [record["id"] for record in records[:-1]]
        if not removed:
            return now + _DAILY
        newest = {"expired_id": removed[-1], "expired_date": records[-2]["update_date"]}
        await self._groups.update_one(owner, {"$max": newest})
        done = await self._outputs.delete_many({**old, "id": {"$in": removed}})
        await self._subtract(owner, group, "deleted", done.deleted_count)
        return now

    async def _remove_versions(self, owner: dict[str, Any], group: dict[str, Any], now: datetime) -> datetime | None:
        """Remove versions that were replaced more than `history_days` ago; all of them if no history is kept."""
        days = group.get("history_days", self._history_days)
        old = {**owner, "replaced_date": {"$lt": now - timedelta(days=days)}}
        found = self._versions.find(old, ["_id"], hint="replaced").sort("replaced_date", 1).limit(_REMOVED_AT_ONCE)
        ids = [version["_id"] for version in await found.to_list(None)]
        if ids:
            await self._versions.delete_many({**old, "_id": {"$in": ids}}, hint="_id_")
        if len(ids) == _REMOVED_AT_ONCE:
            return now
        # The oldest one that is left says when there is more to do; a group that is written again is looked at anyway.
        oldest = await self._versions.find_one(owner, ["replaced_date"], sort=[("replaced_date", 1)], hint="replaced")
        return None if oldest is None else now + _DAILY

    async def _delete_expired(self, owner: dict[str, Any], group: dict[str, Any], now: datetime) -> datetime | None:
        """Delete items that were not scraped for `retention_days`, a few at a time."""
        days = group.get("retention_days")
        if days is None:
            return None
        if group.get("retention_at") is not None and group["retention_at"] > now:
            return group["retention_at"]  # type: ignore[no-any-return]
        same = {**owner, "retention_days": days}

        async def report(_: int, place: Place | None) -> bool:
            progress: dict[str, Any] = {
                "$set": {"retention_at": now + _RETENTION_EVERY},
                "$unset": {"retention_id": ""},
            }
            if place is not None:
                progress = {"$set": {"retention_id": place.done}}
            return bool((await self._groups.update_one(same, progress)).matched_count)  # not if it was changed

        query, key = Query(scraped_before=now - timedelta(days=days)), Group.of(group)
        place = (await self._deletion.begin(key))._replace(done=group.get("retention_id", 0))
        done = await self._deletion.run(key, query, place, seconds=_EXPIRING_SECONDS, report=report)
        return now if done.place is not None else now + _RETENTION_EVERY

    async def _recount(self, owner: dict[str, Any], group: dict[str, Any], now: datetime) -> datetime | None:
        """Recount a group after a writer died, and add the difference to its counts.

        Counts and items are read from one snapshot without a batch in flight. Writers pause only until the snapshot
        exists: later writes do not affect the difference, so it can be added at any time.
        """
        if not group.get("recount"):
            return None
        old = {"$elemMatch": {"date": {"$lt": now - timedelta(seconds=_PAUSE)}}}
        begun = await self._groups.update_one(
            {**owner, "open": {"$not": old}}, [{"$set": {"paused": {"$add": ["$$NOW", int(_PAUSE * 1000)]}}}]
        )
        if not begun.matched_count:  # a dead writer's batch is in flight: its end would not come in the pause
            return now + _RECOUNT_AGAIN
        try:
            await self._until_nothing_is_in_flight(owner, time.monotonic() + _PAUSE)
            async with await opened(self._client.start_session(snapshot=True)) as session:
                quiet = {**owner, **_QUIET, "paused": {"$exists": True}, "recount": {"$exists": True}}
                kept = await self._groups.find_one(quiet, session=session)
                if kept is None:
                    return now + _RECOUNT_AGAIN
                await self._groups.update_one(owner, {"$unset": {"paused": ""}})
                try:
                    difference = await self._difference(owner, kept, session)
                except OperationFailure as error:
                    if error.code != SNAPSHOT_TOO_OLD:
                        raise
                    # For ever in vain, and no job of the group could be finished.
                    log.error("a group is too large to be recounted: raise minSnapshotHistoryWindowInSeconds")
                    await self._groups.update_one(owner, {"$unset": {"recount": ""}})
                    return None
            done: dict[str, Any] = {
                "recount": {"$cond": [{"$eq": ["$recount", kept["recount"]]}, "$$REMOVE", "$recount"]},
                "recounts": plus("recounts", 1),
                "has_largest": True,
            }
            # Unless another process, to which this one seemed dead, has added its difference since the snapshot.
            where = {**owner, "recounts": kept.get("recounts")}
            await self._groups.update_one(where, [{"$set": difference.update(now) | done}])
            return now + _RECOUNT_AGAIN
        finally:
            await self._groups.update_one(owner, {"$unset": {"paused": ""}})

    async def _until_nothing_is_in_flight(self, owner: dict[str, Any], deadline: float) -> None:
        while time.monotonic() < deadline:
            if await self._groups.find_one({**owner, **_QUIET}, {"_id": 1}) is not None:
                return
            await asyncio.sleep(_PAUSE / 50)

    async def _difference(self, owner: dict[str, Any], kept: dict[str, Any], session: Any) -> Change:
        """Return how far the counts of a group and its jobs differ from its items, in a session's snapshot."""
        moving = kept.get("moving", {"number": 0, "entries": ()})
        (pending, _), (moved, _) = summed(kept.get("pending", ())), summed(moving["entries"])
        tombstones = await self._outputs.count_documents({**owner, "tombstone": {"$exists": True}}, session=session)
        found, change = Counter(tombstones=tombstones), Change()

        def compare(job_id: str, held: dict[str, Any], job: dict[str, Any]) -> None:
            found.update({name: held.get(name, 0) for name in ("items", "approved", "deleted")})
            change.largest = max(change.largest, held.get("largest", 0))
            added = [job, pending.pop(job_id, {}), moved.pop(job_id, {})]
            if job.get("move", 0) >= moving["number"]:
                added.pop()
            counts = {name: sum(each.get(name, 0) for each in added) for name in JOB_COUNTS}
            wrong = {"items": held.get("items", 0) - counts["items"]}
            is_removed = not held.get("items") and not any(counts.values())  # deletion records may be left of it
            if job.get("state") not in ("finished", "failed") and not is_removed:
                wrong |= _uncounted(held, counts)
            if any(wrong.values()):
                change.job(job_id, **{name: number for name, number in wrong.items() if number})
            if held.get("items"):
                _add_sights(change, job_id, held, added)

        async for job_id, held, job in self._jobs_in_order(owner, kept.get("removed_id", 0), session):
            compare(job_id, held, job)
        for job_id in pending | moved:
            compare(job_id, {}, {})
        for name in ("items", "approved", "deleted", "tombstones"):
            setattr(change, name, found[name] - kept.get(name, 0))
        return change

    async def _jobs_in_order(
        self, owner: dict[str, Any], removed_id: int, session: Any
    ) -> AsyncIterator[tuple[str, Any, Any]]:
        """Yield each job with the counts of its items and with its document; a group may have a million jobs."""
        options: dict[str, Any] = {"session": session, "batchSize": _JOBS_AT_ONCE}
        pipeline = [{"$match": {**owner, "root_job_id": {"$exists": True}}}, _by_job(removed_id), {"$sort": {"_id": 1}}]
        items = await opened(self._outputs.aggregate(pipeline, hint="job", allowDiskUse=True, **options))
        fields = {"_id": "$job_id", **dict.fromkeys(("state", "move", "beginning", "last_position", *JOB_COUNTS), 1)}
        pipeline = [{"$match": owner}, {"$sort": {"job_id": 1}}, {"$project": fields}]
        documents = await opened(self._job_documents.aggregate(pipeline, hint="job", **options))
        held: dict[str, Any] = await anext(items, {})
        job: dict[str, Any] = await anext(documents, {})
        while held or job:
            job_id = min(each["_id"] for each in (held, job) if each)
            of_job = [each if each and each["_id"] == job_id else {} for each in (held, job)]
            yield job_id, *of_job
            if of_job[0]:
                held = await anext(items, {})
            if of_job[1]:
                job = await anext(documents, {})


def _uncounted(found: dict[str, Any], counts: dict[str, int]) -> dict[str, int]:
    """Return what is certainly missing from a running job's counts; other jobs may have taken some of its items."""
    wrong = {kind: found.get(kind, 0) - counts[kind] for kind in KINDS}
    has_all = sum(wrong.values()) >= 0
    return wrong if has_all else {kind: max(0, number) for kind, number in wrong.items()}


def _add_sights(change: Change, job_id: str, held: dict[str, Any], stored: list[dict[str, Any]]) -> None:
    """Let a job's sights reach as far as those of the items that it holds."""
    if held["last_position"] is None:  # from before sights were stored
        return
    beginning = min((each["beginning"] for each in stored if "beginning" in each), default=None)
    last_position = max((each["last_position"] for each in stored if "last_position" in each), default=0)
    if beginning is None or held["beginning"] < beginning or held["last_position"] > last_position:
        change.sight(job_id, held["beginning"], held["last_position"])


# No batch is in flight.
_QUIET = {"open.0": {"$exists": False}}
_DELETED = {"$eq": ["$deleted", True]}


def _by_job(removed_id: int) -> dict[str, Any]:
    """Return the stage that counts the items of each job.

    Deletion records up to `removed_id` are left of jobs that were deleted with the group, perhaps with the same id.
    """
    is_left = {"$and": [_DELETED, {"$lte": ["$id", removed_id]}]}
    own_id = {"$cond": [{"$eq": ["$changed_by", "$root_job_id"]}, "$id", None]}
    kinds = {kind: {"$and": [{"$eq": ["$change", kind]}, {"$not": [is_left]}]} for kind in KINDS}
    return {
        "$group": {
            "_id": "$root_job_id",
            "items": {"$sum": {"$cond": [_DELETED, 0, 1]}},
            "beginning": {"$min": {"$cond": [_DELETED, None, "$seen"]}},
            "last_position": {"$max": {"$cond": [_DELETED, None, {"$max": ["$seen", own_id]}]}},
            "approved": {"$sum": {"$cond": [{"$eq": ["$is_approved", True]}, 1, 0]}},
            "deleted": {"$sum": {"$cond": [_DELETED, 1, 0]}},
            "largest": {"$max": {"$bsonSize": "$$ROOT"}},
            **{kind: {"$sum": {"$cond": [is_of_kind, 1, 0]}} for kind, is_of_kind in kinds.items()},
        }
    }
