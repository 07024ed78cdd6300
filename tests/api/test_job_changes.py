"""GET /v1/groups/{group_id}/jobs/{job_id}/changes: what a crawl changed, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import MakeApi
from tests.support.api import Api, make_output
from tests.support.contract import HeldApi

OUTPUTS = "/v1/outputs/shop"


@pytest.fixture
async def shop(make_api: MakeApi, organization: int) -> Api:
    """A caller with three items that a first crawl has written."""
    api = await make_api(organization, label="ada")
    caller = HeldApi(api.client, api.token, api.organization_id)
    await crawl(caller, "one", *(item(n) for n in range(3)))
    return caller


def item(number: int, price: Any = 10, title: str = "Lamp", **changes: Any) -> dict[str, Any]:
    return make_output(number, data={"title": title, "price": {"amount": price}}, **changes)


async def crawl(api: Api, job: str, *items: dict[str, Any]) -> None:
    await api.ok(OUTPUTS, [{**item, "root_job_id": job} for item in items])


async def changes(api: Api, job: str, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = await api.ok(f"/v1/groups/shop/jobs/{job}/changes?{query}")
    return found


async def shown(api: Api, job: str, query: str = "") -> dict[str, list[tuple[Any, ...]]]:
    """Return what a crawl changed, by key: path, before and after."""
    items = (await changes(api, job, f"limit=100&{query}"))["items"]
    return {
        item["key_hash"]: [(field["path"], field.get("before"), field.get("after")) for field in item["fields"]]
        for item in items
    }


async def test_changed_fields_come_with_their_values_before_and_after(shop: Api) -> None:
    new = make_output(7, key_hash="new")
    tagged = item(1, tags={"country": "Austria"})
    await crawl(shop, "two", item(0, price=12), tagged, item(2), new)
    assert await shown(shop, "two") == {
        "key-0": [("data.price.amount", 10, 12)],
        "key-1": [("tags.country", "Germany", "Austria"), ("tags.region", "DE-BE", None)],
    }
    (first, _) = (await changes(shop, "two", "limit=10"))["items"]
    assert first.keys() == {"id", "output_id", "key_hash", "source_url", "fields"}
    assert await shown(shop, "one") == {}, "what a crawl created is not changed"


async def test_an_absent_value_is_left_out_and_an_array_is_one_value(shop: Api) -> None:
    await crawl(shop, "two", make_output(0, data={"title": "Lamp", "sizes": [1, {"a": 2}]}))
    (found,) = (await changes(shop, "two"))["items"]
    assert found["fields"] == [
        {"path": "data.sizes", "after": [1, {"a": 2}]},
        {"path": "data.price.amount", "before": 10},
    ]


async def test_the_list_stays_complete_after_later_crawls_and_decisions(shop: Api) -> None:
    await crawl(shop, "two", item(0, price=11), item(1, price=12), item(2, price=13))
    before = await shown(shop, "two")
    assert len(before) == 3
    await crawl(shop, "three", item(0, price=11), item(1, price=20), item(2, price=13))
    outputs = {output["key_hash"]: output["output_id"] for output in (await shop.ok(OUTPUTS))["items"]}
    await shop.patch(f"{OUTPUTS}/{outputs['key-0']}", {"is_approved": True})
    await shop.delete(f"{OUTPUTS}/{outputs['key-2']}")
    assert await shown(shop, "two") == before
    assert await shown(shop, "three") == {"key-1": [("data.price.amount", 12, 20)]}


async def test_several_changes_by_one_crawl_are_one(shop: Api) -> None:
    await crawl(shop, "two", item(0, price=11), item(1, price=12))
    await crawl(shop, "two", item(0, price=15, title="Chair"), item(1, price=10))
    assert await shown(shop, "two") == {"key-0": [("data.title", "Lamp", "Chair"), ("data.price.amount", 10, 15)]}


async def test_one_field_is_asked_for_in_full_or_below_data(shop: Api) -> None:
    await crawl(shop, "two", item(0, price=11, title="Chair"), item(1, title="Chair"))
    for path in ("price.amount", "data.price.amount", "price"):
        assert await shown(shop, "two", f"path={path}") == {"key-0": [("data.price.amount", 10, 11)]}, path
    assert await shown(shop, "two", "path=pric") == {}


async def test_a_summary_counts_items_and_fields_the_most_changed_first(shop: Api) -> None:
    await crawl(shop, "two", item(0, price=11), item(1, price=11), item(2, price=11, title="Chair"))
    assert await changes(shop, "two", "summary=true") == {
        "items": 3,
        "fields": [{"path": "data.price.amount", "changed": 3}, {"path": "data.title", "changed": 1}],
        "more": False,
    }


@pytest.mark.slow
async def test_pages_have_every_change_once(shop: Api) -> None:
    await crawl(shop, "one", *(item(n) for n in range(60)))
    await crawl(shop, "two", *(item(n, price=11) for n in range(60)))
    await crawl(shop, "three", *(item(n, price=12) for n in range(0, 60, 2)))
    keys, cursor = [], 0
    while cursor is not None:
        page = await changes(shop, "two", f"limit=7&cursor={cursor}")
        keys += [item["key_hash"] for item in page["items"]]
        cursor = page["metadata"]["next_cursor"]
    assert sorted(keys) == sorted(f"key-{n}" for n in range(60))


async def test_ignored_fields_are_no_changes(shop: Api) -> None:
    await shop.put("/v1/groups/shop", {"ignore": ["title"]})
    await crawl(shop, "two", item(0, price=11, title="Chair"), item(1, title="Chair"))
    assert await shown(shop, "two") == {"key-0": [("data.price.amount", 10, 11)]}


async def test_an_unknown_job_is_404_and_another_organization_sees_nothing(shop: Api, stranger: Api) -> None:
    await crawl(shop, "two", item(0, price=11))
    for caller, job in ((shop, "nothing"), (stranger, "two")):
        refused = await caller.get(f"/v1/groups/shop/jobs/{job}/changes")
        assert (refused.status, refused.problems()) == (404, [(["path", "job_id"], "not_found")])
