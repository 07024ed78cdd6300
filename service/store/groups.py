"""What each group holds: counted as it is written, so that nothing is counted when it is read."""

from __future__ import annotations

from collections import OrderedDict
from datetime import timedelta
from typing import Any

from pymongo import ASCENDING, DESCENDING, UpdateOne
from pymongo.errors import DuplicateKeyError

from service.store.connection import COMMITTED, MAJORITY, Collection, Database
from service.store.contract import stored
from service.store.sequences import Batch

# Known jobs need no upsert: 20,000 keys are about 4 MB.
_REMEMBERED_JOBS = 20_000
# Groups whose last batches a process remembers: 10,000 are about 4 MB.
_REMEMBERED_GROUPS = 10_000
# What a process leaves behind in `counted` when it ends; no batch is in flight for so long.
_COUNTED_AGE = timedelta(days=1)

_PROJECTION = {"_id": 0, "organization_id": 0, "counted": 0}


def _served(group: dict[str, Any], since: str = "") -> dict[str, Any]:
    days = sorted((date, day) for date, day in group.get("days", {}).items() if date >= since)
    return {
        "group_id": group["group_id"],
        "items": group.get("items", 0),
        "jobs": group.get("jobs", 0),
        "approved": group.get("approved", 0),
        "last_id": group.get("last_id", 0),
        "last_change": group.get("last_change"),
        "days": [{"date": date, **day} for date, day in days],
    }


class Change:
    """What one batch changed in its group."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.created = self.changed = self.approved = self.last_id = 0
        self.jobs: set[str] = set()

    def add(self, document: dict[str, Any], created: bool, was_approved: bool) -> None:
        """Count one written document."""
        self.created += created
        self.changed += not created
        self.approved += document["is_approved"] - was_approved
        self.last_id = max(self.last_id, document["id"])
        self.jobs.add(document["root_job_id"])


class Groups:
    """The groups of an organization, with their counts.

    `counted` holds the batches in a group's counts that may still be in flight, so that neither a
    batch of a dead writer nor a second try is counted twice. The next batch takes out those that
    its process has seen released.
    """

    def __init__(self, database: Database) -> None:
        self._groups: Collection = database.get_collection("groups", write_concern=COMMITTED, read_concern=MAJORITY)
        self._jobs: Collection = database.get_collection("jobs", write_concern=COMMITTED, read_concern=MAJORITY)
        self._known_jobs: OrderedDict[tuple[int, str, str], None] = OrderedDict()
        self._released: OrderedDict[tuple[int, str], list[str]] = OrderedDict()

    async def ensure_indexes(self) -> None:
        """Make the indexes that hold each group and each job once."""
        group = [("organization_id", ASCENDING), ("group_id", ASCENDING)]
        await self._groups.create_index(group, name="group", unique=True)
        await self._jobs.create_index([*group, ("job_id", ASCENDING)], name="job", unique=True)

    @stored
    async def apply(self, change: Change) -> None:
        """Add a batch's changes to its group's counts, once, however often it is called."""
        if not change.created and not change.changed:
            return
        batch = change.batch
        group = {"organization_id": batch.organization_id, "group_id": batch.group_id}
        new_jobs = await self._new_jobs(group, change)
        day = batch.date.strftime("%Y-%m-%d")
        counted = f"counted.{batch.token}"
        released = await self._take_released(batch)
        update: dict[str, Any] = {
            "$inc": {
                "items": change.created,
                "approved": change.approved,
                "jobs": new_jobs,
                f"days.{day}.created": change.created,
                f"days.{day}.changed": change.changed,
            },
            "$max": {"last_id": change.last_id, "last_change": batch.date},
            "$set": {counted: batch.date},
            "$unset": {f"counted.{token}": "" for token in released},
        }
        while True:
            try:
                await self._groups.update_one({**group, counted: {"$exists": False}}, update, upsert=True)
                return
            except DuplicateKeyError:
                # Either this batch is in already, or another writer made the group just now.
                if await self._groups.find_one({**group, counted: {"$exists": True}}, {"_id": 1}):
                    return

    def forget(self, batch: Batch) -> None:
        """Let the group's next batch take this one, which is released, out of `counted`."""
        self._released.setdefault((batch.organization_id, batch.group_id), []).append(batch.token)
        while len(self._released) > _REMEMBERED_GROUPS:
            self._released.popitem(last=False)

    async def _take_released(self, batch: Batch) -> list[str]:
        """Return the batches to take out of `counted`; clear it of old ones on the first call for a group."""
        group = (batch.organization_id, batch.group_id)
        if group not in self._released:
            recent = {"$gt": ["$$this.v", batch.date - _COUNTED_AGE]}
            kept = {"$filter": {"input": {"$objectToArray": {"$ifNull": ["$counted", {}]}}, "cond": recent}}
            await self._groups.update_one(
                {"organization_id": group[0], "group_id": group[1]},
                [{"$set": {"counted": {"$arrayToObject": kept}}}],
            )
        released, self._released[group] = self._released.get(group, []), []
        return released

    @stored
    async def all(self, organization_id: int, since: str) -> list[dict[str, Any]]:
        """Return an organization's groups, newest change first, with their days since a date."""
        found = self._groups.find({"organization_id": organization_id}, _PROJECTION)
        return [_served(group, since) for group in await found.sort("last_change", DESCENDING).to_list(None)]

    @stored
    async def one(self, organization_id: int, group_id: str) -> dict[str, Any]:
        """Return one group with all its days; one that does not exist has nothing in it."""
        where = {"organization_id": organization_id, "group_id": group_id}
        return _served(await self._groups.find_one(where, _PROJECTION) or {"group_id": group_id})

    async def _new_jobs(self, group: dict[str, Any], change: Change) -> int:
        """Enter the jobs not seen before and return how many they are."""
        where = (group["organization_id"], group["group_id"])
        unknown = [job for job in change.jobs if (*where, job) not in self._known_jobs]
        if not unknown:
            return 0
        # Whose batch made a job: a second try counts it, and another batch does not.
        entry = {"$setOnInsert": {"create_date": change.batch.date, "batch": change.batch.token}}
        done = await self._jobs.bulk_write(
            [UpdateOne({**group, "job_id": job}, entry, upsert=True) for job in unknown],
            ordered=False,
        )
        new = done.upserted_count
        if new < len(unknown):
            made = {**group, "job_id": {"$in": unknown}, "batch": change.batch.token}
            new = await self._jobs.count_documents(made)
        for job in unknown:
            self._known_jobs[(*where, job)] = None
        while len(self._known_jobs) > _REMEMBERED_JOBS:
            self._known_jobs.popitem(last=False)
        return new
