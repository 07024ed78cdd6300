"""What a browser stores for an origin besides local storage, such as IndexedDB; stored as it was sent."""

from __future__ import annotations

from typing import Any

from service.store.browser_state import BrowserState, Counts
from service.store.contract import stored
from service.store.listing import Record


class Origins(BrowserState):
    """The other storage of the origins of an organization, each as one JSON text."""

    name = "origins"
    identity = ("origin",)
    bound = ("domain",)
    # In the order of local storage, so that the two can be read side by side.
    order_index, order = "domain", ("domain", "origin")
    served = ("origin", "domain", "value")
    session = None

    @stored
    async def set(self, organization_id: int, origins: list[dict[str, Any]]) -> Counts:
        """Store each origin's text, replacing an existing one; the last of several wins."""
        self._indexes.require(self.name)
        return await self._store([{"organization_id": organization_id, **origin} for origin in origins])

    def _update(self, record: Record) -> Record:
        return {"$set": {"domain": record["domain"], **self._sealed(record)}}
