"""What a browser stores for an origin besides local storage, such as IndexedDB; stored as it was sent."""

from __future__ import annotations

from typing import Any

from pymongo import UpdateOne

from service.store.browser_state import BrowserState, Counts
from service.store.contract import stored
from service.store.listing import Record
from service.store.vault import Sealed


class Origins(BrowserState):
    """The other storage of the origins of an organization, each as one JSON text."""

    name = "origins"
    identity = ("origin",)
    bound = ("domain",)
    # In the order of local storage, so that the two can be read side by side.
    order_index, order = "domain", ("domain", "origin")
    session = None

    @stored
    async def set(self, organization_id: int, origins: list[dict[str, Any]]) -> Counts:
        """Store each origin's text, replacing an existing one."""
        self._indexes.require(self.name)
        unique = {origin["origin"]: {"organization_id": organization_id, **origin} for origin in origins}
        return await self._store(list(unique.values()))

    def _operations(self, records: list[Record]) -> list[UpdateOne]:
        return [
            UpdateOne(self._identity(r), {"$set": {"domain": r["domain"], **self._sealed(r)}}, upsert=True)
            for r in records
        ]

    def _served(self, record: Record, opened: Sealed) -> Record:
        return {"origin": record["origin"], "domain": record["domain"], "value": opened.value}
