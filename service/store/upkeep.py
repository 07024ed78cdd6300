"""What keeps groups in order while the service runs; each group is looked at when its `due` date has come.

Every step may break off and be done again, by this process or another one: days are written as
absolute numbers, moved counts have numbers, removals are noted before they are done.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from pymongo import ReplaceOne, ReturnDocument

from service.settings import Settings
from service.store.connection import COMMITTED, MAJORITY, Collection, Database, server_time
from service.store.contract import stored, without_time_limit
from service.store.errors import StoreError
from service.store.jobs import Jobs, job_field
from service.store.outputs.reading import Query

log = logging.getLogger("service.store")

# Groups that one pass looks at, and how long a process keeps others off one.
_GROUPS_PER_PASS = 100
_CLAIM = timedelta(seconds=60)
# No writer is alive for so long.
_TOMBSTONE_AGE = timedelta(days=7)
_REMOVED_AT_ONCE = 1000
# Expired items are deleted in short rounds with pauses that are as long, so that writers get through, for some seconds
# per pass, so that a busy group does not grow for ever.
_EXPIRED_AT_ONCE = 200
_EXPIRING_SECONDS = 3.0
# Counts of jobs that one pass corrects: they wait in the group's document.
_CORRECTED_AT_ONCE = 500
_RETENTION_EVERY = timedelta(hours=6)
_DAILY = timedelta(days=1)

Expire = Callable[[int, str, Query], Awaitable[tuple[int, int | None]]]


class Upkeep:
    """Looks after groups: counts, finished days, old tombstones and deletion records, retention."""

    def __init__(self, database: Database, jobs: Jobs, expire: Expire, settings: Settings) -> None:
        self._database, self._jobs, self._expire = database, jobs, expire
        self.failures = 0
        self._deleted_age = timedelta(days=settings.deleted_days)
        options: dict[str, Any] = {"write_concern": COMMITTED, "read_concern": MAJORITY}
        self._groups: Collection = database.get_collection("groups", **options)
        self._days: Collection = database.get_collection("days", **options)
        self._outputs: Collection = database.get_collection("outputs", **options)

    async def run(self) -> None:
        """Look at every group whose time has come; one that fails does not stop the others."""
        for group in await self._due():
            try:
                await self._look_at(group)
            except StoreError as error:
                self.failures += 1
                log.warning("upkeep of a group failed and will be tried again", extra={"error": str(error)})

    @stored
    async def _due(self) -> list[dict[str, Any]]:
        now = await self._now()
        fields = ["organization_id", "group_id", "due"]
        found = self._groups.find({"due": {"$lte": now}}, fields, hint="due").sort("due", 1).limit(_GROUPS_PER_PASS)
        return await found.to_list(None)

    @stored
    async def seconds_late(self) -> float:
        """Return how long the group that is due first has waited; 0 where none is due."""
        first = await self._groups.find_one({"due": {"$exists": True}}, ["due"], sort=[("due", 1)], hint="due")
        return 0.0 if first is None else max(0.0, (await self._now() - first["due"]).total_seconds())

    async def _now(self) -> datetime:
        """Return the earlier of the clocks of the database and of this machine: one ahead must not remove anything."""
        return min(await server_time(self._database), datetime.now(UTC))

    @stored
    @without_time_limit
    async def _look_at(self, group: dict[str, Any]) -> None:
        owner = {"organization_id": group["organization_id"], "group_id": group["group_id"]}
        now = await self._now()
        claim = now + _CLAIM
        # As it is now: its retention may have been changed since it was found due.
        claimed = await self._groups.find_one_and_update(
            {**owner, "due": group["due"]}, {"$set": {"due": claim}}, return_document=ReturnDocument.AFTER
        )
        if claimed is None:
            return
        group = claimed
        await self._jobs.gather(**owner)
        await self._keep_past_days(owner, group)
        next_due = [
            await self._remove_tombstones(owner, group, now),
            await self._remove_deletions(owner, group, now),
            await self._delete_expired(owner, group, now),
            await self._recount(owner, group, now),
        ]
        due = min((date for date in next_due if date is not None), default=None)
        # Only if nobody has found something to do meanwhile.
        change = {"$unset": {"due": ""}} if due is None else {"$set": {"due": due}}
        await self._groups.update_one({**owner, "due": claim}, change)

    async def _keep_past_days(self, owner: dict[str, Any], group: dict[str, Any]) -> None:
        """Move the counts of finished days to documents of their own."""
        days = [day for day in group.get("past", ()) if "date" in day]
        if days:
            await self._days.bulk_write(
                [ReplaceOne({**owner, "date": day["date"]}, {**owner, **day}, upsert=True) for day in days]
            )
            await self._groups.update_one(owner, {"$pull": {"past": {"date": {"$in": [day["date"] for day in days]}}}})

    async def _remove_tombstones(self, owner: dict[str, Any], group: dict[str, Any], now: datetime) -> datetime | None:
        if group.get("tombstones", 0) <= 0:
            return None
        done = await self._outputs.delete_many({**owner, "tombstone": {"$lt": now - _TOMBSTONE_AGE}})
        if done.deleted_count:
            await self._groups.update_one(owner, {"$inc": {"tombstones": -done.deleted_count}})
        return now + _DAILY

    async def _remove_deletions(self, owner: dict[str, Any], group: dict[str, Any], now: datetime) -> datetime | None:
        """Remove old deletion records; note the newest one first, so that late readers learn of it."""
        if group.get("deleted", 0) <= 0:
            return None
        old = {**owner, "update_date": {"$lt": now - self._deleted_age}, "deleted": True}
        found = self._outputs.find(old, ["id"], hint="deleted").sort([("update_date", 1), ("id", 1)])
        records = await found.limit(_REMOVED_AT_ONCE).to_list(None)
        if not records:
            return now + _DAILY
        await self._groups.update_one(owner, {"$max": {"expired_id": records[-1]["id"]}})
        done = await self._outputs.delete_many({**old, "id": {"$in": [record["id"] for record in records]}})
        await self._groups.update_one(owner, {"$inc": {"deleted": -done.deleted_count}})
        return now

    async def _delete_expired(self, owner: dict[str, Any], group: dict[str, Any], now: datetime) -> datetime | None:
        """Delete items that were not scraped for `retention_days`, a few at a time."""
        days = group.get("retention_days")
        if days is None:
            return None
        if group.get("retention_at") is not None and group["retention_at"] > now:
            return group["retention_at"]  # type: ignore[no-any-return]
        query = Query(
            cursor=group.get("retention_id", 0), limit=_EXPIRED_AT_ONCE, scraped_before=now - timedelta(days=days)
        )
        end = time.monotonic() + _EXPIRING_SECONDS
        while (started := time.monotonic()) < end:
            _, cursor = await self._expire(owner["organization_id"], owner["group_id"], query)
            if cursor is None:
                rest = {"$set": {"retention_at": now + _RETENTION_EVERY}, "$unset": {"retention_id": ""}}
                await self._groups.update_one(owner, rest)
                return now + _RETENTION_EVERY
            query = query._replace(cursor=cursor)
            await asyncio.sleep(time.monotonic() - started)
        await self._groups.update_one(owner, {"$set": {"retention_id": query.cursor}})
        return now

    async def _recount(self, owner: dict[str, Any], group: dict[str, Any], now: datetime) -> datetime | None:
        """Count what a group holds anew after a writer died, once nobody writes to it."""
        if not group.get("recount"):
            return None
        quiet: dict[str, Any] = {
            **owner,
            "open": [],
            "pending_jobs": {"$exists": False},
            "moving": {"$exists": False},
            "recount": True,
        }
        before = await self._groups.find_one(quiet, ["next"])
        if before is None:
            return now + timedelta(seconds=5)
        found = {
            job["_id"]: job
            async for job in self._outputs.aggregate(
                [{"$match": {**owner, "root_job_id": {"$exists": True}}}, _COUNT_BY_JOB], hint="job", allowDiskUse=True
            )
        }
        kept = {job["job_id"]: job.get("items", 0) async for job in self._jobs_of(owner)}
        differences = {id: found.get(id, _NOTHING)["items"] - kept.get(id, 0) for id in {*found, *kept}}
        wrong = [id for id, difference in differences.items() if difference]
        some = {f"pending_jobs.{job_field(id)}.items": differences[id] for id in wrong[:_CORRECTED_AT_ONCE]}
        counts = {name: sum(job[name] for job in found.values()) for name in ("items", "approved", "deleted")}
        counts["jobs"] = len(kept)
        counts["tombstones"] = await self._outputs.count_documents({**owner, "tombstone": {"$exists": True}})
        # Whoever writes takes ids first: the same `next` and nothing in flight is the same state.
        update: dict[str, Any] = {"$set": counts}
        if some:
            update["$inc"] = some
        if len(some) == len(wrong):
            update["$unset"] = {"recount": ""}
        quiet["next"] = before["next"]
        done = await self._groups.update_one(quiet, update)
        return None if done.matched_count and not wrong else now + timedelta(seconds=5)

    def _jobs_of(self, owner: dict[str, Any]) -> Any:
        return self._database["jobs"].with_options(read_concern=MAJORITY).find(owner, ["job_id", "items"])


_NOTHING = {"items": 0, "approved": 0, "deleted": 0}
_DELETED = {"$eq": ["$deleted", True]}
_COUNT_BY_JOB = {
    "$group": {
        "_id": "$root_job_id",
        "items": {"$sum": {"$cond": [_DELETED, 0, 1]}},
        "approved": {"$sum": {"$cond": [{"$eq": ["$is_approved", True]}, 1, 0]}},
        "deleted": {"$sum": {"$cond": [_DELETED, 1, 0]}},
    }
}
