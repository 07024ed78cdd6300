"""The counts of each group: kept up to date by writes, so that reading counts nothing."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from difflib import SequenceMatcher, get_close_matches
from typing import Any

from pymongo import DESCENDING

from service.store.connection import COMMITTED, DURABLE, MAJORITY, Collection, Database
from service.store.contract import stored, streamed
from service.store.errors import CursorInvalid
from service.store.group import Group
from service.store.indexes import Indexes
from service.store.jobs import Jobs
from service.store.listing import Chunk, Key, Listing, after
from service.store.outputs.comparing import ComparingCache
from service.store.outputs.counts import RECOUNT

# Groups listed at once, each with up to 30 days: about 1 MB.
_BATCH = 500
# A group with its days as JSON, roughly.
_GROUP_BYTES = 2000
# Groups whose jobs are brought up to date at once: each takes four round trips.
_COLLECTED_AT_ONCE = 16
# The groups whose names are compared, the most likely of them, and the characters of such a name.
_COMPARED, _LIKELY, _COMPARED_LENGTH = 100, 10, 48
_COLLECTIONS = ("groups", "jobs", "days")
# The fields of a group that are served as they are stored, with their defaults.
_SERVED = {"items": 0, "jobs": 0, "approved": 0, "last_id": 0, "last_change": None, "retention_days": None}
_SETTINGS: dict[str, Any] = {"silent_hours": None, "ignore": [], "rules": []}
# Whether counts of jobs and days wait to be moved, not the counts themselves: they may be 64 KB per group.
_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("group_id", *_SERVED, "verdict"), 1),
    "waits": {"$gt": [{"$ifNull": ["$pending", "$moving"]}, None]},
}


class Groups:
    """The groups of an organization, with their counts."""

    def __init__(
        self, database: Database, jobs: Jobs, comparing: ComparingCache, indexes: Indexes, history_days: int
    ) -> None:
        # The settings of a group, with their defaults.
        self._settings: dict[str, Any] = {"history_days": history_days, **_SETTINGS}
        self._groups: Collection = database.get_collection("groups", write_concern=DURABLE, read_concern=MAJORITY)
        self._versions: Collection = database.get_collection("versions", write_concern=COMMITTED)
        self._days: Collection = database.get_collection("days", write_concern=COMMITTED, read_concern=MAJORITY)
        self._jobs, self._comparing, self._indexes = jobs, comparing, indexes

    @stored
    async def listing(self, organization_id: int, since: str, limit: int | None, cursor: Key | None) -> Listing:
        """Return the groups, newest change first, with their days since a date: `limit` of them after a cursor."""
        self._indexes.require(*_COLLECTIONS)
        documents = self._found(organization_id, ("last_change", "group_id"), cursor)
        end = None
        if limit is not None:
            ends = await documents.skip(limit - 1).limit(2).to_list(2)
            if len(ends) == 2:  # the last of this page, and one more
                end = int(ends[0]["last_change"].timestamp() * 1000), ends[0]["group_id"]
        return Listing(self._chunks(organization_id, since, cursor, end), end)

    def _found(
        self,
        organization_id: int,
        fields: Iterable[str] | dict[str, Any],
        cursor: Key | None,
        end: Key | None = None,
    ) -> Any:
        where: dict[str, Any] = {"organization_id": organization_id, "last_change": {"$exists": True}}
        if cursor is not None:
            where |= after(("last_change", "group_id"), _key(cursor), "$lt")
        if end is not None:
            # By the last one, not by number: a group that changes meanwhile comes first, and none may be left out.
            date, group_id = _key(end)
            where["last_change"] = {"$gte": date}
            where["$nor"] = [{"last_change": date, "group_id": {"$lt": group_id}}]
        documents = self._groups.find(where, fields, hint="recent", batch_size=_BATCH)
        return documents.sort([("last_change", DESCENDING), ("group_id", DESCENDING)])

    @streamed
    async def _chunks(
        self, organization_id: int, since: str, cursor: Key | None, end: Key | None
    ) -> AsyncIterator[Chunk]:
        documents = self._found(organization_id, _FIELDS, cursor, end)
        while groups := await documents.to_list(_BATCH):
            for start in range(0, len(groups), _COLLECTED_AT_ONCE):
                part = groups[start : start + _COLLECTED_AT_ONCE]
                await asyncio.gather(*(self._collect(Group(organization_id, one["group_id"]), one) for one in part))
            days = await self._days_of(organization_id, [group["group_id"] for group in groups], since)
            records = [_served(group, days.get(group["group_id"], [])) for group in groups]
            yield Chunk(_GROUP_BYTES * len(records), records)

    @stored
    async def one(self, group: Group) -> dict[str, Any]:
        """Return one group with all its days; all counts are 0 if it does not exist."""
        self._indexes.require(*_COLLECTIONS)
        document = await self._groups.find_one(group.owner, _FIELDS)
        if document is None:
            return _served({"group_id": group.group_id}, [])
        await self._collect(group, document)
        days = await self._days_of(group.organization_id, [group.group_id], "")
        return _served(document, days.get(group.group_id, []))

    @stored
    async def similar(self, group: Group) -> str | None:
        """Return the group of the same organization with the most similar name, if this one does not exist."""
        self._indexes.require(*_COLLECTIONS)
        document = await self._groups.find_one(group.owner, ["last_change"]) or {}
        if "last_change" in document:
            return None
        newest = await self._found(group.organization_id, ["group_id"], None).limit(_COMPARED).to_list(_COMPARED)
        return _most_similar(group.group_id, [one["group_id"] for one in newest])

    @stored
    async def settings(self, group: Group) -> dict[str, Any]:
        """Return the settings of a group, with defaults."""
        self._indexes.require(*_COLLECTIONS)
        document = await self._groups.find_one(group.owner, list(self._settings)) or {}
        return {name: document.get(name, default) for name, default in self._settings.items()}

    @stored
    async def set(self, group: Group, settings: dict[str, Any]) -> None:
        """Change some settings of a group, which may have no items yet."""
        self._indexes.require(*_COLLECTIONS)
        if not settings:
            return
        changes: dict[str, Any] = {name: {"$literal": value} for name, value in settings.items()}
        update: list[dict[str, Any]] = [{"$set": changes}]
        if "retention_days" in settings or "history_days" in settings:
            changes["due"] = {"$min": ["$due", "$$NOW"]}
        if "silent_hours" in settings:
            changes |= {"silent_from": {"$ifNull": ["$silent_from", "$$NOW"]}, "silent_due": "$$NOW"}
        if "retention_days" in settings:
            update.append({"$unset": ["retention_at", "retention_id"]})
        await self._groups.update_one(group.owner, update, upsert=True)
        self._comparing.forget(group)

    @stored
    async def remove(self, group: Group, until: int) -> None:
        """Delete the jobs, days and versions of a group whose outputs are deleted up to an id.

        Its ids continue to increase, and its settings stay, and so do jobs that began after that id.
        """
        self._indexes.require(*_COLLECTIONS)
        owner = group.owner
        # Mark the group for a recount before and after the next steps: this process may die between them, and a recount
        # that is under way must not be applied. What was never written needs none.
        written_group = {**owner, "next": {"$exists": True}}
        again = [{"$set": {**RECOUNT, "removed_id": "$last_id"}}]
        await self._groups.update_one(written_group, again)
        await self._jobs.remove(group, until)
        await self._groups.update_one({**owner, "items": {"$not": {"$gt": 0}}}, {"$unset": {"last_change": ""}})
        of_earlier_job = {**owner, "verdict.beginning": {"$not": {"$gt": until + 1}}}
        await self._groups.update_one(of_earlier_job, {"$unset": {"verdict": ""}})
        await self._versions.delete_many({**owner, "id": {"$lte": until}})
        await self._groups.update_one(written_group, again)

    async def _days_of(self, organization_id: int, groups: list[str], since: str) -> dict[str, list[dict[str, Any]]]:
        where = {
            "organization_id": organization_id,
            "group_id": groups[0] if len(groups) == 1 else {"$in": groups},
            "date": {"$gte": since},
        }
        days: dict[str, list[dict[str, Any]]] = {}
        async for day in self._days.find(where, {"_id": 0, "organization_id": 0}):
            days.setdefault(day.pop("group_id"), []).append(day)
        return days

    async def _collect(self, group: Group, found: dict[str, Any]) -> None:
        """Bring the days and the number of jobs of a loaded group up to date."""
        if found["waits"]:
            await self._jobs.collect(group)
            now = await self._groups.find_one(group.owner, ["jobs"]) or {}
            found["jobs"] = now.get("jobs", 0)


def _most_similar(name: str, names: list[str]) -> str | None:
    """Return the name that is most similar to another, if one is; within a few milliseconds."""
    if len(name) > _COMPARED_LENGTH:
        return None
    matcher = SequenceMatcher(b=name)

    def bound(other: str) -> float:
        matcher.set_seq1(other)
        return matcher.quick_ratio()  # an upper bound of the similarity, for a fiftieth of its time

    likely = heapq.nlargest(_LIKELY, (other for other in names if len(other) <= _COMPARED_LENGTH), bound)
    return next(iter(get_close_matches(name, likely, 1)), None)


def _key(cursor: Key) -> Key:
    """Return the place in the list that a cursor names."""
    match cursor:
        case (int(millis), str(group_id)):
            try:
                return datetime.fromtimestamp(millis / 1000, UTC), group_id
            except (ValueError, OverflowError, OSError):
                pass
    raise CursorInvalid


def _served(group: dict[str, Any], days: list[dict[str, Any]]) -> dict[str, Any]:
    newest = group.get("verdict", {})
    return {
        "group_id": group["group_id"],
        **{name: group.get(name, default) for name, default in _SERVED.items()},
        "verdict": newest.get("verdict"),
        "dropped": newest.get("dropped", []),
        "days": [
            {"date": day["date"], **counts}
            for day in sorted(days, key=lambda day: day["date"])
            if any((counts := {name: day.get(name, 0) for name in ("created", "changed", "net")}).values())
        ],
    }
