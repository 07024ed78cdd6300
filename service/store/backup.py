"""Backup and restore: every document of an organization, or of all, as lines of JSON.

A group is read from one snapshot: its ids, its counts and its outputs belong together. Values that are sealed stay
sealed. The first line says what the file is, the last one how many documents it holds.

Dates and the like are MongoDB Extended JSON: `{"$date": …}`. What scrapers sent may look like that, so every name that
begins with a dollar has one more in the file.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from bson import json_util
from pymongo.errors import OperationFailure

from service.store.connection import DURABLE, Client, Collection, Database
from service.store.contract import stored, without_time_limit
from service.store.decoding import AWARE, RAW, decode, encoded
from service.store.errors import StoreError
from service.store.layout import VERSION

_FORMAT = "scraping-data-service backup"
# Of a group, in one snapshot; and of an organization as a whole.
GROUP_COLLECTIONS = ("groups", "outputs", "jobs", "days", "reviews")
ORGANIZATION_COLLECTIONS = ("cookies", "local_storage", "origins", "tokens", "webhooks")
# The counters of an organization; its id is the document's own.
COUNTERS = "sequences"
COLLECTIONS = (*GROUP_COLLECTIONS, *ORGANIZATION_COLLECTIONS, COUNTERS)

_BATCH_DOCUMENTS = 1000
_BATCH_BYTES = 8 * 1024 * 1024
_SNAPSHOT_TOO_OLD = 239

Progress = Callable[[int], None]


class BackupError(StoreError):
    """The file or the database is not one that can be restored; the text says what to do."""


class Backup:
    """Writes and reads the lines of a backup."""

    def __init__(self, client: Client, database: Database) -> None:
        self._client, self._database = client, database

    @stored
    @without_time_limit
    async def write(self, organization: int | None, write: Callable[[bytes], Any], progress: Progress) -> int:
        """Give each line of a backup to `write`; return how many documents there are."""
        documents = 0

        def line(value: dict[str, Any]) -> None:
            write(json_util.dumps(value, json_options=json_util.CANONICAL_JSON_OPTIONS).encode() + b"\n")

        line({"format": _FORMAT, "layout": VERSION, "organization": organization, "escaped": True})
        try:
            async for collection, document in self._documents(organization):
                line({"c": collection, "d": _escaped(document)})
                documents += 1
                progress(documents)
        except OperationFailure as error:
            if error.code != _SNAPSHOT_TOO_OLD:
                raise
            raise BackupError(
                "a group takes longer to read than the database keeps a snapshot: raise its parameter "
                "minSnapshotHistoryWindowInSeconds (300), or copy the files of a stopped member"
            ) from None
        line({"end": documents})
        return documents

    async def _documents(self, organization: int | None) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        mine: dict[str, Any] = {} if organization is None else {"organization_id": organization}
        counters = {} if organization is None else {"_id": organization}
        async for document in self._raw(COUNTERS).find(counters):
            yield COUNTERS, _decoded(document)
        for collection in ORGANIZATION_COLLECTIONS:
            async for document in self._raw(collection).find(mine):
                yield collection, _decoded(document)
        names = {"organization_id": 1, "group_id": 1, "_id": 0}
        groups: dict[tuple[int, str], dict[str, Any]] = {}
        for collection in ("groups", "reviews"):  # a group may have reviews only
            async for name in self._database[collection].find(mine, names):
                groups[name["organization_id"], name["group_id"]] = name
        for name in groups.values():
            async for found in self._group(name):
                yield found

    async def _group(self, name: dict[str, Any]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        async with await self._client.start_session(snapshot=True) as session:
            for collection in GROUP_COLLECTIONS:
                async for document in self._raw(collection).find(name, session=session):
                    yield collection, _decoded(document)

    def _raw(self, collection: str) -> Collection:
        found: Collection = self._database[collection].with_options(codec_options=RAW)
        return found

    @stored
    @without_time_limit
    async def read(self, lines: Iterable[bytes], progress: Progress) -> int:
        """Insert the documents of a backup into a database that has none of them; return how many."""
        rest = iter(lines)
        header = _parse(next(rest, b""))
        if header.get("format") != _FORMAT:
            raise BackupError("the file is not a backup of this service")
        if header.get("layout") != VERSION:
            raise BackupError(
                f"the backup has layout {header.get('layout')}, this service has {VERSION}: restore it with the "
                "version that made it, then run `python -m service upgrade`"
            )
        await self._check_empty(header.get("organization"))
        documents, escaped = 0, header.get("escaped") is True
        for collection, batch in _batches(rest):
            if collection not in COLLECTIONS:
                raise BackupError("the file is not a backup of this service")
            target = self._database.get_collection(collection, write_concern=DURABLE)
            await target.insert_many(map(_unescaped, batch) if escaped else batch, ordered=False)
            documents += len(batch)
            progress(documents)
        return documents

    async def _check_empty(self, organization: int | None) -> None:
        for collection in COLLECTIONS:
            field = "_id" if collection == COUNTERS else "organization_id"
            mine = {} if organization is None else {field: organization}
            if await self._database[collection].find_one(mine, {"_id": 1}) is not None:
                whose = "" if organization is None else f" of organization {organization}"
                raise BackupError(f"the database has records{whose} already: restore into an empty one")


def _decoded(document: Any) -> dict[str, Any]:
    return decode(encoded(document), AWARE)


def _escaped(value: Any) -> Any:
    """Return a value with one more dollar before each name that begins with one."""
    if isinstance(value, dict):
        return {f"${name}" if name.startswith("$") else name: _escaped(member) for name, member in value.items()}
    return list(map(_escaped, value)) if isinstance(value, list) else value


def _unescaped(value: Any) -> Any:
    if isinstance(value, dict):
        return {name[1:] if name.startswith("$") else name: _unescaped(member) for name, member in value.items()}
    return list(map(_unescaped, value)) if isinstance(value, list) else value


def _parse(line: bytes) -> dict[str, Any]:
    try:
        value = json_util.loads(line, json_options=json_util.CANONICAL_JSON_OPTIONS.with_options(tz_aware=True))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise BackupError("the file is not a backup of this service, or damaged")
    return value


def _batches(lines: Iterator[bytes]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the documents of one collection at a time. Raises BackupError if the file is cut off."""
    current, size, documents = "", 0, 0
    batch: list[dict[str, Any]] = []
    for line in lines:
        value = _parse(line)
        if "end" in value:
            if batch:
                yield current, batch
            if value["end"] != documents:
                raise BackupError("the backup is damaged: documents are missing")
            return
        if batch and (value["c"] != current or len(batch) >= _BATCH_DOCUMENTS or size + len(line) > _BATCH_BYTES):
            yield current, batch
            batch, size = [], 0
        current = value["c"]
        batch.append(value["d"])
        size, documents = size + len(line), documents + 1
    raise BackupError("the backup is cut off: its last line is missing")
