"""An output item on its way into the database: its hashes, its document, what becomes of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import bson
from pymongo import InsertOne, UpdateMany, UpdateOne

from service.store.outputs import documents
from service.store.outputs.ids import Batch

SERVED = (
    "source_url",
    "data",
    "id",
    "output_id",
    "root_job_id",
    "create_date",
    "update_date",
    "last_scraped_date",
    "key_hash",
    "value_hash",
    "is_approved",
    "tags",
    "files",
)
# What a deletion leaves of what it takes away: the shape of an item. Identity and filter fields stay.
_EMPTIED: dict[str, Any] = {"data": {}, "files": [], "value_hash": "", "is_approved": False, "content_hash": ""}
# Tags that are filters have a copy outside of `tags`: an array there would be indexed element by element.
FILTER_TAGS = ("country", "region")
KNOWN_FIELDS = {
    "_id": 0,
    "key_hash": 1,
    "content_hash": 1,
    "id": 1,
    "output_id": 1,
    "root_job_id": 1,
    "is_approved": 1,
    "last_scraped_date": 1,
    "deleted": 1,
}

# One message to the database: the driver encodes it in one call that holds the interpreter lock.
_MESSAGE_BYTES = 1024 * 1024
# What a file takes in a message beyond its JSON: its id and its date.
_FILE_BYTES = 100
# No JSON of fewer bytes has a BSON document that is too large: `1,` in an array becomes 13 bytes.
_SURELY_FITS = 1_200_000
# Of a document with its own fields; the database holds 16 MiB, and an update of more than 14 MB may not fit its cache.
_MAX_BSON_BYTES = 14_000_000
# Hex digits of each part of `content_hash`: 128 bits.
_PART = 32


class ItemTooLarge(Exception):
    """Raised for an item larger than one may be."""

    def __init__(self, index: int) -> None:
        self.index = index


class Known(NamedTuple):
    """What is stored under a key when a round begins."""

    id: int
    output_id: str
    key_hash: str
    root_job_id: str
    content_hash: str
    is_approved: bool
    scraped: datetime
    deleted: bool
    filters: dict[str, str]  # only where a deletion needs them
    tags: dict[str, Any] | None  # only where a patch needs them

    @classmethod
    def of(cls, document: dict[str, Any]) -> Known:
        return cls(
            document["id"],
            document["output_id"],
            document["key_hash"],
            document["root_job_id"],
            document.get("content_hash", ""),
            document.get("is_approved", False),
            document["last_scraped_date"],
            document.get("deleted", False),
            {name: document[name] for name in FILTER_TAGS if name in document},
            document.get("tags"),
        )


def content_hash(data_digest: str, tags: bytes, rest: tuple[bytes, ...]) -> str:
    """Return one text over all content whose parts can be compared and replaced alone."""
    return data_digest[:_PART] + documents.sha256(tags)[:_PART] + documents.sha256(*rest)[:_PART]


def same_data(one: str, other: str) -> bool:
    return one[:_PART] == other[:_PART]


def with_tags(hashed: str, tags: dict[str, Any]) -> str:
    """Return a content hash with the part of the tags replaced."""
    return hashed[:_PART] + documents.sha256(documents.canonical(tags))[:_PART] + hashed[2 * _PART :]


def filter_tags(tags: dict[str, Any]) -> dict[str, str]:
    """Return the copies of the tags that can be filtered by."""
    return {name: tags[name] for name in FILTER_TAGS if isinstance(tags.get(name), str)}


def prepare(items: list[dict[str, Any]], max_item_bytes: int) -> list[dict[str, Any]]:
    """Give every item its hashes, its size and its files' ids, in place, and return the items."""
    for index, item in enumerate(items):
        data, tags = documents.canonical(item["data"]), documents.canonical(item["tags"])
        files = documents.canonical(item["files"]) if item["files"] else b"[]"
        item["size"] = len(data) + len(tags) + len(files) + len(item["source_url"])
        if item["size"] > max_item_bytes or (item["size"] > _SURELY_FITS and not _fits(item)):
            raise ItemTooLarge(index)
        source_url, digest = item["source_url"].encode(), documents.sha256(data)
        item.setdefault("value_hash", digest)
        if "key_hash" not in item:
            item["key_hash"] = documents.sha256(source_url, data)
        item["content_hash"] = content_hash(digest, tags, (source_url, item["value_hash"].encode(), files))
        _give_file_ids(item["key_hash"], item["files"])
    return items


