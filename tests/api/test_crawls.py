"""Jobs that are begun, finished, compared and judged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.settings import Settings
from service.store import Store
from tests.conftest import MakeApi
from tests.support.api import Api, make_output
from tests.support.connections import make_indexes_once
from tests.support.fault_proxy import FaultProxy, refuse
from tests.support.groups import Group, at
from tests.support.limits import Small

STATES = {
    *("job_id", "series", "state", "items", "created", "changed", "unchanged", "shared"),
    *("first_write", "last_write"),
}
OF_PUT = ("more", "held_back", "warnings")
STOCK = {"finish_date", "missing", "deleted", "judged", "fields", "verdict", "problems"}


def item(number: int, job: str, **data: Any) -> dict[str, Any]:
    fields = {"title": f"Lamp {number}", "price": {"amount": 10.0 + number}} | data
    return make_output(number, root_job_id=job, data=fields)


async def crawl(api: Api, job: str, numbers: Any, group: str = "shop", **data: Any) -> None:
    await api.ok(f"/v1/outputs/{group}", [item(number, job, **data) for number in numbers])


async def put(api: Api, job: str, state: str = "finished", group: str = "shop", **said: Any) -> dict[str, Any]:
    response = await api.put(f"/v1/groups/{group}/jobs/{job}", {"state": state, **said})
    assert response.status == 200, response.body
    found: dict[str, Any] = response.json
    return found


async def job_of(api: Api, job: str, group: str = "shop") -> dict[str, Any]:
    found: dict[str, Any] = await api.ok(f"/v1/groups/{group}/jobs/{job}")
    return found


async def rules(api: Api, *rules: dict[str, Any], group: str = "shop") -> None:
    response = await api.put(f"/v1/groups/{group}", {"rules": list(rules)})
    assert response.status == 200, response.body


async def keys(api: Api, query: str = "", group: str = "shop") -> list[int]:
    """Return the numbers of the items that a query finds, in order."""
    found, cursor = [], 0
    while True:
        page = await api.ok(f"/v1/outputs/{group}?limit=1000&cursor={cursor}&{query}")
        found += [int(one["key_hash"].removeprefix("key-")) for one in page["items"]]
        if page["metadata"]["next_cursor"] is None:
            return sorted(found)
        cursor = page["metadata"]["next_cursor"]


# -- settings -------------------------------------------------------------------------------------


async def test_a_group_has_settings_that_are_changed_one_by_one(admin: Api) -> None:
    before = await admin.ok("/v1/groups/shop")
    assert (before["retention_days"], before["history_days"], before["ignore"], before["rules"]) == (None, 30, [], [])
    for settings in (
        {"history_days": 60},
        {"ignore": ["scraped_at", "price.checked"]},
        {"rules": [{"min_items": 1}, {"path": "title", "min_fill": 0.5}]},
        {"retention_days": 90},
        {},
        {"history_days": 0, "ignore": [], "rules": [], "retention_days": None},
    ):
        response = await admin.put("/v1/groups/shop", settings)
        before |= settings
        assert (response.status, response.json) == (200, before | {"warnings": []})
        assert await admin.ok("/v1/groups/shop") == before


WRONG_SETTINGS: list[tuple[dict[str, Any], list[str]]] = [
    ({"history_days": -1}, ["history_days"]),
    ({"history_days": 366}, ["history_days"]),
    ({"history_days": None}, ["history_days"]),
    ({"ignore": ["a"] * 51}, ["ignore"]),
    ({"ignore": None}, ["ignore"]),
    ({"ignore": ["a..b"]}, ["ignore", "0"]),
    ({"ignore": ["a", 1]}, ["ignore", "1"]),
    ({"rules": [{"min_items": 1}] * 101}, ["rules"]),
    ({"rules": {}}, ["rules"]),
    ({"rules": [{"path": "x" * 1000, "min_fill": 1}] * 17}, ["rules"]),
    ({"rules": [{"path": "\U0001f600" * 157, "min_fill": 1}] * 27}, ["rules"]),  # 16,956 bytes
    ({"rules": [{"min_items": 1}, {"unknown": 1}]}, ["rules", "1", "unknown"]),
    ({"rules": [{"path": "a", "min_fill": 2}]}, ["rules", "0", "min_fill"]),
    ({"rules": [{"path": "a"}]}, ["rules", "0"]),
    ({"rules": [[]]}, ["rules", "0"]),
    ({"retention": 1}, ["retention"]),
]


async def test_wrong_settings_change_nothing(admin: Api) -> None:
    for body, loc in WRONG_SETTINGS:
        response = await admin.put("/v1/groups/shop", {"history_days": 7, **body})
        assert response.status == 422, body
        assert [problem[0] for problem in response.problems()] == [["body", *loc]], body
        assert (await admin.ok("/v1/groups/shop"))["history_days"] == 30, body


async def test_settings_at_their_bounds_are_taken(admin: Api) -> None:
    bodies: list[dict[str, Any]] = [
        {"retention_days": 1},
        {"retention_days": 3650},
        {"history_days": 365},
        {"ignore": [f"field-{number}" for number in range(50)]},
        {"rules": [{"min_items": number} for number in range(100)]},
    ]
    for body in bodies:
        response = await admin.put("/v1/groups/shop", body)
        assert (response.status, {name: response.json[name] for name in body}) == (200, body), body


async def test_a_token_without_delete_sets_rules_but_no_retention(make_api: MakeApi) -> None:
    writer = await make_api(scopes=["read", "write"])
    await rules(writer, {"min_items": 1})
    response = await writer.put("/v1/groups/shop", {"retention_days": 1})
    assert (response.status, response.problems()) == (403, [(["header", "Authorization"], "scope_missing")])
    assert (await writer.ok("/v1/groups/shop"))["retention_days"] is None


async def test_a_token_without_delete_lengthens_a_history_and_does_not_shorten_it(make_api: MakeApi) -> None:
    writer = await make_api(scopes=["read", "write"])
    for days in (30, 60, 60):
        assert (await writer.put("/v1/groups/shop", {"history_days": days})).status == 200
    for days in (59, 0):
        response = await writer.put("/v1/groups/shop", {"history_days": days})
        assert (response.status, response.problems()) == (403, [(["header", "Authorization"], "scope_missing")])
    assert (await writer.ok("/v1/groups/shop"))["history_days"] == 60


# -- states ---------------------------------------------------------------------------------------


async def test_a_job_runs_from_its_first_write(admin: Api) -> None:
    await crawl(admin, "a", range(3))
    job = await job_of(admin, "a")
    assert set(job) == STATES | STOCK | {"review"}
    assert (job["state"], job["series"], job["finish_date"], job["missing"]) == ("running", None, None, None)
    assert await admin.ok("/v1/groups/shop/jobs") == [job]


async def test_a_job_exists_from_its_put_and_is_counted(admin: Api) -> None:
    job = await put(admin, "a", "running", series="chairs")
    assert [job.pop(name) for name in OF_PUT[:2]] == [False, None]
    assert [(warning["loc"], warning["type"]) for warning in job.pop("warnings")] == [
        (["body", "series"], "unknown_series")
    ]
    assert (job["state"], job["series"], job["items"]) == ("running", "chairs", 0)
    assert await admin.ok("/v1/groups/shop/jobs") == [job]
    assert (await admin.ok("/v1/groups/shop"))["jobs"] == 1
    await crawl(admin, "a", range(3))
    job = await job_of(admin, "a")
    assert (job["state"], job["series"], job["items"], job["created"]) == ("running", "chairs", 3, 3)
    assert (await admin.ok("/v1/groups/shop"))["jobs"] == 1


async def test_a_job_that_does_not_exist_is_not_found(admin: Api) -> None:
    response = await admin.get("/v1/groups/shop/jobs/nothing")
    assert (response.status, response.problems()) == (404, [(["path", "job_id"], "not_found")])


async def test_a_wrong_state_is_refused(admin: Api) -> None:
    for body, loc, kind in [
        ({}, ["state"], "missing"),
        ({"state": "done"}, ["state"], "value_error"),
        ({"state": None}, ["state"], "string_type"),
        ({"state": "finished", "series": ""}, ["series"], "string_too_short"),
        ({"state": "finished", "series": "s" * 65}, ["series"], "string_too_long"),
        ({"state": "finished", "missing": "drop"}, ["missing"], "value_error"),
        ({"state": "finished", "verdict": "passed"}, ["verdict"], "unknown_field"),
    ]:
        response = await admin.put("/v1/groups/shop/jobs/a", body)
        assert (response.status, response.problems()) == (422, [(["body", *loc], kind)]), body
        assert await admin.ok("/v1/groups/shop/jobs") == [], body


async def test_a_series_may_have_64_characters(admin: Api) -> None:
    assert (await put(admin, "a", "running", series="ü" * 64))["series"] == "ü" * 64


async def test_a_job_name_may_have_any_characters(admin: Api) -> None:
    name = "crawl.2026-11-16 $5 %2E"
    await crawl(admin, name, range(2))
    job = await put(admin, "crawl.2026-11-16%20%245%20%252E")
    assert (job["job_id"], job["items"], job["state"]) == (name, 2, "finished")


async def test_a_finished_job_is_taken_stock_of(admin: Api) -> None:
    await crawl(admin, "a", range(4))
    first = await put(admin, "a")
    assert (first["created"], first["changed"], first["unchanged"], first["items"]) == (4, 0, 0, 4)
    assert (first["missing"], first["verdict"], first["problems"], first["deleted"]) == (0, None, [], 0)
    assert first["fields"] == [{"path": path, "fill_rate": 1.0} for path in ("price", "price.amount", "title")]
    await crawl(admin, "b", [0])
    await crawl(admin, "b", [1], title="New")
    await crawl(admin, "b", [7], price=None)
    second = await put(admin, "b")
    assert (second["created"], second["changed"], second["unchanged"], second["items"]) == (1, 1, 1, 3)
    assert second["missing"] == 2
    assert {field["path"]: field["fill_rate"] for field in second["fields"]} == {
        "title": 1.0,
        "price": 0.6667,
        "price.amount": 0.6667,
    }
    assert (await job_of(admin, "a"))["items"] == 2


async def test_integers_of_64_bits_are_integers(admin: Api) -> None:
    await rules(admin, {"path": "views", "type": "integer"}, {"path": "views", "max": 10**12})
    await crawl(admin, "a", [1], views=2**40 - 10**12 + 1)
    assert (await put(admin, "a"))["verdict"] == "passed"
    await crawl(admin, "b", [1], views=2**40)
    job = await put(admin, "b")
    assert [problem["found"] for problem in job["problems"]] == [2**40]
    (field,) = [one for one in (await admin.ok("/v1/groups/shop/fields"))["fields"] if one["path"] == "views"]
    assert (field["types"], field["max"]) == ({"integer": 1}, 2**40)


async def test_a_job_without_items_is_not_what_the_next_one_is_compared_with(admin: Api) -> None:
    await rules(admin, {"path": "price.amount", "max_drop": 0.1})
    await crawl(admin, "a", range(3))
    assert (await put(admin, "a"))["verdict"] == "passed"
    await put(admin, "nothing", "running")
    await put(admin, "nothing")
    await crawl(admin, "b", range(3), price=None)
    assert (await put(admin, "b"))["verdict"] == "failed"


async def test_the_group_shows_no_verdict_on_a_job_that_runs_again(admin: Api) -> None:
    await rules(admin, {"min_items": 2})
    await crawl(admin, "a", [1])
    await put(admin, "a")
    await crawl(admin, "b", [1, 2])
    await put(admin, "b")
    shown = [(await admin.ok("/v1/groups/shop"))["verdict"]]
    for job, state in (("b", "running"), ("a", "failed")):
        await put(admin, job, state)
        shown.append((await admin.ok("/v1/groups/shop"))["verdict"])
    assert shown == ["passed", "failed", None]


async def test_saying_the_same_again_changes_nothing(admin: Api) -> None:
    await crawl(admin, "a", range(3))
    await rules(admin, {"min_items": 3})
    first = await put(admin, "a")
    await rules(admin, {"min_items": 4})
    assert await put(admin, "a") == first
    assert (await admin.ok("/v1/groups/shop"))["verdict"] == "passed"


async def test_a_job_that_runs_again_is_taken_stock_of_again(admin: Api) -> None:
    await crawl(admin, "a", range(3))
    first = await put(admin, "a")
    running = await put(admin, "a", "running")
    assert (running["state"], running["finish_date"], running["missing"], running["fields"]) == (
        "running",
        None,
        None,
        [],
    )
    await crawl(admin, "a", range(3, 5))
    second = await put(admin, "a")
    assert second["items"] == 5 and second["finish_date"] > first["finish_date"]


async def test_a_job_that_failed_is_not_judged(admin: Api) -> None:
    await rules(admin, {"min_items": 1})
    await crawl(admin, "a", range(3))
    failed = await put(admin, "a", "failed")
    assert (failed["state"], failed["verdict"], failed["missing"]) == ("failed", None, None)
    assert failed["finish_date"] is not None
    assert await put(admin, "a", "failed") == failed
    assert (await admin.ok("/v1/groups/shop"))["verdict"] is None


async def test_two_that_finish_at_once_get_the_same_stock(admin: Api) -> None:
    await rules(admin, {"min_items": 3})
    await crawl(admin, "a", range(5))
    first, *others = await asyncio.gather(*(put(admin, "a") for _ in range(6)))
    assert (first["verdict"], first["items"]) == ("passed", 5)
    assert others == [first] * 5


@pytest.mark.slow
@pytest.mark.usefixtures("upkeep")
async def test_a_job_whose_group_is_deleted_while_it_finishes_leaves_nothing_behind(
    wired_api: Api, wire: FaultProxy
) -> None:
    admin = wired_api
    await crawl(admin, "a", range(3))

    async def delete() -> None:
        assert (await admin.delete("/v1/groups/shop")).json == {"deleted": 3, "more": False, "cursor": None}

    wire.before("find", "groups", delete, where=lambda body: "open.token" in body.get("projection", {}))
    response = await admin.put("/v1/groups/shop/jobs/a", {"state": "finished", "missing": "delete"})
    assert (response.status, response.problems()) == (404, [(["path", "job_id"], "not_found")])
    await crawl(admin, "a", range(2))
    job = await job_of(admin, "a")
    assert (job["state"], job["finish_date"], job["items"]) == ("running", None, 2)


async def test_a_job_without_items_is_taken_stock_of(admin: Api) -> None:
    await crawl(admin, "a", range(3))
    await rules(admin, {"min_items": 1})
    await put(admin, "b", "running")
    empty = await put(admin, "b")
    assert (empty["items"], empty["missing"], empty["verdict"]) == (0, 3, "failed")
    assert next(iter(await admin.ok("/v1/groups/shop/jobs")))["job_id"] == "b"


@pytest.mark.slow
async def test_an_organization_sees_its_own_jobs_only(admin: Api, stranger: Api) -> None:
    await crawl(admin, "a", range(3))
    await put(admin, "a")
    assert (await stranger.get("/v1/groups/shop/jobs/a")).status == 404
    assert (await stranger.put("/v1/groups/shop/jobs/a", {"state": "finished"})).status == 404
    assert (await put(stranger, "a", "running"))["items"] == 0
    assert (await job_of(admin, "a"))["items"] == 3


# -- verdicts -------------------------------------------------------------------------------------


async def test_a_third_crawl_that_loses_a_field_and_half_its_items_fails_with_both_reasons(admin: Api) -> None:
    await rules(
        admin, {"path": "price.amount", "max_drop": 0.1}, {"max_missing": 0.2}, {"path": "title", "min_fill": 1}
    )
    for job in ("a", "b"):
        await crawl(admin, job, range(20))
        assert (await put(admin, job))["verdict"] == "passed"
        group = await admin.ok("/v1/groups/shop")
        assert (group["verdict"], group["dropped"]) == ("passed", [])
    await crawl(admin, "c", range(10), price={"amount": None})
    third = await put(admin, "c", missing="delete")
    assert (third["verdict"], third["missing"], third["deleted"]) == ("failed", 10, 0)
    assert [problem["rule"] for problem in third["problems"]] == [
        {"path": "price.amount", "max_drop": 0.1},
        {"max_missing": 0.2},
    ]
    assert [problem["found"] for problem in third["problems"]] == [1.0, 0.5]
    assert "10 of the series' 20 items were not seen (50 %)" in third["problems"][1]["msg"]
    assert await keys(admin) == list(range(20)), "a broken crawl never empties a group"
    (group,) = await admin.ok("/v1/groups")
    assert (group["verdict"], group["dropped"]) == ("failed", ["price.amount"])
    assert await job_of(admin, "c") == {name: value for name, value in third.items() if name not in OF_PUT}


async def test_a_job_is_compared_with_the_last_finished_one_of_its_series(admin: Api) -> None:
    await rules(admin, {"path": "price.amount", "max_drop": 0.1})
    await crawl(admin, "a", range(4))
    await put(admin, "a", series="x")
    await crawl(admin, "b", range(4), price=None)
    assert (await put(admin, "b", series="y"))["verdict"] == "passed", "the first of its series"
    await put(admin, "c", "running", series="y")
    assert (await put(admin, "c"))["verdict"] == "passed", "nothing is filled in either"
    await crawl(admin, "d", range(4), price="")
    assert (await put(admin, "d", series="x"))["verdict"] == "failed"


async def test_a_failed_job_is_not_what_the_next_one_is_compared_with(admin: Api) -> None:
    await rules(admin, {"path": "price.amount", "max_drop": 0.1})
    verdicts = []
    for job, price in (("a", {"amount": 5}), ("b", None), ("c", None), ("d", {"amount": 6})):
        await crawl(admin, job, range(4), price=price)
        verdicts.append((await put(admin, job))["verdict"])
    assert verdicts == ["passed", "failed", "failed", "passed"], "a failure must not become the new normal"


# -- series ---------------------------------------------------------------------------------------


async def test_a_field_that_a_rule_names_is_judged_however_many_other_fields_there_are(admin: Api) -> None:
    def offer(number: int, job: str) -> dict[str, Any]:
        features = {f"{number}-{place}": "yes" for place in range(20)}
        price = {"price": {"amount": 5}, "colour": "red"} if number < 60 else {}
        return make_output(number, root_job_id=job, data={"crawl": job, "features": features, **price})

    await rules(admin, {"path": "price.amount", "min_fill": 0.6}, {"path": "price.amount", "max": 4})
    await admin.ok("/v1/outputs/shop", [offer(number, "a") for number in reversed(range(100))])
    assert [problem["found"] for problem in (await put(admin, "a"))["problems"]] == [5]
    await admin.ok("/v1/outputs/shop", [offer(number, "b") for number in range(100)])  # newest: without price
    assert [problem["found"] for problem in (await put(admin, "b"))["problems"]] == [5]
    assert (await admin.ok("/v1/groups/shop"))["dropped"] == []


async def test_a_crawl_of_one_part_never_counts_or_deletes_the_items_of_another(admin: Api) -> None:
    await crawl(admin, "own-1", range(5))
    await crawl(admin, "chairs-1", range(10, 15))
    await crawl(admin, "tables-1", range(20, 25))
    for part in ("chairs", "tables"):
        await put(admin, f"{part}-1", series=part)
    await put(admin, "chairs-2", "running", series="chairs")
    await crawl(admin, "chairs-2", range(10, 12))
    done = await put(admin, "chairs-2", missing="delete")
    assert (done["series"], done["missing"], done["deleted"], done["more"]) == ("chairs", 3, 3, False)
    assert await keys(admin) == [*range(5), 10, 11, *range(20, 25)]
    await crawl(admin, "own-2", range(1))
    own = await put(admin, "own-2", missing="delete")
    assert (own["missing"], own["deleted"]) == (4, 4)
    assert await keys(admin) == [0, 10, 11, *range(20, 25)]


async def test_a_finished_job_that_gets_another_series_is_judged_again_before_anything_is_deleted(admin: Api) -> None:
    await rules(admin, {"max_missing": 0.2})
    await crawl(admin, "a", range(20))
    await put(admin, "a", series="lamps")
    await crawl(admin, "b", [0])
    assert (await put(admin, "b"))["verdict"] == "passed"
    done = await put(admin, "b", series="lamps", missing="delete")
    assert (done["verdict"], done["missing"], done["deleted"]) == ("failed", 19, 0)
    assert await keys(admin) == [*range(20)]
    assert await put(admin, "b", series="lamps", missing="delete") == done


async def test_an_item_sent_without_a_date_belongs_to_the_job_that_saw_it_last(admin: Api) -> None:
    await admin.ok(
        "/v1/outputs/shop", [item(number, "a") | {"last_scraped_date": "2999-01-01T00:00:00"} for number in range(3)]
    )
    await crawl(admin, "b", range(3))
    done = await put(admin, "b", missing="delete")
    assert (done["items"], done["missing"], done["deleted"]) == (3, 0, 0)


async def test_the_missing_are_the_sum_of_what_the_other_jobs_hold(admin: Api) -> None:
    for number in range(5):
        await crawl(admin, f"job-{number}", range(number, number + 3))
    last = await put(admin, "job-4")
    others = [job for job in await admin.ok("/v1/groups/shop/jobs") if job["job_id"] != "job-4"]
    assert last["missing"] == sum(job["items"] for job in others) == 4
    assert await keys(admin, "job_id=job-4&change=missing") == [0, 1, 2, 3]


async def test_a_first_crawl_without_items_shows_its_verdict_in_the_list_of_groups(admin: Api) -> None:
    await rules(admin, {"min_items": 1})
    await put(admin, "a", "running")
    assert (await put(admin, "a"))["verdict"] == "failed"
    (group,) = await admin.ok("/v1/groups")
    assert (group["group_id"], group["items"], group["verdict"]) == ("shop", 0, "failed")


@pytest.mark.slow
@pytest.mark.usefixtures("upkeep")
async def test_a_deleted_group_is_not_listed_again_because_a_job_of_it_ends(admin: Api) -> None:
    await crawl(admin, "a", range(2))
    await put(admin, "b", "running")
    assert (await admin.delete("/v1/groups/shop")).status == 200
    await put(admin, "b", "running")
    await put(admin, "b")
    assert await admin.ok("/v1/groups") == []


# -- missing: delete ------------------------------------------------------------------------------


async def test_what_a_job_did_not_see_is_deleted_in_the_change_order(admin: Api) -> None:
    await crawl(admin, "a", range(6))
    cursor = (await admin.ok("/v1/outputs/shop?order=desc&limit=1"))["items"][0]["id"]
    await crawl(admin, "b", range(4))
    done = await put(admin, "b", missing="delete")
    assert (done["missing"], done["deleted"], done["more"]) == (2, 2, False)
    records = (await admin.ok(f"/v1/outputs/shop?deleted=true&cursor={cursor}"))["items"]
    assert [(record["key_hash"], record["deleted"]) for record in records] == [("key-4", True), ("key-5", True)]
    again = await put(admin, "b", missing="delete")
    assert again == done


async def test_a_job_has_seen_its_items_whatever_dates_they_carry(admin: Api) -> None:
    """The clock of the first crawl is ahead."""
    ahead, today = "2999-01-01T00:10:00Z", "2026-11-17T12:00:00Z"
    await admin.ok("/v1/outputs/shop", [item(number, "a") | {"last_scraped_date": ahead} for number in range(6)])
    sent = [item(number, "b") | {"last_scraped_date": today} for number in range(3, 7)]
    assert (await admin.ok("/v1/outputs/shop", sent))["unchanged"] == 3
    done = await put(admin, "b", missing="delete")
    assert (done["items"], done["missing"], done["deleted"]) == (4, 3, 3)
    assert await keys(admin) == [3, 4, 5, 6]


async def test_what_an_earlier_crawl_sees_after_a_job_has_finished_is_not_missing(admin: Api) -> None:
    await crawl(admin, "old", range(4))
    await crawl(admin, "slow", [0])
    await crawl(admin, "quick", [0, 1])
    assert (await put(admin, "quick"))["missing"] == 2
    await crawl(admin, "slow", [2])
    await put(admin, "quick", missing="delete")
    assert await keys(admin) == [0, 1, 2]


async def test_missing_items_with_dates_in_the_future_are_deleted(admin: Api) -> None:
    late = "2099-01-31T12:00:00Z"
    await admin.ok("/v1/outputs/shop", [item(n, "a") | {"last_scraped_date": late} for n in range(3)])
    await put(admin, "a")
    await admin.ok("/v1/outputs/shop", [item(n, "b") | {"last_scraped_date": late} for n in range(2)])
    done = await put(admin, "b", missing="delete")
    assert (done["missing"], done["deleted"], await keys(admin)) == (1, 1, [0, 1])


async def test_a_job_that_kept_the_missing_may_delete_them_later(admin: Api) -> None:
    await crawl(admin, "a", range(6))
    await crawl(admin, "b", range(4))
    assert (await put(admin, "b"))["deleted"] == 0
    assert (await put(admin, "b", missing="delete"))["deleted"] == 2
    assert await keys(admin) == [0, 1, 2, 3]


async def test_a_long_deletion_continues_when_the_request_is_repeated(admin: Api, small: Small) -> None:
    small(missing_deletion_seconds=0.0, deleted_beside_others=3)
    await crawl(admin, "a", range(10))
    await crawl(admin, "b", range(2))
    calls = 0
    more = True
    while more:
        done = await put(admin, "b", missing="delete")
        more, calls = done["more"], calls + 1
    assert (calls, done["deleted"], done["missing"]) == (3, 8, 8)
    assert await keys(admin) == [0, 1]


async def test_a_job_that_saw_nothing_deletes_nothing(admin: Api) -> None:
    await crawl(admin, "a", range(3))
    await put(admin, "b", "running")
    done = await put(admin, "b", missing="delete")
    assert (done["missing"], done["deleted"], done["held_back"]) == (3, 0, "The job has seen no item: crawl again")
    assert await keys(admin) == [0, 1, 2]


async def test_what_a_job_that_began_later_has_seen_is_not_deleted(admin: Api) -> None:
    await crawl(admin, "old", range(6))
    await crawl(admin, "late", range(3))
    await crawl(admin, "new", range(3, 5))
    done = await put(admin, "late", missing="delete")
    assert (done["missing"], done["deleted"]) == (1, 1)
    assert await keys(admin) == [0, 1, 2, 3, 4]


async def test_deleting_needs_the_scope_delete(make_api: MakeApi) -> None:
    writer = await make_api(scopes=["read", "write"])
    await crawl(writer, "a", range(3))
    await crawl(writer, "b", range(1))
    response = await writer.put("/v1/groups/shop/jobs/b", {"state": "finished", "missing": "delete"})
    assert (response.status, response.problems()) == (403, [(["header", "Authorization"], "scope_missing")])
    assert (await job_of(writer, "b"))["state"] == "running"
    assert len(await keys(writer)) == 3


async def test_the_end_of_a_job_is_reported_once(admin: Api, store: Store) -> None:
    webhook = {"url": "https://hooks.example/", "events": ["job.finished"], "group_id": None, "label": ""}
    webhook_id = (await store.webhooks.create(admin.organization_id, webhook))["webhook_id"]
    await crawl(admin, "a", range(3))
    await asyncio.gather(*(put(admin, "a") for _ in range(4)))
    await put(admin, "b", "running")
    await put(admin, "b", "failed")
    for job in ("a", "b"):
        await put(admin, job, "finished" if job == "a" else "failed")
    where = {"organization_id": admin.organization_id, "webhook_id": webhook_id}
    assert await store.database["deliveries"].count_documents(where) == 2


# -- filters --------------------------------------------------------------------------------------


@pytest.fixture
async def catalogue(admin: Api) -> Api:
    await crawl(admin, "a", range(4))
    await crawl(admin, "a", [4, 5], price={"amount": None})
    await crawl(admin, "a", [6], title="")
    patches = [{"key_hash": f"key-{number}", "tags": {"rejected": "blurred"}} for number in (1, 2)]
    await admin.patch("/v1/outputs/shop", patches)
    return admin


FILTERED = [
    ("missing=price.amount", [4, 5]),
    ("missing=title", [6]),
    ("missing=nothing.at.all", [0, 1, 2, 3, 4, 5, 6]),
    ("where=title:Lamp%202", [2]),
    ("where=price.amount:12", [2]),
    ("where=price.amount:12.0", [2]),
    (f"where=price.amount:{'9' * 310}", []),
    ("where=title:", [6]),
    ("rejected=true", [1, 2]),
    ("rejected=false", [0, 3, 4, 5, 6]),
    ("rejected=true&where=price.amount:11", [1]),
    ("missing=price.amount&where=title:Lamp%204&job_id=a", [4]),
    ("missing=", [0, 1, 2, 3, 4, 5, 6]),
]


async def test_outputs_are_filtered_by_fields_of_their_data(catalogue: Api) -> None:
    for query, found in FILTERED:
        assert await keys(catalogue, query) == found, query
        export = await catalogue.get(f"/v1/outputs/shop/export?format=json&{query}")
        assert sorted(int(one["key_hash"].removeprefix("key-")) for one in export.json) == found, query


async def test_a_filter_that_cannot_be_read_is_refused(catalogue: Api) -> None:
    for query, problem in [
        ("missing=a..b", (["query", "missing"], "value_error")),
        ("missing=$where", (["query", "missing"], "value_error")),
        ("where=title", (["query", "where"], "value_error")),
        ("where=:x", (["query", "where"], "value_error")),
        ("where=a.$b:x", (["query", "where"], "value_error")),
        ("rejected=maybe", (["query", "rejected"], "bool_type")),
        ("change=created", (["query", "job_id"], "missing")),
        ("job_id=a&change=new", (["query", "change"], "value_error")),
    ]:
        for method, path in (("GET", ""), ("GET", "/export"), ("DELETE", "")):
            response = await catalogue.request(method, f"/v1/outputs/shop{path}?{query}")
            assert (response.status, response.problems()) == (422, [problem]), query
        assert len(await keys(catalogue)) == 7, query


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ("missing=price.amount", [0, 1, 2, 3, 6]),
        ("where=price.amount:12", [0, 1, 3, 4, 5, 6]),
        ("rejected=true", [0, 3, 4, 5, 6]),
    ],
)
async def test_outputs_are_deleted_by_fields_of_their_data(catalogue: Api, query: str, left: list[int]) -> None:
    response = await catalogue.delete(f"/v1/outputs/shop?{query}")
    assert response.json == {"deleted": 7 - len(left), "more": False, "cursor": None}
    assert await keys(catalogue) == left


async def test_a_filtered_copy_learns_of_deletions(catalogue: Api) -> None:
    await catalogue.delete("/v1/outputs/shop?where=price.amount:12")
    for query in ("where=price.amount:12", "rejected=true", "missing=nothing"):
        found = (await catalogue.ok(f"/v1/outputs/shop?deleted=true&limit=100&{query}"))["items"]
        assert [one["key_hash"] for one in found if one.get("deleted")] == ["key-2"]


async def test_what_a_job_did_not_see_is_listed_exported_and_deleted(admin: Api) -> None:
    await crawl(admin, "a", range(6))
    await crawl(admin, "x", range(10, 12))
    await put(admin, "x", series="other")
    await crawl(admin, "b", range(4))
    assert await keys(admin, "job_id=b&change=missing") == [4, 5]
    assert await keys(admin, "job_id=x&change=missing") == []
    export = await admin.get("/v1/outputs/shop/export?format=json&job_id=b&change=missing")
    assert len(export.json) == 2
    await put(admin, "b")
    assert (await admin.delete("/v1/outputs/shop?job_id=b&change=missing")).json["deleted"] == 2
    assert await keys(admin) == [0, 1, 2, 3, 10, 11]


async def test_what_a_crawl_writes_during_the_deletion_of_the_missing_stays(
    admin: Api, store: Store, settings: Settings, mongo_url: str
) -> None:
    await crawl(admin, "a", range(4))
    await crawl(admin, "b", range(2))
    await put(admin, "b")
    other, group = Store.connect(settings, mongo_url), Group(admin.organization_id, "shop")
    await make_indexes_once(other, mongo_url)
    written = [item(number, "c") for number in (0, 2, 10)]
    store.outputs.ids.step = at("before write", lambda: group.write(other, *written))
    assert (await admin.delete("/v1/outputs/shop?job_id=b&change=missing")).json["deleted"] == 1
    await other.close()
    assert await keys(admin) == [0, 1, 2, 10]


@pytest.mark.slow
async def test_the_missing_of_very_many_jobs_are_listed_and_deleted(admin: Api, small: Small) -> None:
    small(holders=2)
    for number in range(5):
        await crawl(admin, f"a-{number}", [number])
    await put(admin, "x", "running", series="other")
    await crawl(admin, "x", [20, 21])
    await crawl(admin, "b", [10])
    assert (await put(admin, "b"))["missing"] == 5
    assert await keys(admin, "job_id=b&change=missing") == [0, 1, 2, 3, 4]
    path = "/v1/outputs/shop?job_id=b&change=missing"
    assert (await admin.delete(path)).json == {"deleted": 5, "more": False, "cursor": None}
    assert await keys(admin) == [10, 20, 21]


async def test_of_an_older_job_the_missing_are_those_that_later_crawls_have_left(admin: Api) -> None:
    await crawl(admin, "a", range(6))
    await crawl(admin, "b", range(4))
    assert (await put(admin, "b"))["missing"] == 2
    await crawl(admin, "c", [0, 1, 2, 4])
    assert await keys(admin, "job_id=b&change=missing") == [5], "it has seen 0 to 3, and a later crawl has seen 4"
    assert await keys(admin, "job_id=a&change=missing") == []
    assert (await admin.delete("/v1/outputs/shop?job_id=b&change=missing")).json["deleted"] == 1
    assert await keys(admin) == [*range(5)]


async def test_a_misspelled_job_has_no_missing_items_and_deletes_nothing(admin: Api) -> None:
    await crawl(admin, "a", range(3))
    assert await keys(admin, "job_id=A&change=missing") == []
    response = await admin.delete("/v1/outputs/shop?job_id=A&change=missing")
    assert (response.status, response.problems()) == (404, [(["query", "job_id"], "not_found")])
    assert await keys(admin) == [0, 1, 2]


# -- what a crawl did -----------------------------------------------------------------------------


async def kinds(api: Api, job: str) -> dict[str, list[int]]:
    """Return the items of each kind, after checking that the job's counts say the same."""
    found = {kind: await keys(api, f"job_id={job}&change={kind}") for kind in ("created", "changed", "unchanged")}
    counts = await job_of(api, job)
    assert {kind: len(numbers) for kind, numbers in found.items()} == {kind: counts[kind] for kind in found}
    assert sum(map(len, found.values())) == counts["items"]
    return found


