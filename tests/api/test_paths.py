"""Paths into items: `data.price` and `price` mean the same wherever only `data` can be meant."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import Api, make_output

FORMS = ("price.amount", "data.price.amount")


async def write(api: Api, *data: Any, job: str = "run-1") -> dict[str, Any]:
    items = [make_output(number, root_job_id=job, data=one) for number, one in enumerate(data)]
    written: dict[str, Any] = await api.ok("/v1/outputs/shop", items)
    return written


async def matched(api: Api, query: str) -> list[int]:
    page = await api.ok(f"/v1/outputs/shop?limit=100&{query}")
    return [int(item["key_hash"].removeprefix("key-")) for item in page["items"]]


@pytest.mark.parametrize("path", FORMS)
async def test_a_filter_takes_a_path_in_full_or_without_data(admin: Api, path: str) -> None:
    await write(admin, {"price": {"amount": 5}}, {"price": {"amount": None}}, {"title": "Lamp"})
    assert await matched(admin, f"where={path}:5") == [0]
    assert await matched(admin, f"missing={path}") == [1, 2]
    response = await admin.delete(f"/v1/outputs/shop?missing={path}")
    assert response.status == 200 and response.json["deleted"] == 2, response.body
    assert await matched(admin, "") == [0]


@pytest.mark.parametrize("path", FORMS)
async def test_a_rule_takes_a_path_in_full_or_without_data(admin: Api, path: str) -> None:
    rules = [{"path": path, "min": 5}, {"path": path, "type": "integer"}, {"path": path, "min_fill": 1}]
    settings = (await admin.put("/v1/groups/shop", {"rules": rules})).json
    assert settings["rules"] == rules, "settings are returned as they were sent"
    await write(admin, {"price": {"amount": 4}}, {"price": {"amount": "5"}}, {"price": {}})
    job = (await admin.put("/v1/groups/shop/jobs/run-1", {"state": "finished"})).json
    assert [problem["rule"] for problem in job["problems"]] == rules
    assert all(path in problem["msg"] for problem in job["problems"])


@pytest.mark.parametrize("path", FORMS)
async def test_a_drop_is_compared_with_the_job_before_by_either_form(admin: Api, path: str) -> None:
    await admin.put("/v1/groups/shop", {"rules": [{"path": path, "max_drop": 0.1}]})
    await write(admin, {"price": {"amount": 4}})
    first = (await admin.put("/v1/groups/shop/jobs/run-1", {"state": "finished"})).json
    await write(admin, {"title": "Lamp"}, job="run-2")
    second = (await admin.put("/v1/groups/shop/jobs/run-2", {"state": "finished"})).json
    assert (first["verdict"], second["verdict"]) == ("passed", "failed")


@pytest.mark.parametrize("path", FORMS)
async def test_an_ignored_path_is_no_content_in_either_form(admin: Api, path: str) -> None:
    settings = (await admin.put("/v1/groups/shop", {"ignore": [path]})).json
    assert settings["ignore"] == [path], "settings are returned as they were sent"
    await write(admin, {"price": {"amount": 1, "currency": "EUR"}})
    assert (await write(admin, {"price": {"amount": 2, "currency": "EUR"}}))["unchanged"] == 1
    assert (await write(admin, {"price": {"amount": 2, "currency": "USD"}}))["updated"] == 1


async def test_writing_an_ignored_path_in_its_other_form_changes_no_item(admin: Api) -> None:
    item = {"title": "Lamp", "price": {"amount": 1}}
    for path in FORMS:
        await admin.put("/v1/groups/shop", {"ignore": [path]})
        written = await write(admin, item)
    assert written["unchanged"] == 1


async def test_a_key_of_data_called_data_needs_the_full_form(admin: Api) -> None:
    await write(admin, {"data": {"price": 5}}, {"price": 5})
    assert await matched(admin, "where=data.data.price:5") == [0]
    assert await matched(admin, "where=data.price:5") == [1]
    assert await matched(admin, "missing=data.data") == [1]
    for query in ("missing=data", "where=data:5", "missing=data."):
        response = await admin.get(f"/v1/outputs/shop?{query}")
        assert response.problems() == [(["query", query.partition("=")[0]], "value_error")], query
    response = await admin.put("/v1/groups/shop", {"ignore": ["data"], "rules": [{"path": "data", "min_fill": 1}]})
    assert {problem[0][1] for problem in response.problems()} == {"ignore", "rules"}


async def test_unfilled_means_the_same_for_the_filter_and_the_fields(admin: Api) -> None:
    values: list[Any] = [None, "", [], {}, 0, False, "0", [None], {"currency": None}]
    await write(admin, *({"price": value} for value in values), {})
    assert await matched(admin, "missing=price") == [0, 1, 2, 3, 9]
    fields = (await admin.ok("/v1/groups/shop/fields"))["fields"]
    assert [field["count"] for field in fields if field["path"] == "price"] == [5]


async def test_missing_goes_through_objects_and_never_into_arrays(admin: Api) -> None:
    await write(admin, {"offers": {"price": 1}}, {"offers": [{"price": 1}]}, {"offers": "price"})
    assert await matched(admin, "missing=offers.price") == [1, 2]


async def test_a_path_may_have_as_many_names_as_an_item_may_be_deep(admin: Api) -> None:
    nested: Any = 1
    for _ in range(60):
        nested = {"a": nested}
    await write(admin, nested, {"a": 1})
    path = ".".join("a" * 60)
    assert await matched(admin, f"missing={path}") == [1]
    assert await matched(admin, f"missing={path}.a.a.a.a.a") == [0, 1]


# -- paths that no item has -----------------------------------------------------------------------


async def settings(api: Api, **settings: Any) -> list[tuple[list[str], str]]:
    """Set up the group; return the warnings, each with its location."""
    response = await api.put("/v1/groups/shop", settings)
    assert response.status == 200, response.body
    assert all(warning["type"] == "unknown_path" for warning in response.json["warnings"])
    return [(warning["loc"][1:], warning["msg"]) for warning in response.json["warnings"]]


async def test_settings_that_name_a_path_that_no_item_has_answer_with_the_nearest(admin: Api) -> None:
    await write(admin, {"price": {"amount": 5, "currency": None}, "title": "Lamp"})
    rules = [
        {"path": "title", "type": "string"},
        {"path": "prise.amount", "min": 1},
        {"min_items": 1},
        {"path": "data.price.amuont", "max": 1},
    ]
    ignore = ["price.currency", "data.tittle", "etag"]
    nothing = "None of the newest 1000 items has"
    assert await settings(admin, ignore=ignore, rules=rules) == [
        (["ignore", "1"], f"{nothing} data.tittle: did you mean data.title?"),
        (["ignore", "2"], f"{nothing} etag"),
        (["rules", "1", "path"], f"{nothing} prise.amount: did you mean price.amount?"),
        (["rules", "3", "path"], f"{nothing} data.price.amuont: did you mean data.price.amount?"),
    ]
    group = await admin.ok("/v1/groups/shop")
    assert (group["ignore"], group["rules"]) == (ignore, rules), "they are set all the same"
    assert await settings(admin, history_days=1) == [], "only what the request names is looked for"


async def test_a_path_that_any_of_the_newest_items_has_is_no_warning(admin: Api) -> None:
    await write(admin, {"price": None}, *({"title": f"Lamp {number}"} for number in range(20)))
    rules = [{"path": "price", "min_fill": 0.1}, {"path": "title", "min_fill": 0.9}]
    assert await settings(admin, rules=rules, ignore=["data.price"]) == []


async def test_a_group_without_items_takes_settings_without_a_warning(admin: Api) -> None:
    assert await settings(admin, rules=[{"path": "price", "min_fill": 0.1}], ignore=["scraped_at"]) == []


async def test_a_deleted_item_has_no_path(admin: Api) -> None:
    await write(admin, {"prise": 5}, {"price": 5})
    await admin.delete("/v1/outputs/shop?where=prise:5")
    (warning,) = await settings(admin, ignore=["prise"])
    assert warning[1].endswith("did you mean price?")


async def test_an_ignored_path_leads_into_arrays_and_a_rule_does_not(admin: Api) -> None:
    await write(admin, {"offers": [{"at": 1}, {"price": 2}]})
    rules = [{"path": "offers.at", "min_fill": 0.5}]
    assert [loc for loc, _ in await settings(admin, ignore=["offers.at"], rules=rules)] == [["rules", "0", "path"]]
    assert [loc for loc, _ in await settings(admin, ignore=["offers.etag"])] == [["ignore", "0"]]


async def test_hostile_names_are_never_proposed(admin: Api) -> None:
    await write(admin, {"pri.ce": 1, "$price": 2, "p" * 1000: 3, "": 4, "pricey": [{"price": 1}]})
    (warning,) = await settings(admin, ignore=["price"])
    assert warning[1].endswith("did you mean pricey?")
