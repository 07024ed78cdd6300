"""The secrets of sessions, in a collection of their own: taking and listing sessions never reads them.

Each is sealed for itself, bound to the organization, the pool, the name and its kind.
"""

from __future__ import annotations

from typing import Any

from pymongo import UpdateOne

from service.store.capacity import Capacity
from service.store.connection import LOCAL, Database
from service.store.contract import stored
from service.store.indexes import Indexes
from service.store.listing import Record
from service.store.sealing import SealedRecords
from service.store.vault import Vault

KINDS = ("storage_state", "user_data")
# Copies of the secrets in memory: as they are stored, opened, and in the response.
_COPIES = 3


class Secrets(SealedRecords):
    """The storage states and user data of sessions, as JSON texts."""

    name = "session_secrets"
    identity = ("pool_id", "name", "kind")
    bound = ()

    def __init__(self, database: Database, vault: Vault, indexes: Indexes, capacity: Capacity) -> None:
        super().__init__(database, vault, indexes)
        self._capacity = capacity

    @stored
    async def read(self, organization_id: int, session: Record) -> dict[str, str]:
        """Return the secrets that a session has, by kind. Raises VaultError if one does not open."""
        size = _COPIES * sum(session.get("bytes", {}).values())
        await self._capacity.reserve(size)
        ids = [_id(session["_id"], kind) for kind in KINDS]
        # Not a majority read: that of a new primary may be older than the lease.
        found = (
            await self._records.with_options(read_concern=LOCAL)
            .find({"organization_id": organization_id, "_id": {"$in": ids}})
            .to_list(len(ids))
        )
        self._capacity.shrink(size)
        return {record["kind"]: self._open(record).value for record in found}

    def writes(self, organization_id: int, pool_id: str, name: str, texts: dict[str, str]) -> list[UpdateOne]:
        """Return the operations that store secrets, replacing earlier ones without reading them."""
        operations = []
        for kind, text in texts.items():
            record: Record = {"organization_id": organization_id, "pool_id": pool_id, "name": name, "kind": kind}
            where = {"_id": _id(session_id(pool_id, name), kind), "organization_id": organization_id}
            fields = {**record, **self._sealed({**record, "value": text})}
            operations.append(UpdateOne(where, {"$set": fields}, upsert=True))
        return operations

    async def write(self, operations: list[UpdateOne], transaction: Any) -> None:
        """Store secrets in a transaction, together with the session that they belong to."""
        await self._records.bulk_write(operations, ordered=False, session=transaction)

    async def remove(self, organization_id: int, session_id: str, transaction: Any) -> None:
        """Delete the secrets of a session in the transaction that deletes it."""
        ids = [_id(session_id, kind) for kind in KINDS]
        await self._records.delete_many({"organization_id": organization_id, "_id": {"$in": ids}}, session=transaction)


def session_id(pool_id: str, name: str) -> str:
    """Return the `_id` of a session: a change stream names its pool without a look-up."""
    return f"{pool_id}/{name}"


def pool_of(session_id: str) -> str:
    """Return the inner id of the pool in the `_id` of a session."""
    return session_id.partition("/")[0]


def _id(session_id: str, kind: str) -> str:
    return f"{session_id}/{kind}"
