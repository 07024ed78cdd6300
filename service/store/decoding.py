"""From BSON to Python values, exactly as they were stored.

The driver takes a sub-document with `$ref` and `$id` for a reference, moves its members and drops a `$db` that is
null. Items may contain such objects, and they must stay unchanged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

# Naive datetimes are UTC here; making them aware costs time.
NAIVE: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=False)
AWARE: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True)
# The documents of a large reply stay encoded: decoding all at once would hold the interpreter lock.
RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)

# As it came over the wire, or decoded by the driver.
Document = bytes | dict[str, Any]

# Bytes of documents in memory at once, where they are read to be rewritten.
_BATCH_BYTES = 8 * 1024 * 1024

_REFERENCE = b"$ref\0"
# Up to this many dollar signs are checked one by one.
_MAX_DOLLARS = 1000


def decode(document: Document, options: CodecOptions[dict[str, Any]] = NAIVE) -> dict[str, Any]:
    """Return one document decoded, its dates naive UTC unless other options are given."""
    if isinstance(document, dict):
        return document
    if has_reference(document):
        raw = RAW.with_options(tz_aware=options.tz_aware)
        decoded: dict[str, Any] = _plain(RawBSONDocument(document, raw))
        return decoded
    return bson.decode(document, options)


def has_reference(document: bytes) -> bool:
    """Return whether a document may hold an object that the driver would decode as a reference.

    Goes from dollar sign to dollar sign: 5 µs for 240 KB of ordinary items, instead of 160 µs with `in`.
    """
    place = document.find(b"$")
    for _ in range(_MAX_DOLLARS):
        if place < 0:
            return False
        if document.startswith(_REFERENCE, place):
            return True
        place = document.find(b"$", place + 1)
    return _REFERENCE in document


def _plain(value: Any) -> Any:
    """Return a value with its raw documents decoded: the driver would make references of some."""
    if isinstance(value, RawBSONDocument):
        return {name: _plain(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_plain(member) for member in value]
    return value


def encoded(document: RawBSONDocument | dict[str, Any]) -> Document:
    """Return the bytes of a document that was read with RAW; one that was decoded stays as it is."""
    return bytes(document.raw) if isinstance(document, RawBSONDocument) else document


async def decoded_batches(documents: AsyncIterator[Any], max_documents: int) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield the documents of a cursor that reads RAW, with aware dates: `max_documents` at once, or about 8 MB."""
    batch: list[dict[str, Any]] = []
    size = 0
    async for document in documents:
        raw = encoded(document)
        batch.append(decode(raw, AWARE))
        size += len(raw)
        if len(batch) >= max_documents or size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
