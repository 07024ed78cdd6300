"""What became of leases that have ended: a lease id is live once, whoever repeats which request how late."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pymongo import UpdateOne

from service.store.connection import DURABLE, LOCAL, Collection, Database
from service.store.listing import Record


class Receipts:
    """The released leases with the response that each release got, and the leases that have ended without one."""

    def __init__(self, database: Database) -> None:
        self._released: Collection = database.get_collection(
            "released_leases", write_concern=DURABLE, read_concern=LOCAL
        )

    async def find(self, organization_id: int, lease_id: str) -> Record | None:
        """Return the receipt of a lease; None while it is live, or was never taken."""
        where = {"_id": _id(organization_id, lease_id), "organization_id": organization_id}
        receipt: Record | None = await self._released.find_one(where)
        return receipt

    async def add(self, lease_id: str, digest: bytes, session: Record, answer: Record, transaction: Any) -> None:
        """Store the response to a release, in the transaction of the release."""
        organization_id = session["organization_id"]
        receipt = {"_id": _id(organization_id, lease_id), "organization_id": organization_id, "digest": digest}
        fields = {"answer": answer, "date": session["update_date"]}
        await self._released.insert_one({**receipt, **fields}, session=transaction)

    async def note_ended(
        self, organization_id: int, lease_ids: Sequence[str], date: datetime, transaction: Any
    ) -> None:
        """Note leases that end without a release, in a transaction; noting one again changes nothing."""
        receipt = {"digest": b"", "answer": None, "date": date}
        updates = [
            UpdateOne(
                {"_id": _id(organization_id, lease_id), "organization_id": organization_id},
                {"$setOnInsert": receipt},
                upsert=True,
            )
            for lease_id in lease_ids
        ]
        if updates:
            await self._released.bulk_write(updates, ordered=False, session=transaction)


def answer_of(receipt: Record | None, digest: bytes) -> Record | None:
    """Return the response to a release that is repeated word for word."""
    if receipt is None or not hmac.compare_digest(receipt["digest"], digest):
        return None
    answer: Record = receipt["answer"]
    return answer


def _id(organization_id: int, lease_id: str) -> str:
    """Return the `_id` of a receipt, which does not tell the lease id."""
    return f"{organization_id}/{hashlib.sha256(lease_id.encode()).hexdigest()}"