async def test_the_items_of_each_kind_are_listed(admin: Api) -> None:
    await crawl(admin, "a", range(6))
    assert await kinds(admin, "a") == {"created": [*range(6)], "changed": [], "unchanged": []}
    await crawl(admin, "b", [0, 1])
    await crawl(admin, "b", [2, 3], title="New")
    await crawl(admin, "b", [7])
    assert await kinds(admin, "b") == {"created": [7], "changed": [2, 3], "unchanged": [0, 1]}
    assert await keys(admin, "job_id=b&change=missing") == [4, 5]
    assert await keys(admin, "job_id=a&change=created") == [4, 5], "what a later crawl has left of it"


async def test_a_job_that_sends_an_item_again_counts_it_once(admin: Api) -> None:
    await crawl(admin, "a", range(3))
    for _ in range(2):
        await crawl(admin, "b", range(4))
    await crawl(admin, "b", [0, 3], title="New")  # one of another job, and one of its own
    await crawl(admin, "b", [0, 3], title="Newer")
    await crawl(admin, "b", [0, 3], title="Newer")
    assert await kinds(admin, "b") == {"created": [3], "changed": [0], "unchanged": [1, 2]}


async def test_approving_an_item_is_nothing_that_its_job_did(admin: Api) -> None:
    await crawl(admin, "a", range(2))
    await crawl(admin, "b", range(2))
    await admin.patch("/v1/outputs/shop", [{"key_hash": "key-0", "is_approved": True}])
    assert await kinds(admin, "b") == {"created": [], "changed": [], "unchanged": [0, 1]}


