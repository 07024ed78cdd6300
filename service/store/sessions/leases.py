"""Leases: taken, renewed and released, each by one atomic update that checks the lease on the database's clock."""

from __future__ import annotations

import asyncio
import hmac
import math
import secrets
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import orjson
from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError
from pymongo.read_concern import ReadConcern

from service.store.connection import DURABLE, LOCAL, Client, Collection, Database, in_transaction
from service.store.contract import stored
from service.store.errors import StoreError, StoreUnavailable
from service.store.indexes import Indexes
from service.store.listing import Record
from service.store.sessions import changes
from service.store.sessions.pools import Pool, Pools
from service.store.sessions.receipts import Receipts, answer_of
from service.store.sessions.secrets import Secrets

_NEW_ID = 24  # bytes
# Reads of a session whose update a concurrent change has prevented.
_MAX_ATTEMPTS = 5


class LeaseLost(StoreError):
    """The lease is not live: it has ended, or never was."""


class LeaseInUse(StoreError):
    """Another request has a live lease of this id."""


class Wanted(NamedTuple):
    """What a request asks for. `request` is its own: only it may undo the lease that it got."""

    lease_id: str
    owner: str
    seconds: int | None
    name: str | None
    shared: bool
    request: str
    is_own_id: bool  # chosen by the client: it may be sent again


class SessionLease(NamedTuple):
    """A live lease and its session."""

    lease_id: str
    seconds: int
    expires: datetime
    session: Record


class Release(NamedTuple):
    """How a lease ends."""

    outcome: str
    secrets: dict[str, str]  # by kind, as JSON texts
    rest_seconds: int | None
    note: str | None


def wanted(
    lease_id: str | None = None,
    owner: str = "",
    seconds: int | None = None,
    name: str | None = None,
    shared: bool = False,
) -> Wanted:
    """Return a request for a lease, under a new id unless the client has chosen one."""
    id, request = lease_id or secrets.token_urlsafe(_NEW_ID), secrets.token_urlsafe(_NEW_ID)
    return Wanted(id, owner, seconds, name, shared, request, lease_id is not None)


