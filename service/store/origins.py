"""What a browser keeps for an origin besides local storage, IndexedDB for one; kept as it came."""

from __future__ import annotations

from typing import Any

from pymongo import UpdateOne

from service.store.browser_state import BrowserState, Counts
from service.store.contract import stored


class Origins(BrowserState):
    """The other storage of the origins of an organization, each as one JSON text."""

    name = "origins"
    identity = ("origin",)
    session = None

    @stored
    async def set(self, organization_id: int, origins: list[dict[str, Any]]) -> Counts:
        """Store each origin's text, replacing the one that is there."""
        operations = []
        for origin in origins:
            owner = {"organization_id": organization_id, "origin": origin["origin"]}
            value = self._vault.seal(origin["value"], *self._belongs_to(owner))
            changes = {"value": value, "domain": origin["domain"]}
            operations.append(UpdateOne(owner, {"$set": changes}, upsert=True))
        return await self._upsert(operations) if operations else Counts(0, 0)

    def _served(self, record: dict[str, Any], extra: bool) -> dict[str, Any]:
        value = self._vault.open(record["value"], *self._belongs_to(record))
        return {"origin": record["origin"], "domain": record["domain"], "value": value}
