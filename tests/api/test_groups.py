"""Groups and their counts, kept as outputs are written."""

from __future__ import annotations

from datetime import UTC, datetime

from service.store import Store
from service.store.groups import Change
from service.store.sequences import Batch
from tests.support.api import Api, make_output


def today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


async def stats(api: Api, group: str = "shop") -> dict[str, object]:
    found: dict[str, object] = await api.ok(f"/v1/groups/{group}/stats")
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
        "days": [],
    }


async def test_writing_counts_items_jobs_approvals_and_days(api: Api) -> None:
    outputs = [make_output(n, root_job_id=f"job-{n % 2}", is_approved=n == 1) for n in range(4)]
    await api.ok("/v1/outputs/shop", outputs)
    await api.ok("/v1/outputs/shop", [make_output(2, root_job_id="job-0", is_approved=True), outputs[3]])
    await api.ok("/v1/outputs/shop", [make_output(1, root_job_id="job-1", is_approved=False)])
    assert await stats(api) == {
        "group_id": "shop",
        "items": 4,
        "jobs": 2,
        "approved": 1,
        "last_id": 6,
        "days": [{"date": today(), "created": 4, "changed": 2}],
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
    await store.database["groups"].update_one(
        {"organization_id": api.organization_id}, {"$set": {"days.2020-02-02": {"created": 5, "changed": 0}}}
    )
    assert [day["date"] for day in (await api.ok("/v1/groups"))[0]["days"]] == [today()]
    assert [day["date"] for day in (await stats(api))["days"]] == ["2020-02-02", today()]  # type: ignore[attr-defined]


async def test_another_organization_has_its_own_groups(api: Api, stranger: Api) -> None:
    await api.ok("/v1/outputs/shop", [make_output()])
    assert await stranger.ok("/v1/groups") == []
    assert (await stats(stranger))["items"] == 0


async def test_a_batch_is_counted_once_however_often_it_is_applied(store: Store, organization: int) -> None:
    batch = Batch(organization, "shop", "token-1", 1, 1, datetime(2026, 1, 31, tzinfo=UTC))
    change = Change(batch)
    change.add({"id": 1, "is_approved": True, "root_job_id": "job-1"}, True, False)
    for _ in range(3):
        await store.groups.apply(change)
    group = await store.groups.one(organization, "shop")
    assert (group["items"], group["approved"], group["jobs"]) == (1, 1, 1)
