"""The filter `where`: operators, several conditions, exports and deletions; `deleted=only`."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.support.api import Api, make_output
from tests.support.outputs import PATH, items, stored

DATA = {
    "cheap": {"price": {"amount": 3}, "title": "Desk LAMP", "date": "2026-01-31"},
    "dear": {"price": {"amount": 129.9}, "title": "Éclair chair", "date": "2026-11-02"},
    "text": {"price": {"amount": "20"}, "title": "a.b+c", "tag": True},
    "sizes": {"price": {"amount": [1, 50]}, "title": ["one", "two lamps"]},
    "none": {"price": {"amount": None}},
    "empty": {},
}


@pytest.fixture
async def shop(api: Api) -> Api:
    await api.ok(PATH, [make_output(1, key_hash=name, data=data) for name, data in DATA.items()])
    return api


def query(*conditions: str) -> str:
    return "&".join(f"where={quote(condition)}" for condition in conditions)


async def keys(api: Api, *conditions: str) -> set[str]:
    return {item["key_hash"] for item in await items(api, f"limit=1000&{query(*conditions)}")}


OPERATORS = [
    ("price.amount:3", {"cheap"}),
    ("data.price.amount:3", {"cheap"}),
    ("price.amount!=3", {"dear", "text", "sizes", "none", "empty"}),
    ("price.amount>3", {"dear", "sizes"}),
    ("price.amount>=3", {"cheap", "dear", "sizes"}),
    ("price.amount<3", {"sizes"}),
    ("price.amount<=3", {"cheap", "sizes"}),
    ("price.amount<-1.5e3", set()),
    ("price.amount>a", set()),
    ("price.amount>1x", {"text"}),  # as text
    ("date>=2026-02", {"dear"}),
    ("date<2026-02", {"cheap"}),
    ("title~lamp", {"cheap", "sizes"}),
    ("title~éCLAIR", {"dear"}),
    ("title~.b+", {"text"}),
    ("title~", {"cheap", "dear", "text", "sizes"}),
    ("tag:true", {"text"}),
    ("tag!=true", {"cheap", "dear", "sizes", "none", "empty"}),
    ("title:a>b", set()),
]


async def test_each_operator_selects_what_it_says(shop: Api) -> None:
    for condition, selected in OPERATORS:
        assert await keys(shop, condition) == selected, condition


async def test_all_conditions_hold(shop: Api) -> None:
    assert await keys(shop, "price.amount>1", "price.amount<100", "title~lamp") == {"cheap", "sizes"}
    assert await keys(shop, *["price.amount:3"] * 10) == {"cheap"}


async def test_a_condition_that_is_none_is_refused(shop: Api) -> None:
    for conditions, kind in [
        (["price"], "value_error"),
        ([":EUR"], "value_error"),
        ([">=3"], "value_error"),
        (["price..amount>3"], "value_error"),
        (["title~" + "x" * 1001], "string_too_long"),
        (["price:1"] * 11, "too_many"),
    ]:
        for path in (PATH, f"{PATH}/export"):
            refused = await shop.get(f"{path}?{query(*conditions)}")
            assert (refused.status, refused.problems()) == (422, [(["query", "where"], kind)]), (conditions, kind)
        refused = await shop.delete(f"{PATH}?{query(*conditions)}")
        assert (refused.status, refused.problems()) == (422, [(["query", "where"], kind)]), (conditions, kind)


async def test_exports_and_deletions_take_conditions(shop: Api) -> None:
    exported = await shop.get(f"{PATH}/export?format=ndjson&{query('price.amount>3', 'title~chair')}")
    assert exported.body.count(b"\n") == 1
    assert (await shop.delete(f"{PATH}?{query('price.amount<100', 'price.amount>2')}")).json["deleted"] == 2
    assert {item["key_hash"] for item in await items(shop)} == {"dear", "text", "none", "empty"}
    refused = await shop.delete(f"{PATH}?where=")
    assert refused.status == 422
    assert len(await items(shop)) == 4


async def test_a_walk_with_conditions_is_complete_however_few_match(api: Api) -> None:
    await api.ok(PATH, [make_output(n, data={"n": n}) for n in range(300)])
    found: list[int] = []
    cursor: Any = 0
    while cursor is not None:
        page = await api.ok(f"{PATH}?limit=2&cursor={cursor}&{query('n>=290', 'n!=295')}")
        found += [item["data"]["n"] for item in page["items"]]
        cursor = page["metadata"]["next_cursor"]
    assert found == [290, 291, 292, 293, 294, 296, 297, 298, 299]


async def test_deleted_only_shows_nothing_but_deletions(api: Api) -> None:
    item = await stored(api)
    await api.ok(PATH, [make_output(2)])
    await api.delete(f"{PATH}/{item['output_id']}")
    for order in ("asc", "desc"):
        (deletion,) = await items(api, f"deleted=only&order={order}")
        assert (deletion["output_id"], deletion["deleted"]) == (item["output_id"], True)
    assert len(await items(api, "deleted=only&job_id=job-1")) == 1
    assert await items(api, "deleted=only&job_id=job-2") == []
    assert len(await items(api, "deleted=true")) == 2
    refused = await api.get(f"{PATH}?deleted=maybe")
    assert refused.problems() == [(["query", "deleted"], "bool_type")]
