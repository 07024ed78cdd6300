"""Messages to webhooks: stored before they are sent, so that they survive the process that sends them.

One process at a time works on a webhook, and holds its lease. `due` is when a process must look at it next: at once
when a message is added, at the next attempt, and every five seconds if it subscribes to changed groups. The lease
expires if its process dies.

The id of a message is made from its content: adding a message twice stores it once.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pymongo import ReturnDocument
from pymongo.errors import BulkWriteError

from service.store.connection import DURABLE, MAJORITY, Collection, Database, opened, server_time
from service.store.contract import stored
from service.store.errors import duplicates
from service.store.group import Group
from service.store.indexes import Indexes
from service.store.listing import Record, after
from service.store.messages import (
    GROUP_CHANGED,
    TEST,
    Event,
    Message,
    Outcome,
    attempted,
    group_changed,
    new_record,
    result_of,
    served,
)
from service.store.outputs.ids import readable

# After the last of these a message has failed.
RETRIES = [timedelta(seconds=seconds) for seconds in (5, 30, 120, 600, 3600, 6 * 3600, 24 * 3600)]
# A webhook is switched off when it has accepted nothing for so long, and of so many messages.
REFUSED_FOR, REFUSED = timedelta(hours=24), 20
# Messages that wait for one webhook, and bytes of them; beyond that the oldest are dropped.
MAX_WAITING, MAX_WAITING_BYTES = 1000, 1_000_000
CHANGED_EVERY = timedelta(seconds=5)
# Longer than a turn of the worker: ten seconds of messages, and ten more for the last of them.
LEASE = timedelta(seconds=40)
# An idle webhook is looked at this often, in case a process died before it set `due`.
_IDLE = timedelta(minutes=1)
KEPT = 50
# How far the clock of a new primary may be behind the clock of the previous one.
_SKEW = timedelta(seconds=2)
# Finished messages are kept this much longer than the changes that are looked at: they prevent a second message about
# the same change.
_MARGIN = timedelta(minutes=1)
_GROUPS_AT_ONCE = 1000


class Lease(NamedTuple):
    """A webhook that this process works on."""

    organization_id: int
    webhook_id: str
    token: str
    taken: datetime  # before the lease was written: changes that are later are found by the next look
    until: datetime
    group_id: str | None
    since: datetime
    look: datetime | None  # when to look for changed groups

    @property
    def owner(self) -> Record:
        return {"organization_id": self.organization_id, "webhook_id": self.webhook_id}


class Deliveries:
    """The messages to the webhooks of all organizations."""

    def __init__(self, database: Database, indexes: Indexes) -> None:
        options: dict[str, Any] = {"write_concern": DURABLE, "read_concern": MAJORITY}
        self._database, self._indexes = database, indexes
        self._webhooks: Collection = database.get_collection("webhooks", **options)
        self._deliveries: Collection = database.get_collection("deliveries", **options)
        self._groups: Collection = database.get_collection("groups", read_concern=MAJORITY)
        self._jobs: Collection = database.get_collection("jobs", read_concern=MAJORITY)
        self.added = asyncio.Event()  # in this process

    @property
    def are_ready(self) -> bool:
        """Whether the collections have their indexes."""
        return self._indexes.have("webhooks", "deliveries", "groups")

    async def now(self) -> datetime:
        """Return the time on the clock of the database, by which all dates are compared."""
        return await server_time(self._database)

    @stored
    async def add(self, organization_id: int, webhooks: Sequence[str], event: Event) -> None:
        """Store the message about an event for each webhook, and have it sent; it replaces older ones that wait."""
        moment = await self.now()
        await self._insert([event.record(organization_id, id, moment) for id in webhooks])
        for webhook_id in webhooks:
            owner = {"organization_id": organization_id, "webhook_id": webhook_id}
            await self._remove_waiting(owner, event.replaced)
            await self._drop_oldest(owner)
        where = {"organization_id": organization_id, "webhook_id": {"$in": webhooks}, "switched_off": None}
        await self._webhooks.update_many(where, {"$min": {"due": moment}})
        self.added.set()

    async def add_change(self, group: Group, webhooks: Sequence[str], last_id: int) -> None:
        """Store a message about a changed group that the next look would no longer find."""
        for webhook_id in webhooks:
            owner = {"organization_id": group.organization_id, "webhook_id": webhook_id}
            await self._add_changed(owner, {group.group_id: last_id})
            await self._drop_oldest(owner)

    async def _remove_waiting(self, owner: Record, some: Record) -> None:
        """Remove messages that wait; those that were refused at least once count as refused."""
        where = {**owner, **some, "due": {"$exists": True}}
        fields = ["attempts"]
        waiting = await self._deliveries.find(where, fields).to_list(None)
        if not waiting:
            return
        ids = [record["_id"] for record in waiting]
        await self._deliveries.delete_many({**owner, "_id": {"$in": ids}, "state": "pending"})
        if refused := sum(record["attempts"] > 0 for record in waiting):
            await self._webhooks.update_one(owner, {"$inc": {"refused": refused}})

    async def _drop_oldest(self, owner: Record) -> None:
        """Drop and count the oldest waiting messages of a webhook, if there are too many or too large ones."""
        waiting = {**owner, "due": {"$exists": True}}
        sums = {"$group": {"_id": None, "number": {"$sum": 1}, "bytes": {"$sum": "$size"}}}
        rows = await (await opened(self._deliveries.aggregate([{"$match": waiting}, sums], hint="due"))).to_list(1)
        number, size = (rows[0]["number"], rows[0]["bytes"]) if rows else (0, 0)
        if number <= MAX_WAITING and size <= MAX_WAITING_BYTES:
            return
        dropped, refused = [], 0
        oldest = self._deliveries.find(waiting, ["size", "attempts"], hint="due").sort([("create_date", 1), ("_id", 1)])
        async for record in oldest:
            if number <= MAX_WAITING and size <= MAX_WAITING_BYTES:
                break
            dropped.append(record["_id"])
            number, size = number - 1, size - record.get("size", 0)
            refused += record["attempts"] > 0
        result = await self._deliveries.delete_many({**owner, "_id": {"$in": dropped}, "state": "pending"})
        await self._webhooks.update_one(owner, {"$inc": {"dropped": result.deleted_count, "refused": refused}})

    @stored
    async def recent(self, organization_id: int, webhook_id: str) -> list[Record]:
        """Return the last messages to a webhook, newest first."""
        self._indexes.require("deliveries")
        where = {"organization_id": organization_id, "webhook_id": webhook_id}
        cursor = self._deliveries.find(where, {"body": 0}).sort([("create_date", -1), ("_id", -1)]).limit(KEPT)
        return [served(record) for record in await cursor.to_list(None)]

    async def remove(self, owner: Record) -> None:
        """Delete the messages to a webhook."""
        await self._deliveries.delete_many(owner)

    # -- for the sender ------------------------------------------------------------------------

    @stored
    async def due(self, busy: Iterable[int], limit: int) -> list[tuple[int, str]]:
        """Return organization and id of the webhooks that are due, oldest first, without busy organizations."""
        self._indexes.require("webhooks", "deliveries")
        moment = await self.now()
        where: Record = {"due": {"$lte": moment}, "lease.until": {"$not": {"$gt": moment}}}
        if busy := list(busy):
            where["organization_id"] = {"$nin": busy}
        cursor = self._webhooks.find(where, ["organization_id", "webhook_id"], hint="due").sort("due", 1).limit(limit)
        return [(record["organization_id"], record["webhook_id"]) for record in await cursor.to_list(None)]

    @stored
    async def lease(self, organization_id: int, webhook_id: str) -> Lease | None:
        """Take a webhook that is due; None if another process has it."""
        taken = await server_time(self._database)
        moment, token = await self.now(), uuid.uuid4().hex
        until = moment + LEASE
        where = {
            "organization_id": organization_id,
            "webhook_id": webhook_id,
            "due": {"$lte": moment},
            "lease.until": {"$not": {"$gt": moment}},
        }
        lease = {"$set": {"lease": {"token": token, "until": until}, "due": until}}
        record = await self._webhooks.find_one_and_update(where, lease, return_document=ReturnDocument.AFTER)
        if record is None:
            return None
        wants_changes = GROUP_CHANGED in record["events"]
        look = record.get("look", record["create_date"]) if wants_changes else None
        return Lease(organization_id, webhook_id, token, taken, until, record["group_id"], record["since"], look)

    @stored
    async def add_changes(self, lease: Lease) -> Lease:
        """Add a message for each group that has changed since the last look, if it is time to look again.

        A batch that is in flight now will be counted with its own, earlier date: the next look begins there.
        """
        moment = await self.now()
        if lease.look is None or lease.look > moment:
            return lease
        # The lease is committed, so batches that were begun before it can be seen, in flight or finished. Those that
        # begin later are found by the next look.
        since = min([lease.taken, *await self._in_flight_since(lease.organization_id)]) - _SKEW
        where: Record = {"organization_id": lease.organization_id, "last_change": {"$gte": lease.since}}
        if lease.group_id is not None:
            where["group_id"] = lease.group_id
        page = where
        while True:
            cursor = self._groups.find(page, _GROUP).sort([("last_change", 1), ("group_id", 1)])
            groups = await cursor.limit(_GROUPS_AT_ONCE).to_list(None)
            await self._add_changed(
                lease.owner, {group["group_id"]: last for group in groups if (last := readable(group))}
            )
            if len(groups) < _GROUPS_AT_ONCE:
                break
            place = (groups[-1]["last_change"], groups[-1]["group_id"])
            if await self.now() - moment > CHANGED_EVERY:  # the rest in the next look
                since = min(since, place[0])
                break
            page = {**where, **after(("last_change", "group_id"), place)}
        await self._drop_oldest(lease.owner)
        return lease._replace(since=since, look=moment + CHANGED_EVERY)

    async def _in_flight_since(self, organization_id: int) -> list[datetime]:
        """Return the dates of the batches in flight of an organization."""
        where = {"organization_id": organization_id, "open.deadline": {"$exists": True}}
        cursor = self._groups.find(where, {"_id": 0, "open.date": 1}, hint="deadline")
        return [batch["date"] for group in await cursor.to_list(None) for batch in group["open"]]

    async def _add_changed(self, owner: Record, groups: dict[str, int]) -> None:
        """Add messages about changed groups; each replaces the unsent message about the same group."""
        moment = await self.now()
        events = [group_changed(group_id, last_id) for group_id, last_id in groups.items()]
        records = [event.record(owner["organization_id"], owner["webhook_id"], moment) for event in events]
        where = {**owner, "_id": {"$in": [record["_id"] for record in records]}}
        added = {record["_id"] for record in await self._deliveries.find(where, ["_id"]).to_list(None)}
        new = {record["group_id"]: record for record in records if record["_id"] not in added}
        if not new:
            return
        older = []
        before = {**owner, "group_id": {"$in": list(new)}, "type": GROUP_CHANGED}
        async for record in self._deliveries.find(before, ["group_id", "due", "last_attempt", "version"]):
            changed = new[record["group_id"]]
            if "due" not in record:  # at most every five seconds
                last_attempt = record["last_attempt"]
                changed["due"] = max(changed["due"], last_attempt + CHANGED_EVERY) if last_attempt else changed["due"]
            elif (
                record.get("version", 0) < changed["version"]
            ):  # a process without its lease must not remove a newer one
                older.append(record["_id"])
        await self._insert(list(new.values()))
        await self._remove_waiting(owner, {"_id": {"$in": older}})

    @stored
    async def next(self, lease: Lease) -> Message | None:
        """Return the message that has waited longest for its attempt; None if the lease is lost.

        A message about a job that has ended again is dropped, so that an old verdict never follows a newer one.
        """
        while True:
            moment = await self.now()
            leased = {**lease.owner, "lease.token": lease.token, "lease.until": {"$gt": moment}}
            if await self._webhooks.find_one(leased, ["_id"]) is None:
                return None
            where = {**lease.owner, "due": {"$lte": moment}}
            record = await self._deliveries.find_one(where, sort=[("due", 1)], hint="due")
            if record is None:
                return None
            if not await self._is_outdated(record):
                return Message(*(record[key] for key in ("_id", "type", "body", "attempts")))
            await self._deliveries.delete_one({**lease.owner, "_id": record["_id"]})

    async def _is_outdated(self, record: Record) -> bool:
        """Return whether a message is about the end of a job that has ended again since."""
        if record.get("job_id") is None:
            return False
        owner = {name: record[name] for name in ("organization_id", "group_id", "job_id")}
        newer = {**owner, "finish_date": {"$gt": record["version"]}}
        return await self._jobs.find_one(newer, ["_id"]) is not None

    @stored
    async def record(self, lease: Lease, message: Message, outcome: Outcome) -> None:
        """Store the outcome of an attempt.

        A message that was refused to the end has failed; the webhook is switched off when it accepts nothing for long.
        """
        moment = await self.now()
        change: Record = {"$set": attempted(message, outcome, moment), "$unset": {"due": "", "body": "", "size": ""}}
        last = not outcome.is_success and message.attempts == len(RETRIES)
        if not outcome.is_success and not last:
            change = {"$set": {**change["$set"], "state": "pending", "due": moment + RETRIES[message.attempts]}}
        # Another process may have made this attempt too, because this one seemed dead. Then a failure changes nothing.
        still: Record = {**lease.owner, "_id": message.id, "state": {"$ne": "delivered"}}
        if not outcome.is_success:
            still |= {"attempts": message.attempts, "due": {"$exists": True}}
        is_current = (await self._deliveries.update_one(still, change)).matched_count
        if not is_current and not outcome.is_success:  # what was accepted counts, also if it was replaced meanwhile
            return
        result = {"last_result": result_of(message, outcome, moment)}
        if outcome.is_success:
            accepted = {**result, "accepted": moment, "refused": 0}
            await self._webhooks.update_one(lease.owner, {"$set": accepted})
        else:
            await self._webhooks.update_one(lease.owner, {"$set": result, "$inc": {"refused": int(last)}})
            await self._switch_off(lease.owner, moment)
        before = None if lease.look is None else lease.since - _MARGIN
        await self._trim(lease.owner, before)

    async def _switch_off(self, owner: Record, moment: datetime) -> None:
        """Switch a webhook off that has accepted nothing for long; what waits for it has failed."""
        silent = {**owner, "refused": {"$gte": REFUSED}, "accepted": {"$not": {"$gt": moment - REFUSED_FOR}}}
        off = {"$set": {"switched_off": moment}, "$unset": {"due": "", "lease": ""}}
        if (await self._webhooks.update_one(silent, off)).matched_count:
            failed = {"state": "failed", "error": "The webhook was switched off before this was sent"}
            waiting = {**owner, "due": {"$exists": True}}
            await self._deliveries.update_many(waiting, {"$set": failed, "$unset": {"due": "", "body": "", "size": ""}})

    @stored
    async def record_test(self, organization_id: int, webhook_id: str, message: Message, outcome: Outcome) -> Record:
        """Store the outcome of a test; a success switches the webhook on again."""
        moment = await self.now()
        owner = {"organization_id": organization_id, "webhook_id": webhook_id}
        record = {**new_record(organization_id, webhook_id, message, moment), **attempted(message, outcome, moment)}
        for name in ("due", "body", "size"):
            del record[name]
        await self._deliveries.insert_one(record)
        await self._webhooks.update_one(owner, {"$set": {"last_result": result_of(message, outcome, moment)}})
        if outcome.is_success:
            await self._webhooks.update_one(owner, {"$set": {"accepted": moment, "refused": 0}})
            switched_on = {"switched_off": None, "since": moment, "due": moment}
            await self._webhooks.update_one({**owner, "switched_off": {"$ne": None}}, {"$set": switched_on})
        await self._trim({**owner, "type": TEST})
        if await self._webhooks.find_one(owner, ["_id"]) is None:
            await self.remove(owner)  # it was deleted meanwhile
        return served(record)

    @stored
    async def release(self, lease: Lease) -> None:
        """Release a webhook, and set when it must be looked at next."""
        moment = await self.now()
        waiting = {**lease.owner, "due": {"$exists": True}}
        first = await self._deliveries.find_one(waiting, ["due"], sort=[("due", 1)], hint="due")
        times = [moment + _IDLE, first and first["due"], lease.look]
        # Behind the others that are due now. A message added meanwhile has set `due` to before the end of the lease.
        due = max(moment, min(filter(None, times)))
        update: list[Record] = [
            {
                "$set": {
                    "due": {"$cond": [{"$lt": ["$due", lease.until]}, "$due", due]},
                    "since": lease.since,
                    **({"look": lease.look} if lease.look else {}),
                }
            },
            {"$unset": "lease"},
        ]
        result = await self._webhooks.update_one({**lease.owner, "lease.token": lease.token}, update)
        if not result.matched_count and await self._webhooks.find_one(lease.owner, ["_id"]) is None:
            await self.remove(lease.owner)  # it was deleted meanwhile

    async def _trim(self, some: Record, before: datetime | None = None) -> None:
        """Remove all but the newest finished ones of some messages; keep those from after `before`."""
        ended = {**some, "state": {"$in": ["delivered", "failed"]}}
        newest = self._deliveries.find(ended, ["create_date"], hint="ended").sort("create_date", -1)
        for oldest in await newest.skip(KEPT).limit(1).to_list(1):
            end = min(oldest["create_date"], before or oldest["create_date"])
            await self._deliveries.delete_many({**ended, "create_date": {"$lte": end}})

    async def _insert(self, records: list[Record]) -> None:
        try:
            await self._deliveries.insert_many(records, ordered=False)
        except BulkWriteError as error:  # messages with the same id have the same content
            duplicates(error)


_GROUP = {"_id": 0, "group_id": 1, "last_change": 1, "last_id": 1, "open.first": 1}
