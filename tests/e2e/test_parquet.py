"""Parquet over HTTP, read by pyarrow, DuckDB, polars and pandas."""

from __future__ import annotations

import io
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pyarrow.parquet
import pytest

from sds_client import Client
from tests.support.api import make_output
from tests.support.processes import ServiceProcess, make_token

ITEMS = 3000


@pytest.fixture(scope="module")
def running(mongo_url: str) -> Iterator[ServiceProcess]:
    with ServiceProcess(mongo_url) as process:
        yield process.wait_until_ready()


@pytest.fixture
def token(running: ServiceProcess, mongo_url: str, organization: int) -> str:
    return make_token(mongo_url, organization, "read", "write", "delete")


@pytest.fixture
def client(running: ServiceProcess, token: str) -> Iterator[Client]:
    with Client(running.url, token) as client:
        yield client


def lamp(number: int) -> dict[str, Any]:
    data: dict[str, Any] = {
        "title": f"Lamp {number}, ö",
        "price": {"amount": number + 0.5, "currency": "EUR"},
        "stock": number,
        "rating": 4 if number % 2 else 4.5,
        "new": number % 2 == 0,
        "sizes": [1, 2, number],
        "parts": [{"name": "shade", "count": number}],
        "code": number if number % 2 else f"A{number}",
        "empty": {},
        "none": None,
    }
    if number >= ITEMS - 10:
        data |= {"late": number, "stock": "sold out"}
    file = {"file_url": "https://lamps.example/1.pdf", "file_metadata": {"pages": 3}}
    text = {"description": "x" * 1000}
    return make_output(number, data=data | text, files=[file], is_approved=number % 3 == 0)


def fetch(client: Client, token: str, query: str = "") -> bytes:
    request = urllib.request.Request(f"{client.url}/v1/outputs/lamps/export?format=parquet{query}")
    request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.headers["Content-Type"] == "application/vnd.apache.parquet"
        return bytes(response.read())


def test_every_item_has_a_row_in_several_groups_with_nested_columns(client: Client, token: str) -> None:
    client.push("lamps", map(lamp, range(ITEMS)))
    file = pyarrow.parquet.ParquetFile(io.BytesIO(fetch(client, token)))
    assert file.metadata.num_row_groups > 1
    rows = file.read().to_pylist()
    assert [row["id"] for row in rows] == [item["id"] for item in client.outputs("lamps")]
    row = rows[7]
    assert row["data"] == {
        "title": "Lamp 7, ö",
        "price": {"amount": 7.5, "currency": "EUR"},
        "stock": 7,
        "rating": 4.0,
        "new": False,
        "sizes": [1, 2, 7],
        "parts": [{"name": "shade", "count": 7}],
        "code": "7",
        "empty": "{}",
        "none": None,
        "description": "x" * 1000,
    }
    assert row["other"] is None
    assert (row["tags"], row["files"][0]["file_metadata"]) == ({"country": "Germany", "region": "DE-BE"}, '{"pages":3}')
    assert row["create_date"].tzname() == "UTC"
    # A value that the first items did not announce is not lost.
    last = rows[-1]
    assert last["data"]["stock"] is None
    assert json.loads(last["other"]) == {"data.late": ITEMS - 1, "data.stock": "sold out"}


def test_an_integer_that_a_column_of_floats_cannot_hold_is_kept_exactly(client: Client, token: str) -> None:
    numbers = [1.5, 3, 2**53 + 1]
    client.push("lamps", [make_output(place, data={"n": number}) for place, number in enumerate(numbers)])
    rows = pyarrow.parquet.read_table(io.BytesIO(fetch(client, token))).to_pylist()
    assert [row["data"]["n"] for row in rows] == [1.5, 3.0, None]
    assert json.loads(rows[2]["other"]) == {"data.n": 2**53 + 1}


def test_filters_and_fields_choose_rows_and_columns(client: Client, token: str) -> None:
    client.push("lamps", map(lamp, range(20)))
    query = "&is_approved=true&fields=data.title,data.price.amount,key_hash"
    table = pyarrow.parquet.read_table(io.BytesIO(fetch(client, token, query)))
    assert table.column_names == ["id", "data", "key_hash", "other"]
    assert table.num_rows == 7
    assert table.to_pylist()[1]["data"] == {"title": "Lamp 3, ö", "price": {"amount": 3.5}}


def test_deletions_are_rows_with_a_mark(client: Client, token: str) -> None:
    client.push("lamps", map(lamp, range(3)))
    client.delete_many("lamps", url=lamp(1)["source_url"])
    rows = pyarrow.parquet.read_table(io.BytesIO(fetch(client, token, "&deleted=true"))).to_pylist()
    assert [(row["key_hash"], row["deleted"]) for row in rows] == [("key-0", None), ("key-2", None), ("key-1", True)]


def test_an_empty_group_is_a_file_without_rows(client: Client, token: str) -> None:
    table = pyarrow.parquet.read_table(io.BytesIO(fetch(client, token)))
    assert table.num_rows == 0 and "source_url" in table.column_names


def test_duckdb_polars_and_pandas_read_it(client: Client, token: str, tmp_path: Path) -> None:
    client.push("lamps", map(lamp, range(100)))
    path = tmp_path / "lamps.parquet"
    path.write_bytes(fetch(client, token))
    lamps = duckdb.read_parquet(str(path))
    assert lamps.aggregate("sum(data.price.amount), max(data.parts[1].count)").fetchall() == [(5000.0, 99)]
    frame = polars.read_parquet(path)
    assert frame.select(polars.col("data").struct.field("stock").sum()).item() == 4950
    assert pandas.read_parquet(path)["data"][0]["title"] == "Lamp 0, ö"
