"""Groups in which nothing was written for longer than their setting `silent_hours`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from service.store.clock import now
from service.store.connection import COMMITTED, MAJORITY, Collection, Database, server_time
from service.store.contract import stored
from service.store.group import Group
from service.store.jobs import EXISTS, Jobs
from service.store.webhooks import Webhooks

# Groups that one pass looks at; another process may take over one that was not completed after the claim.
_PER_PASS = 100
_CLAIM = timedelta(seconds=60)
_FIELDS = ["organization_id", "group_id", "silent_hours", "silent_from", "silent_since", "silent_due"]


class Silence:
    """Tells webhooks of silent groups.

    `silent_due` is when a group must be looked at next. Writers do not touch it: a look finds the newest write of the
    group's jobs, and waits for the rest of the hours. A group that stays silent is told of once.
    """

    def __init__(self, database: Database, jobs: Jobs, webhooks: Webhooks) -> None:
        self._database, self._counts, self._webhooks = database, jobs, webhooks
        options: dict[str, Any] = {"write_concern": COMMITTED, "read_concern": MAJORITY}
        self._groups: Collection = database.get_collection("groups", **options)
        self._jobs: Collection = database.get_collection("jobs", **options)

    @stored
    async def notify(self) -> None:
        """Look at the groups whose time has come."""
        now = await self._now()
        due = {"silent_due": {"$lte": now}}
        found = self._groups.find(due, _FIELDS, hint="silent").sort("silent_due", 1).limit(_PER_PASS)
        for group in await found.to_list(_PER_PASS):
            claimed = {**Group.of(group).owner, "silent_due": group["silent_due"]}
            if (await self._groups.update_one(claimed, {"$set": {"silent_due": now + _CLAIM}})).modified_count:
                await self._inspect(group, now)

    async def _inspect(self, group: dict[str, Any], now: datetime) -> None:
        owner, hours = Group.of(group).owner, group.get("silent_hours")
        if hours is None:  # the setting was removed, or the group deleted
            await self._groups.update_one({**owner, "silent_hours": None}, {"$unset": {"silent_due": ""}})
            return
        last_write = await self._last_write(Group.of(group))
        since = max(filter(None, [last_write, group["silent_from"]]))
        end = since + timedelta(hours=hours)
        change: dict[str, Any] = {"silent_due": end if end > now else now + timedelta(hours=hours)}
        if end <= now and group.get("silent_since") != since:
            await self._webhooks.group_silent(Group.of(group), since, last_write, hours)
            change["silent_since"] = since
        # Not when the setting was changed meanwhile: that has made the group due.
        await self._groups.update_one({**owner, "silent_hours": hours, "silent_due": now + _CLAIM}, {"$set": change})

    async def _last_write(self, group: Group) -> datetime | None:
        """Return when a job of a group has written last."""
        await self._counts.collect(group)
        written = {**group.owner, **EXISTS, "first_write": {"$exists": True}}
        newest = self._jobs.find(written, ["last_write"]).sort([("last_write", -1), ("_id", -1)]).limit(1)
        found = await newest.to_list(1)
        return found[0]["last_write"] if found else None

    async def _now(self) -> datetime:
        """Return the earlier time of the database's and this machine's clock, as the upkeep does."""
        return min(await server_time(self._database), now())
