"""A group as a whole: deleted, or kept only for some days after the last scrape."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from service.store import Store
from tests.support.api import Api, make_output, make_review, walk
from tests.support.groups import Group, look_after


@pytest.fixture
async def shop(admin: Api) -> Api:
    """A caller whose groups `shop` and `other` have four outputs, two jobs and a review each."""
    for group in ("shop", "other"):
        await admin.ok(f"/v1/outputs/{group}", [make_output(n, root_job_id=f"job-{n % 2}") for n in range(4)])
        await admin.ok(f"/v1/reviews/{group}", [make_review(job_id="job-0")])
    return admin


# -- DELETE -------------------------------------------------------------------------------------


async def test_a_deleted_group_has_no_outputs_reviews_or_jobs(shop: Api) -> None:
    response = await shop.delete("/v1/groups/shop")
    assert (response.status, response.json) == (200, {"deleted": 4, "more": False, "cursor": None})
    assert await walk(shop, "/v1/outputs/shop") == []
    assert await shop.ok("/v1/reviews/shop") == []
    assert await shop.ok("/v1/groups/shop/jobs") == []
    stats = await shop.ok("/v1/groups/shop/stats")
    assert (stats["items"], stats["jobs"], stats["last_change"], stats["days"]) == (0, 0, None, [])


async def test_a_deleted_group_is_listed_no_more_and_the_others_are(shop: Api) -> None:
    await shop.delete("/v1/groups/shop")
    assert [group["group_id"] for group in await shop.ok("/v1/groups")] == ["other"]
    assert len(await walk(shop, "/v1/outputs/other")) == 4
    assert len(await shop.ok("/v1/reviews/other")) == 1
    assert len(await shop.ok("/v1/groups/other/jobs")) == 2


async def test_consumers_learn_of_every_deletion(shop: Api) -> None:
    before = await walk(shop, "/v1/outputs/shop")
    await shop.delete("/v1/groups/shop")
    records = await walk(shop, f"/v1/outputs/shop?deleted=true&cursor={before[-1]['id']}")
    assert {item["output_id"] for item in records} == {item["output_id"] for item in before}
    assert all(item["deleted"] for item in records)


async def test_its_ids_are_never_given_again(shop: Api) -> None:
    await shop.delete("/v1/groups/shop")
    last = max(item["id"] for item in await walk(shop, "/v1/outputs/shop?deleted=true"))
    written = await shop.ok("/v1/outputs/shop", [make_output(9)])
    assert written["items"][0]["id"] > last
    ((group),) = [group for group in await shop.ok("/v1/groups") if group["group_id"] == "shop"]
    assert (group["items"], group["jobs"], group["retention_days"]) == (1, 1, None)


async def test_deleting_a_group_again_deletes_nothing(shop: Api) -> None:
    await shop.delete("/v1/groups/shop")
    response = await shop.delete("/v1/groups/shop")
    assert (response.status, response.json) == (200, {"deleted": 0, "more": False, "cursor": None})


async def test_deleting_a_group_that_does_not_exist_deletes_nothing(admin: Api) -> None:
    response = await admin.delete("/v1/groups/nothing")
    assert (response.status, response.json) == (200, {"deleted": 0, "more": False, "cursor": None})


async def test_its_settings_stay(shop: Api) -> None:
    settings = {"retention_days": 7, "ignore": ["scraped_at"], "rules": [{"min_items": 5}], "history_days": 3}
    await shop.put("/v1/groups/shop", settings)
    await shop.delete("/v1/groups/shop")
    group = await shop.ok("/v1/groups/shop")
    assert {name: group[name] for name in settings} == settings
    assert (group["items"], group["jobs"], group["verdict"]) == (0, 0, None)


# -- PUT ----------------------------------------------------------------------------------------


async def test_the_retention_is_set_changed_and_taken_back(shop: Api) -> None:
    for days in (7, 30, 30, None, None):
        response = await shop.put("/v1/groups/shop", {"retention_days": days})
        assert (response.status, response.json["retention_days"]) == (200, days)
        assert response.json == {**await shop.ok("/v1/groups/shop"), "warnings": []}
    assert (await shop.ok("/v1/groups/other/stats"))["retention_days"] is None


async def test_a_wrong_retention_changes_nothing(shop: Api) -> None:
    for body, loc, kind in [
        ({"retention_days": 0}, ["body", "retention_days"], "greater_than_equal"),
        ({"retention_days": -1}, ["body", "retention_days"], "greater_than_equal"),
        ({"retention_days": 3651}, ["body", "retention_days"], "less_than_equal"),
        ({"retention_days": "7"}, ["body", "retention_days"], "int_type"),
        ({"retention_days": 7.0}, ["body", "retention_days"], "int_type"),
        ({"retention_days": True}, ["body", "retention_days"], "int_type"),
        ({"retention_days": 7, "days": 7}, ["body", "days"], "unknown_field"),
        ([{"retention_days": 7}], ["body"], "dict_type"),
    ]:
        await shop.put("/v1/groups/shop", {"retention_days": 30})
        response = await shop.put("/v1/groups/shop", body)
        assert (response.status, response.problems()) == (422, [(loc, kind)]), body
        assert (await shop.ok("/v1/groups/shop/stats"))["retention_days"] == 30, body


async def test_a_group_is_set_up_before_its_first_item_and_again_after_it_was_deleted(shop: Api) -> None:
    await shop.delete("/v1/groups/shop")
    for group in ("nothing", "shop"):
        response = await shop.put(f"/v1/groups/{group}", {"retention_days": 7})
        assert (response.status, response.json["retention_days"], response.json["items"]) == (200, 7, 0)
        await shop.ok(f"/v1/outputs/{group}", [make_output()])
        assert (await shop.ok(f"/v1/groups/{group}"))["retention_days"] == 7


async def test_items_not_scraped_for_so_long_are_deleted(admin: Api, store: Store) -> None:
    now = datetime.now(UTC)
    ages = (0, 6, 8, 100)
    await admin.ok(
        "/v1/outputs/shop",
        [make_output(n, last_scraped_date=(now - timedelta(days=n)).isoformat()) for n in ages],
    )
    last = (await walk(admin, "/v1/outputs/shop"))[-1]["id"]
    await admin.put("/v1/groups/shop", {"retention_days": 7})
    await look_after(store, Group(admin.organization_id, "shop"))
    page = await admin.ok(f"/v1/outputs/shop?deleted=true&cursor={last}")
    assert {item["key_hash"] for item in page["items"]} == {"key-8", "key-100"}
    assert all(item["deleted"] for item in page["items"])
    assert {item["key_hash"] for item in await walk(admin, "/v1/outputs/shop")} == {"key-0", "key-6"}


async def test_an_unchanged_item_that_is_scraped_again_is_kept(admin: Api, store: Store) -> None:
    await admin.ok("/v1/outputs/shop", [make_output(n, last_scraped_date="2020-01-01") for n in range(2)])
    assert (await admin.ok("/v1/outputs/shop", [make_output(0)]))["unchanged"] == 1
    await admin.put("/v1/groups/shop", {"retention_days": 1})
    await look_after(store, Group(admin.organization_id, "shop"))
    assert [item["key_hash"] for item in await walk(admin, "/v1/outputs/shop")] == ["key-0"]


async def test_without_a_retention_nothing_is_deleted(admin: Api, store: Store) -> None:
    await admin.ok("/v1/outputs/shop", [make_output(last_scraped_date="2020-01-01")])
    await admin.put("/v1/groups/shop", {"retention_days": None})
    await look_after(store, Group(admin.organization_id, "shop"))
    assert len(await walk(admin, "/v1/outputs/shop")) == 1


async def test_a_job_of_a_deleted_group_is_not_found_until_it_begins_again(shop: Api) -> None:
    await shop.delete("/v1/groups/shop")
    assert (await shop.get("/v1/groups/shop/jobs/job-0")).status == 404
    await shop.put("/v1/groups/shop/jobs/job-0", {"state": "running"})
    assert [job["job_id"] for job in await shop.ok("/v1/groups/shop/jobs")] == ["job-0"]
    assert (await shop.ok("/v1/groups/shop"))["jobs"] == 1


async def test_webhooks_are_told_that_a_group_was_deleted(shop: Api) -> None:
    webhook = {"url": "https://hooks.example/", "events": ["group.changed"]}
    webhook_id = (await shop.ok("/v1/webhooks", webhook))["webhook_id"]
    await shop.delete("/v1/groups/shop")
    deliveries = await shop.ok(f"/v1/webhooks/{webhook_id}/deliveries")
    assert "shop" in [delivery["group_id"] for delivery in deliveries]
    await shop.delete("/v1/groups/never-there")
    later = await shop.ok(f"/v1/webhooks/{webhook_id}/deliveries")
    assert "never-there" not in [delivery["group_id"] for delivery in later]
