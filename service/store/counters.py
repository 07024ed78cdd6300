"""Plain counters per organization, for ids that need no order of visibility."""

from __future__ import annotations

from pymongo import ReturnDocument

from service.store.connection import DURABLE, Collection, Database
from service.store.contract import stored


class Counters:
    """Hands out increasing numbers by name."""

    def __init__(self, database: Database) -> None:
        self._counters: Collection = database.get_collection("sequences", write_concern=DURABLE)

    @stored
    async def take(self, organization_id: int, name: str, count: int) -> int:
        """Take `count` numbers and return the first."""
        document = await self._counters.find_one_and_update(
            {"_id": organization_id},
            {"$inc": {name: count}},
            {name: 1, "_id": 0},
            upsert=True,
            return_document=ReturnDocument.AFTER,
        )
        return int(document[name]) - count + 1
