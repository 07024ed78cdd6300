"""Decoding: values come back exactly as they were stored, in batches of bounded size."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument

from service.capacity.cpu import SMALL_BYTES
from service.store.decoding import AWARE, RAW, decode, decoded_batches, encoded
from service.store.outputs import documents

MOMENT = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "value",
    [
        {"$ref": "x", "$id": 1, "$db": None},
        {"more": 1, "$id": None, "$ref": "x", "$db": "y"},
        [{"$ref": "x", "$id": {"$ref": "y", "$id": [{"$ref": "z", "$id": 1}]}}, [[{"$ref": "", "$id": 0}]]],
        {"text": "$ref", "$ref": 1},
        {"": {"$ref": "x", "$id": {}}},
    ],
)
def test_what_looks_like_a_reference_stays_what_it_is(value: Any) -> None:
    document = {"data": value, "date": MOMENT, "number": 2**62}
    found = decode(bson.encode(document), AWARE)
    assert repr(found["data"]) == repr(value)  # also in the order of its members
    assert found == document
    assert decode(bson.encode(document))["date"] == MOMENT.replace(tzinfo=None)


async def test_batches_are_bounded_by_number_and_by_bytes() -> None:
    async def documents(sizes: list[int]) -> AsyncIterator[RawBSONDocument]:
        for size in sizes:
            yield RawBSONDocument(bson.encode({"text": "x" * size}))

    async def lengths(*sizes: int) -> list[int]:
        return [len(batch) async for batch in decoded_batches(documents(list(sizes)), 3)]

    assert await lengths(*[1] * 7) == [3, 3, 1]
    assert await lengths(*[5_000_000] * 5) == [2, 2, 1]
    assert await lengths() == []


def test_a_decoded_document_stays_as_it_is() -> None:
    document = {"a": 1}
    assert decode(document) is document and encoded(document) is document


@pytest.mark.parametrize("reference", [False, True])
def test_what_looks_like_a_reference_is_not_decoded_on_the_event_loop(reference: bool) -> None:
    data = {"$ref": "x", "$id": 1} if reference else {"ref": "x", "id": 1}
    raw = bson.encode({"cursor": {"firstBatch": [{"id": 1, "data": data, "text": "x" * 100_000}], "id": 0}})
    found, size, _ = documents.read_reply(RawBSONDocument(raw, RAW))
    page = documents.Page(found, size, None, 1)
    assert (page.work > SMALL_BYTES) == reference
    assert page.items()[0]["data"] == data
    behind_a_decoded_one = page._replace(documents=[{"id": 0}, *found])
    assert (behind_a_decoded_one.work > SMALL_BYTES) == reference
