"""CSV of outputs: columns by look-up, bounded in number, and nothing lost."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.http.output import exports
from service.http.output.exports import Table
from service.store import Page
from tests.support.stall import watch_loop

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


def test_an_item_without_the_requested_fields_adds_no_column() -> None:
    found = rows([{"id": 1, "data": {}}, {"id": 2, "data": {"price": {"amount": 5}}}], "data.price.amount")
    assert found == [
        {"id": "1", "data.price.amount": "", "other": ""},
        {"id": "2", "data.price.amount": "5", "other": ""},
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


KEYS = st.sampled_from(["a", "b", "a.b", "b.a", "", "c"])
VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text('x,"\r\n =', max_size=4)
DATA = st.dictionaries(KEYS, st.recursive(VALUES, lambda inner: st.dictionaries(KEYS, inner, max_size=3)), max_size=4)


@given(st.lists(DATA, min_size=1, max_size=4), st.sampled_from([(), ("data.a", "data.b.a")]), st.booleans())
def test_a_value_has_the_same_cell_whether_or_not_its_item_has_a_key_without_column(
    many: list[dict[str, Any]], fields: tuple[str, ...], safe: bool
) -> None:
    items = [{"id": number, "data": data} for number, data in enumerate(many)]
    table = Table(fields, safe)
    header = table.header(items)
    plain, beside = (
        list(csv.reader(io.StringIO((header + table.render(some)).decode(), newline="")))
        for some in (items, [item | {"unlearned": 1} for item in items])
    )
    assert [row[:-1] for row in plain] == [row[:-1] for row in beside]
    assert len(plain) == len(items) + 1


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


HOSTILE = [
    {"k" * 20_000: {f"k{n}": n for n in range(20_000)}},
    {"k" * 1000: {f"k{n}": n for n in range(40_000)}},
    {"k" * 30: {"l" * 30: {"m" * 30: {"n" * 30: {f"{n}": n for n in range(60_000)}}}}},
    {f"{'k' * 900}{n}": {f"{i}": i for i in range(200)} for n in range(400)},
]


@pytest.mark.parametrize("data", HOSTILE)
def test_a_row_is_not_much_larger_than_its_item_and_loses_nothing(data: dict[str, Any]) -> None:
    item = {"id": 1, "data": data}
    table = Table()
    text = table.header([item]) + table.render([item])
    assert len(text) < 5 * len(json.dumps(item))
    (row,) = csv.DictReader(io.StringIO(text.decode(), newline=""))
    cells = {name: cell for name, cell in row.items() if name.startswith("data") and cell}
    assert json.loads((json.loads(row["other"] or "{}") | cells)["data"]) == data


def test_many_items_are_rendered_a_megabyte_at_a_time() -> None:
    items = iter([{"id": n, "data": {"text": "x" * 100_000}} for n in range(50)])
    table = Table()
    table.header([ITEM])
    pieces = []
    while piece := table.render(items):
        pieces.append(piece)
    assert b"".join(pieces).count(b"\r\n") == 50
    assert max(map(len, pieces)) < 1_200_000


async def test_many_empty_cells_are_rendered_off_the_event_loop() -> None:
    """20,000 items of one value each, after one of 1,000: a page of them is small, but took 118 ms."""

    async def pages() -> AsyncIterator[Page]:
        yield Page([{"id": 0, "data": {f"k{n}": n for n in range(1000)}}], 20_000, 0, 1)
        yield Page([{"id": n, "data": {"k0": 0}} for n in range(1, 4001)], 160_000, None, 1)

    async with watch_loop() as stalls:
        began = time.process_time()
        text = b"".join([piece async for piece in exports.table(pages(), ("data",))])
        took = time.process_time() - began
    assert text.count(b"\r\n") == 4002
    assert stalls.worst < took / 2


def test_the_names_of_all_columns_together_are_bounded() -> None:
    items = [{"id": n, "data": {f"{n}{'k' * 1000}": "x" * 1000}} for n in range(2000)]
    assert len(Table().header(items)) < 300_000
    (row, *_) = rows(items)
    assert row[f"data.0{'k' * 1000}"] == "x" * 1000


@pytest.mark.parametrize(
    "text",
    [
        *(
            "=1+1",
            "+1",
            "-1",
            "@SUM(A1)",
            "\t=1",
            "\r=1",
            "\n=1+1",
            " =1+1",
            "\u3000=1+1",
            "\ufeff=1+1",
            "\n",
            "\x00=1",
        ),
        *("\n", "\x00=1", "\uff1d1+1", "\uff0b1", "\uff0d1", "\uff20SUM(A1)", " \uff1d1"),
    ],
)
def test_formulas_are_neutralised_when_asked(text: str) -> None:
    item = {"id": -5, "data": {"x": text, text: "y"}}
    safe, plain = rows([item], safe=True)[0], rows([item])[0]
    assert (plain["data.x"], safe["data.x"]) == (text, f"'{text}")
    assert safe["id"] == "-5"  # a number is none
    assert f"data.{text}" in safe


def test_ordinary_texts_are_left_as_they_are() -> None:
    assert rows([ITEM], safe=True) == rows([ITEM])
