"""Jobs from their beginning to their end: finished, compared with the job before, judged.

A job is finished once, however often it is requested: one conditional update ends it and stores the results.
Its counts are the sum of its writes. What is missing from it is counted and deleted in `missing_items.py`.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import time
from datetime import timedelta

from pymongo import ReturnDocument

from service.store.clock import now
from service.store.connection import COMMITTED, DURABLE, MAJORITY, Collection, Database, opened, server_time
from service.store.contract import stored
from service.store.errors import StoreError, StoreUnavailable
from service.store.group import Group
from service.store.groups import Groups
from service.store.indexes import Indexes
from service.store.jobs import EXISTS, Jobs, served
from service.store.judging import Judging, kept_rates, rates_of
from service.store.listing import Record
from service.store.missing_items import MissingItems
from service.store.outputs.counts import KINDS, UPKEEP_DELAY
from service.store.outputs.ids import Ids
from service.store.outputs.job_changes import Span
from service.store.rules import Facts, dropped, judge
from service.store.webhooks import Webhooks

log = logging.getLogger("service.store")

# The newest jobs, among whose series the nearest to an unknown one is looked for.
_COMPARED = 1000
_HOLDS: Record = {"items": {"$gt": 0}}
_FINISHED: Record = {"state": "finished"}
# How long the end of a job waits for writers of its group.
_SETTLE_SECONDS = 2.0
# A recount that a client waits for counts as late by this much.
_URGENT = timedelta(minutes=5)
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
        ids: Ids,
        indexes: Indexes,
        missing: MissingItems,
        judging: Judging,
    ) -> None:
        self._jobs: Collection = database.get_collection("jobs", write_concern=DURABLE, read_concern=MAJORITY)
        self._groups: Collection = database.get_collection("groups", write_concern=COMMITTED, read_concern=MAJORITY)
        self._counts, self._settings, self._webhooks = jobs, groups, webhooks
        self._database, self._ids, self._indexes = database, ids, indexes
        self._missing, self._judging = missing, judging

    @stored
    async def declare(self, group: Group, job_id: str, requested: Record) -> Record:
        """Set the series of a job, or its state to running or failed; return it. Only `running` creates a job.

        Returns an empty record for a job that does not exist, or whose group is deleted meanwhile.
        For the state `finished` only the series is set: see `finish`.
        """
        self._indexes.require("groups", "jobs")
        job = group.owner | {"job_id": job_id} | EXISTS
        if requested["state"] == "running":
            await self._ensure(group, job)
        elif not await self._exists(group, job):
            return {}
        changes: Record = {"series": requested["series"]} if "series" in requested else {}
        running: Record = {
            "$set": {**changes, "state": "running"},
            "$unset": dict.fromkeys((*_OUTCOME, "deleting"), ""),
            "$inc": {"reopened": 1},
        }
        if requested["state"] == "running":
            await self._jobs.update_one({**job, "state": {"$in": ["finished", "failed"]}}, running)
        elif requested["state"] == "failed":
            date = await server_time(self._database)
            ended = {**changes, "state": "failed", "finish_date": date, "untold": True}
            earlier = {name: "" for name in (*_OUTCOME, "deleting") if name not in ended}
            await self._jobs.update_one({**job, "state": {"$ne": "failed"}}, {"$set": ended, "$unset": earlier})
        if changes:
            other = {**job, "series": {"$ne": requested["series"]}}
            await self._jobs.update_one({**other, "state": {"$ne": "finished"}}, {"$set": changes})
            if requested["state"] == "finished":
                # In another series other items are missing: it must be judged again before they are deleted.
                await self._jobs.update_one({**other, "state": "finished"}, running)
        if requested["state"] != "finished":
            await self._forget_verdict(group.owner, job_id)
        record: Record = await self._jobs.find_one(job) or {}
        return record

    @stored
    async def unknown_series(self, group: Group, job_id: str, series: str) -> list[str] | None:
        """Return the nearest series, if there is one, to a series that no job of a group has; None for a known one."""
        self._indexes.require("jobs")
        owner, named = group.owner, {"series": series}
        own = {**owner, "job_id": job_id, **named}
        lookups = ((own, "job"), ({**owner, **named, **_HOLDS}, "held"), ({**owner, **named, **_FINISHED}, "finished"))
        for where, hint in lookups:
            if await self._jobs.find_one(where, ["_id"], hint=hint) is not None:
                return None
        newest: list[Record] = [{"$match": owner}, {"$sort": {"last_write": -1, "_id": -1}}, {"$limit": _COMPARED}]
        jobs = await opened(self._jobs.aggregate([*newest, {"$group": {"_id": "$series"}}], hint="recent"))
        names = [job["_id"] for job in await jobs.to_list(None) if job["_id"] is not None]
        return None if series in names else difflib.get_close_matches(series, names, 1)

    async def _exists(self, group: Group, job: Record) -> bool:
        """Return whether a job exists, once the batches in flight are counted."""
        await self._counts.collect(group)
        if await self._jobs.find_one(job, ["_id"]) is None:
            await self._settle(group.owner)
            await self._counts.collect(group)
        return await self._jobs.find_one(job, ["_id"]) is not None

    async def _ensure(self, group: Group, job: Record) -> None:
        """Make the document of a job that has written nothing yet."""
        while await self._jobs.find_one(job, ["_id"]) is None:
            await self._counts.collect(group)  # its first write may wait to be moved
            if await self._jobs.find_one(job, ["_id"]) is None:
                await self._counts.declare(group, job["job_id"], self._ids.first)
        # The list of jobs is sorted by it; of the clock that dates writes.
        begun = {"$set": {"last_write": self._ids.clock or "$$NOW"}}
        await self._jobs.update_one({**job, "last_write": {"$exists": False}}, [begun])

    @stored
    async def one(self, group: Group, job_id: str) -> Record | None:
        """Return a job as it is served, or None."""
        self._indexes.require("groups", "jobs")
        await self._counts.collect(group)
        record = await self._jobs.find_one(group.owner | {"job_id": job_id} | EXISTS)
        return None if record is None else served(record)

    @stored
    async def span(self, group: Group, job_id: str) -> Span | None:
        """Return the ids between which a job made its changes; None if there is no such job."""
        self._indexes.require("groups", "jobs")
        await self._counts.collect(group)
        job = await self._jobs.find_one(group.owner | {"job_id": job_id} | EXISTS, ["beginning", "last_position"])
        if job is None:
            return None
        beginning = job.get("beginning")
        return Span(job_id, 0, 0) if beginning is None else Span(job_id, beginning - 1, job.get("last_position", 0))

    @stored
    async def finish(self, group: Group, job_id: str) -> Record:
        """Count and judge a job; return it. Only the first call changes it.

        Returns an empty record if its group is deleted meanwhile.
        """
        owner, where = group.owner, group.owner | {"job_id": job_id} | EXISTS
        await self._settle(owner)
        await self._counts.collect(group)
        job = await self._jobs.find_one(where) or {"job_id": job_id}
        rules = (await self._settings.settings(group))["rules"]
        missing, items = await self._missing.count(owner, job)
        before = await self._before(owner, job)
        measured = await self._judging.measure(await self._missing.judged(owner, job, items), rules)
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
        record = await self._jobs.find_one_and_update(same, {"$set": outcome}, return_document=ReturnDocument.AFTER)
        ended: Record = record or await self._jobs.find_one(where) or {}
        if ended and ended.get("state") not in ("finished", "failed"):
            raise StoreUnavailable("the job was changed meanwhile")
        return ended

    async def _settle(self, owner: Record) -> None:
        """Wait until all writes are counted. Raises StoreUnavailable while a dead writer's are not: try again."""
        document = await self._groups.find_one(owner, ["open.token"]) or {}
        tokens = [batch["token"] for batch in document.get("open", ())]
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
    async def notify(self, group: Group, job: Record) -> None:
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
    async def notify_late(self) -> None:
        """Tell of ended jobs whose process died before it could; one that fails does not stop the others."""
        late = {"untold": True, "finish_date": {"$lt": now() - _LATE}}
        cursor = self._jobs.find(late, hint="untold").sort("finish_date", 1).limit(_TOLD_AT_ONCE)
        for job in await cursor.to_list(None):
            try:
                await self.notify(Group.of(job), job)
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
        fields = ["job_id", "verdict", "dropped", "finish_date", "beginning"]
        finished = {**owner, "state": "finished"}
        newest = await self._jobs.find_one(finished, fields, sort=[("finish_date", -1)], hint="newest")
        change: Record = {"$set": {"verdict": _shown(newest)}} if newest else {"$unset": {"verdict": ""}}
        await self._groups.update_one(shown, change)

    async def _before(self, owner: Record, job: Record) -> Record | None:
        """Return the last finished job of the same series that has not failed; one without items has no fill rates."""
        where = {**owner, "series": job.get("series"), "state": "finished", "job_id": {"$ne": job["job_id"]}}
        where |= {"verdict": {"$ne": "failed"}, "fields.0": {"$exists": True}}
        return await self._jobs.find_one(where, ["fields", "exact"], sort=[("finish_date", -1)])


def _shown(job: Record) -> Record:
    """Return what a group shows of its newest finished job."""
    shown = {name: job[name] for name in ("job_id", "verdict", "dropped")}
    return {**shown, "date": job["finish_date"], "beginning": job.get("beginning")}
