"""The counts of each job and of each day of a group.

A batch adds its counts to `pending` in its group's document, in the step that finishes it. From there they are moved
to one document per job in `jobs` and one per day in `days`. A move has a number: a document that has
applied it refuses it the second time, so a move that was interrupted is simply repeated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from pymongo import ReturnDocument, UpdateOne
from pymongo.errors import BulkWriteError

from service.store.connection import COMMITTED, MAJORITY, Collection, Database
from service.store.contract import stored, streamed
from service.store.errors import duplicates
from service.store.group import Group
from service.store.indexes import Indexes
from service.store.outputs.counts import MAX_WAITING_BYTES, WAITING_BYTES

JOB_COUNTS = ("items", "created", "changed", "unchanged")
# Series of which a job counts the items that it took over from them; those of further ones are counted together, under
# a value that is the name of no series.
_MAX_SERIES = 100
_OTHER_SERIES = False
# Jobs in memory at once, of up to 50 KB each: as documents and as text they fit into the memory of a stream.
_AT_ONCE = 25
# Matches jobs that exist; what is kept of those of a deleted group has no `first_move`.
EXISTS = {"first_move": {"$exists": True}}
# The fields that are kept of a job when its group is deleted: a late move is refused, and a job that goes on keeps its
# series and where it began.
_REMOVED = dict.fromkeys(("organization_id", "group_id", "job_id", "move", "series", "beginning", "last_position"), 1)


def served(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job as the API shows it."""
    return {
        "job_id": job["job_id"],
        "series": job.get("series"),
        "state": job.get("state", "running"),
        **{name: job.get(name, 0) for name in JOB_COUNTS},
        "shared": shared(job),
        "first_write": job.get("first_write"),
        # Of a job that has written nothing it is the moment of its beginning, by which the list is sorted.
        "last_write": job.get("last_write") if job.get("first_write") else None,
        "finish_date": job.get("finish_date"),
        "missing": job.get("missing"),
        "deleted": job.get("deleted", 0),
        "judged": job.get("judged"),
        "fields": job.get("fields", []),
        "verdict": job.get("verdict"),
        "problems": job.get("problems", []),
    }


def shared(job: dict[str, Any]) -> int:
    """Return how many items a job took over from jobs of other series."""
    return sum(taken["items"] for taken in job.get("taken", ()) if taken["series"] != job.get("series"))


