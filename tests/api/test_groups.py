"""Groups and their counts, kept as outputs are written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from service.store import Store
from tests.support.api import Api, make_output

pytestmark = pytest.mark.usefixtures("one_day")


def today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


async def stats(api: Api, group: str = "shop") -> dict[str, Any]:
    found: dict[str, Any] = await api.ok(f"/v1/groups/{group}/stats")
    found.pop("last_change")
    return found


async def test_an_organization_without_outputs_has_no_groups(api: Api) -> None:
    assert await api.ok("/v1/groups") == []


async def test_an_unknown_group_has_nothing_in_it(api: Api) -> None:
    assert await api.ok("/v1/groups/nothing/stats") == {
        "group_id": "nothing",
        "items": 0,
        "jobs": 0,
        "approved": 0,
        "last_id": 0,
        "last_change": None,
        "retention_days": None,
        "verdict": None,
        "dropped": [],
        "days": [],
    }


async def test_writing_counts_items_jobs_approvals_and_days(api: Api) -> None:
    outputs = [make_output(n, root_job_id=f"job-{n % 2}", is_approved=n == 1) for n in range(4)]
    await api.ok("/v1/outputs/shop", outputs)
    await api.ok("/v1/outputs/shop", [make_output(2, root_job_id="job-0", is_approved=True), outputs[3]])
    await api.ok("/v1/outputs/shop", [make_output(1, root_job_id="job-1", is_approved=False)])
    last_id = (await api.ok("/v1/outputs/shop?order=desc&limit=1"))["items"][0]["id"]
    assert await stats(api) == {
        "group_id": "shop",
        "items": 4,
        "jobs": 2,
        "approved": 1,
        "last_id": last_id,
        "retention_days": None,
        "verdict": None,
        "dropped": [],
        "days": [{"date": today(), "created": 4, "changed": 2, "net": 4}],
    }


async def test_groups_are_listed_newest_change_first(api: Api) -> None:
    for group in ("first", "second", "first"):
        await api.ok(f"/v1/outputs/{group}", [make_output(1, data={"at": str(datetime.now(UTC))})])
    groups = await api.ok("/v1/groups")
    assert [group["group_id"] for group in groups] == ["first", "second"]
    page = await api.ok("/v1/outputs/first")
    assert groups[0]["last_change"] == page["items"][0]["update_date"]


async def test_the_list_shows_thirty_days_and_the_stats_all(api: Api, store: Store) -> None:
    await api.ok("/v1/outputs/shop", [make_output()])
    day = {"date": "2020-02-02", "created": 5, "changed": 0, "net": 5}
    await store.database["days"].insert_one({"organization_id": api.organization_id, "group_id": "shop", **day})
    assert [day["date"] for day in (await api.ok("/v1/groups"))[0]["days"]] == [today()]
    assert [day["date"] for day in (await stats(api))["days"]] == ["2020-02-02", today()]


async def test_every_day_keeps_its_counts(api: Api, store: Store) -> None:
    store.outputs.ids.clock = datetime(2026, 1, 31, tzinfo=UTC)
    await api.ok("/v1/outputs/shop", [make_output(n) for n in range(3)])
    store.outputs.ids.clock = None
    await api.ok("/v1/outputs/shop", [make_output(3), make_output(0, data={"title": "New"})])
    assert (await stats(api))["days"] == [
        {"date": "2026-01-31", "created": 3, "changed": 0, "net": 3},
        {"date": today(), "created": 1, "changed": 1, "net": 1},
    ]


async def test_deletions_take_from_the_items_and_from_the_net_of_their_day(admin: Api, store: Store) -> None:
    store.outputs.ids.clock = datetime(2026, 1, 31, tzinfo=UTC)
    await admin.ok("/v1/outputs/shop", [make_output(n, is_approved=True) for n in range(3)])
    store.outputs.ids.clock = None
    await admin.delete("/v1/outputs/shop?url=https://shop.example/p/1")
    found = await stats(admin)
    assert (found["items"], found["approved"], found["jobs"]) == (2, 2, 1)
    assert found["days"] == [
        {"date": "2026-01-31", "created": 3, "changed": 0, "net": 3},
        {"date": today(), "created": 0, "changed": 0, "net": -1},
    ]


async def test_an_item_that_is_written_again_after_its_deletion_is_held_once(admin: Api) -> None:
    for job in ("job-1", "job-2"):
        await admin.ok("/v1/outputs/shop", [make_output(1, root_job_id=job)])
        await admin.ok("/v1/outputs/shop", [make_output(1, root_job_id=f"{job}-again")])
        await admin.delete("/v1/outputs/shop?url=https://shop.example/p/1")
    await admin.ok("/v1/outputs/shop", [make_output(1)])
    assert (await stats(admin))["days"] == [{"date": today(), "created": 3, "changed": 0, "net": 1}]


async def test_jobs_are_counted_however_they_come(api: Api) -> None:
    for n in range(3):
        await api.ok("/v1/outputs/shop", [make_output(n, root_job_id=f"job-{n}")])
        assert (await stats(api))["jobs"] == n + 1
    await api.ok("/v1/outputs/shop", [make_output(0, root_job_id="job-2")])
    assert ((await api.ok("/v1/groups"))[0]["jobs"], (await stats(api))["jobs"]) == (3, 3)


async def test_another_organization_has_its_own_groups(api: Api, stranger: Api) -> None:
    await api.ok("/v1/outputs/shop", [make_output()])
    assert await stranger.ok("/v1/groups") == []
    assert (await stats(stranger))["items"] == 0


async def test_groups_are_listed_a_page_at_a_time_with_a_limit(api: Api) -> None:
    for number in range(5):
        await api.ok(f"/v1/outputs/group-{number}", [make_output()])
    whole = await api.ok("/v1/groups")
    found, path = [], "/v1/groups?limit=2"
    for count in (2, 2, 1):
        response = await api.get(path)
        found += response.json
        assert len(response.json) == count
        link = response.headers.get("Link", "")
        path = "/" + link.partition("<")[2].partition(">")[0].split("/", 3)[-1]
    assert found == whole and not link
    faulty = await api.get("/v1/groups?limit=2&cursor=nothing")
    assert (faulty.status, faulty.problems()) == (422, [(["query", "cursor"], "value_error")])
