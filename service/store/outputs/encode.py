"""The encoder: a validated item becomes bytes, and its Python objects are forgotten.

What waits for the database is the encoded content of each item, its key, its job and a few flags. So the memory held
by waiting writes is what is counted, and an item that cannot be encoded fails here, for the client that sent it.
"""

from __future__ import annotations

import functools
import struct
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import bson
import msgspec
from bson.raw_bson import RawBSONDocument

from service.store.decoding import RAW, decode, encoded
from service.store.group import Group
from service.store.outputs import documents
from service.store.outputs.comparing import PLAIN, Comparing

# Tags that are filters are copied out of `tags`: an array in there would be indexed element by element.
FILTER_TAGS = ("country", "region")
# The tag with the reason for a rejection: kept, like an approval, while the data stay the same.
REJECTED = "rejected"
# Bytes of such a reason in BSON: a round of 1000 items holds the reasons of all of them.
MAX_REASON_BYTES = 8 * 1024
# Characters of a tag that is a filter, in which no more can be asked for.
MAX_FILTER = 1024
# Of the content of an item; a document may have 16 MiB, and an update of more than 14 MB may not fit the cache.
MAX_BSON_BYTES = 14_000_000
_SHORT = 1024
# Bytes of an item in memory besides its content.
PUT_BYTES = 500
# Hex digits of each part of `content_hash`: 128 bits.
PART = 32


class ItemTooLarge(Exception):
    """Raised for an item that is too large."""


class Restored(msgspec.Struct, frozen=True):
    """What a restored version is written with: the id that its item must have now, and who judged it."""

    if_id: int | None  # None: there is no record of it
    judged: dict[str, Any]


class Put(msgspec.Struct, frozen=True, gc=False):
    """An item to be stored under its key."""

    output_id: str
    key_hash: str
    key_is_made: bool  # from the content: it was sent without one
    root_job_id: str
    is_approved: bool | None  # None: not sent
    scraped: datetime | None  # None: now
    content_hash: str
    content: bytes  # BSON elements, from output_id to files: all that does not depend on the stored item
    undated: tuple[int, ...]  # the positions of files that were sent without a date
    size: int  # about how many bytes of memory it holds
    restored: Restored | None = None


class Encoder:
    """Encodes the items of one group."""

    def __init__(self, group: Group, max_item_bytes: int, comparing: Comparing = PLAIN) -> None:
        self.group, self.max_item_bytes, self.comparing = group, max_item_bytes, comparing
        self._output_id = group.output_ids()
        self.now = datetime.now(UTC).replace(tzinfo=None)

    def __call__(self, item: dict[str, Any]) -> Put:
        """Return a validated item as it is queued for the database. Raises ItemTooLarge."""
        source_url, data, tags, files = item["source_url"].encode(), item["data"], item["tags"], item["files"]
        data_text, tags_text = documents.canonical(data), documents.canonical(tags)
        file_texts = [documents.canonical(file) for file in files]
        files_text = b"[%b]" % b",".join(file_texts)
        if len(source_url) + len(data_text) + len(tags_text) + len(files_text) > self.max_item_bytes:
            raise ItemTooLarge
        digest = documents.sha256(data_text)
        value_hash = item.get("value_hash", digest)
        stated_hash = b"" if value_hash == digest else value_hash.encode()
        if self.comparing.tree:  # ignored paths make neither a new item nor a new version
            data_text = self.comparing.data_text(data)
            digest = documents.sha256(data_text)
        key_hash = item["key_hash"] if "key_hash" in item else documents.sha256(b"\n".join((source_url, data_text)))
        digest_of_rest = documents.sha256(b"\n".join((source_url, stated_hash, files_text)))[:PART]
        hashed = digest[:PART] + _tags_hash(tags_text) + digest_of_rest + self.comparing.mark
        output_id = self._output_id(key_hash)
        content = {
            "output_id": output_id,
            "root_job_id": item["root_job_id"],
            "key_hash": key_hash,
            "value_hash": value_hash,
            "source_url": item["source_url"],
            **filter_tags(tags),
            "content_hash": hashed,
            "data": data,
            "tags": tags,
            "files": self._files(key_hash, files, file_texts) if files else files,
        }
        document = bson.encode(content)
        if len(document) > MAX_BSON_BYTES:
            raise ItemTooLarge
        scraped = item.get("last_scraped_date")
        return Put(
            output_id,
            key_hash,
            "key_hash" not in item,
            item["root_job_id"],
            item.get("is_approved"),
            scraped and scraped.replace(tzinfo=None),
            hashed,
            document[4:-1],
            tuple([place for place, file in enumerate(files) if "create_date" not in file]) if files else (),
            len(document) + PUT_BYTES,
        )

    def from_text(self, text: bytes) -> tuple[Put, int] | None:
        """Return None: a text is decoded and checked before it is encoded here. `OnePass` does all at once."""
        return None

    def _files(self, key_hash: str, files: list[dict[str, Any]], texts: list[bytes]) -> list[dict[str, Any]]:
        """Return files with fields in the documented order. Ids come from the content: a file keeps its id."""
        number_by_url: dict[bytes, int] = {}
        numbered = []
        for file, text in zip(files, texts, strict=True):
            id = file.get("id")
            if id is None:
                # The same file listed twice has two ids, the same two every time.
                earlier = number_by_url.get(text, 0)
                again = (b"%d" % earlier,) if earlier else ()
                number_by_url[text] = earlier + 1
                id = documents.sha256(b"\n".join((key_hash.encode(), text, *again)))[:PART]
            numbered.append(
                {
                    "id": id,
                    "field": file["field"],
                    "url_etag_hash": file["url_etag_hash"],
                    "blob_key": file["blob_key"],
                    "blob_url": file["blob_url"],
                    "source_url": file["source_url"],
                    "create_date": file["create_date"].replace(tzinfo=None) if "create_date" in file else self.now,
                    "file_url": file["file_url"],
                    "file_type": file["file_type"],
                    "file_checksum": file["file_checksum"],
                    "file_metadata": file["file_metadata"],
                }
            )
        return numbered


