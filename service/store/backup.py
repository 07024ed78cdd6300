"""Backup and restore: every document of an organization, or of all, as it is stored.

A group is read from one snapshot: its ids, its counts and its outputs belong together. Values that are sealed stay
sealed.

A backup file begins with a header (one line of JSON). Blocks follow: one line of JSON and the documents that it
announces. The last line has the number of documents. Documents are never decoded: that would take most of the time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import IO, Any

from bson.errors import InvalidBSON
from bson.raw_bson import RawBSONDocument
from pymongo.errors import OperationFailure, PyMongoError

from service.store.connection import DURABLE, Client, Database, opened
from service.store.contract import stored, without_time_limit
from service.store.decoding import RAW
from service.store.errors import SNAPSHOT_TOO_OLD, StoreError
from service.store.layout import VERSION, Layout
from service.store.outputs import RESTORED_GAP

_FORMAT = "scraping-data-service backup"
# Collections read per group, in one snapshot; and collections read per organization. In the order of the file.
GROUP_COLLECTIONS = ("outputs", "versions", "jobs", "days", "reviews", "groups")
ORGANIZATION_COLLECTIONS = (
    "cookies",
    "local_storage",
    "origins",
    "session_secrets",
    "sessions",
    "released_leases",
    "pools",
    "deliveries",
    "webhooks",
)
# The secrets of sessions leave the database only sealed.
_SEALED = {"session_secrets": {"value": {"$type": "binData"}}}
# The counters of an organization; its id is the document's own. After the documents that have taken their numbers.
COUNTERS = "sequences"
COLLECTIONS = (*GROUP_COLLECTIONS, *ORGANIZATION_COLLECTIONS, COUNTERS, "tokens")
# A service that runs meanwhile acts on a group and a webhook, and clients on a token: when all that belongs to them is
# there.
_LAST = ("groups", "pools", "webhooks", "tokens")

_BATCH_DOCUMENTS = 1000
_BATCH_BYTES = 4 * 1024 * 1024
_MAX_BLOCK_BYTES = 64 * 1024 * 1024
_MAX_LINE = 1024
# Each insert waits for the journal and the majority: several at once keep the database busy.
_INSERTS_AT_ONCE = 4

Progress = Callable[[int], None]


class BackupError(StoreError):
    """The backup cannot be made or restored; the text says what to do."""


class Backup:
    """Writes and reads backups."""

    def __init__(self, client: Client, database: Database, layout: Layout) -> None:
        self._client, self._database, self._layout = client, database, layout

    @stored
    @without_time_limit
    async def write(self, organization: int | None, write: Callable[[bytes], Any], progress: Progress) -> int:
        """Give each part of a backup to `write`; return how many documents there are."""
        layout = await self._layout.version()
        if layout not in (None, VERSION):
            raise BackupError(
                f"the database has layout {layout}, and this version restores layout {VERSION} only: make the backup "
                "with the version that wrote the database"
            )
        documents = 0

        def line(value: dict[str, Any]) -> None:
            write(json.dumps(value).encode() + b"\n")

        line({"format": _FORMAT, "layout": layout or VERSION, "organization": organization})
        try:
            async for collection, block in self._blocks(organization):
                count = sum(1 for _ in _split(block))
                line({"collection": collection, "documents": count, "bytes": len(block)})
                write(block)
                documents += count
                progress(documents)
        except OperationFailure as error:
            if error.code != SNAPSHOT_TOO_OLD:
                raise
            raise BackupError(
                "a group or collection takes longer to read than the database keeps a snapshot: raise its parameter "
                "minSnapshotHistoryWindowInSeconds (300), or copy the files of a stopped member"
            ) from None
        if not documents:
            raise BackupError("there is nothing to back up: look at MONGO_DATABASE and the number of the organization")
        line({"end": documents})
        return documents

    async def _blocks(self, organization: int | None) -> AsyncIterator[tuple[str, bytes]]:
        mine: dict[str, Any] = {} if organization is None else {"organization_id": organization}
        counters = {} if organization is None else {"_id": organization}
        names = {"organization_id": 1, "group_id": 1, "_id": 0}
        groups: dict[tuple[int, str], dict[str, Any]] = {}
        for collection in ("groups", "reviews"):  # a group may have reviews only
            async for name in self._database[collection].find(mine, names):
                groups[name["organization_id"], name["group_id"]] = name
        for name in groups.values():
            async for document in self._read(name, *GROUP_COLLECTIONS):
                yield document
        for collection in (*ORGANIZATION_COLLECTIONS, COUNTERS, "tokens"):
            async for document in self._read(counters if collection == COUNTERS else mine, collection):
                yield document

    async def _read(self, where: dict[str, Any], *collections: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield documents of one snapshot: a record that is deleted and made again meanwhile would be there twice."""
        async with await opened(self._client.start_session(snapshot=True)) as session:
            for collection in collections:
                chosen = {**where, **_SEALED.get(collection, {})}
                async for block in self._database[collection].find_raw_batches(chosen, session=session):
                    if block:
                        yield collection, block

    @stored
    @without_time_limit
    async def read(self, file: IO[bytes], progress: Progress) -> int:
        """Insert the documents of a backup into a database that has none of them; return how many.

        The next ids are raised: consumers may have seen higher ones than the backup has.
        """
        header = _parse(file.readline(_MAX_LINE))
        if header.get("format") != _FORMAT:
            raise BackupError("the file is not a backup of this service")
        if header.get("layout") != VERSION:
            raise BackupError(
                f"the backup has layout {header.get('layout')}, and this version restores layout {VERSION} only: "
                "restore it with the version that made it, export from there, and import here"
            )
        organization = header.get("organization")
        if organization is not None and type(organization) is not int:
            raise BackupError("the file is not a backup of this service, or damaged")
        await self._check_empty(organization)
        try:
            begin = file.tell()
        except OSError:  # it is a pipe: what is wrong with it shows on the way
            pass
        else:
            for _ in _batches(file, organization):
                pass
            file.seek(begin)
        await self._layout.raise_first_id()  # groups that are not in the backup begin above their old ids too
        documents, inserts = 0, set[asyncio.Task[int]]()
        try:
            for collection, batch in _batches(file, organization):
                documents += await _finish(inserts, 0 if collection in _LAST else _INSERTS_AT_ONCE - 1)
                inserts.add(asyncio.create_task(self._insert(collection, batch)))
                progress(documents)
            documents += await _finish(inserts, 0)
        except Exception as error:  # whatever it is: a part is restored, and somebody has to remove it
            failed = "the database failed" if isinstance(error, PyMongoError) else "the backup could not be read"
            reason = error if isinstance(error, BackupError) else f"{failed} ({type(error).__name__})"
            mend = "drop the database" if organization is None else f"remove all records of organization {organization}"
            raise BackupError(f"{reason}; a part of it is restored: {mend} and begin again") from None
        finally:
            await asyncio.gather(*inserts, return_exceptions=True)
        progress(documents)
        return documents

    async def _insert(self, collection: str, batch: list[Any]) -> int:
        target = self._database.get_collection(collection, write_concern=DURABLE)
        if collection == "groups":
            batch = [{**group, "next": group["next"] + RESTORED_GAP} if "next" in group else group for group in batch]
        await target.insert_many(batch, ordered=False)
        return len(batch)

    async def _check_empty(self, organization: int | None) -> None:
        for collection in COLLECTIONS:
            field = "_id" if collection == COUNTERS else "organization_id"
            mine = {} if organization is None else {field: organization}
            if await self._database[collection].find_one(mine, {"_id": 1}) is not None:
                whose = "" if organization is None else f" of organization {organization}"
                raise BackupError(f"the database has records{whose} already: restore into an empty one")


