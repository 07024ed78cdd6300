"""The footer of a Parquet file, which the service keeps in memory until the end of an export, stays small."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import bson
import pyarrow.parquet

from service.http.output.parquet import rows
from service.store import Page
from service.store.decoding import Document

COLUMNS, PAGES = 500, 50


async def wide_pages() -> AsyncIterator[Page]:
    """Yield 50 MB of items with 500 fields of 1,000 different characters each."""
    for n in range(PAGES):
        items = [
            {"id": 2 * n + place, "data": {f"field {c}": f"{n}.{place}.{c}".ljust(1000, "x") for c in range(COLUMNS)}}
            for place in (1, 2)
        ]
        documents: list[Document] = [bson.encode({**item, "update_date": datetime(2026, 1, 31)}) for item in items]
        yield Page(documents, sum(map(len, documents)), None, 1)


async def test_the_footer_of_wide_items_is_a_small_part_of_the_file() -> None:
    """Statistics of long texts, for each column of each row group of 2 MB, made it as large as the items."""
    file = b"".join([piece async for piece in rows(wide_pages(), ("data", "update_date"), False)])
    table = pyarrow.parquet.ParquetFile(io.BytesIO(file))
    assert table.metadata.num_rows == 2 * PAGES
    assert 5 < table.metadata.num_row_groups < 14  # 17 of 2 MB
    assert table.metadata.serialized_size < 2_000_000
    assert [item["id"] for item in table.read(["id"]).to_pylist()] == list(range(1, 2 * PAGES + 1))


async def test_ids_have_statistics_so_that_a_query_skips_row_groups() -> None:
    file = b"".join([piece async for piece in rows(wide_pages(), ("data",), False)])
    metadata = pyarrow.parquet.ParquetFile(io.BytesIO(file)).metadata
    of_ids = metadata.row_group(0).column(0).statistics
    assert (of_ids.min, of_ids.max) == (1, 6)
    assert metadata.row_group(0).column(1).statistics is None


async def test_items_of_few_values_in_many_columns_come_in_small_row_groups() -> None:
    """6,000 of them after one of 20,000 values were one row group: 12 million cells held the process for 8 seconds."""
    first = {f"k{n}": n for n in range(2500)}
    values = [first, *({"k0": n, "k2499": n} for n in range(1000))]

    async def pages() -> AsyncIterator[Page]:
        documents: list[Document] = [bson.encode({"id": n, "data": data}) for n, data in enumerate(values)]
        yield Page(documents, sum(map(len, documents)), None, 1)

    file = b"".join([piece async for piece in rows(pages(), ("data",), False)])
    table = pyarrow.parquet.ParquetFile(io.BytesIO(file))
    assert table.metadata.row_group(0).num_rows < 300
    found = table.read().to_pylist()
    assert [{k: v for k, v in row["data"].items() if v is not None} for row in found[1:]] == [
        {"k0": n} for n in range(1000)
    ]
    assert [json.loads(row["other"]) for row in found[1:]] == [{"data.k2499": n} for n in range(1000)]
    assert {**found[0]["data"], **{k[5:]: v for k, v in json.loads(found[0]["other"]).items()}} == first


async def test_a_member_that_an_object_does_not_have_is_null() -> None:
    values: list[Any] = [
        {"a": {"b": {"c": 1}}, "l": [{"d": 1, "e": 2}]},
        {"a": {}},
        {"a": {"b": {}}, "l": [{}, {"e": 3}]},
    ]

    async def pages() -> AsyncIterator[Page]:
        documents: list[Document] = [bson.encode({"id": n, "data": data}) for n, data in enumerate(values)]
        yield Page(documents, sum(map(len, documents)), None, 1)

    file = b"".join([piece async for piece in rows(pages(), ("data",), False)])
    assert [row["data"] for row in pyarrow.parquet.read_table(io.BytesIO(file)).to_pylist()] == [
        {"a": {"b": {"c": 1}}, "l": [{"d": 1, "e": 2}]},
        {"a": {"b": None}, "l": None},
        {"a": {"b": {"c": None}}, "l": [{"d": None, "e": None}, {"d": None, "e": 3}]},
    ]
