"""Jobs from their beginning to their end: finished, compared with the job before, judged.

A job is finished once, however often it is requested: one conditional update ends it and stores the results.
Its counts are the sum of its writes. The items that it did not see are those that other jobs of its series
still hold, because every item belongs to the newest job that saw it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime, timedelta

from pymongo import ReturnDocument

from service.store.browser_state import now
from service.store.connection import COMMITTED, DURABLE, MAJORITY, Collection, Database, opened, server_time
from service.store.contract import stored
from service.store.errors import StoreError, StoreUnavailable
from service.store.group import Group
from service.store.groups import Groups
from service.store.indexes import Indexes
from service.store.jobs import ELSEWHERE, EXISTS, Jobs, served
from service.store.judging import Judged, Judging, kept_rates, rates_of
from service.store.listing import Record
from service.store.outputs.counts import KINDS, UPKEEP_DELAY
from service.store.outputs.ids import readable
from service.store.outputs.query import LIVE, Query
from service.store.rules import Facts, dropped, judge
from service.store.upkeep import DeleteSome
from service.store.webhooks import Webhooks

log = logging.getLogger("service.store")

# Other jobs of a series that are looked at one by one.
MAX_JOBS = 1000
# The deletion of missing items stops after this long; repeating the request continues it.
_DELETE_SECONDS = 1.5
# How long the end of a job waits for writers of its group.
_SETTLE_SECONDS = 2.0
# A recount that a client waits for counts as late by this much.
_URGENT = timedelta(minutes=5)
_DELETED_AT_ONCE = 200
# If nobody is told of an ended job by then, the process that ended it has died.
_LATE = timedelta(seconds=30)
_TOLD_AT_ONCE = 100
_OUTCOME = (
    *("finish_date", "missing", "deleted", "judged", "fields", "exact", "dropped", "verdict", "problems"),
    "untold",
)


class Crawls:
    """The states of the jobs of a group."""

    def __init__(
        self,
        database: Database,
        jobs: Jobs,
        groups: Groups,
        webhooks: Webhooks,
        delete: DeleteSome,
        indexes: Indexes,
        judging: Judging,
    ) -> None:
        self._jobs: Collection = database.get_collection("jobs", write_concern=DURABLE, read_concern=MAJORITY)
        self._groups: Collection = database.get_collection("groups", write_concern=COMMITTED, read_concern=MAJORITY)
        self._counts, self._settings, self._webhooks, self._delete = jobs, groups, webhooks, delete
        self._database, self._indexes, self._judging = database, indexes, judging

    @stored
    async def declare(self, group: Group, job_id: str, requested: Record) -> Record:
        """Set the series of a job, or its state to running or failed; return it. Creates the job if needed.

        Returns an empty record if its group is deleted meanwhile.
        For the state `finished` only the series is set: see `finish`.
        """
        self._indexes.require("groups", "jobs")
        job = group.owner | {"job_id": job_id} | EXISTS
        await self._ensure(group, job)
        changes: Record = {"series": requested["series"]} if "series" in requested else {}
        running: Record = {
            "$set": {**changes, "state": "running"},
            "$unset": dict.fromkeys(_OUTCOME, ""),
            "$inc": {"reopened": 1},
        }
        if requested["state"] == "running":
            await self._jobs.update_one({**job, "state": {"$in": ["finished", "failed"]}}, running)
        elif requested["state"] == "failed":
            ended = {**changes, "state": "failed", "finish_date": now(), "untold": True}
            earlier = {name: "" for name in _OUTCOME if name not in ended}
            await self._jobs.update_one({**job, "state": {"$ne": "failed"}}, {"$set": ended, "$unset": earlier})
        if changes:
            other = {**job, "series": {"$ne": requested["series"]}}
            await self._jobs.update_one({**other, "state": {"$ne": "finished"}}, {"$set": changes})
            if requested["state"] == "finished":
                # In another series other items are missing: it must be judged again before they are deleted.
                await self._jobs.update_one({**other, "state": "finished"}, running)
        if requested["state"] != "finished":
            await self._forget_verdict(group.owner, job_id)
        found: Record = await self._jobs.find_one(job) or {}
        return found

    async def _ensure(self, group: Group, job: Record) -> None:
        """Make the document of a job that has written nothing yet."""
        if await self._jobs.find_one(job, ["_id"]) is None:
            await self._counts.declare(group, job["job_id"])
        # By the clock that dates its writes: the two are compared.
        await self._jobs.update_one(
            {**job, "start_date": {"$exists": False}, "last_write": {"$exists": False}},
            [{"$set": {"start_date": "$$NOW", "last_write": "$$NOW"}}],
        )

    @stored
    async def one(self, group: Group, job_id: str) -> Record | None:
        """Return a job as it is served, or None."""
        self._indexes.require("groups", "jobs")
        await self._counts.gather(group)
        found = await self._jobs.find_one(group.owner | {"job_id": job_id} | EXISTS)
        return None if found is None else served(found)

    @stored
    async def finish(self, group: Group, job_id: str) -> Record:
        """Count and judge a job; return it. Only the first call changes it.

        Returns an empty record if its group is deleted meanwhile.
        """
        owner, where = group.owner, group.owner | {"job_id": job_id} | EXISTS
        await self._settle(owner)
        await self._counts.gather(group)
        job = await self._jobs.find_one(where) or {"job_id": job_id}
        rules = (await self._settings.settings(group))["rules"]
        missing = await self._missing(owner, job)
        before = await self._before(owner, job)
        items = job.get("items", 0)
        judged = Judged({**owner, "root_job_id": job_id, **LIVE}, "job", items)
        measured = await self._judging.measure(judged, rules)
        facts = Facts(
            items=items,
            seen=sum(job.get(kind, 0) for kind in KINDS),
            changed=job.get("changed", 0),
            missing=missing,
            fields=measured.fields,
            rates=measured.rates,
            rates_before=None if before is None else rates_of(before),
        )
        verdict = judge(rules, facts)
        outcome = {
            "state": "finished",
            "finish_date": await server_time(self._database),
            "missing": missing,
            "deleted": 0,
            "judged": measured.judged,
            **kept_rates(measured),
            "dropped": dropped(facts),
            "verdict": verdict.verdict,
            "problems": verdict.problems,
            "untold": True,
        }
        read = {name: job.get(name) for name in ("series", "reopened")}
        same = {**where, **read, "state": {"$ne": "finished"}}
        found = await self._jobs.find_one_and_update(same, {"$set": outcome}, return_document=ReturnDocument.AFTER)
        ended: Record = found or await self._jobs.find_one(where) or {}
        if ended and ended.get("state") not in ("finished", "failed"):
            raise StoreUnavailable("the job was changed meanwhile")
        return ended

    async def _settle(self, owner: Record) -> None:
        """Wait until all writes are counted. Raises StoreUnavailable while a dead writer's are not: try again."""
        found = await self._groups.find_one(owner, ["open.token"]) or {}
        tokens = [batch["token"] for batch in found.get("open", ())]
        # Make a pending recount due before others; a later date means that one is running already.
        soon = {**owner, "recount": {"$exists": True}, "due": {"$lt": now() + UPKEEP_DELAY}}
        await self._groups.update_one(soon, {"$set": {"due": now() - _URGENT}})
        uncounted = {**owner, "$or": [{"open.token": {"$in": tokens}}, {"recount": {"$exists": True}}]}
        deadline = time.monotonic() + _SETTLE_SECONDS
        while await self._groups.find_one(uncounted, ["_id"]) is not None:
            if time.monotonic() > deadline:
                raise StoreUnavailable("the writes of a dead writer are not counted yet")
            await asyncio.sleep(_SETTLE_SECONDS / 50)

    @stored
    async def tell(self, group: Group, job: Record) -> None:
        """Tell the group and the webhooks that a job has ended, unless this was done before."""
        if job.get("untold"):
            ended = {**group.owner, "job_id": job["job_id"], "finish_date": job["finish_date"], **EXISTS}
            if job["state"] == "finished":
                await self._note_verdict(group.owner, job)
            if await self._jobs.find_one(ended, ["_id"]) is None:  # it runs again, or its group was deleted
                await self._forget_verdict(group.owner, job["job_id"])
                unlisted = {**group.owner, "last_id": None, "jobs": 0}
                await self._groups.update_one(unlisted, {"$unset": {"last_change": ""}})
                return
            await self._webhooks.job_finished(group, served(job))
            await self._jobs.update_one(ended, {"$unset": {"untold": ""}})

    @stored
    async def tell_late(self) -> None:
        """Tell of ended jobs whose process died before it could; one that fails does not stop the others."""
        late = {"untold": True, "finish_date": {"$lt": now() - _LATE}}
        found = self._jobs.find(late, hint="untold").sort("finish_date", 1).limit(_TOLD_AT_ONCE)
        for job in await found.to_list(None):
            try:
                await self.tell(Group.of(job), job)
            except StoreUnavailable:
                raise
            except StoreError as error:
                log.error("nobody was told of an ended job", extra={"error": str(error)})

    async def _note_verdict(self, owner: Record, job: Record) -> None:
        """Keep the verdict of the newest finished job, and its fields that dropped, with its group.

        A group that has no item yet is listed from then on; a deleted one, which has a last id, is not.
        """
        newest = _shown(job)
        older = {"$not": [{"$gt": ["$verdict.date", job["finish_date"]]}]}
        listed = {"$cond": [{"$gt": ["$last_id", 0]}, "$$REMOVE", job["finish_date"]]}
        changes = {
            "verdict": {"$cond": [older, {"$literal": newest}, "$verdict"]},
            "last_change": {"$ifNull": ["$last_change", listed]},
        }
        await self._groups.update_one(owner, [{"$set": changes}])

    async def _forget_verdict(self, owner: Record, job_id: str) -> None:
        """If a group shows the verdict on this job, let it show that on the newest job that is still finished."""
        shown = {**owner, "verdict.job_id": job_id}
        if await self._groups.find_one(shown, ["_id"]) is None:
            return
        fields = ["job_id", "verdict", "dropped", "finish_date"]
        finished = {**owner, "state": "finished"}
        newest = await self._jobs.find_one(finished, fields, sort=[("finish_date", -1)], hint="newest")
        change: Record = {"$set": {"verdict": _shown(newest)}} if newest else {"$unset": {"verdict": ""}}
        await self._groups.update_one(shown, change)

    async def _missing(self, owner: Record, job: Record) -> int:
        pipeline: list[Record] = [
            {"$match": {**owner, **_others(job)}},
            {"$group": {"_id": None, "items": {"$sum": "$items"}}},
        ]
        found = await (await opened(self._jobs.aggregate(pipeline))).to_list(1)
        return int(found[0]["items"]) if found else 0

    async def _before(self, owner: Record, job: Record) -> Record | None:
        """Return the last finished job of the same series that has fill rates: one without items has none."""
        where = {**owner, "series": job.get("series"), "state": "finished", "job_id": {"$ne": job["job_id"]}}
        where["fields.0"] = {"$exists": True}
        return await self._jobs.find_one(where, ["fields", "exact"], sort=[("finish_date", -1)])

    @stored
    async def unseen(self, group: Group, job_id: str, *, named: bool) -> list[str] | None:
        """Return the jobs, at most 1000, that hold items which a job did not see.

        None stands for all other jobs, unless they have to be `named`. Leaves out jobs that began later, as the job
        may have seen their items. The list is empty for an unknown job, and, if `named`, for one that has seen items
        which a newer scrape keeps in another job.
        """
        self._indexes.require("groups", "jobs")
        await self._counts.gather(group)
        owner = group.owner
        fields = ["job_id", "series", ELSEWHERE, *_DATES]
        job = await self._jobs.find_one({**owner, "job_id": job_id, **EXISTS}, fields)
        if job is None or (named and job.get(ELSEWHERE)):
            return []
        elsewhere = {"$or": [{"series": {"$ne": job.get("series")}}, _later(job)]}
        seen = {**owner, "items": {"$gt": 0}, "job_id": {"$ne": job_id}, **elsewhere}
        if not named and await self._jobs.find_one(seen, ["_id"]) is None:
            return None
        found = self._jobs.find({**owner, **_unseen(job)}, ["job_id"]).sort([("last_write", -1), ("_id", -1)])
        return [other["job_id"] for other in await found.limit(MAX_JOBS).to_list(None)]

    @stored
    async def delete_missing(self, group: Group, job_id: str) -> bool:
        """Delete items that a job did not see, for a limited time; return whether there are more.

        Keeps items that a later job has seen. Deletes nothing if the job saw no items or has failed (state or verdict),
        or if it has seen items that a newer scrape keeps in another job: nobody knows which these are.
        """
        owner = group.owner
        # Before it is known which jobs still run: what they write from now on stays.
        newest = readable(await self._groups.find_one(owner, ["open.first", "last_id"]) or {})
        await self._counts.gather(group)
        # After that: its late writes are counted now, and it may run again.
        job = await self._jobs.find_one({**owner, "job_id": job_id, **EXISTS}) or {}
        if job.get("verdict") == "failed" or job.get("state") != "finished" or job.get("items", 0) <= 0:
            return False
        if job.get(ELSEWHERE, 0) > 0:
            return False
        unseen = self._jobs.find({**owner, **_unseen(job)}, ["job_id", "state", "last_write"])
        others = await unseen.sort("last_write", 1).limit(MAX_JOBS).to_list(None)
        deadline, more, deleted = time.monotonic() + _DELETE_SECONDS, False, 0
        for place, other in enumerate(others, 1):
            if more:
                break
            query = Query(limit=_DELETED_AT_ONCE, job_id=other["job_id"], max_id=newest)
            runs = other.get("state") not in ("finished", "failed")
            if runs or other.get("last_write", job["finish_date"]) >= job["finish_date"]:
                # It began earlier and may go on: what it has seen since is not missing.
                query = query._replace(scraped_before=job["finish_date"])
            cursor: int | None = 0
            while cursor is not None and not more:
                count, cursor = await self._delete(group, query._replace(cursor=cursor))
                deleted += count
                if count:  # at once: the next call may fail
                    await self._jobs.update_one({**owner, "job_id": job_id}, {"$inc": {"deleted": count}})
                # While it has found nothing, it goes on: the next call would begin at the same place.
                more = deleted > 0 and time.monotonic() > deadline and (cursor is not None or place < len(others))
        return more or (deleted > 0 and len(others) == MAX_JOBS)


def _shown(job: Record) -> Record:
    """Return what a group shows of its newest finished job."""
    return {name: job[name] for name in ("job_id", "verdict", "dropped")} | {"date": job["finish_date"]}


def _others(job: Record) -> Record:
    """Return the filter for the other jobs of a series that hold items; null also finds jobs without a series."""
    return {"series": job.get("series"), "items": {"$gt": 0}, "job_id": {"$ne": job["job_id"]}}


def _unseen(job: Record) -> Record:
    """Return the filter for the other jobs of a series whose items a job did not see: none that began later."""
    return {**_others(job), "$nor": [_later(job)]}


def _later(job: Record) -> Record:
    """Return the filter for jobs with items that began after a job; it begins with its first `PUT` or write."""
    begun = min((job[name] for name in _DATES if job.get(name) is not None), default=_LONG_AGO)
    return {"first_write": {"$gt": begun}, "start_date": {"$not": {"$lte": begun}}}


_DATES = ("start_date", "first_write")
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
