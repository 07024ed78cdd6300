"""Local-storage entries: one for each organization, domain, path and key."""

from __future__ import annotations

from typing import Any

from service.store.browser_state import BrowserState, Counts
from service.store.clock import now
from service.store.connection import Database
from service.store.contract import stored
from service.store.counters import Counters
from service.store.indexes import Indexes
from service.store.listing import Record
from service.store.vault import Vault

# Entries belong to the whole organization: no group.
NO_GROUP = 0


class LocalStorage(BrowserState):
    """The local-storage entries of an organization."""

    name = "local_storage"
    identity = order = ("domain", "path", "key")
    # Not `id` and `create_date`: an existing entry keeps them, and is not read before it is set.
    bound = ("expires", "update_date")
    name_field = "key"
    served = (
        *("organization_id", "domain", "key", "value", "expires", "id", "group_id", "path"),
        *("create_date", "update_date"),
    )
    session = None

    def __init__(self, database: Database, vault: Vault, counters: Counters, indexes: Indexes) -> None:
        super().__init__(database, vault, indexes)
        self._counters = counters

    @stored
    async def set(self, organization_id: int, entries: list[dict[str, Any]]) -> Counts:
        """Store each entry; an existing one keeps its id and creation date. The last of several wins."""
        self._indexes.require(self.name)
        if not entries:
            return Counts(0, 0)
        # Ids are taken for all entries; those of existing entries stay unused.
        first = await self._counters.take(organization_id, "local_storage", len(entries))
        moment = now()
        records = [
            {"organization_id": organization_id, **entry, "update_date": moment, "id": first + offset}
            for offset, entry in enumerate(entries)
        ]
        return await self._store(records)

    def _update(self, record: Record) -> Record:
        changes = {"expires": record["expires"], "update_date": record["update_date"], **self._sealed(record)}
        start = {"id": record["id"], "group_id": NO_GROUP, "create_date": record["update_date"]}
        return {"$set": changes, "$setOnInsert": start}
