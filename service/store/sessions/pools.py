"""Pools: named sets of sessions with their settings, which are read for each lease and never cached."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pymongo import ReturnDocument, UpdateOne
from pymongo.errors import DuplicateKeyError

from service.bounded import Bounded
from service.store.clock import now
from service.store.connection import DURABLE, LOCAL, Client, Collection, Database, in_transaction
from service.store.contract import stored
from service.store.errors import StoreError, StoreUnavailable
from service.store.indexes import Indexes
from service.store.listing import Record
from service.store.sessions import changes
from service.store.sessions.receipts import Receipts
from service.store.time_budget import time_budget

log = logging.getLogger("service.store")

DEFAULTS: dict[str, int | None] = {
    "lease_seconds": 300,
    "max_lease_seconds": 14_400,
    "rest_seconds": 0,
    "max_errors": 3,
    "max_uses": None,
    "max_age_days": None,
    "blocked_rest_seconds": 3600,
}
STATES = ("ready", "resting", "leased", "needs_login", "blocked", "retired")
MAX_POOLS = 1000

_SETTLE_SECONDS = 1.0
_COUNT_SECONDS = 1.0  # for the metrics of all organizations
_MAX_REMEMBERED = 10_000
# A process that waits says so again well before this time.
_PUBLISHED_SECONDS = 6.0
# A list settles this many pools before it counts; the others are counted as they are stored.
_SETTLED_AT_ONCE = 100
_DELETED_AT_ONCE = 1000
_ENDED_AT_ONCE = 1000
# A request that was under way when its pool was deleted has ended after this time.
_PURGE_AFTER_SECONDS = 600
_PURGE_EVERY_SECONDS = 60.0
_PURGED_AT_ONCE = 20
# Leases and rests that end together are settled by one update, but a late one may leave a rest that is over as well.
_MAX_SETTLES = 3
# That a pool is empty is said at most so often.
_EMPTY_MS = 5 * 60 * 1000
_FIELDS: dict[str, Any] = {**dict.fromkeys(("organization_id", "pool", "waiting", *DEFAULTS), 1), "now": changes.NOW}


class TooManySessions(StoreError):
    """The organization or the pool has the maximum number; the text says which."""


class Waiting(NamedTuple):
    """The waiter of some process that has waited longest for any session, or for the one of a name."""

    process: str
    name: str | None
    seconds: float
    exclusive: bool


class Pool(NamedTuple):
    """A pool: its inner id, which a deleted pool does not share with a new one of its name, and its settings."""

    organization_id: int
    id: str
    name: str
    settings: dict[str, Any]
    waiting: tuple[Waiting, ...] = ()  # as of when the pool was read

    @property
    def owner(self) -> Record:
        """The filter of the pool's sessions."""
        return {"organization_id": self.organization_id, "pool_id": self.id}


