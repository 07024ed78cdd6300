"""Local-storage entries: one for each organization, domain, path and key."""

from __future__ import annotations

from typing import Any

from pymongo import UpdateOne

from service.store.browser_state import BrowserState, Counts, now
from service.store.connection import Database
from service.store.contract import stored
from service.store.counters import Counters
from service.store.vault import Vault

# Entries belong to the whole organization: no group.
NO_GROUP = 0


class LocalStorage(BrowserState):
    """The local-storage entries of an organization."""

    name = "local_storage"
    identity = ("domain", "path", "key")
    session = None

    def __init__(self, database: Database, vault: Vault, counters: Counters) -> None:
        super().__init__(database, vault)
        self._counters = counters

    @stored
    async def set(self, organization_id: int, entries: list[dict[str, Any]]) -> Counts:
        """Store each entry; one that is there keeps its id and creation date. The last wins."""
        records = {self._key(entry): entry for entry in entries}
        if not records:
            return Counts(0, 0)
        # Ids are taken for all; an entry that is there already does not use its one.
        first = await self._counters.take(organization_id, "local_storage", len(records))
        moment = now()
        operations = []
        for offset, entry in enumerate(records.values()):
            owned = {"organization_id": organization_id, **entry}
            identity = {key: owned[key] for key in ("organization_id", *self.identity)}
            changes = {
                "value": self._vault.seal(entry["value"], *self._belongs_to(owned)),
                "expires": entry["expires"],
                "update_date": moment,
                "extra": entry.get("extra", {}),
            }
            start = {"id": first + offset, "group_id": NO_GROUP, "create_date": moment}
            operations.append(UpdateOne(identity, {"$set": changes, "$setOnInsert": start}, upsert=True))
        return await self._upsert(operations)

    def _served(self, record: dict[str, Any], extra: bool) -> dict[str, Any]:
        entry = {
            "organization_id": record["organization_id"],
            "domain": record["domain"],
            "key": record["key"],
            "value": self._vault.open(record["value"], *self._belongs_to(record)),
            "expires": record["expires"],
            "id": record["id"],
            "group_id": record["group_id"],
            "path": record["path"],
            "create_date": record["create_date"],
            "update_date": record["update_date"],
        }
        if extra:
            entry["extra"] = record.get("extra", {})
        return entry
