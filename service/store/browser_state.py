"""What cookies, local storage and origins share: records that an organization sets by identity, lists and deletes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, NamedTuple

from bson import ObjectId
from pymongo import ASCENDING, UpdateOne

from service.store.contract import stored, streamed
from service.store.decoding import AWARE, decode, encoded
from service.store.errors import CursorExpired, CursorInvalid
from service.store.listing import Chunk, Key, Listing, Record, after, by_bytes
from service.store.sealing import CHUNK, SealedRecords
from service.store.vault import Sealed

# Approximate bytes of a record besides its value.
_OVERHEAD = 300
# A cursor goes into a header, of which most clients take 8 KB: a longer key is named by its record's `_id`.
_MAX_KEY_CHARACTERS = 1000
# More records are sealed in a thread.
_OFF_LOOP_RECORDS = 100
_OFF_LOOP_BYTES = 256 * 1024


class Counts(NamedTuple):
    created: int
    updated: int


@dataclass(frozen=True)
class Selection:
    """A filter for the records of an organization; without values it selects all."""

    domain: str | None = None
    subdomains: bool = False  # of `domain`, which then may have a leading dot or a port
    path: str | None = None
    name: str | None = None  # a cookie's name, an entry's key
    active_at: datetime | None = None
    expired_at: datetime | None = None


ALL = Selection()


def _below(domain: str) -> str:
    """Return the pattern of a domain and its subdomains, with a leading dot or a port or neither."""
    return rf"^(.*\.)?{re.escape(domain.removeprefix('.'))}(:\d+)?$"


class BrowserState(SealedRecords):
    """A collection of records that an organization sets by their identity, lists and deletes."""

    # The index that gives the order of listing, and its fields after the organization.
    order_index: ClassVar[str] = "identity"
    order: ClassVar[tuple[str, ...]]
    # The fields that `Selection.path` and `Selection.name` filter by.
    path_field: ClassVar[str] = "path"
    name_field: ClassVar[str] = "name"
    served: ClassVar[tuple[str, ...]]  # the members of a record in a response
    session: ClassVar[Any]  # what `expires` holds in a record that does not expire

    # -- reading -----------------------------------------------------------------------------

    def records(self, organization_id: int, selection: Selection = ALL, *, extra: bool = False) -> AsyncIterator[Chunk]:
        """Yield the records in a stable order, some at a time, with their `extra` if wanted."""
        self._indexes.require(self.name)
        return self._chunks(organization_id, selection, None, None, extra)

    @stored
    async def page(self, organization_id: int, selection: Selection, limit: int | None, cursor: Key | None) -> Listing:
        """Return the records after a cursor, `limit` of them. Raises CursorExpired if its record is gone."""
        self._indexes.require(self.name)
        begin = None if cursor is None else await self._key_at(organization_id, cursor)
        if limit is None:
            return Listing(self._chunks(organization_id, selection, begin, None))
        where = self._where(organization_id, selection, begin)
        # Keys only, from the index: the records themselves may be 5 MiB each.
        keys = self._sorted(self._records.find(where, dict.fromkeys(self.order, 1)))
        ends = await keys.skip(limit - 1).limit(2).to_list(2)
        end = self._position(ends[0]) if ends else None
        next_key = self._cursor(ends[0]) if len(ends) > 1 else None
        return Listing(self._chunks(organization_id, selection, begin, end), next_key)

    @streamed
    async def _chunks(
        self, organization_id: int, selection: Selection, begin: Key | None, end: Key | None, extra: bool = False
    ) -> AsyncIterator[Chunk]:
        async def read(key: Key | None, count: int) -> list[Record]:
            # A negative limit is one reply of the server, which ends at 16 MB.
            where = self._where(organization_id, selection, key)
            records: list[Record] = await self._sorted(self._raw.find(where, limit=-count, batch_size=count)).to_list(
                count
            )
            return records

        async for size, records in by_bytes(read, self._position, _stored_size, begin):
            if end is not None and self._position(records[-1]) > end:
                # Written after the keys were read: the next page begins with it.
                records = [record for record in records if self._position(record) <= end]
            ended = end is not None and (not records or self._position(records[-1]) == end)
            yield Chunk(size, records, partial(self._read, extra=extra))
            if ended:
                return

    def _sorted(self, cursor: Any) -> Any:
        return cursor.sort([(field, ASCENDING) for field in self.order]).hint(self.order_index)

    def _where(self, organization_id: int, selection: Selection, begin: Key | None = None) -> Record:
        where: Record = {"organization_id": organization_id}
        if selection.domain is not None:
            where["domain"] = {"$regex": _below(selection.domain)} if selection.subdomains else selection.domain
        if selection.path is not None:
            where[self.path_field] = selection.path
        if selection.name is not None:
            where[self.name_field] = selection.name
        every: list[Record] = []
        if selection.active_at is not None:
            at = self._expiry(selection.active_at)
            every.append({"$or": [{"expires": self.session}, {"expires": {"$gt": at}}]})
        if selection.expired_at is not None:
            every.append({"expires": {"$ne": self.session, "$lte": self._expiry(selection.expired_at)}})
        if begin is not None:
            every.append(after(self.order, begin))
        return {**where, "$and": every} if every else where

    def _expiry(self, moment: datetime) -> Any:
        """Return a moment as `expires` holds it."""
        return moment

    def _position(self, record: Record) -> Key:
        return tuple(record[field] for field in self.order)

    def _cursor(self, record: Record) -> Key:
        key = self._position(record)
        return key if sum(map(len, key)) <= _MAX_KEY_CHARACTERS else (str(record["_id"]),)

    async def _key_at(self, organization_id: int, cursor: Key) -> Key:
        """Return the place in the list that a cursor names."""
        if len(cursor) == len(self.order) and all(isinstance(part, str) for part in cursor):
            return cursor
        if len(cursor) != 1 or not ObjectId.is_valid(cursor[0]):
            raise CursorInvalid
        where = {"_id": ObjectId(cursor[0]), "organization_id": organization_id}
        record = await self._records.find_one(where, dict.fromkeys(self.order, 1))
        if record is None:
            raise CursorExpired
        return self._position(record)

    def _read(self, raw: Any, extra: bool) -> Record:
        record = _decoded(raw)
        opened = self._open(record)
        served = self._served(record, opened)
        return {**served, "extra": opened.extra} if extra else served

    def _served(self, record: Record, opened: Sealed) -> Record:
        whole = {**record, "value": opened.value}
        return {name: whole[name] for name in self.served}

    # -- deleting ----------------------------------------------------------------------------

    @stored
    async def delete(self, organization_id: int, selection: Selection) -> int:
        """Delete the records of a selection, in bounded commands; return their number."""
        self._indexes.require(self.name)
        where = self._where(organization_id, selection)
        deleted = 0
        while True:
            records = await self._records.find(where, {"_id": 1}, limit=CHUNK).to_list(CHUNK)
            if records:
                chosen = {"_id": {"$in": [record["_id"] for record in records]}}
                # With the filter again: a record that was set again meanwhile may no longer be expired.
                deleted += (await self._records.delete_many({**where, **chosen})).deleted_count
            if len(records) < CHUNK:
                return deleted

    # -- writing -----------------------------------------------------------------------------

    def _identity(self, record: Record) -> Record:
        return {field: record[field] for field in ("organization_id", *self.identity)}

    def _update(self, record: Record) -> Record:
        """Return the update that stores a record."""
        raise NotImplementedError

    def _operations(self, records: list[Record]) -> list[UpdateOne]:
        return [UpdateOne(self._identity(record), self._update(record), upsert=True) for record in records]

    async def _store(self, records: list[Record]) -> Counts:
        """Write the records, of one identity the last; sealed in a thread if there is much to seal."""
        records = list({tuple(self._identity(record).values()): record for record in records}.values())
        much = len(records) > _OFF_LOOP_RECORDS or sum(map(_size, records)) > _OFF_LOOP_BYTES
        operations: list[UpdateOne] = []
        for start in range(0, len(records), _OFF_LOOP_RECORDS):
            part = records[start : start + _OFF_LOOP_RECORDS]
            operations += await asyncio.to_thread(self._operations, part) if much else self._operations(part)
        created = updated = 0
        for start in range(0, len(operations), CHUNK):
            result = await self._records.bulk_write(operations[start : start + CHUNK], ordered=False)
            created, updated = created + result.upserted_count, updated + result.matched_count
        return Counts(created, updated)


def _size(record: Record) -> int:
    return len(record["value"]) + _OVERHEAD


def _stored_size(record: Record) -> int:
    return len(encoded(record))


def _decoded(record: Record) -> Record:
    return decode(encoded(record), AWARE)
