"""Collections whose records hold a value that is sealed together with the fields it belongs to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, ClassVar, NamedTuple

from pymongo import UpdateOne

from service.store.connection import DURABLE, MAJORITY, Collection, Database
from service.store.contract import stored, streamed
from service.store.decoding import RAW, decoded_batches
from service.store.indexes import Indexes
from service.store.listing import Record
from service.store.vault import Sealed, Vault, VaultError

# Records that one command rewrites: each takes about 20 microseconds to prepare.
CHUNK = 1000


class Rotation(NamedTuple):
    seen: int
    resealed: int
    unreadable: int


class SealedRecords:
    """A collection of records, each known by its organization and its identity.

    With SECRET_KEYS, `value` holds the sealed value and the sealed `extra`, and the fields in `bound` are
    authenticated with them: whoever can write to the database can delete a record, but not change it unseen.
    """

    name: ClassVar[str]
    identity: ClassVar[tuple[str, ...]]
    bound: ClassVar[tuple[str, ...]]

    def __init__(self, database: Database, vault: Vault, indexes: Indexes) -> None:
        self._records: Collection = database.get_collection(self.name, write_concern=DURABLE, read_concern=MAJORITY)
        self._vault, self._indexes = vault, indexes

    @property
    def _raw(self) -> Collection:
        """The records as they are encoded: `extra` may hold anything, see `decoding.py`."""
        return self._records.with_options(codec_options=RAW)

    def _sealed(self, record: Record) -> Record:
        """Return the fields of a record that hold its value and `extra`, as they are to be stored."""
        value, extra = record["value"], record.get("extra", {})
        if not self._vault.active:
            return {"value": value, "extra": extra}
        return {"value": self._vault.seal(Sealed(value, extra), *self._context(record)), "extra": {}}

    def _open(self, record: Record) -> Sealed:
        """Return the value and `extra` of a stored record. Raises VaultError."""
        stored_value = record["value"]
        if isinstance(stored_value, bytes):
            return self._vault.open(stored_value, *self._context(record))
        # From before SECRET_KEYS was set.
        return Sealed(self._vault.check_plain(stored_value), record.get("extra") or {})

    def _context(self, record: Record) -> tuple[Any, ...]:
        """Return the record fields that a value is sealed with: it opens with no others."""
        fields = (*self.identity, *self.bound)
        return (record["organization_id"], self.name, *(_text(record[field]) for field in fields))

    @streamed
    async def rotate(self) -> AsyncIterator[Rotation]:
        """Seal every value that is not sealed with the first key, of all organizations; yield the progress.

        Services may continue to write meanwhile, and it may be stopped and started again at any point.
        """
        seen = resealed = unreadable = 0
        async for records in decoded_batches(self._raw.find({}, batch_size=CHUNK), CHUNK):
            operations = []
            for record in records:
                if self._vault.is_current(record["value"]):
                    continue
                try:
                    opened = self._open(record)
                except VaultError:
                    unreadable += 1
                    continue
                # Only if the record is unchanged: a newer one is sealed already.
                fields = ("_id", "organization_id", "value", *self.bound)
                same = {field: record[field] for field in fields}
                operations.append(UpdateOne(same, {"$set": self._sealed({**record, **opened._asdict()})}))
            if operations:
                await self._records.bulk_write(operations, ordered=False)
                resealed += len(operations)  # or a process with an old key has written one meanwhile: for the next pass
            seen += len(records)
            yield Rotation(seen, resealed, unreadable)

    @stored
    async def count(self) -> int:
        """Return roughly how many records all organizations have."""
        return await self._records.estimated_document_count()


def _text(value: Any) -> str:
    """Return a field as authenticated text: the same before and after it is stored, and different for each value."""
    if isinstance(value, datetime):
        return f"date {value.isoformat(timespec='milliseconds')}"
    if isinstance(value, str):
        return f"text {value}"
    return repr(value) if value is None or isinstance(value, bool) else f"int {int(value)}"
