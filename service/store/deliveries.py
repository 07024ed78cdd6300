"""Messages to webhooks: stored before they are sent, so that they survive the process that sends them.

One process at a time works on a webhook, and holds its lease. `due` is when a process must look at it next: at once
when a message is added, at the next attempt, and every five seconds if it subscribes to changed groups. The lease
expires if its process dies.

The id of a message is made from its content: adding a message twice stores it once.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pymongo import ReturnDocument
from pymongo.errors import BulkWriteError

from service.store.browser_state import now
from service.store.connection import DURABLE, MAJORITY, Collection, Database, server_time
from service.store.contract import stored
from service.store.errors import duplicates
from service.store.group import Group
from service.store.indexes import Indexes
from service.store.listing import Record, after
from service.store.outputs.documents import dump
from service.store.outputs.ids import readable

GROUP_CHANGED = "group.changed"
TEST = "webhook.test"
# After the last of these the webhook is switched off.
RETRIES = [timedelta(seconds=seconds) for seconds in (5, 30, 120, 600, 3600, 6 * 3600, 24 * 3600)]
CHANGED_EVERY = timedelta(seconds=5)
# Longer than a turn of the worker: ten seconds of messages, and ten more for the last of them.
LEASE = timedelta(seconds=40)
# An idle webhook is looked at this often, in case a process died before it set `due`.
_IDLE = timedelta(minutes=1)
KEPT = 50
MAX_RESPONSE = 200
# How far the clock of a new primary may be behind the clock of the previous one.
_SKEW = timedelta(seconds=2)
# Finished messages are kept this much longer than the changes that are looked at: they prevent a second message about
# the same change.
_MARGIN = timedelta(minutes=1)
_GROUPS_AT_ONCE = 1000


class Outcome(NamedTuple):
    """The outcome of an attempt: status and beginning of the response, or the reason why there is none."""

    status: int | None
    response: str = ""
    error: str | None = None

    @property
    def is_success(self) -> bool:
        return self.error is None


class Lease(NamedTuple):
    """A webhook that this process works on."""

    organization_id: int
    webhook_id: str
    token: str
    taken: datetime  # by the clock of the database, before the lease was written
    until: datetime
    group_id: str | None
    since: datetime
    look: datetime | None  # when to look for changed groups

    @property
    def owner(self) -> Record:
        return {"organization_id": self.organization_id, "webhook_id": self.webhook_id}


class Message(NamedTuple):
    """One message: its id, its type and its body."""

    id: str
    type: str
    body: str
    attempts: int = 0


def new_message(type: str, data: dict[str, Any], id: str | None = None) -> Message:
    """Return a message that says something now, under a new id if none is given."""
    body = dump({"type": type, "timestamp": now(), "data": data}).decode()
    return Message(id or f"msg_{uuid.uuid4().hex}", type, body)


class Deliveries:
    """The messages to the webhooks of all organizations."""

    def __init__(self, database: Database, indexes: Indexes) -> None:
        options: dict[str, Any] = {"write_concern": DURABLE, "read_concern": MAJORITY}
        self._database, self._indexes = database, indexes
        self._webhooks: Collection = database.get_collection("webhooks", **options)
        self._deliveries: Collection = database.get_collection("deliveries", **options)
        self._groups: Collection = database.get_collection("groups", read_concern=MAJORITY)
        self.added = asyncio.Event()  # in this process

    @property
    def are_ready(self) -> bool:
        """Whether the collections have their indexes."""
        return self._indexes.have("webhooks", "deliveries", "groups")

    @stored
    async def add(self, group: Group, webhooks: Sequence[str], type: str, version: str, data: dict[str, Any]) -> None:
        """Store a message for each webhook and have it sent; `version` distinguishes messages of one type and group."""
        group_id = group.group_id
        records = [
            _record(group.organization_id, id, new_message(type, data, _name(id, type, group_id, version)), group_id)
            for id in webhooks
        ]
        await self._insert(records)
        where = {"organization_id": group.organization_id, "webhook_id": {"$in": webhooks}, "switched_off": None}
        await self._webhooks.update_many(where, {"$min": {"due": now()}})
        self.added.set()

    async def add_change(self, group: Group, webhooks: Sequence[str], last_id: int) -> None:
        """Store a message about a changed group that the next look would no longer find."""
        records = [_changed(group.organization_id, id, group.group_id, last_id) for id in webhooks]
        await self._insert([record | {"due": record["due"] + CHANGED_EVERY} for record in records])

    @stored
    async def recent(self, organization_id: int, webhook_id: str) -> list[Record]:
        """Return the last messages to a webhook, newest first."""
        self._indexes.require("deliveries")
        where = {"organization_id": organization_id, "webhook_id": webhook_id}
        found = self._deliveries.find(where, {"body": 0}).sort([("create_date", -1), ("_id", -1)]).limit(KEPT)
        return [_served(record) for record in await found.to_list(None)]

    async def remove(self, owner: Record) -> None:
        """Delete the messages to a webhook."""
        await self._deliveries.delete_many(owner)

    # -- for the sender ------------------------------------------------------------------------

    @stored
    async def due(self, busy: Iterable[int], limit: int) -> list[tuple[int, str]]:
        """Return organization and id of the webhooks that are due, oldest first, without busy organizations."""
        self._indexes.require("webhooks", "deliveries")
        where: Record = {"due": {"$lte": now()}, "lease.until": {"$not": {"$gt": now()}}}
        if busy := list(busy):
            where["organization_id"] = {"$nin": busy}
        found = self._webhooks.find(where, ["organization_id", "webhook_id"], hint="due").sort("due", 1).limit(limit)
        return [(record["organization_id"], record["webhook_id"]) for record in await found.to_list(None)]

    @stored
    async def lease(self, organization_id: int, webhook_id: str) -> Lease | None:
        """Take a webhook that is due; None if another process has it."""
        taken = await server_time(self._database)
        moment, token = now(), uuid.uuid4().hex
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
        moment = now()
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
            found = self._groups.find(page, _GROUP).sort([("last_change", 1), ("group_id", 1)])
            groups = await found.limit(_GROUPS_AT_ONCE).to_list(None)
            await self._add_changed(lease, {group["group_id"]: last for group in groups if (last := readable(group))})
            if len(groups) < _GROUPS_AT_ONCE:
                break
            place = (groups[-1]["last_change"], groups[-1]["group_id"])
            if now() - moment > CHANGED_EVERY:  # the rest in the next look
                since = min(since, place[0])
                break
            page = {**where, **after(("last_change", "group_id"), place)}
        return lease._replace(since=since, look=now() + CHANGED_EVERY)

    async def _in_flight_since(self, organization_id: int) -> list[datetime]:
        """Return the dates of the batches in flight of an organization."""
        where = {"organization_id": organization_id, "open.deadline": {"$exists": True}}
        found = self._groups.find(where, {"_id": 0, "open.date": 1}, hint="deadline")
        return [batch["date"] for group in await found.to_list(None) for batch in group["open"]]

    async def _add_changed(self, lease: Lease, groups: dict[str, int]) -> None:
        """Add messages about changed groups; each replaces the unsent message about the same group."""
        names = {_change_name(lease.webhook_id, id, last): id for id, last in groups.items()}
        known = {**lease.owner, "_id": {"$in": list(names)}}
        for record in await self._deliveries.find(known, ["_id"]).to_list(None):
            del names[record["_id"]]
        if not names:
            return
        # A new message takes over the attempts of the one it replaces; after a sent one it waits five seconds.
        before = {**lease.owner, "group_id": {"$in": list(names.values())}, "type": GROUP_CHANGED}
        waiting: dict[str, Record] = {}
        earliest: dict[str, datetime] = {}
        async for record in self._deliveries.find(before, ["group_id", "attempts", "due", "last_attempt", "last_id"]):
            # A process that has lost its lease must not remove messages that another one added.
            if "due" in record and record["last_id"] < groups[record["group_id"]]:
                waiting[record["group_id"]] = record
            elif "due" not in record and record["last_attempt"] is not None:
                next_one = record["last_attempt"] + CHANGED_EVERY
                earliest[record["group_id"]] = max(next_one, earliest.get(record["group_id"], next_one))
        records = []
        for group_id in names.values():
            record = _changed(lease.organization_id, lease.webhook_id, group_id, groups[group_id])
            if group_id in waiting:
                record |= {key: waiting[group_id][key] for key in ("attempts", "due", "last_attempt")}
            else:
                record["due"] = max(record["due"], earliest.get(group_id, record["due"]))
            records.append(record)
        await self._insert(records)
        if waiting:
            await self._deliveries.delete_many(
                {**lease.owner, "_id": {"$in": [record["_id"] for record in waiting.values()]}, "state": "pending"}
            )

    @stored
    async def next(self, lease: Lease) -> Message | None:
        """Return the message that has waited longest for its attempt."""
        where = {**lease.owner, "due": {"$lte": now()}}
        found = await self._deliveries.find_one(where, sort=[("due", 1)], hint="due")
        return Message(*(found[key] for key in ("_id", "type", "body", "attempts"))) if found else None

    @stored
    async def record(self, lease: Lease, message: Message, outcome: Outcome) -> None:
        """Store the outcome of an attempt; after the last one the webhook is switched off."""
        moment = now()
        change: Record = {"$set": _attempt(message, outcome, moment), "$unset": {"due": ""}}
        last = not outcome.is_success and message.attempts == len(RETRIES)
        if not outcome.is_success and not last:
            change = {"$set": {**change["$set"], "state": "pending", "due": moment + RETRIES[message.attempts]}}
        # Another process may have made this attempt too, because this one seemed dead. Then a failure changes nothing.
        still: Record = {**lease.owner, "_id": message.id, "state": {"$ne": "delivered"}}
        if not outcome.is_success:
            still |= {"attempts": message.attempts, "due": {"$exists": True}}
        if not (await self._deliveries.update_one(still, change)).matched_count:
            return
        result = {"last_result": _result(message, outcome, moment)}
        if last:
            await self._webhooks.update_one(
                lease.owner, {"$set": {**result, "switched_off": moment}, "$unset": {"due": "", "lease": ""}}
            )
            dropped = {"state": "failed", "error": "The webhook was switched off before this was sent"}
            waiting = {**lease.owner, "due": {"$exists": True}}
            await self._deliveries.update_many(waiting, {"$set": dropped, "$unset": {"due": ""}})
        else:
            await self._webhooks.update_one(lease.owner, {"$set": result})
        before = None if lease.look is None else lease.since - _MARGIN
        await self._trim(lease.owner, before)

    @stored
    async def record_test(self, organization_id: int, webhook_id: str, message: Message, outcome: Outcome) -> Record:
        """Store the outcome of a test; a success switches the webhook on again."""
        moment = now()
        owner = {"organization_id": organization_id, "webhook_id": webhook_id}
        record = {**_record(organization_id, webhook_id, message, None), **_attempt(message, outcome, moment)}
        del record["due"]
        await self._deliveries.insert_one(record)
        await self._webhooks.update_one(owner, {"$set": {"last_result": _result(message, outcome, moment)}})
        if outcome.is_success:
            switched_on = {"switched_off": None, "since": moment, "due": moment}
            await self._webhooks.update_one({**owner, "switched_off": {"$ne": None}}, {"$set": switched_on})
        await self._trim({**owner, "type": TEST})
        if await self._webhooks.find_one(owner, ["_id"]) is None:
            await self.remove(owner)  # it was deleted meanwhile
        return _served(record)

    @stored
    async def release(self, lease: Lease) -> None:
        """Release a webhook, and set when it must be looked at next."""
        moment = now()
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
        done = await self._webhooks.update_one({**lease.owner, "lease.token": lease.token}, update)
        if not done.matched_count and await self._webhooks.find_one(lease.owner, ["_id"]) is None:
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


def _name(*parts: str) -> str:
    """Return the id of a message with this content; different content gives a different id."""
    text = b"".join(b"%d:%b" % (len(part.encode()), part.encode()) for part in parts)
    return f"msg_{hashlib.sha256(text).hexdigest()[:32]}"


def _change_name(webhook_id: str, group_id: str, last_id: int) -> str:
    return _name(webhook_id, GROUP_CHANGED, group_id, str(last_id))


def _changed(organization_id: int, webhook_id: str, group_id: str, last_id: int) -> Record:
    """Return the message that a group has changed, up to an id."""
    data = {"group_id": group_id, "last_id": last_id}
    message = new_message(GROUP_CHANGED, data, _change_name(webhook_id, group_id, last_id))
    return {**_record(organization_id, webhook_id, message, group_id), "last_id": last_id}


def _record(organization_id: int, webhook_id: str, message: Message, group_id: str | None) -> Record:
    moment = now()
    return {
        "_id": message.id,
        "organization_id": organization_id,
        "webhook_id": webhook_id,
        "type": message.type,
        "group_id": group_id,
        "body": message.body,
        "create_date": moment,
        "state": "pending",
        "attempts": message.attempts,
        "last_attempt": None,
        "status": None,
        "response": "",
        "error": None,
        "due": moment,
    }


def _attempt(message: Message, outcome: Outcome, moment: datetime) -> Record:
    return {
        "state": "delivered" if outcome.is_success else "failed",
        "attempts": message.attempts + 1,
        "last_attempt": moment,
        "status": outcome.status,
        "response": outcome.response[:MAX_RESPONSE],
        "error": outcome.error,
    }


def _result(message: Message, outcome: Outcome, moment: datetime) -> Record:
    return {
        "date": moment,
        "type": message.type,
        "delivered": outcome.is_success,
        "status": outcome.status,
        "error": outcome.error,
    }


def _served(record: Record) -> Record:
    names = ("type", "group_id", "create_date", "state", "attempts", "last_attempt", "status", "response", "error")
    served = {name: record[name] for name in names}
    return {"delivery_id": record["_id"], **served, "next_attempt": record.get("due")}