class Pools:
    """The pools of all organizations."""

    def __init__(self, client: Client, database: Database, receipts: Receipts, indexes: Indexes) -> None:
        self._client, self._receipts, self._indexes = client, receipts, indexes
        self._pools: Collection = database.get_collection("pools", write_concern=DURABLE, read_concern=LOCAL)
        self._sessions: Collection = database.get_collection("sessions", write_concern=DURABLE, read_concern=LOCAL)
        self._secrets: Collection = database.get_collection("session_secrets", write_concern=DURABLE)
        self._settled: Bounded[str, float] = Bounded(_MAX_REMEMBERED)
        # Called with a session that needs a person after its lease has ended by itself.
        self.lapsed: Callable[[Pool, Record], Awaitable[None]] = _nobody
        self._purged = 0.0

    @stored
    async def find(self, organization_id: int, name: str) -> Pool | None:
        """Return a pool by its name."""
        self._require()
        return _pool(await self._pools.find_one({"organization_id": organization_id, "pool": name}, _FIELDS))

    @stored
    async def empty_notice(self, pool: Pool) -> datetime | None:
        """Return when it was last said that a pool is empty, if it may be said again now; else None."""
        due = {"$lt": [{"$ifNull": ["$empty_told", changes.NEVER]}, {"$subtract": ["$$NOW", _EMPTY_MS]}]}
        where = {"_id": pool.id, "organization_id": pool.organization_id, "$expr": due}
        document = await self._pools.find_one(where, ["empty_told"])
        return None if document is None else document.get("empty_told", changes.NEVER)

    @stored
    async def note_empty(self, pool: Pool, before: datetime) -> None:
        """Note that it has been said that a pool is empty, unless another process has noted it."""
        told = {"$in": [None, before]} if before == changes.NEVER else before
        where = {"_id": pool.id, "organization_id": pool.organization_id, "empty_told": told}
        await self._pools.update_one(where, [{"$set": {"empty_told": "$$NOW"}}])

    @stored
    async def by_id(self, organization_id: int, id: str) -> Pool | None:
        """Return a pool by its inner id; None if it was deleted."""
        where = {"_id": id, "organization_id": organization_id, "pool": {"$exists": True}}
        return _pool(await self._pools.find_one(where, _FIELDS))

    @stored
    async def set(self, organization_id: int, name: str, settings: dict[str, Any]) -> Pool:
        """Change settings of a pool, which is created with defaults if there is none. Raises TooManySessions."""
        self._require()
        where = {"organization_id": organization_id, "pool": name}
        change: Record = {"$set": settings} if settings else {"$setOnInsert": {}}
        document = await self._pools.find_one_and_update(where, change, return_document=ReturnDocument.AFTER)
        if document is None:
            own = {"organization_id": organization_id, "pool": {"$exists": True}}
            if await self._pools.count_documents(own, limit=MAX_POOLS) >= MAX_POOLS:
                raise TooManySessions(f"An organization has at most {MAX_POOLS} pools: delete one first")
            new = {"_id": uuid.uuid4().hex, **where, **DEFAULTS, **settings, "create_date": now()}
            try:
                await self._pools.insert_one(dict(new))
                document = new
            except DuplicateKeyError:  # another request has created it, or this one before its reply was lost
                document = await self._pools.find_one_and_update(where, change, return_document=ReturnDocument.AFTER)
        pool = _pool(document)
        if pool is None:  # it was deleted meanwhile
            return await self.set(organization_id, name, settings)
        return pool

    @stored
    async def list(self, organization_id: int, name: str | None = None) -> list[Record]:
        """Return the pools by name, or one of them, each with its settings and its number of sessions by state."""
        self._require()
        own: Record = {"organization_id": organization_id}
        named = {**own, "pool": {"$exists": True} if name is None else name}
        pools = [_pool(document) async for document in self._pools.find(named).sort("pool", 1).hint("pool")]
        chosen = {pool.id: pool for pool in pools if pool is not None}
        of_pool = own if name is None else {**own, "pool_id": {"$in": list(chosen)}}
        due: list[Record] = [
            {"$match": {**of_pool, **changes.DUE}},
            {"$group": {"_id": "$pool_id"}},
            {"$limit": _SETTLED_AT_ONCE},
        ]
        async for group in self._sessions.aggregate(due, hint="due"):
            if group["_id"] in chosen:
                await self.settle(chosen[group["_id"]])
        counts: dict[str, dict[str, int]] = {id: dict.fromkeys(STATES, 0) for id in chosen}
        by_state = {"$group": {"_id": {"pool_id": "$pool_id", "state": "$state"}, "count": {"$sum": 1}}}
        async for group in self._sessions.aggregate([{"$match": of_pool}, by_state], hint="take"):
            id, state = group["_id"]["pool_id"], group["_id"]["state"]
            if id in counts:
                counts[id][_served_state(state)] += group["count"]
        return [{"pool": pool.name, **pool.settings, "sessions": counts[id]} for id, pool in chosen.items()]

    @stored
    async def settle(self, pool: Pool) -> None:
        """End the leases, rests and blocks of a pool that are over."""
        self._settled[pool.id] = time.monotonic()
        update = changes.settle(pool.settings)
        for _ in range(_MAX_SETTLES):
            ended = await self._end_leases(pool, update)
            rested = {**pool.owner, "state": {"$in": ["resting", "blocked"]}, **changes.DUE}
            result = await self._sessions.update_many(rested, update, hint="due")
            if not (ended or result.modified_count):
                return

    async def _end_leases(self, pool: Pool, update: Sequence[changes.Stage]) -> bool:
        """End leases that nobody has released, and note their ids, so that none is ever live again.

        In one transaction: a renewal that began in time may be on its way, and a member that is the primary no longer
        may not know of one.
        """
        over = {**pool.owner, "state": {"$in": list(changes.LEASED)}, **changes.DUE}
        if await self._sessions.find_one(over, ["_id"], hint="due") is None:
            return False

        async def end(transaction: Any) -> list[Record]:
            cursor = self._sessions.find(over, {"leases": 1, "now": changes.NOW}, hint="due", session=transaction)
            before = await cursor.limit(_ENDED_AT_ONCE).to_list(None)
            if not before:
                return []
            same = {"organization_id": pool.organization_id, "_id": {"$in": [session["_id"] for session in before]}}
            await self._sessions.update_many({**over, **same}, update, hint="_id_", session=transaction)
            after: list[Record] = await self._sessions.find(same, hint="_id_", session=transaction).to_list(None)
            live = {lease["id"] for session in after for lease in session.get("leases", ())}
            ended = [lease["id"] for session in before for lease in session["leases"] if lease["id"] not in live]
            await self._receipts.note_ended(pool.organization_id, ended, before[0]["now"], transaction)
            return after

        sessions = await in_transaction(self._client, end)
        for session in sessions:
            if session["state"] in ("needs_login", "blocked"):
                await self._tell_lapsed(pool, session)
        return bool(sessions)

    async def _tell_lapsed(self, pool: Pool, session: Record) -> None:
        try:
            await self.lapsed(pool, session)
        except StoreError as error:
            log.warning("nobody was told of a blocked session", extra={"error": str(error)})

    @stored
    async def publish(self, organization_id: int, process: str, waiting: Mapping[str, Sequence[Waiting]]) -> None:
        """Let other processes know who waits in this one, by inner ids; what a process does not repeat expires."""
        is_other = {"$and": [{"$ne": ["$$this.process", process]}, {"$gt": ["$$this.until", changes.NOW]}]}
        others = {"$filter": {"input": {"$ifNull": ["$waiting", []]}, "cond": is_other}}
        updates = []
        for id, entries in waiting.items():
            own = [
                {
                    **{"process": process, "name": changes.literal(entry.name), "exclusive": entry.exclusive},
                    "since": {"$subtract": [changes.NOW, int(entry.seconds * 1000)]},
                    "until": changes.after(changes.NOW, _PUBLISHED_SECONDS),
                }
                for entry in entries
            ]
            update: list[Record] = [{"$set": {"waiting": {"$concatArrays": [others, own]}}}]
            updates.append(UpdateOne({"_id": id, "organization_id": organization_id}, update))
        await self._pools.bulk_write(updates, ordered=False)

    @stored
    async def seconds_until_ready(self, organization_id: int, ids: Sequence[str]) -> dict[str, float | None]:
        """Return for each pool that exists the seconds until a session may be ready: 0 if one is, None if none will be.

        One key of an index is read for each pool, however many sessions it has.
        """
        own = {"organization_id": organization_id}
        named = {**own, "_id": {"$in": list(ids)}, "pool": {"$exists": True}}
        seconds: dict[str, float | None] = {pool["_id"]: None async for pool in self._pools.find(named, ["_id"])}
        of_pools = {**own, "pool_id": {"$in": list(seconds)}}
        first_due: list[Record] = [
            {"$match": {**of_pools, "due": {"$gt": changes.NEVER}}},
            {"$sort": {"pool_id": 1, "due": 1}},
            {"$group": {"_id": "$pool_id", "due": {"$first": "$due"}}},
            {"$project": {"millis": {"$subtract": ["$due", changes.NOW]}}},
        ]
        async for pool in self._sessions.aggregate(first_due, hint="due"):
            seconds[pool["_id"]] = max(0.0, pool["millis"] / 1000)
        ready: list[Record] = [
            {"$match": {**of_pools, "state": "ready"}},
            {"$sort": {"pool_id": 1, "state": 1, "turn": 1}},
            {"$group": {"_id": "$pool_id", "turn": {"$first": "$turn"}}},
        ]
        async for pool in self._sessions.aggregate(ready, hint="take"):
            seconds[pool["_id"]] = 0.0
        return seconds

    @stored
    async def has_shared(self, pool: Pool) -> bool:
        """Return whether a session of a pool has shared leases."""
        return await self._sessions.find_one({**pool.owner, "state": "shared"}, ["_id"], hint="take") is not None

    @stored
    async def ready_of(self, pool: Pool, names: Sequence[str]) -> frozenset[str]:
        """Return which of some names are ready to be leased."""
        where = {**pool.owner, "name": {"$in": list(names)}, "state": "ready"}
        return frozenset([session["name"] async for session in self._sessions.find(where, ["name"], hint="name")])

    async def settle_now_and_then(self, pool: Pool) -> bool:
        """Settle a pool unless this process has done so less than a second ago; return whether it is settled now."""
        if time.monotonic() < self._settled.get(pool.id, -_SETTLE_SECONDS) + _SETTLE_SECONDS:
            return False
        await self.settle(pool)
        return True

    async def by_state(self) -> dict[str, int]:
        """Return the number of sessions of all organizations by state; nothing if that takes more than a second."""
        try:
            with time_budget(_COUNT_SECONDS):
                return await self._by_state()
        except StoreError:
            return {}

    @stored
    async def _by_state(self) -> dict[str, int]:
        self._require()
        counts = dict.fromkeys(STATES, 0)
        by_state: list[Record] = [{"$group": {"_id": "$state", "count": {"$sum": 1}}}]
        async for group in self._sessions.aggregate(by_state, hint="take"):
            counts[_served_state(group["_id"])] += group["count"]
        return counts

    async def delete(self, organization_id: int, name: str) -> int | None:
        """Hide a pool at once; return the number of its sessions, None if there is no such pool.

        The sessions are deleted as far as the time suffices. The upkeep deletes the others.
        """
        hidden = await self._hide(organization_id, name)
        if hidden is None:
            return None
        pool, count = hidden
        with contextlib.suppress(StoreUnavailable):
            await self._delete_sessions(pool.owner)
        return count

    @stored
    async def _hide(self, organization_id: int, name: str) -> tuple[Pool, int] | None:
        self._require()
        where = {"organization_id": organization_id, "pool": name}
        removed: list[Record] = [{"$unset": "pool"}, {"$set": {"removed": changes.NOW}}]
        pool = await self.find(organization_id, name)
        if pool is None:
            return None
        count = await self._sessions.count_documents(pool.owner, hint="take")
        result = await self._pools.update_one({**where, "_id": pool.id}, removed)
        return (pool, count) if result.modified_count else None

    @stored
    async def _delete_sessions(self, owner: Record) -> None:
        """Delete all sessions of a pool, then their secrets: without its session no secret is written any more."""
        for collection, index in ((self._sessions, "take"), (self._secrets, "pool")):
            count = _DELETED_AT_ONCE
            while count == _DELETED_AT_ONCE:
                documents = await collection.find(owner, ["_id"], hint=index).limit(count).to_list(count)
                count = len(documents)
                if documents:
                    ids = {"_id": {"$in": [record["_id"] for record in documents]}}
                    await collection.delete_many({"organization_id": owner["organization_id"], **ids})

    @stored
    async def purge(self) -> None:
        """Delete what requests that were under way have left of deleted pools; for the upkeep."""
        if not self._indexes.have("pools", "sessions", "session_secrets"):
            return
        if time.monotonic() < self._purged + _PURGE_EVERY_SECONDS:
            return
        self._purged = time.monotonic()
        is_old = {"$lt": ["$removed", changes.after(changes.NOW, -_PURGE_AFTER_SECONDS)]}
        old = {"removed": {"$gt": changes.NEVER}, "$expr": is_old}
        cursor = self._pools.find(old, ["organization_id"], hint="removed").limit(_PURGED_AT_ONCE)
        for pool in await cursor.to_list(None):
            own = {"organization_id": pool["organization_id"]}
            await self._delete_sessions({**own, "pool_id": pool["_id"]})
            await self._pools.delete_one({**own, "_id": pool["_id"]})

    @stored
    async def seconds_until_due(self, pool: Pool, name: str | None = None) -> float | None:
        """Return the seconds until the first lease, rest or block of a pool, or of one session, ends; None if none."""
        where = {**pool.owner, "due": {"$gt": changes.NEVER}} | ({} if name is None else {"name": name})
        left = {"_id": 0, "millis": {"$subtract": ["$due", changes.NOW]}}
        hint = "due" if name is None else "name"
        session: dict[str, Any] | None = await self._sessions.find_one(where, left, sort=[("due", 1)], hint=hint)
        return None if session is None else max(0.0, session["millis"] / 1000)

    def _require(self) -> None:
        self._indexes.require("pools", "sessions", "session_secrets", "released_leases")


async def _nobody(pool: Pool, session: Record) -> None:
    """Tell nobody."""


def _served_state(state: str) -> str:
    return "leased" if state in changes.LEASED else state


def _pool(document: Record | None) -> Pool | None:
    if document is None:
        return None
    settings = {key: document.get(key, default) for key, default in DEFAULTS.items()}
    waiting = tuple(
        Waiting(entry["process"], entry["name"], (document["now"] - entry["since"]).total_seconds(), entry["exclusive"])
        for entry in document.get("waiting", ())
        if "now" in document and entry["until"] > document["now"]
    )
    return Pool(document["organization_id"], document["_id"], document["pool"], settings, waiting)