def _fits(item: dict[str, Any]) -> bool:
    content = {name: item[name] for name in ("data", "tags", "files")}
    return len(bson.encode(content)) <= _MAX_BSON_BYTES


def _give_file_ids(key_hash: str, files: list[dict[str, Any]]) -> None:
    """Give each file without one an id by its content: the same file of the same item keeps it."""
    seen: dict[bytes, int] = {}
    for file in files:
        if "id" not in file:
            content = documents.canonical(file)
            # The same file listed twice has two ids, the same two every time.
            earlier = seen.get(content, 0)
            again = (b"%d" % earlier,) if earlier else ()
            seen[content] = earlier + 1
            file["id"] = documents.sha256(key_hash.encode(), content, *again)[:_PART]


def new_uuids(count: int) -> Iterator[str]:
    """Yield up to `count` random UUIDs as text.

    One call for random bytes takes 8 µs, however few it returns: there is one for all of them.
    """
    digits = os.urandom(16 * count).hex()
    for start in range(0, 32 * count, 32):
        one = digits[start : start + 32]
        variant = "89ab"[int(one[16], 16) & 3]
        yield f"{one[:8]}-{one[8:12]}-4{one[13:16]}-{variant}{one[17:20]}-{one[20:]}"


Operation = InsertOne[dict[str, Any]] | UpdateOne


class Row(NamedTuple):
    """One change of a batch: what was there, what comes, and what makes the operation that does it."""

    key: str
    id: int
    output_id: str
    key_hash: str
    known: Known | None
    root_job_id: str
    is_approved: bool
    deleted: bool
    operation: Callable[[], Operation]
    size: int

    @property
    def result(self) -> str:
        return "created" if self.known is None or (self.known.deleted and not self.deleted) else "updated"


def put_row(
    batch: Batch,
    id: int,
    key: str,
    item: dict[str, Any],
    known: Known | None,
    dates: dict[str, datetime],
    uuids: Iterator[str],
) -> Row:
    """Return the row that stores an item; `dates` are those of its files that are known."""
    approved = _approval(item, known)
    output_id = known.output_id if known else next(uuids)
    return Row(
        key,
        id,
        output_id,
        item["key_hash"],
        known,
        item["root_job_id"],
        approved,
        deleted=False,
        # Made when it is sent: the documents of 100,000 files at once keep the garbage collector busy for 70 ms.
        operation=partial(_put, batch, id, output_id, item, known, approved, dates),
        size=item["size"] + _FILE_BYTES * len(item["files"]),
    )


def _put(
    batch: Batch,
    id: int,
    output_id: str,
    item: dict[str, Any],
    known: Known | None,
    approved: bool,
    dates: dict[str, datetime],
) -> Operation:
    """Return the operation that stores an item."""
    date = batch.date.replace(tzinfo=None)  # UTC all the same, and a seventh less to encode the document
    scraped = item.get("last_scraped_date") or date
    # In the order of the contract, which is the order in which it is served.
    document = {
        "source_url": item["source_url"],
        "data": item["data"],
        "id": id,
        "output_id": output_id,
        "root_job_id": item["root_job_id"],
        "create_date": date,
        "update_date": date,
        "last_scraped_date": scraped,
        "key_hash": item["key_hash"],
        "value_hash": item["value_hash"],
        "is_approved": approved,
        "tags": item["tags"],
        "files": [_file(file, dates.get(file["id"]) or date) for file in item["files"]],
        "content_hash": item["content_hash"],
        **filter_tags(item["tags"]),
    }
    if known is None:
        return InsertOne({**batch.owner, **document, "first_id": id})
    for name in ("output_id", "create_date", "last_scraped_date", "key_hash"):
        del document[name]
    missing = [name for name in FILTER_TAGS if name not in document]
    return _guarded(
        batch,
        known,
        {"$set": document, "$max": {"last_scraped_date": scraped}},
        unset=[*missing, "deleted"] if known.deleted else missing,
    )


