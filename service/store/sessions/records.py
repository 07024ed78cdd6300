"""The sessions of a pool: put, listed, read and deleted by people and tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from service.store.connection import DURABLE, LOCAL, Client, Collection, Database, in_transaction
from service.store.contract import stored, streamed
from service.store.errors import CursorInvalid, StoreError
from service.store.listing import Chunk, Key, Listing, Record
from service.store.sessions import changes
from service.store.sessions.leases import served_session
from service.store.sessions.pools import Pool, Pools, TooManySessions
from service.store.sessions.receipts import Receipts
from service.store.sessions.secrets import KINDS, Secrets, session_id

MAX_IN_POOL = 10_000
MAX_IN_ORGANIZATION = 100_000

_LISTED_AT_ONCE = 200
_MAX_ATTEMPTS = 3


class VersionConflict(StoreError):
    """The session has another version than the caller expects."""


class Records:
    """The sessions of all organizations, without their leases."""

    def __init__(self, client: Client, database: Database, pools: Pools, secrets: Secrets, receipts: Receipts) -> None:
        self._client, self._pools, self._secrets, self._receipts = client, pools, secrets, receipts
        self.freed: Callable[[str], None] = lambda pool_id: None  # called with the pool of a session that is put
        self._sessions: Collection = database.get_collection("sessions", write_concern=DURABLE, read_concern=LOCAL)

    @stored
    async def find(self, pool: Pool, name: str) -> Record | None:
        """Return a session as it is stored, after the leases and rests of its pool that are over have ended."""
        await self._pools.settle_now_and_then(pool)
        where = {"_id": session_id(pool.id, name), "organization_id": pool.organization_id}
        session: Record | None = await self._sessions.find_one(where)
        if session is not None and "due" in session and await self._is_due(where):
            await self._pools.settle(pool)
            session = await self._sessions.find_one(where)
        return session

    async def _is_due(self, where: Record) -> bool:
        return await self._sessions.find_one({**where, **changes.DUE}, ["_id"], hint="_id_") is not None

    @stored
    async def listing(self, pool: Pool, state: str | None, limit: int | None, cursor: Key | None) -> Listing:
        """Return the sessions of a pool after a cursor, by name, without their secrets."""
        if cursor is not None and not (len(cursor) == 1 and isinstance(cursor[0], str)):
            raise CursorInvalid
        await self._pools.settle(pool)
        where: Record = dict(pool.owner)
        if state is not None:
            where["state"] = {"$in": list(changes.LEASED)} if state == "leased" else state
        begin = None if cursor is None else str(cursor[0])
        if limit is None:
            return Listing(self._chunks(pool, where, begin, None))
        ends = await self._sorted({**where, **_after(begin)}, ["name"]).skip(limit - 1).limit(2).to_list(2)
        end = ends[0]["name"] if ends else None
        return Listing(self._chunks(pool, where, begin, end), (end,) if len(ends) > 1 else None)

    @streamed
    async def _chunks(self, pool: Pool, where: Record, begin: str | None, end: str | None) -> AsyncIterator[Chunk]:
        until = {} if end is None else {"$lte": end}
        while True:
            name = {**_after(begin).get("name", {}), **until}
            cursor = self._sorted({**where, **({"name": name} if name else {})})
            sessions = await cursor.limit(_LISTED_AT_ONCE).to_list(_LISTED_AT_ONCE)
            if sessions:
                records = [served_session(pool, session) for session in sessions]
                begin = records[-1]["name"]
                yield Chunk(len(records), records)
            if len(sessions) < _LISTED_AT_ONCE:
                return

    def _sorted(self, where: Record, fields: list[str] | None = None) -> Any:
        return self._sessions.find(where, fields).sort("name", 1).hint("name")

    @stored
    async def put(
        self, organization_id: int, pool_name: str, name: str, given: dict[str, Any], if_version: int | None
    ) -> Record:
        """Create a session or change it, and its pool if there is none; return it as it is served.

        `given` has the secrets as JSON texts. Raises VersionConflict, and TooManySessions.
        """
        for _ in range(_MAX_ATTEMPTS):
            pool = await self._pools.find(organization_id, pool_name)
            if pool is None:
                if if_version:
                    raise VersionConflict
                pool = await self._pools.set(organization_id, pool_name, {})
            is_new = await self.find(pool, name) is None
            if is_new:
                await self._check_room(pool)
            elif if_version == 0:
                raise VersionConflict
            try:
                session = await self._write(pool, name, given, if_version)
            except DuplicateKeyError:  # another request has created it, or this one before its reply was lost
                continue
            if not is_new or await self._pools.by_id(organization_id, pool.id) is not None:
                self.freed(pool.id)
                return served_session(pool, session)
            # The pool was deleted meanwhile: this session belongs into a new one of its name.
            await self.delete(pool, name)
        raise VersionConflict

    async def _write(self, pool: Pool, name: str, given: dict[str, Any], if_version: int | None) -> Record:
        texts: dict[str, str] = {kind: given[kind] for kind in KINDS if kind in given}
        writes = self._secrets.writes(pool.organization_id, pool.id, name, texts)
        where: Record = {"_id": session_id(pool.id, name), **pool.owner}
        if if_version is not None:
            where["version"] = if_version or {"$exists": False}
        update = changes.put(pool.settings, name, given)
        if texts:
            update.append({"$set": {f"bytes.{kind}": len(text) for kind, text in texts.items()}})

        async def write(transaction: Any) -> Record | None:
            session: Record | None = await self._sessions.find_one_and_update(
                where,
                update,
                upsert=not if_version,
                return_document=ReturnDocument.AFTER,
                session=transaction,
                hint="_id_",
            )
            if session is not None and writes:
                await self._secrets.write(writes, transaction)
            return session

        session = await (in_transaction(self._client, write) if writes else write(None))
        if session is None:
            raise VersionConflict
        return session

    async def _check_room(self, pool: Pool) -> None:
        if await self._count(pool.owner, MAX_IN_POOL) >= MAX_IN_POOL:
            raise TooManySessions(f"A pool has at most {MAX_IN_POOL} sessions: delete one first")
        own = {"organization_id": pool.organization_id}
        if await self._count(own, MAX_IN_ORGANIZATION) >= MAX_IN_ORGANIZATION:
            raise TooManySessions(f"An organization has at most {MAX_IN_ORGANIZATION} sessions: delete one first")

    async def _count(self, where: Record, limit: int) -> int:
        return await self._sessions.count_documents(where, limit=limit, hint="take")

    @stored
    async def delete(self, pool: Pool, name: str) -> bool:
        """Delete a session with its secrets and its leases; return whether there was one."""
        id = session_id(pool.id, name)
        where = {"_id": id, "organization_id": pool.organization_id}
        session = await self._sessions.find_one(where, {"leases": 1, "now": changes.NOW})
        if session is None:
            return False
        ended = [lease["id"] for lease in session.get("leases", ())]

        async def write(transaction: Any) -> bool:
            # A late copy of a request takes no other session.
            await self._receipts.note_ended(pool.organization_id, ended, session["now"], transaction)
            result = await self._sessions.delete_one(where, session=transaction)
            await self._secrets.remove(pool.organization_id, id, transaction)
            return bool(result.deleted_count)

        return await in_transaction(self._client, write)


def _after(name: str | None) -> Record:
    return {} if name is None else {"name": {"$gt": name}}