class Leases:
    """The leases of all organizations, kept in their sessions."""

    def __init__(
        self,
        client: Client,
        database: Database,
        pools: Pools,
        secrets: Secrets,
        receipts: Receipts,
        indexes: Indexes,
    ) -> None:
        self._client, self._pools, self._secrets, self._receipts = client, pools, secrets, receipts
        self._indexes = indexes
        self._sessions: Collection = database.get_collection("sessions", write_concern=DURABLE, read_concern=LOCAL)
        self.freed: Callable[[str], None] = lambda pool_id: None  # called with the pool of a session that is released

    # -- taking ------------------------------------------------------------------------------

    @stored
    async def take(
        self, pool: Pool, wanted: Wanted, besides: Sequence[str] = (), *, may_join: bool = True
    ) -> SessionLease | None:
        """Return a lease of the ready session that was used longest ago; None if no session is ready.

        `besides` are names that others wait for. A shared lease may join others of its kind if `may_join`.
        Raises LeaseLost if the lease of this id has been released, LeaseInUse if another request has one.
        """
        is_settled = await self._pools.settle_now_and_then(pool)
        try:
            taken = await self._take(pool, wanted, besides, may_join)
            if taken is None and not is_settled:
                await self._pools.settle(pool)
                taken = await self._take(pool, wanted, besides, may_join)
        except DuplicateKeyError:
            if (lease := await self.again(pool, wanted)) is not None:
                return lease
            await self._settle_ended(pool.organization_id, wanted.lease_id)
            taken = await self._take(pool, wanted, besides, may_join)
        if taken is None:
            return await self.again(pool, wanted)
        if wanted.is_own_id and await self._receipts.find(pool.organization_id, wanted.lease_id) is not None:
            await self.undo(pool, wanted)  # a copy of a request whose lease has ended must not take a second session
            raise LeaseLost
        return _lease(taken, wanted.lease_id)

    async def _take(self, pool: Pool, wanted: Wanted, besides: Sequence[str], may_join: bool) -> Record | None:
        where: Record = dict(pool.owner)
        if wanted.name is not None:
            where["name"] = wanted.name
        elif besides:
            where["name"] = {"$nin": list(besides)}
        lease = {"id": wanted.lease_id, "owner": wanted.owner, "request": wanted.request}
        update = changes.take(pool.settings, lease, wanted.seconds, shared=wanted.shared)
        order: dict[str, Any] = {
            "return_document": ReturnDocument.AFTER,
            "sort": [("turn", 1)],
            "hint": "take" if wanted.name is None else "name",
        }
        record: Record | None = await self._sessions.find_one_and_update({**where, "state": "ready"}, update, **order)
        if record is None and wanted.shared and may_join:
            full = f"leases.{changes.MAX_SHARED - 1}"
            joinable: Record = {"state": "shared", full: {"$exists": False}, "leases.id": {"$ne": wanted.lease_id}}
            joinable["$expr"] = {"$gt": ["$due", changes.NOW]}  # with a lease that has ended, it may have to rest
            joinable["mark"] = {"$in": [None, "ready"]}  # else a person has put it out of use
            record = await self._sessions.find_one_and_update({**where, **joinable}, update, **order)
        return record

    @stored
    async def again(self, pool: Pool, wanted: Wanted) -> SessionLease | None:
        """Return the lease that an earlier copy of this request has taken; no copy undoes it any more.

        Raises LeaseLost if it has ended, LeaseInUse if it is another request's.
        """
        if not wanted.is_own_id:
            return None
        where = {"organization_id": pool.organization_id, "leases.id": wanted.lease_id}
        live = {**where, "$expr": changes.is_live(wanted.lease_id)}
        update = changes.claim(wanted.lease_id)
        record = await self._sessions.find_one_and_update(
            live, update, return_document=ReturnDocument.AFTER, hint="lease"
        )
        if await self._receipts.find(pool.organization_id, wanted.lease_id) is not None:
            raise LeaseLost
        if record is None:
            return None
        lease = _lease(record, wanted.lease_id)
        is_same = record["pool_id"] == pool.id and wanted.name in (None, record["name"])
        if not is_same or wanted.shared != (record["state"] == "shared"):
            raise LeaseInUse
        return lease

    async def _settle_ended(self, organization_id: int, lease_id: str) -> None:
        """Settle the pool where a lease of this id has ended by itself, so that the id can be used again."""
        where = {"organization_id": organization_id, "leases.id": lease_id}
        session = await self._sessions.find_one(where, ["pool_id"], hint="lease")
        pool = None if session is None else await self._pools.by_id(organization_id, session["pool_id"])
        if pool is not None:
            await self._pools.settle(pool)

    @stored
    async def undo(self, pool: Pool, wanted: Wanted, *, last: bool = False) -> bool:
        """Remove the lease that a request got but could not deliver, unless a copy of the request has it now.

        With `last`, the session is the last one to be leased again.
        """
        own = {"$elemMatch": {"id": wanted.lease_id, "request": wanted.request}}
        where = {"organization_id": pool.organization_id, "leases.id": wanted.lease_id, "leases": own}
        update = changes.undo(pool.settings, wanted.lease_id, last=last)
        return bool((await self._sessions.update_one(where, update, hint="lease")).modified_count)

    # -- renewing and releasing --------------------------------------------------------------

    @stored
    async def renew(
        self, organization_id: int, lease_id: str, seconds: int | None, secrets: dict[str, str]
    ) -> tuple[SessionLease, bool]:
        """Renew a lease and save secrets; return it, and whether they were saved. Raises LeaseLost."""
        self._indexes.require("sessions")
        for _ in range(_MAX_ATTEMPTS):
            session, pool = await self._find(organization_id, lease_id)
            writes = self._writes(pool, session, secrets)
            update = changes.renew(pool.settings, lease_id, seconds)
            if writes:
                update.append(changes.saved(_sizes(secrets)))
            changed = await self._change(session, lease_id, update, writes)
            if changed is not None:
                return _lease(changed, lease_id), bool(writes)
        raise StoreUnavailable("a session changes too often")

    @stored
    async def release(self, organization_id: int, lease_id: str, release: Release) -> Record:
        """End a lease; return the session as it is served, and whether secrets were saved. Raises LeaseLost.

        A release that is repeated word for word returns the same again and changes nothing.
        """
        self._indexes.require("sessions", "released_leases")
        digest = _digest(lease_id, release)
        for _ in range(_MAX_ATTEMPTS):
            try:
                session, pool = await self._find(organization_id, lease_id)
            except LeaseLost:
                answer = answer_of(await self._receipts.find(organization_id, lease_id), digest)
                if answer is None:
                    raise
                return answer
            shared = session["state"] == "shared"
            saves = release.outcome in changes.SAVING
            writes = self._writes(pool, session, release.secrets) if saves else []
            update = changes.release(
                pool.settings,
                lease_id,
                release.outcome,
                shared=shared,
                rest_seconds=release.rest_seconds,
                note=release.note,
            )
            if writes:
                update.append(changes.saved(_sizes(release.secrets)))
            try:
                changed = await self._change(session, lease_id, update, writes, (pool, digest))
            except DuplicateKeyError:  # it has ended meanwhile
                continue
            if changed is not None:
                self.freed(pool.id)
                return _answer(pool, changed, bool(writes))
        raise StoreUnavailable("a session changes too often")

    async def _find(self, organization_id: int, lease_id: str) -> tuple[Record, Pool]:
        """Return the session and the pool of a live lease. Raises LeaseLost."""
        where = {"organization_id": organization_id, "leases.id": lease_id}
        live = {**where, "$expr": changes.is_live(lease_id)}
        session = await self._sessions.find_one(live, hint="lease")
        if session is None:
            # Only a member that is the primary for certain may say so.
            certain = self._sessions.with_options(read_concern=ReadConcern("linearizable"))
            session = await certain.find_one(live, hint="lease")
        if session is None:
            raise LeaseLost
        # After the session was found: a late copy of its request may have taken another session with an id that ended.
        pool, receipt = await asyncio.gather(
            self._pools.by_id(organization_id, session["pool_id"]), self._receipts.find(organization_id, lease_id)
        )
        if pool is None or receipt is not None:
            raise LeaseLost
        return session, pool

    def _writes(self, pool: Pool, session: Record, secrets: dict[str, str]) -> list[Any]:
        """Return the operations that save secrets; none for a shared lease or after a person's change."""
        if session["state"] == "shared" or session.get("overridden"):
            return []
        return self._secrets.writes(pool.organization_id, pool.id, session["name"], secrets)

    async def _change(
        self,
        session: Record,
        lease_id: str,
        update: list[Any],
        writes: list[Any],
        released: tuple[Pool, bytes] | None = None,
    ) -> Record | None:
        """Update the session of a lease and save its secrets, all or nothing; None if it has changed since."""
        where = {
            "_id": session["_id"],
            "organization_id": session["organization_id"],
            "leases.id": lease_id,
            "overridden": session.get("overridden"),
            "$expr": changes.is_live(lease_id),
        }
        options: dict[str, Any] = {"return_document": ReturnDocument.AFTER, "hint": "_id_"}

        async def write(transaction: Any) -> Record | None:
            changed: Record | None = await self._sessions.find_one_and_update(
                where, update, session=transaction, **options
            )
            if changed is None:
                return None
            if writes:
                await self._secrets.write(writes, transaction)
            if released is not None:
                pool, digest = released
                answer = _answer(pool, changed, bool(writes))
                await self._receipts.add(lease_id, digest, changed, answer, transaction)
            return changed

        if not writes and released is None:
            changed: Record | None = await self._sessions.find_one_and_update(where, update, **options)
            return changed
        return await in_transaction(self._client, write)