async def test_an_item_that_comes_back_was_created(admin: Api) -> None:
    await crawl(admin, "a", range(2))
    await admin.delete("/v1/outputs/shop?where=title:Lamp%201")
    await crawl(admin, "b", range(2))
    assert await kinds(admin, "b") == {"created": [1], "changed": [], "unchanged": [0]}


async def test_what_a_job_changed_is_exported_and_deleted(admin: Api) -> None:
    await crawl(admin, "a", range(4))
    await crawl(admin, "b", range(3))
    await crawl(admin, "b", [3], title="New")
    export = await admin.get("/v1/outputs/shop/export?format=json&job_id=b&change=changed")
    assert [one["key_hash"] for one in export.json] == ["key-3"]
    assert (await admin.delete("/v1/outputs/shop?job_id=b&change=unchanged")).json == {
        "deleted": 3,
        "more": False,
        "cursor": None,
    }
    assert await keys(admin) == [3]


async def test_the_group_shows_the_verdict_though_storing_it_failed_the_first_time(
    wired_api: Api, wire: FaultProxy
) -> None:
    admin = wired_api
    await rules(admin, {"min_items": 5})
    await crawl(admin, "a", range(2))
    wire.before("update", "groups", refuse(), where=lambda body: "verdict" in str(body["updates"][0]["u"]))
    assert (await admin.put("/v1/groups/shop/jobs/a", {"state": "finished"})).status == 503
    assert (await put(admin, "a"))["verdict"] == "failed"
    assert (await admin.ok("/v1/groups/shop"))["verdict"] == "failed"
