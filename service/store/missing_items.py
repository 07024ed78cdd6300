"""What is missing from a job: counted, listed and deleted by one rule, which `outputs/missing.py` states.

Its complement is what the job is judged by.
"""

from __future__ import annotations

import logging
import time
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pymongo import ReturnDocument

from service.store.connection import DURABLE, MAJORITY, Collection, Database, opened, server_time
from service.store.contract import stored
from service.store.errors import StoreError
from service.store.group import Group
from service.store.indexes import Indexes
from service.store.jobs import EXISTS, Jobs
from service.store.judging import Judged
from service.store.listing import Record
from service.store.outputs import Outputs, Place
from service.store.outputs.counts import KINDS
from service.store.outputs.deletion import Report
from service.store.outputs.missing import MAX_HOLDERS, Missing, not_seen_since
from service.store.outputs.query import LIVE, NO_TOMBSTONE, Query

log = logging.getLogger("service.store")

# A deletion stops after this long; repeating the request continues it, and so does the upkeep.
_DELETE_SECONDS = 1.5
_CONTINUED_AT_ONCE, _CONTINUED_SECONDS = 10, 3.0
# If nobody continues a deletion by then, the process that did it has died.
_LATE = timedelta(seconds=30)
# Jobs whose items are judged together: those that overlap the judged one. Of more, all jobs but those of other series.
_MAX_JUDGED, _MAX_EXCLUDED = 1000, 10_000
_OPENED_AGAIN = "The job was opened again: set it to finished, then repeat the request"


class Deletable(NamedTuple):
    """What is missing from a job, why it must not be deleted, if so, and which end of the job says so."""

    missing: Missing
    held_back: str | None
    finish_date: datetime | None


