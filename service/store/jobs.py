"""What each job of a group wrote and holds.

A round adds its counts to `pending_jobs` in its group's document, in the step that finishes it. From
there they are moved to one document per job in `jobs`. A move has a number: a job that has had it
refuses it the second time, so a move that broke off is simply done again.
"""

from __future__ import annotations

from typing import Any

from pymongo import ReturnDocument, UpdateOne
from pymongo.errors import BulkWriteError, DuplicateKeyError

from service.store.connection import COMMITTED, MAJORITY, Collection, Database
from service.store.contract import stored
from service.store.errors import DUPLICATE_KEY
from service.store.indexes import Indexes

_COUNTS = ("items", "created", "changed", "unchanged")


def _job_id(field: str) -> str:
    return field.replace("%24", "$").replace("%2E", ".").replace("%25", "%")


def job_field(job_id: str) -> str:
    """Return a job's name as a field name: without dots and dollars."""
    return job_id.replace("%", "%25").replace(".", "%2E").replace("$", "%24")


def served(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job as the API shows it."""
    return {
        "job_id": job["job_id"],
        "series": job.get("series"),
        "state": job.get("state", "running"),
        **{name: job.get(name, 0) for name in _COUNTS},
        "first_write": job.get("first_write"),
        "last_write": job.get("last_write"),
        "finish_date": job.get("finish_date"),
        "missing": job.get("missing"),
        "deleted": job.get("deleted", 0),
        "fields": job.get("fields", []),
        "verdict": job.get("verdict"),
        "problems": job.get("problems", []),
    }


class Jobs:
    """The jobs of the groups of an organization."""

    def __init__(self, database: Database, indexes: Indexes) -> None:
        self._groups: Collection = database.get_collection("groups", write_concern=COMMITTED, read_concern=MAJORITY)
        self._jobs: Collection = database.get_collection("jobs", write_concern=COMMITTED, read_concern=MAJORITY)
        self._indexes = indexes

    @stored
    async def list(self, organization_id: int, group_id: str, limit: int) -> list[dict[str, Any]]:
        """Return up to `limit` jobs of a group, newest first."""
        await self.gather(organization_id, group_id)
        where = {"organization_id": organization_id, "group_id": group_id}
        found = self._jobs.find(where).sort([("last_write", -1), ("_id", -1)]).limit(limit)
        return [served(job) for job in await found.to_list(None)]

    @stored
    async def declare(self, organization_id: int, group_id: str, job_id: str) -> None:
        """Make a job that has written nothing: counted as one that wrote, but with nothing."""
        self._indexes.require("groups", "jobs")
        owner = {"organization_id": organization_id, "group_id": group_id}
        nothing = {"$inc": {f"pending_jobs.{job_field(job_id)}.created": 0}}
        try:
            await self._groups.update_one(owner, nothing, upsert=True)
        except DuplicateKeyError:  # somebody else made the group's document
            await self._groups.update_one(owner, nothing)
        await self.gather(organization_id, group_id)

    @stored
    async def gather(self, organization_id: int, group_id: str) -> None:
        """Move the counts that wait in the group's document now to the jobs' documents."""
        self._indexes.require("groups", "jobs")
        owner = {"organization_id": organization_id, "group_id": group_id}
        before = await self._begun(owner)
        if before is not None:
            await self._move(owner, before)
        # One more, begun by this call or meanwhile by another, has all that waited. Not until nothing waits: while
        # somebody writes, something always does.
        move = await self._begin(owner) or await self._begun(owner)
        if move is not None:
            await self._move(owner, move)

    async def _move(self, owner: dict[str, Any], move: dict[str, Any]) -> None:
        await self._apply(owner, move)
        # Those that this move made, whoever did it: counting all jobs would take longer with each one.
        names = {"$in": [_job_id(name) for name in move["jobs"]]}
        new = await self._jobs.count_documents({**owner, "job_id": names, "first_move": move["number"]})
        await self._groups.update_one(
            {**owner, "moving.number": move["number"]}, {"$unset": {"moving": ""}, "$inc": {"jobs": new}}
        )

    async def _begun(self, owner: dict[str, Any]) -> dict[str, Any] | None:
        found = await self._groups.find_one({**owner, "moving": {"$exists": True}}, {"moving": 1})
        return found["moving"] if found else None

    async def _begin(self, owner: dict[str, Any]) -> dict[str, Any] | None:
        """Set the counts that wait aside, under a new number."""
        number = {"$add": [{"$ifNull": ["$moves", 0]}, 1]}
        group = await self._groups.find_one_and_update(
            {**owner, "moving": {"$exists": False}, "pending_jobs": {"$exists": True}},
            [
                {"$set": {"moving": {"number": number, "jobs": "$pending_jobs"}, "moves": number}},
                {"$unset": "pending_jobs"},
            ],
            {"moving": 1},
            return_document=ReturnDocument.AFTER,
        )
        return group["moving"] if group else None

    async def _apply(self, owner: dict[str, Any], move: dict[str, Any]) -> None:
        number, operations = move["number"], []
        for name, counts in move["jobs"].items():
            update: dict[str, Any] = {
                "$set": {"move": number},
                "$setOnInsert": {"first_move": number},
                "$inc": {k: counts.get(k, 0) for k in _COUNTS},
            }
            if "first_write" in counts:
                update["$min"] = {"first_write": counts["first_write"]}
                update["$max"] = {"last_write": counts["last_write"]}
            where = {**owner, "job_id": _job_id(name), "move": {"$not": {"$gte": number}}}
            operations.append(UpdateOne(where, update, upsert=True))
        try:
            await self._jobs.bulk_write(operations, ordered=False)
        except BulkWriteError as error:
            # A job that has had this move is not found, and cannot be made a second time.
            failed = error.details["writeErrors"]
            if error.details.get("writeConcernErrors") or any(e["code"] != DUPLICATE_KEY for e in failed):
                raise

    @stored
    async def remove(self, organization_id: int, group_id: str) -> None:
        """Forget the jobs of a group."""
        self._indexes.require("groups", "jobs")
        owner = {"organization_id": organization_id, "group_id": group_id}
        await self._groups.update_one(owner, {"$unset": {"pending_jobs": "", "moving": ""}, "$set": {"jobs": 0}})
        await self._jobs.delete_many(owner)