async def _finish(inserts: set[asyncio.Task[int]], left: int) -> int:
    """Wait until at most `left` inserts are under way; return how many documents the others have inserted."""
    documents = 0
    while len(inserts) > left:
        done, _ = await asyncio.wait(inserts, return_when=asyncio.FIRST_COMPLETED)
        inserts -= done
        documents += sum(task.result() for task in done)
    return documents


def _parse(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise BackupError("the file is not a backup of this service, or damaged")
    return value


def _split(block: bytes) -> Iterator[bytes]:
    """Yield the documents of a block: each begins with its size."""
    start = 0
    while start < len(block):
        size = int.from_bytes(block[start : start + 4], "little")
        if size < 5 or start + size > len(block):
            raise BackupError("the backup is damaged")
        yield block[start : start + size]
        start += size


def _batches(file: IO[bytes], organization: int | None) -> Iterator[tuple[str, list[RawBSONDocument]]]:
    """Yield documents of one collection at a time. Raises BackupError if the file is damaged or cut off.

    A backup of one organization may hold no documents of others: whoever edits it could add a token of another one.
    """
    total = 0
    while line := file.readline(_MAX_LINE):
        value = _parse(line)
        if "end" in value:
            if value["end"] != total:
                raise BackupError("the backup is damaged: documents are missing")
            return
        collection, count, size = (value.get(name) for name in ("collection", "documents", "bytes"))
        if collection not in COLLECTIONS or not isinstance(size, int) or not 0 <= size <= _MAX_BLOCK_BYTES:
            raise BackupError("the file is not a backup of this service, or damaged")
        block = file.read(size)
        owner = "_id" if collection == COUNTERS else "organization_id"
        batch: list[RawBSONDocument] = []
        bytes_in_batch = documents = 0
        for document in _split(block):
            if batch and (len(batch) >= _BATCH_DOCUMENTS or bytes_in_batch + len(document) > _BATCH_BYTES):
                yield collection, batch
                batch, bytes_in_batch = [], 0
            try:
                batch.append(RawBSONDocument(document, RAW))
                is_other = organization is not None and batch[-1].get(owner) != organization
            except InvalidBSON:
                raise BackupError("the backup is damaged") from None
            if is_other:
                raise BackupError(f"the backup of organization {organization} has records of others")
            bytes_in_batch, documents = bytes_in_batch + len(document), documents + 1
        if batch:
            yield collection, batch
        if len(block) != size or documents != count:
            raise BackupError("the backup is damaged: documents are missing")
        total += documents
    raise BackupError("the backup is cut off: its last line is missing")
