"""From BSON on the wire to JSON on the wire: pages and how they are rendered; the hashes of JSON values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

import bson
import orjson
from bson.raw_bson import RawBSONDocument

from service.store.decoding import NAIVE, RAW, Document, decode, encoded, has_reference

_DATES = ("create_date", "update_date", "last_scraped_date")

# Decoded documents take several times their encoded size: no more than this is decoded at once.
_CHUNK_BYTES = 128 * 1024
# A reply up to this size is decoded at once, which is faster than item by item. Not if it may hold references, which
# are slow to decode: those are decoded when they are rendered.
_WHOLE_BYTES = 256 * 1024


def render_date(moment: datetime) -> str:
    """Return `2026-01-31T12:00:00.000Z` for a moment in UTC."""
    return moment.isoformat(timespec="milliseconds")[:23] + "Z"


def dump(value: Any) -> bytes:
    """Return a value as JSON, as the service writes it."""
    return orjson.dumps(value, default=_default, option=orjson.OPT_PASSTHROUGH_DATETIME)


def _default(value: Any) -> Any:
    if isinstance(value, datetime):
        return render_date(value)
    return str(value)  # an ObjectId or the like, put there by hand in Mongo


def read_reply(reply: RawBSONDocument) -> tuple[list[Document], int, int]:
    """Return the documents of a reply read with RAW, about how many bytes they are, and its cursor; 0 for no more."""
    raw = bytes(reply.raw)
    if len(raw) <= _WHOLE_BYTES and not has_reference(raw):
        cursor = bson.decode(raw, NAIVE)["cursor"]
        return cursor["firstBatch"], len(raw), cursor["id"]
    cursor = reply["cursor"]
    return [encoded(document) for document in cursor["firstBatch"]], len(raw), cursor["id"]


def id_of(document: Document) -> int:
    """Return the id of one document, without decoding all of it."""
    fields = document if isinstance(document, dict) else RawBSONDocument(document, RAW)
    return int(fields["id"])


class Page(NamedTuple):
    """Documents in the order of their ids, about how many bytes they are, the next cursor, the version shown.

    `position` is the id up to which the filters were applied; `walk` the newest id when a walk with deletions began;
    `cut` tells that there are fewer documents than requested because they are large.
    """

    documents: list[Document]
    size: int
    next_cursor: int | None
    version: int
    position: int = 0
    walk: int | None = None
    cut: bool = False

    @property
    def is_end(self) -> bool:
        """Whether there is nothing here, and nothing after it yet."""
        return not self.documents and self.next_cursor is None

    @property
    def work(self) -> int:
        """The bytes still to decode and render; a quarter of them if they are decoded already."""
        is_decoded = bytes not in map(type, self.documents)  # a page of several windows can have both
        return self.size // 4 if is_decoded else self.size

    def events(self) -> bytes:
        """Return the items as server-sent events, each with its id."""
        items = (item for chunk in _chunks(self.documents) for item in chunk)
        return b"".join(b"id: %d\ndata: %b\n\n" % (item["id"], dump(item)) for item in items)

    def items(self) -> list[dict[str, Any]]:
        """Return the documents decoded, their dates naive UTC."""
        return list(self.each())

    def each(self) -> Iterator[dict[str, Any]]:
        """Yield the documents decoded, one in memory at a time."""
        return map(decode, self.documents)

    def body(self, next_url: str | None) -> bytes:
        """Return the page as the response of the outputs route."""
        return render_page(self.array(), next_url, self.next_cursor)

    def array(self) -> bytes:
        """Return the items as the inside of a JSON array."""
        return b",".join(dump(chunk)[1:-1] for chunk in _chunks(self.documents))

    def lines(self) -> bytes:
        """Return the items as NDJSON."""
        return b"".join(dump(item) + b"\n" for chunk in _chunks(self.documents) for item in chunk)


class PageText:
    """The response of the outputs route, rendered in parts: a large page is sent before its end is known."""

    def __init__(self) -> None:
        self._before = b'{"items":['

    def part(self, array: bytes | memoryview) -> bytes:
        """Return the next items, rendered already, with what comes before them."""
        before, self._before = self._before, b","
        return before + array

    def end(self, next_url: str | None, next_cursor: int | None) -> bytes:
        """Return what comes after the items."""
        return b'],"metadata":%b}' % dump({"next_url": next_url, "next_cursor": next_cursor})


def render_page(array: bytes | memoryview, next_url: str | None, next_cursor: int | None) -> bytes:
    """Return the response of the outputs route, with its items rendered already."""
    text = PageText()
    return text.part(array) + text.end(next_url, next_cursor)


def _dates_to_text(items: list[dict[str, Any]], seen: dict[datetime, str]) -> list[dict[str, Any]]:
    """Write the dates of outputs as text, in place; return the outputs.

    In `dump` they would take a third of all rendering: 1.7 µs each. Most dates occur in several items.
    """
    for item in items:
        for name in _DATES:
            try:
                item[name] = seen[item[name]]
            except (KeyError, TypeError):
                _date_to_text(item, name, seen)
        for file in item.get("files", ()):
            try:
                file["create_date"] = seen[file["create_date"]]
            except (KeyError, TypeError):
                _date_to_text(file, "create_date", seen)
    return items


def _date_to_text(holder: Any, name: str, seen: dict[datetime, str]) -> None:
    """Write a date not seen before; leave other values, which somebody put there by hand in Mongo."""
    date = holder.get(name) if isinstance(holder, dict) else None
    if isinstance(date, datetime):
        holder[name] = seen[date] = render_date(date)


def _chunks(documents: list[Document]) -> Iterator[list[dict[str, Any]]]:
    """Yield the documents decoded, with their dates as text, a little at a time."""
    texts: dict[datetime, str] = {}
    chunk: list[dict[str, Any]] = []
    size = 0
    for document in documents:
        if isinstance(document, bytes):
            if size > _CHUNK_BYTES:
                yield _dates_to_text(chunk, texts)
                chunk, size = [], 0
            size += len(document)
            document = decode(document)
        chunk.append(document)
    if chunk:
        yield _dates_to_text(chunk, texts)


def canonical(value: Any) -> bytes:
    """Return the canonical JSON text of a value: sorted keys, no spaces, UTF-8."""
    return orjson.dumps(value, default=_default, option=orjson.OPT_SORT_KEYS)


def sha256(text: bytes) -> str:
    """Return the hex digest of a text."""
    return hashlib.sha256(text).hexdigest()
