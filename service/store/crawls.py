"""Jobs from their beginning to their end: finished, compared with the job before, judged.

A job is finished once, however often it is requested: one conditional update ends it and stores the results.
Its counts are the sum of its writes. What is missing from it, `outputs/missing.py` says.
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
from service.store.judging import Judged, Judging, kept_rates, rates_of
from service.store.listing import Record
from service.store.outputs import Outputs, Place
from service.store.outputs.counts import KINDS, UPKEEP_DELAY
from service.store.outputs.job_changes import Span
from service.store.outputs.missing import MAX_HOLDERS, Missing, not_seen_since
from service.store.outputs.query import LIVE, Query
from service.store.rules import Facts, dropped, judge
from service.store.webhooks import Webhooks

log = logging.getLogger("service.store")

# The deletion of missing items stops after this long; repeating the request continues it, and so does the upkeep.
_DELETE_SECONDS = 1.5
_CONTINUED_AT_ONCE, _CONTINUED_SECONDS = 10, 3.0
# Finished jobs among whose series the nearest to an unknown one is looked for.
_COMPARED = 1000
_HOLDS: Record = {"items": {"$gt": 0}}
_FINISHED: Record = {"state": "finished"}
# How long the end of a job waits for writers of its group.
_SETTLE_SECONDS = 2.0
# A recount that a client waits for counts as late by this much.
_URGENT = timedelta(minutes=5)
# If nobody is told of an ended job by then, or continues its deletion, the process that did it has died.
_LATE = timedelta(seconds=30)
_TOLD_AT_ONCE = 100
_OUTCOME = (
    *("finish_date", "missing", "deleted", "judged", "fields", "exact", "dropped", "verdict", "problems"),
    "untold",
)
# Jobs of a series whose items are judged together: those that overlap the judged one.
_JUDGED_JOBS = 1000


class Crawls:
    """The states of the jobs of a group."""

    def __init__(
        self,
        database: Database,
        jobs: Jobs,
        groups: Groups,
        webhooks: Webhooks,
        outputs: Outputs,
        indexes: Indexes,
        judging: Judging,
    ) -> None:
        self._jobs: Collection = database.get_collection("jobs", write_concern=DURABLE, read_concern=MAJORITY)
        self._groups: Collection = database.get_collection("groups", write_concern=COMMITTED, read_concern=MAJORITY)
        self._outputs: Collection = database.get_collection("outputs", read_concern=MAJORITY)
        self._counts, self._settings, self._webhooks = jobs, groups, webhooks
        self._ids, self._outputs_deletion = outputs.ids, outputs.deletion
        self._database, self._indexes, self._judging = database, indexes, judging

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
        newest: list[Record] = [{"$match": {**owner, **_FINISHED}}, {"$sort": {"finish_date": -1}}]
        pipeline = [*newest, {"$limit": _COMPARED}, {"$group": {"_id": "$series"}}]
        jobs = await (await opened(self._jobs.aggregate(pipeline, hint="newest"))).to_list(None)
        return difflib.get_close_matches(series, [job["_id"] for job in jobs if job["_id"] is not None], 1)

    async def _exists(self, group: Group, job: Record) -> bool:
        """Return whether a job exists, once the batches in flight are counted."""
        await self._counts.collect(group)
        if await self._jobs.find_one(job, ["_id"]) is None:
            await self._settle(group.owner)
            await self._counts.collect(group)
        return await self._jobs.find_one(job, ["_id"]) is not None

    async def _ensure(self, group: Group, job: Record) -> None:
        """Make the document of a job that has written nothing yet."""
        if await self._jobs.find_one(job, ["_id"]) is None:
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
        missing, items = await self._count_missing(owner, job)
        before = await self._before(owner, job)
        measured = await self._judging.measure(await self._judged(owner, job, items), rules)
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
        fields = ["job_id", "verdict", "dropped", "finish_date"]
        finished = {**owner, "state": "finished"}
        newest = await self._jobs.find_one(finished, fields, sort=[("finish_date", -1)], hint="newest")
        change: Record = {"$set": {"verdict": _shown(newest)}} if newest else {"$unset": {"verdict": ""}}
        await self._groups.update_one(shown, change)

    async def _before(self, owner: Record, job: Record) -> Record | None:
        """Return the last finished job of the same series that has not failed; one without items has no fill rates."""
        where = {**owner, "series": job.get("series"), "state": "finished", "job_id": {"$ne": job["job_id"]}}
        where |= {"verdict": {"$ne": "failed"}, "fields.0": {"$exists": True}}
        return await self._jobs.find_one(where, ["fields", "exact"], sort=[("finish_date", -1)])

    @stored
    async def missing(self, group: Group, job_id: str) -> Missing | None:
        """Return what is missing from a job; None if there is no such job."""
        self._indexes.require("groups", "jobs")
        await self._counts.collect(group)
        job = await self._jobs.find_one({**group.owner, "job_id": job_id, **EXISTS})
        return None if job is None else await self._missing(group.owner, job)

    async def _missing(self, owner: Record, job: Record) -> Missing:
        """Return what is missing from a job; nothing is if its beginning is not stored."""
        series, beginning = job.get("series"), job.get("beginning")
        if beginning is None:
            return Missing(job["job_id"], series, 0, ())
        # Jobs that began later hold only what they have seen since.
        others = {**owner, **_others(job), "beginning": {"$not": {"$gte": beginning}}}
        cursor = self._jobs.find(others, ["job_id"], hint="held").limit(MAX_HOLDERS + 1)
        holders = tuple([other["job_id"] for other in await cursor.to_list(None)])
        return Missing(job["job_id"], series, beginning, None if len(holders) > MAX_HOLDERS else holders)

    async def _count_missing(self, owner: Record, job: Record) -> tuple[int, int]:
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
        overlapping = {**owner, **_others(job), "beginning": {"$not": {"$gte": beginning}}}
        overlapping["last_position"] = {"$gte": beginning}
        missing, jobs = int(rows[0]["whole"]), self._jobs.find(overlapping, ["job_id"], hint="held")
        while part := await jobs.to_list(MAX_HOLDERS):
            items = {"root_job_id": {"$in": [other["job_id"] for other in part]}, **not_seen_since(beginning), **LIVE}
            missing += await self._outputs.count_documents({**owner, **items}, hint="job")
        return missing, max(0, int(rows[0]["items"]) - missing)

    async def _judged(self, owner: Record, job: Record, items: int) -> Judged:
        """Return what a job is judged by: the items of its series that were seen since it began, by whoever."""
        beginning, jobs = job.get("beginning"), [job["job_id"]]
        if beginning is None:
            return Judged({**owner, "root_job_id": job["job_id"], **LIVE}, "job", items)
        overlapping = self._jobs.find(
            {**owner, **_others(job), "last_position": {"$gte": beginning}}, ["job_id"], hint="held"
        )
        jobs += [other["job_id"] for other in await overlapping.limit(_JUDGED_JOBS).to_list(None)]
        held = jobs[0] if len(jobs) == 1 else {"$in": jobs}
        return Judged({**owner, "root_job_id": held, "seen": {"$gte": beginning}, **LIVE}, "job", items)

    # -- the deletion of missing items ----------------------------------------------------------------

    @stored
    async def to_delete(self, group: Group, job_id: str) -> tuple[Missing | None, str | None]:
        """Return what is missing from a job, None for an unknown one, and why it must not be deleted, if so."""
        self._indexes.require("groups", "jobs")
        await self._counts.collect(group)
        job = await self._jobs.find_one({**group.owner, "job_id": job_id, **EXISTS})
        if job is None:
            return None, None
        return await self._missing(group.owner, job), await self._held_back(group.owner, job)

    async def _held_back(self, owner: Record, job: Record) -> str | None:
        """Return why the items that are missing from a job must not be deleted; None if they may be."""
        if job.get("state") != "finished":
            state = "failed" if job.get("state") == "failed" else "runs"
            return f"The job {state}: only what is missing from a finished job is deleted"
        if job.get("verdict") == "failed":
            return "The verdict on the job is failed: read its problems"
        if sum(job.get(kind, 0) for kind in KINDS) <= 0:
            return "The job has seen no item"
        if job.get("beginning") is None:
            return "The beginning of the job is not stored, as an earlier version of the service wrote it: crawl again"
        if await self._is_shared(owner, job):
            return (
                "Items are shared with another series, which may still list them: give each series keys of its own, "
                "or use no series"
            )
        missing, _ = await self._count_missing(owner, job)
        judged = (job.get("missing") or 0) - job.get("deleted", 0)
        if missing > judged:
            return (
                f"{missing} items are missing, and {max(0, judged)} were when the job was judged: set it to running, "
                "then to finished, to have it judged again"
            )
        return None

    async def _is_shared(self, owner: Record, job: Record) -> bool:
        """Return whether a job that holds missing items has taken items over from another series."""
        beginning, elsewhere = job["beginning"], {"$elemMatch": {"series": {"$ne": job.get("series")}}}
        sharing = {**owner, **_others(job), "beginning": {"$not": {"$gte": beginning}}, "taken": elsewhere}
        jobs = self._jobs.find(sharing, ["job_id"], hint="held")
        while part := await jobs.to_list(MAX_HOLDERS):
            items = {"root_job_id": {"$in": [other["job_id"] for other in part]}, **not_seen_since(beginning), **LIVE}
            if await self._outputs.find_one({**owner, **items}, ["_id"], hint="job") is not None:
                return True
        return False

    async def delete_missing(self, group: Group, job_id: str) -> tuple[str | None, bool]:
        """Delete what is missing from a job, for a limited time; return why not, and whether there is more.

        Repeating it continues it, and so does the upkeep, unless the job is opened again.
        """
        missing, held_back = await self.to_delete(group, job_id)
        if missing is None or held_back is not None:
            await self._jobs.update_one({**group.owner, "job_id": job_id}, {"$unset": {"deleting": ""}})
            return held_back, False
        place = await self._begin_deletion(group, job_id)
        if place is None:
            return "The job was opened again", False
        return None, await self._go_on_deleting(group, missing, place)

    @stored
    async def _begin_deletion(self, group: Group, job_id: str) -> Place | None:
        """Return the place of the deletion that was begun, or begin one; None if the job is not finished."""
        begin = await self._outputs_deletion.begin(group)
        new = {"until": begin.until, "done": begin.done}
        deleting = {"$mergeObjects": [new, "$deleting", {"date": "$$NOW"}]}
        where = {**group.owner, "job_id": job_id, "state": "finished", **EXISTS}
        job = await self._jobs.find_one_and_update(
            where, [{"$set": {"deleting": deleting}}], ["deleting"], return_document=ReturnDocument.AFTER
        )
        return None if job is None else Place(job["deleting"]["until"], job["deleting"]["done"])

    async def _go_on_deleting(self, group: Group, missing: Missing, place: Place) -> bool:
        """Delete what is missing from a job for a limited time; return whether there is more."""
        job = {**group.owner, "job_id": missing.job_id}
        same = {**job, "state": "finished", "deleting.until": place.until}

        @stored
        async def report(count: int, place: Place | None) -> bool:
            if count:
                await self._jobs.update_one({**job, **EXISTS}, {"$inc": {"deleted": count}})
            progress: Record = {"$unset": {"deleting": ""}}
            if place is not None:
                progress = {"$max": {"deleting.done": place.done}, "$currentDate": {"deleting.date": True}}
            return bool((await self._jobs.update_one(same, progress)).matched_count)

        query = Query(missing_from=missing)
        done = await self._outputs_deletion.run(group, query, place, seconds=_DELETE_SECONDS, report=report)
        # Another call may have come to the end, or the job was opened again.
        return done.place is not None and await self._jobs.find_one(same, ["_id"]) is not None

    @stored
    async def continue_deletions(self) -> None:
        """Continue the deletions of missing items that were interrupted, one call of each, for a limited time."""
        late_date = {"deleting.date": await server_time(self._database) - _LATE}
        late = {"deleting.date": {"$lte": late_date["deleting.date"]}}
        cursor = self._jobs.find(late, ["organization_id", "group_id", "job_id"], hint="deleting")
        deadline = time.monotonic() + _CONTINUED_SECONDS
        for job in await cursor.sort("deleting.date", 1).limit(_CONTINUED_AT_ONCE).to_list(None):
            try:
                more = True
                while more and time.monotonic() < deadline:
                    _, more = await self.delete_missing(Group.of(job), job["job_id"])
            except StoreUnavailable:
                raise
            except StoreError as error:
                log.error("a deletion of missing items could not be continued", extra={"error": str(error)})
            if time.monotonic() > deadline:  # it is the next one to be continued
                where = {**Group.of(job).owner, "job_id": job["job_id"], "deleting.date": {"$exists": True}}
                await self._jobs.update_one(where, {"$set": late_date})
                return


def _shown(job: Record) -> Record:
    """Return what a group shows of its newest finished job."""
    return {name: job[name] for name in ("job_id", "verdict", "dropped")} | {"date": job["finish_date"]}


def _others(job: Record) -> Record:
    """Return the filter for the other jobs of a series that hold items; null also finds jobs without a series."""
    return {"series": job.get("series"), "items": {"$gt": 0}, "job_id": {"$ne": job["job_id"]}}
