"""CSV of outputs: columns by look-up, bounded in number, and nothing lost."""

from __future__ import annotations

import csv
import io
import json
import time
from typing import Any

import pytest

from service.http.exports import Table

csv.field_size_limit(2**24)  # of `other`, where it holds 19,000 values

ITEM = {"source_url": "https://shop.example/p/1", "data": {"title": "Lamp", "price": {"amount": 19.99}}, "id": 1}


def rows(items: list[dict[str, Any]], *fields: str, safe: bool = False) -> list[dict[str, str]]:
    table = Table(fields, safe)
    text = (table.header(items) + table.render(items)).decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_columns_are_in_the_order_of_the_fields() -> None:
    assert [*rows([ITEM], "data.title", "id", "tags")[0]] == [
        "source_url",
        "data.price.amount",
        "data.title",
        "id",
        "tags",
        "other",
    ]


def test_two_keys_with_the_same_dotted_name_both_keep_their_value() -> None:
    (row,) = rows([{"data": {"q": {"r": 1}, "q.r": 2}}])
    assert row["data.q.r"] == "1"
    assert json.loads(row["other"]) == {"data.q\\.r": "2"}


@pytest.mark.parametrize(
    "data",
    [
        {"a": {"b": {"c": 1}, "b.c": 2}, "a.b": {"c": 3}, "a.b.c": 4},
        {"q": {"r": 1}, "q.r": 2, "q\\.r": 3, "q\\\\.r": 4},
        {"q.r": 2, "q": {"r": 1}},
    ],
)
def test_no_value_is_lost_however_keys_are_named(data: dict[str, Any]) -> None:
    def count(value: Any) -> int:
        return sum(map(count, value.values())) if isinstance(value, dict) else 1

    cases: list[list[dict[str, Any]]] = [[{"data": data}], [{"data": {}}]]
    for known in cases:
        table = Table()
        text = (table.header(known) + table.render([{"data": data}])).decode()
        (row,) = csv.DictReader(io.StringIO(text, newline=""))
        cells = [v for name, v in row.items() if name.startswith("data.")]
        found = [*cells, *json.loads(row["other"] or "{}").values()]
        assert sorted(filter(None, found)) == [str(n) for n in range(1, count(data) + 1)]


def test_more_columns_than_there_is_room_for_go_into_other() -> None:
    item = {"id": 7, "data": {f"k{n}": n for n in range(20_000)}, "tags": {"country": "Germany"}}
    (row,) = rows([item])
    assert len(row) < 1100
    assert (row["id"], row["data.k0"], row["tags.country"]) == ("7", "0", "Germany")
    other = json.loads(row["other"])
    assert len(other) + sum(name.startswith("data.k") for name in row) == 20_000
    assert other["data.k19999"] == "19999"


def test_an_item_of_20000_keys_and_100_fields_takes_milliseconds() -> None:
    """It took 8 to 13 seconds with 700 to 1000 fields, each compared with each column."""
    item = {"id": 1, "data": {f"k{n}": n for n in range(20_000)}}
    fields = [f"data.k{n}" for n in range(100)]
    began = time.thread_time()
    rows([item], *fields)
    assert time.thread_time() - began < 3


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_formulas_are_neutralised_when_asked(text: str) -> None:
    item = {"id": -5, "data": {"x": text, text: "y"}}
    safe, plain = rows([item], safe=True)[0], rows([item])[0]
    assert (plain["data.x"], safe["data.x"]) == (text, f"'{text}")
    assert safe["id"] == "-5"  # a number is none
    assert f"data.{text}" in safe


def test_ordinary_texts_are_left_as_they_are() -> None:
    assert rows([ITEM], safe=True) == rows([ITEM])