class Jobs:
    """The jobs of the groups of an organization."""

    def __init__(self, database: Database, indexes: Indexes) -> None:
        self._groups: Collection = database.get_collection("groups", write_concern=COMMITTED, read_concern=MAJORITY)
        self._jobs: Collection = database.get_collection("jobs", write_concern=COMMITTED, read_concern=MAJORITY)
        self._days: Collection = database.get_collection("days", write_concern=COMMITTED, read_concern=MAJORITY)
        self._indexes = indexes

    @streamed
    async def batches(self, group: Group, limit: int) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield up to `limit` jobs of a group, newest first, some at a time: each may take 50 KB."""
        await self.collect(group)
        where = {**group.owner, **EXISTS}
        newest = self._jobs.find(where, batch_size=_AT_ONCE).sort([("last_write", -1), ("_id", -1)])
        cursor = newest.limit(limit)
        while jobs := await cursor.to_list(_AT_ONCE):
            yield [served(job) for job in jobs]

    @stored
    async def declare(self, group: Group, job_id: str, first_id: int) -> None:
        """Make a job that has written nothing; it is counted as a job of its group.

        It begins at the lowest id in flight, or the next one; `first_id` is that of a group without ids.
        """
        self._indexes.require("groups", "jobs")
        next_id = {"$ifNull": ["$next", first_id]}
        lowest = {"$min": {"$concatArrays": [[next_id], {"$ifNull": ["$open.first", []]}]}}
        job = {"job_id": {"$literal": job_id}, "beginning": lowest}
        entry = {"date": "$$NOW", "created": 0, "changed": 0, "jobs": [job]}
        # Where no more fits, the caller tries again.
        added = {"$cond": [{"$lte": [WAITING_BYTES, MAX_WAITING_BYTES]}, [entry], []]}
        pending = {"$concatArrays": [{"$ifNull": ["$pending", []]}, added]}
        await self._groups.update_one(group.owner, [{"$set": {"pending": pending}}], upsert=True)
        await self.collect(group)

    @stored
    async def collect(self, group: Group) -> None:
        """Move the counts in the group's document to the jobs' documents."""
        self._indexes.require("groups", "jobs")
        owner = group.owner
        before = await self._begun(owner)
        if before is not None:
            await self._move(owner, before)
        # One more move, by this call or another, includes all that waited at the start. Not a loop until nothing
        # waits: under load something always does.
        move = await self._begin(owner) or await self._begun(owner)
        if move is not None:
            await self._move(owner, move)

    async def _move(self, owner: dict[str, Any], move: dict[str, Any]) -> None:
        number, jobs, days = move["number"], *summed(move["entries"])
        await self._add_series(owner, jobs)
        await _apply(self._jobs, owner, "job_id", number, jobs)
        await _apply(self._days, owner, "date", number, days)
        # The jobs that this move created: counting all jobs would take longer with each new one.
        where = {**owner, "job_id": {"$in": list(jobs)}, "first_move": number}
        await self._groups.update_one(
            {**owner, "moving.number": number},
            {"$unset": {"moving": ""}, "$inc": {"jobs": await self._jobs.count_documents(where)}},
        )

    async def _add_series(self, owner: dict[str, Any], jobs: dict[str, Any]) -> None:
        """Replace the jobs from which items were taken over by the series of these jobs, with the earlier counts.

        Only one process applies a move, so that what was read before it is still true.
        """
        taking = {job_id: job.pop("taken") for job_id, job in jobs.items() if "taken" in job}
        if not taking:
            return
        names = taking.keys() | {before for taken in taking.values() for before in taken}
        where = {**owner, "job_id": {"$in": list(names)}}
        stored_jobs = {job["job_id"]: job async for job in self._jobs.find(where, ["job_id", "series", "taken"])}
        for job_id, taken in taking.items():
            of_series = {one["series"]: one["items"] for one in stored_jobs.get(job_id, {}).get("taken", ())}
            for before, items in taken.items():
                series = stored_jobs.get(before, {}).get("series")
                if series not in of_series and len(of_series) >= _MAX_SERIES:
                    series = _OTHER_SERIES
                of_series[series] = of_series.get(series, 0) + items
            jobs[job_id]["taken"] = [{"series": series, "items": items} for series, items in of_series.items()]

    async def _begun(self, owner: dict[str, Any]) -> dict[str, Any] | None:
        document = await self._groups.find_one({**owner, "moving": {"$exists": True}}, {"moving": 1})
        return document["moving"] if document else None

    async def _begin(self, owner: dict[str, Any]) -> dict[str, Any] | None:
        """Set the waiting counts aside, under a new number."""
        number = {"$add": [{"$ifNull": ["$moves", 0]}, 1]}
        group = await self._groups.find_one_and_update(
            {**owner, "moving": {"$exists": False}, "pending": {"$exists": True}},
            [{"$set": {"moving": {"number": number, "entries": "$pending"}, "moves": number}}, {"$unset": "pending"}],
            {"moving": 1},
            return_document=ReturnDocument.AFTER,
        )
        return group["moving"] if group else None

    @stored
    async def remove(self, group: Group, until: int) -> None:
        """Delete the days of a group, and its jobs except those that began after an id.

        Counts that begin to wait meanwhile are those of later writes.
        """
        await self.collect(group)  # a concurrent move of these counts then has no effect
        owner, jobs = group.owner, {**group.owner, **EXISTS}
        # One that has written nothing begins at the next id.
        earlier = {**jobs, "beginning": {"$not": {"$gt": until + 1}}}
        await self._jobs.update_many(earlier, [{"$project": _REMOVED}])
        await self._groups.update_one(owner, {"$set": {"jobs": await self._jobs.count_documents(jobs)}})
        await self._days.update_many(owner, {"$set": {"created": 0, "changed": 0, "net": 0}})


def summed(entries: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the counts of each job and of each day in the entries of some batches."""
    jobs: dict[str, dict[str, Any]] = {}
    days: dict[str, dict[str, Any]] = {}
    for entry in entries:
        date = entry["date"]
        day = days.setdefault(date.strftime("%Y-%m-%d"), {"created": 0, "changed": 0, "net": 0})
        day["created"] += entry["created"]
        day["changed"] += entry["changed"]
        day["net"] += sum(counts.get("items", 0) for counts in entry["jobs"])
        for counts in entry["jobs"]:
            job = jobs.setdefault(counts["job_id"], dict.fromkeys(JOB_COUNTS, 0))
            for name in JOB_COUNTS:
                job[name] += counts.get(name, 0)
            if "beginning" in counts:
                job["beginning"] = min(counts["beginning"], job.get("beginning", counts["beginning"]))
            if "last_position" in counts:
                job["last_position"] = max(counts["last_position"], job.get("last_position", 0))
            for taken in counts.get("taken", ()):
                of_jobs = job.setdefault("taken", {})
                of_jobs[taken["from"]] = of_jobs.get(taken["from"], 0) + taken["items"]
            if any(name in counts for name in ("created", "changed", "unchanged")):
                job["first_write"] = min(job.get("first_write", date), date)
                job["last_write"] = max(job.get("last_write", date), date)
    return jobs, days


async def _apply(
    collection: Collection, owner: dict[str, Any], name: str, number: int, summed: dict[str, dict[str, Any]]
) -> None:
    """Add the counts of a move to each document that has not applied it."""
    operations = []
    for value, counts in summed.items():
        update: dict[str, Any] = {"move": number, "first_move": {"$ifNull": ["$first_move", number]}}
        for field, count in counts.items():
            match field:
                case "first_write":
                    update[field] = {"$min": [f"${field}", count]}
                case "last_write" | "last_position":
                    update[field] = {"$max": [f"${field}", count]}
                case "beginning":
                    # Of a job that wrote before beginnings were stored, none is known.
                    is_unknown = {"$and": [{"$gt": ["$first_write", None]}, {"$lte": ["$beginning", None]}]}
                    update[field] = {"$cond": [is_unknown, "$$REMOVE", {"$min": ["$beginning", count]}]}
                case "taken":
                    update[field] = {"$literal": count}
                case _:
                    update[field] = {"$add": [{"$ifNull": [f"${field}", 0]}, count]}
        where = {**owner, name: value, "move": {"$not": {"$gte": number}}}
        operations.append(UpdateOne(where, [{"$set": update}], upsert=True))
    if not operations:
        return
    try:
        await collection.bulk_write(operations, ordered=False)
    except BulkWriteError as error:
        # A document that has applied this move is not found, and cannot be created a second time.
        duplicates(error)
