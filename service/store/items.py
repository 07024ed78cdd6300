"""An output item on its way into the database: its hashes, its document, its result."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from pymongo import InsertOne, UpdateOne

from service.store import documents
from service.store.sequences import Batch

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
IDENTITY = {
    "_id": 0,
    "key_hash": 1,
    "content_hash": 1,
    "id": 1,
    "output_id": 1,
    "is_approved": 1,
    "files.id": 1,
    "files.create_date": 1,
}

# One message to the database: JSON of this size is at most 6 times as much BSON, and the engine of
# this machine drops the connection from about 36 MB on.
_MESSAGE_BYTES = 3 * 1024 * 1024


class ItemTooLarge(Exception):
    """Raised for an item larger than one may be."""

    def __init__(self, index: int) -> None:
        self.index = index


class Known(NamedTuple):
    """What is stored under a key when a round begins."""

    id: int
    output_id: str
    content_hash: str
    is_approved: bool
    file_dates: dict[str, datetime]


def prepare(items: list[dict[str, Any]], max_item_bytes: int) -> list[dict[str, Any]]:
    """Give every item its hashes and size, in place, and return the items.

    `content_hash` covers all that a client can change, so one comparison tells changed from not.
    """
    for index, item in enumerate(items):
        data = documents.canonical(item["data"])
        rest = documents.canonical([item["tags"], item["files"], item["root_job_id"], item["is_approved"]])
        item["size"] = len(data) + len(rest) + len(item["source_url"])
        if item["size"] > max_item_bytes:
            raise ItemTooLarge(index)
        source_url = item["source_url"].encode()
        if "value_hash" not in item:
            item["value_hash"] = documents.sha256(data)
        if "key_hash" not in item:
            item["key_hash"] = documents.sha256(source_url, data)
        item["content_hash"] = documents.sha256(source_url, data, item["value_hash"].encode(), rest)
    return items


class Row(NamedTuple):
    """One item of a batch: what becomes of it and how."""

    key: str
    document: dict[str, Any]
    output_id: str
    known: Known | None
    operation: Any
    size: int


def messages(rows: list[Row]) -> Iterator[list[Row]]:
    """Yield the rows in parts, each small enough for one message."""
    part: list[Row] = []
    size = 0
    for row in rows:
        size += row.size
        if part and size > _MESSAGE_BYTES:
            yield part
            part, size = [], row.size
        part.append(row)
    yield part


def make_row(batch: Batch, id: int, item: dict[str, Any], known: Known | None) -> Row:
    output_id = known.output_id if known else new_id()
    files = _files(batch, item["files"], output_id, known)
    document = {
        "source_url": item["source_url"],
        "data": item["data"],
        "id": id,
        "root_job_id": item["root_job_id"],
        "update_date": batch.date,
        "value_hash": item["value_hash"],
        "is_approved": item["is_approved"],
        "tags": item["tags"],
        "files": files,
        "content_hash": item["content_hash"],
    }
    scraped = item.get("last_scraped_date", batch.date)
    key = item["key_hash"]
    if known is None:
        # In the order of the contract, which is the order in which it is served.
        whole = {
            **document,
            "output_id": output_id,
            "create_date": batch.date,
            "last_scraped_date": scraped,
            "key_hash": key,
        }
        operation: Any = InsertOne(
            {
                "organization_id": batch.organization_id,
                "group_id": batch.group_id,
                **{name: whole[name] for name in SERVED},
                "content_hash": item["content_hash"],
                "first_id": id,
            }
        )
    else:
        operation = UpdateOne(
            {
                "organization_id": batch.organization_id,
                "group_id": batch.group_id,
                "key_hash": key,
                "id": known.id,
            },
            {"$set": document, "$max": {"last_scraped_date": scraped}},
            hint="key",
        )
    return Row(key, document, output_id, known, operation, item["size"])


def new_id() -> str:
    """Return a random UUID as text; half the time of `str(uuid4())`."""
    return _uuid_text(os.urandom(16).hex(), "4")


def _derived_id(output_id: str, content: str) -> str:
    """Return the UUID that an item's file has by its content: the same every time."""
    return _uuid_text(hashlib.sha256(f"{output_id} {content}".encode()).hexdigest()[:32], "8")


def _uuid_text(digits: str, version: str) -> str:
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-{version}{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def _files(batch: Batch, files: list[dict[str, Any]], output_id: str, known: Known | None) -> list[dict[str, Any]]:
    """Return the files with their ids and dates: the same file of the same item keeps both."""
    seen: Counter[str] = Counter()
    served = []
    for file in files:
        id = file.get("id")
        if id is None:
            content = documents.sha256(documents.canonical(file))
            # The same file listed twice has two ids, the same two every time.
            again = f" {seen[content]}" if seen[content] else ""
            seen[content] += 1
            id = _derived_id(output_id, content + again)
        date = file.get("create_date") or (known.file_dates.get(id) if known else None)
        served.append(
            {
                "id": id,
                "field": file["field"],
                "url_etag_hash": file["url_etag_hash"],
                "blob_key": file["blob_key"],
                "blob_url": file["blob_url"],
                "source_url": file["source_url"],
                "create_date": date or batch.date,
                "file_url": file["file_url"],
                "file_type": file["file_type"],
                "file_checksum": file["file_checksum"],
                "file_metadata": file["file_metadata"],
            }
        )
    return served


def result(id: int, output_id: str, key_hash: str, result: str) -> dict[str, Any]:
    return {"id": id, "output_id": output_id, "key_hash": key_hash, "result": result}
