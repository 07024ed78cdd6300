"""What cookies and local storage share: records an organization sets by identity and lists whole."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pymongo import ASCENDING, UpdateOne
from pymongo.errors import BulkWriteError

from service.store.connection import DURABLE, MAJORITY, Collection, Database
from service.store.contract import stored, streamed
from service.store.errors import DUPLICATE_KEY
from service.store.vault import Vault, VaultError

# Records of about 200 bytes: a batch is 200 KB, and the whole answer is never in memory.
BATCH = 1000


class Counts(NamedTuple):
    created: int
    updated: int


class Rotation(NamedTuple):
    seen: int
    resealed: int
    unreadable: int


def now() -> datetime:
    """Return the present in UTC and whole milliseconds, as the database stores it."""
    moment = datetime.now(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _below(domain: str) -> str:
    """Return the pattern of a domain and its subdomains, with a leading dot or a port or neither."""
    return rf"^(.*\.)?{re.escape(domain.removeprefix('.'))}(:\d+)?$"


class BrowserState:
    """A collection of records, each known by its organization and its identity."""

    name: str
    identity: tuple[str, ...]
    session: Any  # what `expires` holds in a record that does not expire

    def __init__(self, database: Database, vault: Vault) -> None:
        self._records: Collection = database.get_collection(self.name, write_concern=DURABLE, read_concern=MAJORITY)
        self._vault = vault

    @streamed
    async def records(
        self,
        organization_id: int,
        domain: str | None = None,
        active_at: datetime | None = None,
        *,
        subdomains: bool = False,
        extra: bool = False,
    ) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the records in the order of their identity, some at a time."""
        where: dict[str, Any] = {"organization_id": organization_id}
        if domain is not None:
            where["domain"] = {"$regex": _below(domain)} if subdomains else domain
        if active_at is not None:
            where["$or"] = [{"expires": self.session}, {"expires": {"$gt": self._at(active_at)}}]
        found = self._records.find(where, hint="identity", batch_size=BATCH)
        found = found.sort([(key, ASCENDING) for key in self.identity])
        while records := await found.to_list(BATCH):
            yield [self._served(record, extra) for record in records]

    @streamed
    async def rotate(self) -> AsyncIterator[Rotation]:
        """Seal every value that is not under the first key, of all organizations; yield how far it is.

        Services may go on writing meanwhile, and it may be stopped and begun again at any point.
        """
        seen = resealed = unreadable = 0
        found = self._records.find({}, batch_size=BATCH)
        while records := await found.to_list(BATCH):
            operations = []
            for record in records:
                stored_value, belongs_to = record["value"], self._belongs_to(record)
                if self._vault.is_current(stored_value):
                    continue
                try:
                    value = self._vault.seal(self._vault.open(stored_value, *belongs_to), *belongs_to)
                except VaultError:
                    unreadable += 1
                    continue
                # Only if it is still the value that was read: a newer one has its own seal.
                same = {"_id": record["_id"], "organization_id": record["organization_id"], "value": stored_value}
                operations.append(UpdateOne(same, {"$set": {"value": value}}))
            if operations:
                resealed += (await self._records.bulk_write(operations, ordered=False)).modified_count
            seen += len(records)
            yield Rotation(seen, resealed, unreadable)

    @stored
    async def count(self) -> int:
        """Return roughly how many records all organizations have."""
        return await self._records.estimated_document_count()

    def _at(self, moment: datetime) -> Any:
        return moment

    def _served(self, record: dict[str, Any], extra: bool) -> dict[str, Any]:
        raise NotImplementedError

    def _key(self, record: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(record[name] for name in self.identity)

    def _belongs_to(self, record: dict[str, Any]) -> tuple[str | int, ...]:
        return (record["organization_id"], self.name, *self._key(record), "value")

    async def _upsert(self, operations: list[UpdateOne]) -> Counts:
        """Write all operations; those that met the first write of the same record go again."""
        created = updated = 0
        result: Any
        while operations:
            try:
                result = (await self._records.bulk_write(operations, ordered=False)).bulk_api_result
                operations = []
            except BulkWriteError as error:
                result = error.details
                failed = result["writeErrors"]
                if result.get("writeConcernErrors") or any(e["code"] != DUPLICATE_KEY for e in failed):
                    raise
                operations = [operations[e["index"]] for e in failed]
            created += result["nUpserted"]
            updated += result["nMatched"]
        return Counts(created, updated)
