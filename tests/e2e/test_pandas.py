"""pandas reads what `outputs export` writes, with types that can be worked with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pyarrow.parquet
import pytest

from sds_client import Client
from sds_client.__main__ import main
from tests.support.api import make_output
from tests.support.processes import ServiceProcess, make_token

ITEMS = 6000  # more than a row group


@pytest.fixture(scope="module")
def running(mongo_url: str) -> Iterator[ServiceProcess]:
    with ServiceProcess(mongo_url) as process:
        yield process.wait_until_ready()


@pytest.fixture
def export(
    running: ServiceProcess, mongo_url: str, organization: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Return a function that writes items and exports them to a file of some kind."""
    token = make_token(mongo_url, organization)
    monkeypatch.setenv("SDS_URL", running.url)
    monkeypatch.setenv("SDS_TOKEN", token)

    def run(items: list[dict[str, Any]], name: str, *options: str) -> Path:
        with Client(running.url, token) as client:
            client.push("group", items)
        assert main(["outputs", "export", "group", "--out", str(tmp_path / name), *options]) == 0
        return tmp_path / name

    return run


def lamp(number: int) -> dict[str, Any]:
    data: dict[str, Any] = {
        "title": f'Lamp "{number}", ö\nsecond line',
        "price": {"amount": number + 0.5, "currency": "EUR"},
        "stock": number,
        "rating": 4 if number % 2 else 4.5,
        "new": number % 2 == 0,
        "sizes": [1, {"a": number}],
        "code": number if number % 2 else f"A{number}",
    }
    if number >= 5500:
        data["late"] = number
    return make_output(number, data=data, is_approved=number % 3 == 0)


def check(table: pandas.DataFrame) -> None:
    """Check what both formats must hold."""
    assert len(table) == ITEMS
    assert table["id"].dtype == "int64" and table["id"].is_monotonic_increasing
    assert table["data.stock"].dtype == "int64"
    assert table["data.price.amount"].dtype == "float64"
    assert table["data.rating"].dtype == "float64"
    assert table["data.new"].dtype == "bool" and table["is_approved"].dtype == "bool"
    assert table["data.stock"].sum() == sum(range(ITEMS))
    assert table["data.price.amount"].sum() == sum(n + 0.5 for n in range(ITEMS))
    assert table["data.late"].notna().sum() == 500
    assert list(table["data.code"][:2]) == ["A0", "1"]
    row = table.iloc[7]
    assert row["data.title"] == 'Lamp "7", ö\nsecond line'
    assert json.loads(row["data.sizes"]) == [1, {"a": 7}]
    assert (row["tags.country"], row["data.price.currency"]) == ("Germany", "EUR")
    assert json.loads(row["files"])[0]["file_metadata"] == {"width": 1200, "height": 900}


def test_a_csv_export_is_a_table_with_numbers_flags_and_dates(export: Any) -> None:
    file = export([lamp(n) for n in range(ITEMS)], "x.csv")
    table = pandas.read_csv(file, parse_dates=["create_date", "update_date", "last_scraped_date"])
    check(table)
    assert str(table["create_date"].dt.tz) == "UTC"


def test_integers_that_a_float_cannot_hold_stay_exact_in_parquet(export: Any) -> None:
    large = 2**53 + 1
    rows = [{"id": large, "number": 1}, {"id": 1, "number": 0.5}, {"mixed": large}, {"mixed": 0.5}]
    table = pyarrow.parquet.read_table(export([{**lamp(n), "data": row} for n, row in enumerate(rows)], "x.parquet"))
    assert table["data.id"].to_pylist() == [large, 1, None, None]
    assert table["data.number"].to_pylist() == [1.0, 0.5, None, None]
    assert table["data.mixed"].to_pylist() == [None, None, str(large), "0.5"]


def test_a_parquet_export_is_a_table_with_its_types_in_it(export: Any) -> None:
    file = export([lamp(n) for n in range(ITEMS)], "x.parquet")
    table = pandas.read_parquet(file)
    check(table)
    assert str(table["create_date"].dt.tz) == "UTC"
    schema = pyarrow.parquet.read_schema(file)
    assert str(schema.field("data.late").type) == "int64"
    assert str(schema.field("data.code").type) == "string"
    assert str(schema.field("update_date").type) == "timestamp[ms, tz=UTC]"
    assert pyarrow.parquet.ParquetFile(file).num_row_groups == 2


def test_only_the_fields_asked_for_are_columns(export: Any) -> None:
    file = export([lamp(n) for n in range(3)], "x.parquet", "--fields", "data.title,source_url")
    assert sorted(pandas.read_parquet(file).columns) == ["data.title", "id", "source_url"]


def test_ndjson_is_read_as_it_is(export: Any) -> None:
    table = pandas.read_json(export([lamp(n) for n in range(3)], "x.ndjson.gz"), lines=True)
    assert [data["stock"] for data in table["data"]] == [0, 1, 2]


def test_a_table_that_pandas_writes_is_imported(export: Any, tmp_path: Path) -> None:
    table = pandas.read_csv(export([lamp(n) for n in range(100)], "x.csv"))
    table["data.price.amount"] *= 2
    table.drop(columns=["value_hash"]).to_csv(tmp_path / "y.csv", index=False)
    assert main(["outputs", "import", "copy", str(tmp_path / "y.csv")]) == 0
    assert main(["outputs", "export", "copy", "--out", str(tmp_path / "z.csv")]) == 0
    again = pandas.read_csv(tmp_path / "z.csv")
    names = [name for name in table.columns if name.startswith("data.") or name in ("key_hash", "source_url", "files")]
    assert len(again) == 100
    pandas.testing.assert_frame_equal(again[names], table[names])
