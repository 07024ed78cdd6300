"""Ignored fields and earlier versions: what counts as a change, and what is kept of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from service.settings import Settings
from service.store import Store
from tests.support.api import Api, make_output
from tests.support.capacity import held_at
from tests.support.fault_proxy import FaultProxy
from tests.support.groups import Group, look_after

GROUP, OUTPUTS = "/v1/groups/shop", "/v1/outputs/shop"


def scraped(number: int, at: str, **data: Any) -> dict[str, Any]:
    """Return an item whose data say when it was scraped, at the top and in a list."""
    data = {"title": f"Lamp {number}", "scraped_at": at, "offers": [{"price": 5, "seen": at}], **data}
    return make_output(number, data=data)


async def put(api: Api, **settings: Any) -> None:
    response = await api.request("PUT", GROUP, json=settings)
    assert response.status == 200, response.body


async def write(api: Api, *items: dict[str, Any]) -> list[str]:
    return [item["result"] for item in (await api.ok(OUTPUTS, list(items)))["items"]]


# -- ignored fields -------------------------------------------------------------------------------


async def test_items_that_differ_at_ignored_paths_only_are_unchanged(admin: Api) -> None:
    await put(admin, ignore=["scraped_at", "offers.seen"])
    assert await write(admin, scraped(1, "monday"), scraped(2, "monday")) == ["created", "created"]
    (first, _) = (await admin.ok(OUTPUTS))["items"]
    await admin.request("PATCH", f"{OUTPUTS}/{first['output_id']}", json={"is_approved": True})
    assert await write(admin, scraped(1, "tuesday"), scraped(2, "tuesday", title="New")) == ["unchanged", "updated"]
    items = {item["key_hash"]: item for item in (await admin.ok(OUTPUTS))["items"]}
    # The approval is kept, and what is stored is what was there at the last real change.
    assert (items["key-1"]["is_approved"], items["key-1"]["data"]["scraped_at"]) == (True, "monday")
    assert items["key-2"]["data"]["scraped_at"] == "tuesday"


async def test_what_was_stored_before_the_setting_is_compared_without_these_paths_too(admin: Api, store: Store) -> None:
    assert await write(admin, scraped(1, "monday"), scraped(2, "monday")) == ["created", "created"]
    await put(admin, ignore=["scraped_at", "offers.seen"])
    assert await write(admin, scraped(1, "tuesday"), scraped(2, "tuesday", title="New")) == ["unchanged", "updated"]
    assert await write(admin, scraped(1, "wednesday")) == ["unchanged"]
    await put(admin, ignore=[])
    assert await write(admin, scraped(1, "monday"), scraped(2, "friday", title="New")) == ["unchanged", "updated"]


async def test_items_without_a_key_of_their_own_are_the_same_without_these_paths(admin: Api) -> None:
    await put(admin, ignore=["scraped_at", "offers.seen"])
    for day, result in (("monday", "created"), ("tuesday", "unchanged")):
        item = scraped(1, day)
        del item["key_hash"]
        assert await write(admin, item) == [result]


async def test_an_item_that_came_through_the_door_of_another_process_is_compared_by_the_newest_setting(
    admin: Api, store: Store, settings: Settings, mongo_url: str
) -> None:
    """The setting is changed by another process: this one has not seen it when it takes the body."""
    assert await write(admin, scraped(1, "monday")) == ["created"]
    other = Store.connect(settings, mongo_url)
    await other.ensure_indexes()
    await other.groups.set(Group(admin.organization_id, "shop").key, {"ignore": ["scraped_at", "offers.seen"]})
    await other.close()
    assert await write(admin, scraped(1, "tuesday")) == ["unchanged"]


async def test_items_without_a_key_are_refused_once_when_another_process_has_changed_what_is_ignored(
    admin: Api, store: Store, settings: Settings, mongo_url: str
) -> None:
    """Their keys were made with the earlier setting: they would be stored a second time."""
    await put(admin, ignore=["scraped_at"])
    item = make_output(1, data={"title": "Lamp", "scraped_at": "monday", "seen": 1})
    del item["key_hash"]
    assert await write(admin, item) == ["created"]
    other = Store.connect(settings, mongo_url)
    await other.ensure_indexes()
    await other.groups.set(Group(admin.organization_id, "shop").key, {"ignore": ["scraped_at", "seen"]})
    await other.close()
    item["data"]["seen"] = 2
    refused = await admin.post(OUTPUTS, [item])
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    assert len((await admin.ok(OUTPUTS))["items"]) == 1
    assert await write(admin, item, {**item, "data": {**item["data"], "seen": 3}}) == ["created", "created"]
    assert len((await admin.ok(OUTPUTS))["items"]) == 2  # both are one item, with the key of the present setting


async def test_a_value_hash_that_is_sent_counts_whatever_is_ignored(admin: Api) -> None:
    await put(admin, ignore=["scraped_at", "offers.seen"])
    assert await write(admin, {**scraped(1, "monday"), "value_hash": "a"}) == ["created"]
    assert await write(admin, {**scraped(1, "tuesday"), "value_hash": "b"}) == ["updated"]


# -- earlier versions -----------------------------------------------------------------------------


async def versions(api: Api, item: dict[str, Any], query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = await api.ok(f"{OUTPUTS}/{item['output_id']}/versions{query}")
    return found


def as_served(version: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in version.items() if name not in ("by", "replaced_date")}


async def test_a_changed_item_leaves_its_earlier_versions_newest_first_as_they_were_served(admin: Api) -> None:
    await put(admin, history_days=30)
    served = []
    for number in range(4):
        await write(admin, make_output(1, data={"version": number}), make_output(2))
        (item,) = [item for item in (await admin.ok(OUTPUTS))["items"] if item["key_hash"] == "key-1"]
        served.append(item)
    earlier = (await versions(admin, item))["items"]
    assert [as_served(version) for version in earlier] == served[2::-1]
    assert [version["replaced_date"] for version in earlier] == [item["update_date"] for item in served[:0:-1]]
    await admin.request("PATCH", f"{OUTPUTS}/{item['output_id']}", json={"tags": {"seen": True}})
    await admin.request("DELETE", f"{OUTPUTS}/{item['output_id']}")
    found = await versions(admin, item)
    assert [version["id"] for version in found["items"]][1:] == [version["id"] for version in served[::-1]]
    assert found["items"][0]["tags"]["seen"] is True
    other = [each for each in (await admin.ok(OUTPUTS))["items"] if each["key_hash"] == "key-2"]
    assert (await versions(admin, other[0]))["items"] == []


async def test_earlier_versions_that_are_larger_than_the_items_are_counted_when_they_are_read(
    wired_api: Api, wire: FaultProxy
) -> None:
    await put(wired_api, history_days=30)
    for number in range(10):
        await write(wired_api, make_output(1, data={"text": f"{number}" * 100_000}))
    await write(wired_api, make_output(1, data={}))
    (item,) = (await wired_api.ok(OUTPUTS))["items"]
    held = held_at(wire, wired_api.client.app, "find", "versions")
    assert len((await versions(wired_api, item, "?limit=100"))["items"]) == 10
    assert held[0] > 2_000_000


async def test_versions_come_in_pages(admin: Api) -> None:
    await put(admin, history_days=30)
    for number in range(6):
        await write(admin, make_output(1, data={"version": number}))
    (item,) = (await admin.ok(OUTPUTS))["items"]
    found, cursor = [], 0
    while cursor is not None:
        page = await versions(admin, item, f"?limit=2&cursor={cursor}")
        assert len(page["items"]) <= 2
        found += [version["data"]["version"] for version in page["items"]]
        cursor = page["metadata"]["next_cursor"]
    assert found == [4, 3, 2, 1, 0]


async def test_a_page_of_large_versions_ends_after_a_megabyte(admin: Api) -> None:
    """95 versions of 172,000 control characters were one response of 92 MB."""
    await put(admin, history_days=30)
    for number in range(5):
        await write(admin, make_output(1, data={"version": number, "text": "x" * 400_000}))
    (item,) = (await admin.ok(OUTPUTS))["items"]
    found, cursor = [], 0
    while cursor is not None:
        page = await versions(admin, item, f"?limit=100&cursor={cursor}")
        found.append([version["data"]["version"] for version in page["items"]])
        cursor = page["metadata"]["next_cursor"]
    assert found == [[3, 2], [1, 0]]


async def test_without_history_nothing_is_kept_and_a_stranger_sees_nothing(admin: Api, stranger: Api) -> None:
    await put(admin, history_days=0)
    await write(admin, make_output(1, data={"version": 1}))
    await write(admin, make_output(1, data={"version": 2}))
    (item,) = (await admin.ok(OUTPUTS))["items"]
    assert (await versions(admin, item))["items"] == []
    await put(admin, history_days=30)
    await write(admin, make_output(1, data={"version": 3}))
    assert len((await versions(admin, item))["items"]) == 1
    assert (await versions(stranger, item))["items"] == []


@pytest.mark.parametrize(("days", "left"), [(30, 1), (0, 0)])
async def test_versions_age_out(admin: Api, store: Store, days: int, left: int) -> None:
    await put(admin, history_days=30)
    for number in range(3):
        await write(admin, make_output(1, data={"version": number}))
    owner = {"organization_id": admin.organization_id, "group_id": "shop"}
    old = {"$set": {"replaced_date": datetime.now(UTC) - timedelta(days=31)}}
    await store.database["versions"].update_one({**owner, "data.version": 0}, old)
    await put(admin, history_days=days)
    await look_after(store, Group(admin.organization_id, "shop"))
    assert await store.database["versions"].count_documents(owner) == left


async def test_a_deleted_group_takes_its_versions_with_it(admin: Api, store: Store) -> None:
    await put(admin, history_days=30)
    for number in range(3):
        await write(admin, make_output(1, data={"version": number}))
    assert (await admin.request("DELETE", GROUP)).status == 200
    assert await store.database["versions"].count_documents({"organization_id": admin.organization_id}) == 0
