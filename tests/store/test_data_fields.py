"""Fields of `data` as filters, on a real database, and items compared without some of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from schemas.paths import Condition
from service.store import Store
from service.store.outputs.fields import holds, ignored, is_missing, without

DATA: dict[str, dict[str, Any]] = {
    "absent": {},
    "no price": {"price": {}},
    "price is text": {"price": "12"},
    "null": {"price": {"amount": None}},
    "empty text": {"price": {"amount": ""}},
    "empty array": {"price": {"amount": []}},
    "zero": {"price": {"amount": 0}},
    "false": {"price": {"amount": False}},
    "object": {"price": {"amount": {}}},
    "text": {"price": {"amount": "12"}},
    "integer": {"price": {"amount": 12}},
    "number": {"price": {"amount": 12.0}},
    "true": {"price": {"amount": True}},
    "word": {"price": {"amount": "true"}},
    "array": {"price": {"amount": ["", 12]}},
    "null in array": {"price": {"amount": [None]}},
    "objects": {"price": [{"amount": 12}, {"amount": None}]},
}


async def found(store: Store, organization: int, where: dict[str, Any]) -> set[str]:
    collection = store.database["data_fields"]
    await collection.insert_many({"organization_id": organization, "name": n, "data": d} for n, d in DATA.items())
    return {record["name"] async for record in collection.find({"organization_id": organization, **where})}


async def test_a_field_is_missing_where_it_is_absent_null_or_empty(store: Store, organization: int) -> None:
    assert await found(store, organization, is_missing("price.amount")) == {
        "absent",
        "no price",
        "price is text",
        "null",
        "empty text",
        "empty array",
        "object",
        "objects",
    }


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("12", {"text", "integer", "number", "array", "objects"}),
        ("12.0", {"integer", "number", "array", "objects"}),
        ("1.2e1", {"integer", "number", "array", "objects"}),
        ("true", {"true", "word"}),
        ("false", {"false"}),
        ("0", {"zero"}),
        ("", {"empty text", "array"}),
        ("null", set()),
        ("9" * 30, set()),
        ("1e999", set()),
        ("1_2", set()),
        ("012", set()),
    ],
)
async def test_a_value_is_compared_as_text_number_or_boolean(
    store: Store, organization: int, text: str, names: set[str]
) -> None:
    assert await found(store, organization, holds(Condition("price.amount", ":", text))) == names


@pytest.mark.parametrize(
    ("paths", "data", "compared"),
    [
        ([], {"a": 1}, {"a": 1}),
        (["scraped_at"], {"a": 1, "scraped_at": 2}, {"a": 1}),
        (["meta.at"], {"meta": {"at": 1, "by": 2}, "at": 3}, {"meta": {"by": 2}, "at": 3}),
        (["meta"], {"meta": {"at": 1}, "a": 1}, {"a": 1}),
        (["meta.at", "meta"], {"meta": {"at": 1}, "a": 1}, {"a": 1}),
        (["meta", "meta.at"], {"meta": {"at": 1}, "a": 1}, {"a": 1}),
        (["offers.at"], {"offers": [{"at": 1, "p": 2}, {"at": 3}, 4]}, {"offers": [{"p": 2}, {}, 4]}),
        (["a.b.c"], {"a": {"b": 1}}, {"a": {"b": 1}}),
        (["a.b"], {"a": [[{"b": 1, "c": 2}]]}, {"a": [[{"c": 2}]]}),
        (["nothing.here"], {"a": {"b": 1}}, {"a": {"b": 1}}),
    ],
)
def test_items_are_compared_without_ignored_paths(paths: list[str], data: Any, compared: Any) -> None:
    before = copy.deepcopy(data)
    assert without(data, ignored(paths)) == compared
    assert data == before, "what is stored stays as it is"


def test_items_that_differ_elsewhere_still_differ() -> None:
    tree = ignored(["scraped_at", "price.checked"])
    one = {"title": "Lamp", "scraped_at": 1, "price": {"amount": 1, "checked": "now"}}
    assert without(one, tree) == without({**one, "scraped_at": 2, "price": {"amount": 1}}, tree)
    assert without(one, tree) != without({**one, "price": {"amount": 2, "checked": "now"}}, tree)
    assert without(one, tree) != without({**one, "price": None}, tree)