class MissingItems:
    """The items that jobs did not see."""

    def __init__(self, database: Database, jobs: Jobs, outputs: Outputs, indexes: Indexes) -> None:
        self._jobs: Collection = database.get_collection("jobs", write_concern=DURABLE, read_concern=MAJORITY)
        self._outputs: Collection = database.get_collection("outputs", read_concern=MAJORITY)
        self._counts, self._deletion = jobs, outputs.deletion
        self._database, self._indexes = database, indexes

    @stored
    async def of(self, group: Group, job_id: str) -> Missing | None:
        """Return what is missing from a job; None if there is no such job."""
        job = await self._job(group, job_id)
        return None if job is None else await self._missing(group.owner, job)

    async def _job(self, group: Group, job_id: str) -> Record | None:
        self._indexes.require("groups", "jobs")
        await self._counts.collect(group)
        job: Record | None = await self._jobs.find_one({**group.owner, "job_id": job_id, **EXISTS})
        return job

    async def _missing(self, owner: Record, job: Record) -> Missing:
        """Return what is missing from a job; nothing is if its beginning is not stored."""
        series, beginning = job.get("series"), job.get("beginning")
        if beginning is None:
            return Missing(job["job_id"], series, 0, ())
        cursor = self._jobs.find({**owner, **_holding(job)}, ["job_id"], hint="held").limit(MAX_HOLDERS + 1)
        holders = tuple([other["job_id"] for other in await cursor.to_list(None)])
        return Missing(job["job_id"], series, beginning, None if len(holders) > MAX_HOLDERS else holders)

    async def count(self, owner: Record, job: Record) -> tuple[int, int]:
        """Return how many items are missing from a job, and how many of its series are not.

        The items of a job whose last sight lies before the beginning are counted as a whole, of others one by one.
        """
        beginning = job.get("beginning")
        if beginning is None:
            return 0, job.get("items", 0)
        series: Record = {**owner, "series": job.get("series"), "items": {"$gt": 0}}
        is_before = {"$lt": ["$last_position", beginning]}
        is_whole = {"$and": [{"$ne": ["$job_id", {"$literal": job["job_id"]}]}, is_before]}
        sums = {"items": {"$sum": "$items"}, "whole": {"$sum": {"$cond": [is_whole, "$items", 0]}}}
        pipeline = [{"$match": series}, {"$group": {"_id": None, **sums}}]
        rows = await (await opened(self._jobs.aggregate(pipeline, hint="held"))).to_list(1)
        if not rows:
            return 0, 0
        missing = int(rows[0]["whole"])
        overlapping = {**owner, **_holding(job), "last_position": {"$gte": beginning}}
        jobs = self._jobs.find(overlapping, ["job_id"], hint="held")
        while part := await jobs.to_list(MAX_HOLDERS):
            missing += await self._outputs.count_documents({**owner, **_items(part, beginning)}, hint="job")
        return missing, max(0, int(rows[0]["items"]) - missing)

    async def judged(self, owner: Record, job: Record, items: int) -> Judged:
        """Return what a job is judged by: the items of its series that were seen since it began, by whoever."""
        beginning, job_id = job.get("beginning"), job["job_id"]
        if beginning is None:
            return Judged({**owner, "root_job_id": job_id, **LIVE}, "job", items)
        seen = {"seen": {"$gte": beginning}, **LIVE}
        overlapping = {**owner, **_others(job), "last_position": {"$gte": beginning}}
        jobs = await self._names(overlapping, _MAX_JUDGED + 1)
        if len(jobs) > _MAX_JUDGED:
            other_series = {**owner, "series": {"$ne": job.get("series")}, "items": {"$gt": 0}}
            excluded = {"$nin": await self._names(other_series, _MAX_EXCLUDED)}
            return Judged({**owner, "root_job_id": excluded, **seen, **NO_TOMBSTONE}, "id", items)
        held = {"$in": [job_id, *jobs]} if jobs else job_id
        return Judged({**owner, "root_job_id": held, **seen}, "job", items)

    async def _names(self, jobs: Record, limit: int) -> list[str]:
        cursor = self._jobs.find(jobs, ["job_id"], hint="held").limit(limit)
        return [job["job_id"] for job in await cursor.to_list(None)]

    # -- the deletion ---------------------------------------------------------------------------------

    @stored
    async def deletable(self, group: Group, job_id: str) -> Deletable | None:
        """Return what is missing from a job, and why it must not be deleted, if so; None if there is no such job."""
        job = await self._job(group, job_id)
        if job is None:
            return None
        missing, held_back = await self._missing(group.owner, job), await self._held_back(group.owner, job)
        return Deletable(missing, held_back, job.get("finish_date"))

    async def _held_back(self, owner: Record, job: Record) -> str | None:
        """Return why the items that are missing from a job must not be deleted; None if they may be."""
        if job.get("state") != "finished":
            state = "failed" if job.get("state") == "failed" else "runs"
            return f"The job {state}: only what is missing from a finished job is deleted"
        if job.get("verdict") == "failed":
            return "The verdict on the job is failed: read its problems"
        if sum(job.get(kind, 0) for kind in KINDS) <= 0:
            return "The job has seen no item: crawl again"
        if job.get("beginning") is None:
            return "The beginning of the job is not stored, as an earlier version of the service wrote it: crawl again"
        if await self._is_shared(owner, job):
            return (
                "Items are shared with another series, which may still list them: give each series keys of its own, "
                "or use no series"
            )
        missing, _ = await self.count(owner, job)
        judged = (job.get("missing") or 0) - job.get("deleted", 0)
        if missing > judged:
            return (
                f"{missing} items are missing, and {max(0, judged)} were when the job was judged: set it to running, "
                "then to finished, to have it judged again"
            )
        return None

    async def _is_shared(self, owner: Record, job: Record) -> bool:
        """Return whether a job that holds missing items has taken items over from another series."""
        elsewhere = {"$elemMatch": {"series": {"$ne": job.get("series")}}}
        jobs = self._jobs.find({**owner, **_holding(job), "taken": elsewhere}, ["job_id"], hint="held")
        while part := await jobs.to_list(MAX_HOLDERS):
            if await self._outputs.find_one({**owner, **_items(part, job["beginning"])}, ["_id"], hint="job"):
                return True
        return False

    def report(self, group: Group, deletable: Deletable) -> Report:
        """Return a report that counts in the job what is deleted, and ends the deletion if the job is opened again."""
        same_end = _same_end(group, deletable)

        @stored
        async def report(count: int, _: Place | None) -> bool:
            return bool((await self._jobs.update_one(same_end, {"$inc": {"deleted": count}})).matched_count)

        return report

    async def delete(self, group: Group, job_id: str) -> tuple[str | None, bool]:
        """Delete what is missing from a job, for a limited time; return why not, and whether there is more.

        Repeating it continues it, and so does the upkeep, unless the job is opened again.
        """
        deletable = await self.deletable(group, job_id)
        if deletable is None:
            return None, False
        if deletable.held_back is not None:
            await self._forget(group, deletable)
            return deletable.held_back, False
        place = await self._begin(group, deletable)
        if place is None:
            return _OPENED_AGAIN, False
        return await self._continue(group, deletable, place)

    @stored
    async def _forget(self, group: Group, deletable: Deletable) -> None:
        """Forget a deletion that must not be continued."""
        same = {**group.owner, "job_id": deletable.missing.job_id, "finish_date": deletable.finish_date}
        await self._jobs.update_one(same, {"$unset": {"deleting": ""}})

    @stored
    async def _begin(self, group: Group, deletable: Deletable) -> Place | None:
        """Return the place of the deletion that was begun, or begin one; None if the job was opened again."""
        begin = await self._deletion.begin(group)
        new = {"until": begin.until, "done": begin.done}
        deleting = {"$mergeObjects": [new, "$deleting", {"date": "$$NOW"}]}
        job = await self._jobs.find_one_and_update(
            _same_end(group, deletable),
            [{"$set": {"deleting": deleting}}],
            ["deleting"],
            return_document=ReturnDocument.AFTER,
        )
        return None if job is None else Place(job["deleting"]["until"], job["deleting"]["done"])

    async def _continue(self, group: Group, deletable: Deletable, place: Place) -> tuple[str | None, bool]:
        """Delete for a limited time; return why not to the end, and whether there is more."""
        same_end, count_deleted = _same_end(group, deletable), self.report(group, deletable)
        same_deletion = {**same_end, "deleting.until": place.until}

        @stored
        async def report(count: int, next_place: Place | None) -> bool:
            goes_on = await count_deleted(count, next_place)
            progress: Record = {"$unset": {"deleting": ""}}
            if next_place is not None:
                progress = {"$max": {"deleting.done": next_place.done}, "$currentDate": {"deleting.date": True}}
            return bool((await self._jobs.update_one(same_deletion, progress)).matched_count) and goes_on

        query = Query(missing_from=deletable.missing)
        done = await self._deletion.run(group, query, place, seconds=_DELETE_SECONDS, report=report)
        if done.place is None:
            return None, False
        job = await self._find(same_end)
        if job is None:
            return _OPENED_AGAIN, False
        return None, "deleting" in job  # else another call has come to the end

    @stored
    async def _find(self, where: Record) -> Record | None:
        job: Record | None = await self._jobs.find_one(where, ["deleting"])
        return job

    @stored
    async def continue_deletions(self) -> None:
        """Continue the deletions that were interrupted, for a limited time; one that fails does not stop the others."""
        late = await server_time(self._database) - _LATE
        fields = ["organization_id", "group_id", "job_id", "deleting.date"]
        cursor = self._jobs.find({"deleting.date": {"$lte": late}}, fields, hint="deleting").sort("deleting.date", 1)
        deadline = time.monotonic() + _CONTINUED_SECONDS
        for job in await cursor.limit(_CONTINUED_AT_ONCE).to_list(None):
            own = {**Group.of(job).owner, "job_id": job["job_id"]}
            # From now on it is behind the others, also if it fails.
            late_job = {**own, "deleting.date": job["deleting"]["date"]}
            if not (await self._jobs.update_one(late_job, {"$currentDate": {"deleting.date": True}})).modified_count:
                continue
            try:
                more = True
                while more and time.monotonic() < deadline:
                    _, more = await self.delete(Group.of(job), job["job_id"])
                if more:  # it is the next one to be continued
                    unfinished = {**own, "deleting.date": {"$exists": True}}
                    await self._jobs.update_one(unfinished, {"$set": {"deleting.date": late}})
            except StoreError as error:
                log.error("a deletion of missing items could not be continued", extra={"error": str(error)})
            if time.monotonic() > deadline:
                return


def _others(job: Record) -> Record:
    """Return the filter for the other jobs of a series that hold items; null also finds jobs without a series."""
    return {"series": job.get("series"), "items": {"$gt": 0}, "job_id": {"$ne": job["job_id"]}}


def _holding(job: Record) -> Record:
    """Return the filter for the jobs that may hold items that are missing from a job.

    Those that began later hold only what they have seen since.
    """
    return {**_others(job), "beginning": {"$not": {"$gte": job["beginning"]}}}


def _items(jobs: list[Record], beginning: int) -> Record:
    """Return the filter for the items of some jobs that nobody has seen since a beginning."""
    return {"root_job_id": {"$in": [job["job_id"] for job in jobs]}, **not_seen_since(beginning), **LIVE}


def _same_end(group: Group, deletable: Deletable) -> dict[str, Any]:
    """Return the filter for a job that has not been opened again since."""
    job_id = deletable.missing.job_id
    return {**group.owner, "job_id": job_id, "state": "finished", "finish_date": deletable.finish_date, **EXISTS}
