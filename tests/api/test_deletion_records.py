"""A deletion is a change: its record in the change order, revival, and records that have aged out."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from service.store import Store
from tests.support.api import Api, make_output, walk
from tests.support.groups import Group, look_after


@pytest.fixture
async def three(admin: Api) -> list[dict[str, Any]]:
    """The outputs key-0 to key-2 of the group `shop`."""
    tags = {"country": "Germany", "region": "DE-BE", "note": "private"}
    await admin.ok("/v1/outputs/shop", [make_output(n, tags=tags, is_approved=True) for n in range(3)])
    items: list[dict[str, Any]] = (await admin.ok("/v1/outputs/shop"))["items"]
    return items


async def delete(api: Api, item: dict[str, Any]) -> None:
    response = await api.delete(f"/v1/outputs/shop/{item['output_id']}")
    assert response.status == 200


async def changes(api: Api, query: str = "") -> list[dict[str, Any]]:
    return await walk(api, f"/v1/outputs/shop?deleted=true&{query}")


async def test_the_record_keeps_identity_and_filters_and_loses_the_rest(
    admin: Api, three: list[dict[str, Any]]
) -> None:
    await delete(admin, three[1])
    first, last, record = await changes(admin)
    assert [first, last] == [three[0], three[2]]
    assert record["id"] > three[2]["id"] and record["update_date"] > three[2]["update_date"]
    assert record == {
        **three[1],
        "id": record["id"],
        "update_date": record["update_date"],
        "data": {},
        "files": [],
        "value_hash": "",
        "is_approved": False,
        "tags": {"country": "Germany", "region": "DE-BE"},
        "deleted": True,
    }


async def test_only_readers_with_deleted_true_see_deletions(admin: Api, three: list[dict[str, Any]]) -> None:
    await delete(admin, three[1])
    kept = [three[0], three[2]]
    for query in ("", "?deleted=false", "?job_id=job-1", "?country=Germany", "?url=" + three[0]["source_url"]):
        items = await walk(admin, f"/v1/outputs/shop{query}")
        assert items == (kept[:1] if "url=" in query else kept), query
        assert not any("deleted" in item for item in items)


@pytest.mark.parametrize(
    "query",
    [
        *("job_id=job-1", "country=Germany", "region=DE-BE", "url=https://shop.example/p/1", "key_hash=key-1"),
        *("is_approved=true", "is_approved=true&country=Germany", "is_approved=true&key_hash=key-1"),
    ],
)
async def test_deletions_are_found_by_the_filters(admin: Api, three: list[dict[str, Any]], query: str) -> None:
    await delete(admin, three[1])
    found = await changes(admin, f"{query}&cursor={three[2]['id']}")
    assert [item["output_id"] for item in found] == [three[1]["output_id"]]
    assert found[0]["deleted"] is True


async def test_a_copy_follows_by_its_cursor(admin: Api, three: list[dict[str, Any]]) -> None:
    copy = {item["output_id"]: item for item in three}
    cursor = three[-1]["id"]
    await delete(admin, three[0])
    await admin.patch(f"/v1/outputs/shop/{three[1]['output_id']}", {"is_approved": False})
    await admin.ok("/v1/outputs/shop", [make_output(7)])
    await delete(admin, three[2])
    for item in await changes(admin, f"cursor={cursor}&limit=1"):
        if item.get("deleted"):
            del copy[item["output_id"]]
        else:
            copy[item["output_id"]] = item
    now = await walk(admin, "/v1/outputs/shop")
    assert sorted(copy.values(), key=lambda item: item["id"]) == now
    assert [item["key_hash"] for item in now] == ["key-1", "key-7"]


@pytest.mark.parametrize("format", ["ndjson", "json", "csv"])
async def test_exports_have_deletions_when_asked(admin: Api, three: list[dict[str, Any]], format: str) -> None:
    await delete(admin, three[1])
    without = await admin.get(f"/v1/outputs/shop/export?format={format}")
    assert three[1]["output_id"] not in without.body.decode()
    response = await admin.get(f"/v1/outputs/shop/export?format={format}&deleted=true")
    text = response.body.decode()
    assert text.count(three[1]["output_id"]) == 1
    match format:
        case "ndjson":
            assert json.loads(text.splitlines()[-1])["deleted"] is True
        case "json":
            assert [item.get("deleted", False) for item in json.loads(text)] == [False, False, True]
        case "csv":
            assert "deleted" in text.splitlines()[0].split(",")


async def test_fields_keep_the_mark_of_a_deletion(admin: Api, three: list[dict[str, Any]]) -> None:
    await delete(admin, three[1])
    found = (await admin.ok("/v1/outputs/shop?deleted=true&fields=key_hash"))["items"]
    assert [(item["key_hash"], item.get("deleted", False)) for item in found] == [
        ("key-0", False),
        ("key-2", False),
        ("key-1", True),
    ]


# -- revival ------------------------------------------------------------------------------------


async def test_writing_the_key_again_brings_the_item_back(admin: Api, three: list[dict[str, Any]]) -> None:
    await delete(admin, three[1])
    record = (await changes(admin))[-1]
    written = await admin.ok("/v1/outputs/shop", [make_output(1)])
    assert (written["created"], written["items"][0]["result"]) == (1, "created")
    back = (await walk(admin, "/v1/outputs/shop"))[-1]
    assert (back["output_id"], back["create_date"]) == (three[1]["output_id"], three[1]["create_date"])
    assert back["id"] > record["id"] and back["data"] == three[1]["data"]
    # An approval does not outlive the deletion.
    assert back["is_approved"] is False and "deleted" not in back
    assert (await changes(admin))[-1] == back
    assert await admin.ok(f"/v1/outputs/shop/{back['output_id']}") == back
    assert (await admin.ok("/v1/groups/shop/stats"))["items"] == 3


async def test_an_item_can_be_deleted_and_brought_back_again_and_again(admin: Api, three: list[dict[str, Any]]) -> None:
    ids = []
    for _ in range(3):
        await delete(admin, three[0])
        ids.append((await changes(admin))[-1]["id"])
        ids.append((await admin.ok("/v1/outputs/shop", [make_output(0)]))["items"][0]["id"])
    assert ids == sorted(set(ids))
    assert len(await changes(admin)) == 3


# -- records that have aged out ------------------------------------------------------------------


async def age_out(store: Store, organization: int) -> None:
    """Let the deletion records of `shop` be 40 days old, and the upkeep remove all but the newest."""
    owner = {"organization_id": organization, "group_id": "shop"}
    old = datetime.now(UTC) - timedelta(days=40)
    await store.database["outputs"].update_many({**owner, "deleted": True}, {"$set": {"update_date": old}})
    await look_after(store, Group(organization, "shop"))
    assert await store.database["outputs"].count_documents({**owner, "deleted": True}) <= 1


async def test_a_date_from_before_removed_records_is_refused(
    admin: Api, store: Store, three: list[dict[str, Any]]
) -> None:
    for item in three:
        await delete(admin, item)
    await age_out(store, admin.organization_id)
    for days, status in ((41, 410), (39, 200)):
        date = (datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
        for path in ("/v1/outputs/shop", "/v1/outputs/shop/export"):
            assert (await admin.get(f"{path}?deleted=true&created_after={date}")).status == status
            assert (await admin.get(f"{path}?created_after={date}")).status == 200


async def test_a_reader_that_came_too_late_starts_again(admin: Api, store: Store, three: list[dict[str, Any]]) -> None:
    for item in three[:2]:
        await delete(admin, item)
    removed, newest = (await changes(admin))[-2:]
    await age_out(store, admin.organization_id)
    for cursor in (1, three[2]["id"], removed["id"] - 1):
        for path in ("/v1/outputs/shop", "/v1/outputs/shop/export"):
            response = await admin.get(f"{path}?deleted=true&cursor={cursor}")
            assert (response.status, response.problems()) == (410, [(["query", "cursor"], "cursor_expired")])
    # From the beginning, from after it, and without asking for deletions all is well.
    assert [item["id"] for item in await changes(admin, "cursor=0")] == [three[2]["id"], newest["id"]]
    assert [item["id"] for item in await changes(admin, f"cursor={removed['id']}")] == [newest["id"]]
    assert await walk(admin, "/v1/outputs/shop?cursor=1") == three[2:]


async def test_a_page_in_the_middle_whose_cursor_is_from_before_a_removal_is_refused(
    admin: Api, store: Store, three: list[dict[str, Any]]
) -> None:
    first = await admin.ok("/v1/outputs/shop?deleted=true&limit=1")
    for item in three[1:]:
        await delete(admin, item)
    await admin.ok("/v1/outputs/shop", [make_output(number) for number in range(7, 10)])
    await walk(admin, "/v1/outputs/shop")  # this process knows how far it may read
    await age_out(store, admin.organization_id)
    path = f"/v1/outputs/shop?deleted=true&limit=1&cursor={first['metadata']['next_cursor']}"
    assert (await admin.ok(path.replace("deleted=true", "deleted=false")))["metadata"]["next_cursor"], (
        "it is not the last"
    )
    response = await admin.get(path)
    assert (response.status, response.problems()) == (410, [(["query", "cursor"], "cursor_expired")])


async def test_an_export_that_was_cut_continues_over_what_has_aged_out(
    admin: Api, store: Store, three: list[dict[str, Any]]
) -> None:
    for item in three[:2]:
        await delete(admin, item)
    await age_out(store, admin.organization_id)
    whole = await admin.get("/v1/outputs/shop/export?deleted=true")
    first, *rest = [json.loads(line)["id"] for line in whole.body.splitlines()]
    path = f"/v1/outputs/shop/export?deleted=true&cursor={first}"
    assert (await admin.get(path)).status == 410
    continued = await admin.get(f"{path}&walk={whole.headers['X-Cursor']}")
    assert [json.loads(line)["id"] for line in continued.body.splitlines()] == rest


async def test_a_walk_with_a_date_is_refused_when_deletions_that_it_has_not_shown_have_aged_out(
    admin: Api, store: Store, three: list[dict[str, Any]]
) -> None:
    """Its copy has items from before the date: it must learn of every deletion."""
    since = (datetime.now(UTC) - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for item in three[1:]:
        await delete(admin, item)
    query = f"deleted=true&created_after={since}"
    first = await admin.ok(f"/v1/outputs/shop?{query}&limit=1")
    export = await admin.get(f"/v1/outputs/shop/export?{query}")
    await age_out(store, admin.organization_id)
    cursor, walk_ = first["metadata"]["next_cursor"], export.headers["X-Cursor"]
    for path in (
        urlsplit(first["metadata"]["next_url"])._replace(scheme="", netloc="").geturl(),
        f"/v1/outputs/shop/export?{query}&cursor={cursor}&walk={walk_}",
    ):
        response = await admin.get(path)
        assert (response.status, response.problems()) == (410, [(["query", "cursor"], "cursor_expired")])


async def test_newest_first_goes_back_over_what_has_aged_out(
    admin: Api, store: Store, three: list[dict[str, Any]]
) -> None:
    await admin.ok("/v1/outputs/shop", [make_output(7)])
    await delete(admin, three[2])
    await delete(admin, three[1])
    await age_out(store, admin.organization_id)
    seen = await changes(admin, "order=desc&limit=1")
    assert [item["key_hash"] for item in seen] == ["key-1", "key-7", "key-0"]
    whole = await admin.get("/v1/outputs/shop/export?deleted=true&order=desc")
    assert [json.loads(line)["key_hash"] for line in whole.body.splitlines()] == ["key-1", "key-7", "key-0"]


@pytest.mark.parametrize("query", ["follow=true", "format=sse"])
async def test_a_follower_that_came_too_late_learns_of_it(
    admin: Api, store: Store, three: list[dict[str, Any]], query: str
) -> None:
    for item in three[:2]:
        await delete(admin, item)
    await age_out(store, admin.organization_id)
    response = await admin.get(f"/v1/outputs/shop/export?deleted=true&cursor=1&{query}")
    assert (response.status, response.problems()) == (410, [(["query", "cursor"], "cursor_expired")])


@pytest.mark.parametrize(
    ("count", "limit"),
    [(110, 1), (110, 50), *(pytest.param(3000, limit, marks=pytest.mark.slow) for limit in (7, 100, 999, 1000))],
)
async def test_a_walk_from_the_beginning_passes_what_has_aged_out_and_goes_on_from_its_end(
    admin: Api, store: Store, count: int, limit: int
) -> None:
    """The records that were removed are in the middle of the walk and at its end."""
    for start in range(0, count, 1000):
        await admin.ok("/v1/outputs/shop", [make_output(n) for n in range(start, min(count, start + 1000))])
    items = await walk(admin, "/v1/outputs/shop?limit=1000")
    for item in items[10:20]:
        await delete(admin, item)
    await admin.ok("/v1/outputs/shop", [make_output(n, data={"new": n}) for n in range(100, 105)])
    for item in items[30:33]:
        await delete(admin, item)
    await age_out(store, admin.organization_id)
    seen = await walk(admin, f"/v1/outputs/shop?deleted=true&limit={limit}")
    live = {item["key_hash"] for item in seen if not item.get("deleted")}
    assert len(live) == count - 13 and len(seen) == len(live) + 1
    assert [item["id"] for item in seen] == sorted(item["id"] for item in seen)
    # The newest record has stayed, so that there is a place to go on from.
    cursor = seen[-1]["id"]
    assert await changes(admin, f"cursor={cursor}") == []
    await delete(admin, items[50])
    (news,) = await changes(admin, f"cursor={cursor}")
    assert (news["output_id"], news["deleted"]) == (items[50]["output_id"], True)
    whole = await admin.get("/v1/outputs/shop/export?deleted=true")
    assert len(whole.body.splitlines()) == len(seen)  # one item less, one record more


async def test_records_younger_than_that_are_kept(admin: Api, store: Store, three: list[dict[str, Any]]) -> None:
    for item in three[:2]:
        await delete(admin, item)
    await look_after(store, Group(admin.organization_id, "shop"))
    assert [item.get("deleted", False) for item in await changes(admin, "cursor=1")] == [False, True, True]


async def test_an_item_can_come_back_after_its_record_is_gone(
    admin: Api, store: Store, three: list[dict[str, Any]]
) -> None:
    for item in three[:2]:
        await delete(admin, item)
    await age_out(store, admin.organization_id)
    assert (await admin.ok("/v1/outputs/shop", [make_output(0)]))["created"] == 1
    assert (await walk(admin, "/v1/outputs/shop"))[-1]["output_id"] == three[0]["output_id"]