def patch_row(batch: Batch, id: int, key: str, known: Known, approved: bool, tags: dict[str, Any] | None) -> Row:
    """Return the row that changes an item's approval, its tags or both."""
    changes: dict[str, Any] = {"id": id, "update_date": batch.date, "is_approved": approved}
    unset: list[str] = []
    if tags is not None:
        copies = filter_tags(tags)
        changes |= {"tags": tags, "content_hash": with_tags(known.content_hash, tags), **copies}
        unset = [name for name in FILTER_TAGS if name not in copies]
    size = 0 if tags is None else len(documents.canonical(tags))
    operation = partial(_guarded, batch, known, {"$set": changes}, unset)
    return Row(key, id, known.output_id, known.key_hash, known, known.root_job_id, approved, False, operation, size)


def delete_row(batch: Batch, id: int, key: str, known: Known, scraped_before: datetime | None) -> Row:
    """Return the row that turns an item into a deletion record, unless it is scraped again meanwhile."""
    changes = {**_EMPTIED, "id": id, "update_date": batch.date, "deleted": True, "tags": known.filters}
    guard = _guard(batch, known)
    if scraped_before is not None:
        guard["last_scraped_date"] = {"$lt": scraped_before}
    operation = partial(UpdateOne, guard, {"$set": changes}, hint="key")
    return Row(key, id, known.output_id, known.key_hash, known, known.root_job_id, False, True, operation, 0)


class Touch(NamedTuple):
    """An unchanged item that was seen again: what is known of it, its newest job, and when that saw it."""

    known: Known
    job: str
    scraped: datetime

    @classmethod
    def of(cls, batch: Batch, item: dict[str, Any], known: Known) -> Touch:
        scraped = item.get("last_scraped_date") or batch.date
        return cls(known, str(item["root_job_id"]) if scraped >= known.scraped else known.root_job_id, scraped)


def touch_operations(batch: Batch, touches: Iterable[Touch]) -> list[UpdateOne | UpdateMany]:
    """Return what stores touches: one operation for all that move from one job to another at one date.

    It finds each item as it was looked up: a change gives it another id, a touch another job.
    """
    alike: dict[tuple[str, str, datetime], list[int]] = {}
    for known, job, scraped in touches:
        alike.setdefault((known.root_job_id, job, scraped), []).append(known.id)
    return [
        (UpdateOne if len(ids) == 1 else UpdateMany)(  # one can be sent again by the driver, many cannot
            {**batch.owner, "id": {"$in": ids}, "root_job_id": before},
            {"$max": {"last_scraped_date": scraped}, "$set": {"root_job_id": job}},
            hint="id",
        )
        for (before, job, scraped), ids in alike.items()
    ]


def is_changed(item: dict[str, Any], known: Known) -> bool:
    return (
        known.deleted
        or known.content_hash != item["content_hash"]
        or item.get("is_approved", known.is_approved) != known.is_approved
    )


def _approval(item: dict[str, Any], known: Known | None) -> bool:
    """Return the approval sent, else the one that is known and still means the same data."""
    if "is_approved" in item:
        return bool(item["is_approved"])
    return known is not None and known.is_approved and same_data(known.content_hash, item["content_hash"])


def _guard(batch: Batch, known: Known) -> dict[str, Any]:
    """Return what finds an item as it was looked up: a change gives it another id, a touch another job."""
    return {**batch.owner, "key_hash": known.key_hash, "id": known.id, "root_job_id": known.root_job_id}


def _guarded(batch: Batch, known: Known, update: dict[str, Any], unset: list[str]) -> UpdateOne:
    """Return an update that does nothing when somebody else has changed the item meanwhile."""
    if unset:
        update["$unset"] = dict.fromkeys(unset, "")
    return UpdateOne(_guard(batch, known), update, hint="key")


def _file(file: dict[str, Any], date: datetime) -> dict[str, Any]:
    return {
        "id": file["id"],
        "field": file["field"],
        "url_etag_hash": file["url_etag_hash"],
        "blob_key": file["blob_key"],
        "blob_url": file["blob_url"],
        "source_url": file["source_url"],
        "create_date": file.get("create_date") or date,
        "file_url": file["file_url"],
        "file_type": file["file_type"],
        "file_checksum": file["file_checksum"],
        "file_metadata": file["file_metadata"],
    }


def messages(rows: list[Row]) -> Iterator[list[Row]]:
    """Yield the rows in parts, each of inserts or of updates only and small enough for one message."""
    for inserts in (True, False):
        part: list[Row] = []
        size = 0
        for row in rows:
            if (row.known is None) is not inserts:
                continue
            size += row.size
            if part and size > _MESSAGE_BYTES:
                yield part
                part, size = [], row.size
            part.append(row)
        if part:
            yield part