def served_session(pool: Pool | str, session: Record) -> Record:
    """Return a session without its secrets, as it is served."""
    state, due, leases = session["state"], session.get("due"), session.get("leases", ())
    return {
        "pool": pool if isinstance(pool, str) else pool.name,
        "name": session["name"],
        "state": "leased" if state in changes.LEASED else state,
        **{field: session[field] for field in ("note", "version", "uses", "errors", "create_date", "update_date")},
        "last_used": session["last_used"],
        "rest_until": due if state in ("resting", "blocked") else None,
        "owner": leases[0]["owner"] if leases else None,
        "lease_expires": max(lease["until"] for lease in leases) if leases else None,
    }


def _answer(pool: Pool, session: Record, saved: bool) -> Record:
    return {**served_session(pool, session), "saved": saved}


def _lease(session: Record, lease_id: str) -> SessionLease:
    (lease,) = (lease for lease in session["leases"] if lease["id"] == lease_id)
    seconds = (lease["until"] - lease["at"]).total_seconds()
    return SessionLease(lease_id, max(0, math.floor(seconds)), lease["until"], session)


def _sizes(secrets: dict[str, str]) -> dict[str, int]:
    return {kind: len(text) for kind, text in secrets.items()}


def _digest(lease_id: str, release: Release) -> bytes:
    """Return what recognizes a release that is repeated; keyed, so that it tells nothing about the secrets."""
    return hmac.digest(lease_id.encode(), orjson.dumps(release._asdict(), option=orjson.OPT_SORT_KEYS), "sha256")