def _tags_hash(text: bytes) -> str:
    """Return the part of a content hash for the tags, cached: most items of a crawl have the same."""
    return _short_hash(text) if len(text) <= _SHORT else documents.sha256(text)[:PART]


@functools.lru_cache(maxsize=1024)
def _short_hash(text: bytes) -> str:
    return documents.sha256(text)[:PART]


def rehashed(put: Put, comparing: Comparing) -> Put:
    """Return an item, encoded before the settings of its group changed, with its hash for the new ones."""
    content = dict(RawBSONDocument(_document(put.content), RAW))
    content["content_hash"] = rehash(put.content_hash, decode(encoded(content["data"])), comparing)
    return msgspec.structs.replace(put, content_hash=content["content_hash"], content=elements(content))


def rehash(hashed: str, data: dict[str, Any], comparing: Comparing) -> str:
    """Return a content hash with the part for the data made with the present settings."""
    return documents.sha256(comparing.data_text(data))[:PART] + hashed[PART : 3 * PART] + comparing.mark


def mark_of(hashed: str) -> str:
    """Return the mark of the settings that a content hash was made with."""
    return hashed[3 * PART :]


def same_data(one: str, other: str) -> bool:
    """Return whether two content hashes are of the same data."""
    return one[:PART] == other[:PART]


def with_tags(hashed: str, tags: dict[str, Any]) -> str:
    """Return a content hash with the part for the tags replaced; a rejection is not content."""
    tags = {name: value for name, value in tags.items() if name != REJECTED}
    return hashed[:PART] + documents.sha256(documents.canonical(tags))[:PART] + hashed[2 * PART :]


def filter_tags(tags: dict[str, Any]) -> dict[str, str]:
    """Return the copies of the tags that can be filtered by."""
    return {name: value for name in FILTER_TAGS if type(value := tags.get(name)) is str and len(value) <= MAX_FILTER}


def file_dates(files: list[Any]) -> dict[tuple[str, int], datetime]:
    """Return the date of each file by its id, and by how many files before it have the same id."""
    dates: dict[tuple[str, int], datetime] = {}
    counter: Counter[str] = Counter()
    for file in files:
        id = file["id"]
        dates[id, counter[id]] = file["create_date"]
        counter[id] += 1
    return dates


def keep_file_dates(put: Put, dates: dict[tuple[str, int], datetime]) -> bytes:
    """Return an item's content in which files that were sent without a date have the stored date."""
    content = dict(RawBSONDocument(_document(put.content), RAW))
    names, undated = list(file_dates(content["files"])), set(put.undated)
    content["files"] = [
        {**file, "create_date": dates.get(names[place], file["create_date"])} if place in undated else file
        for place, file in enumerate(content["files"])
    ]
    return elements(content)


def keep_rejection(content: bytes, reason: Any) -> bytes:
    """Return an item's content with the stored reason for its rejection, unless another one was sent."""
    fields = dict(RawBSONDocument(_document(content), RAW))
    fields["tags"] = {REJECTED: reason, **fields["tags"]}
    return elements(fields)


def _document(elements: bytes) -> bytes:
    return (len(elements) + 5).to_bytes(4, "little") + elements + b"\0"


class Heads:
    """Builds the documents of one batch: the fields that depend on the batch, then an item's content.

    Fields that differ between items are encoded by hand: less than 1 µs, instead of 5 µs for a dict of them.
    """

    _ID = struct.Struct("<i5si36sx")
    # Like the driver: integers in four bytes where they fit, which analysts see as plain numbers.
    _IDS, _LARGE_IDS = struct.Struct("<4si10si"), struct.Struct("<4sq10sq")

    def __init__(self, group: Group, date: datetime) -> None:
        self._owner, self._date = elements(group.owner), date
        self._rest: dict[tuple[Any, ...], bytes] = {}

    def document(
        self, output_id: str, content: bytes, id: int, first_id: int, rest: tuple[Any, ...], judged: bytes
    ) -> RawBSONDocument:
        """Return the document of an item; `judged` are the elements that tell who approved or rejected it, and when.

        `rest` is create_date, last_scraped_date, is_approved, change, seen, changed_by and, if the item exists, its
        previous id.
        """
        alike = self._rest.get(rest)
        if alike is None:
            names = ("create_date", "last_scraped_date", "is_approved", "change", "seen", "changed_by", "prev_id")
            fields = {"update_date": self._date, **dict(zip(names, rest, strict=False))}
            alike = self._rest[rest] = elements(fields)
        if id < 2**31:
            ids = self._IDS.pack(b"\x10id\0", id, b"\x10first_id\0", first_id)
        else:
            ids = self._LARGE_IDS.pack(b"\x12id\0", id, b"\x12first_id\0", first_id)
        size = self._ID.size + len(self._owner) + len(ids) + len(alike) + len(content) + len(judged) + 1
        head = self._ID.pack(size, b"\x02_id\0", 37, output_id.encode())
        return RawBSONDocument(b"".join((head, self._owner, ids, alike, content, judged, b"\0")))


def elements(fields: dict[str, Any]) -> bytes:
    """Return the fields of a document encoded, without its length and its end."""
    return bson.encode(fields)[4:-1] if fields else b""
