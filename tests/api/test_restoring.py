"""POST /v1/outputs/{group_id}/{output_id}/restore; who changed, approved and deleted an item, and when."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from schemas.outputs import OutputInput
from service.settings import Settings
from service.store import Group, Store
from tests.conftest import MakeApi
from tests.support.api import Api, make_output
from tests.support.contract import HeldApi
from tests.support.outputs import PATH, items, stored

GROUP = "/v1/groups/group-1"


@pytest.fixture
async def ada(make_api: MakeApi, organization: int) -> Api:
    api = await make_api(organization, label="ada")
    return HeldApi(api.client, api.token, api.organization_id)


@pytest.fixture
async def bob(make_api: MakeApi, organization: int) -> Api:
    api = await make_api(organization, label="bob")
    return HeldApi(api.client, api.token, api.organization_id)


def content(item: dict[str, Any]) -> dict[str, Any]:
    changing = ("id", "update_date", "last_scraped_date", "by", "replaced_date", "approved_by", "approved_date")
    return {name: value for name, value in item.items() if name not in changing}


async def one(api: Api, item: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = await api.ok(f"{PATH}/{item['output_id']}")
    return found


async def versions(api: Api, item: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await api.ok(f"{PATH}/{item['output_id']}/versions"))["items"]
    return found


async def deleted(api: Api, **changes: Any) -> dict[str, Any]:
    """Return an item as it was before it was deleted."""
    item = await stored(api, **changes)
    assert (await api.delete(f"{PATH}/{item['output_id']}")).status == 200
    return item


async def test_a_deleted_item_comes_back_as_it_was_as_a_change(ada: Api) -> None:
    await ada.ok(PATH, [make_output(2)])
    await ada.ok(PATH, [make_output(1)])
    item = next(item for item in await items(ada) if item["key_hash"] == "key-1")
    await ada.patch(f"{PATH}/{item['output_id']}", {"is_approved": True, "tags": {"seen": True}})
    item = await one(ada, item)
    await ada.delete(f"{PATH}/{item['output_id']}")
    restored = await ada.ok(f"{PATH}/{item['output_id']}/restore", {})
    assert {**restored, "items": []} == {"created": 1, "updated": 0, "unchanged": 0, "items": []}
    back = await one(ada, item)
    assert content(back) == content(item)
    assert (back["approved_by"], back["approved_date"]) == (item["approved_by"], item["approved_date"])
    assert back["id"] == restored["items"][0]["id"] > item["id"]
    assert back["last_scraped_date"] > item["last_scraped_date"], "retention must not delete it again at once"
    assert (await items(ada, "limit=1000&order=desc"))[0]["output_id"] == item["output_id"]


async def test_the_body_may_be_left_out(ada: Api) -> None:
    item = await deleted(ada)
    assert (await ada.post(f"{PATH}/{item['output_id']}/restore")).json["created"] == 1


async def test_a_version_is_restored_by_its_id_also_of_a_live_item(ada: Api, bob: Api) -> None:
    for number in range(3):
        await ada.ok(PATH, [make_output(1, data={"version": number})])
    (item,) = await items(ada)
    *_, first = await versions(ada, item)
    restored = await bob.ok(f"{PATH}/{item['output_id']}/restore", {"id": first["id"]})
    assert restored["updated"] == 1
    assert (await one(ada, item))["data"] == {"version": 0}
    assert [(version["data"]["version"], version["by"]) for version in await versions(ada, item)] == [
        (2, "bob"),
        (1, "ada"),
        (0, "ada"),
    ]
    again = await bob.ok(f"{PATH}/{item['output_id']}/restore", {"id": first["id"]})
    assert again["unchanged"] == 1


async def test_what_is_not_kept_is_404_and_a_live_item_without_an_id_409(ada: Api, stranger: Api) -> None:
    item = await stored(ada)
    refused = await ada.post(f"{PATH}/{item['output_id']}/restore", {})
    assert (refused.status, refused.problems()) == (409, [(["body", "id"], "conflict")])
    for body in ({"id": item["id"]}, {"id": 2**62}):
        refused = await ada.post(f"{PATH}/{item['output_id']}/restore", body)
        assert (refused.status, refused.problems()) == (404, [(["path", "output_id"], "not_found")])
    assert (await ada.post(f"{PATH}/nothing/restore", {})).status == 404
    assert (await ada.post(f"{PATH}/{item['output_id']}/restore", {"id": 0})).status == 422
    await ada.delete(f"{PATH}/{item['output_id']}")
    assert (await stranger.post(f"{PATH}/{item['output_id']}/restore", {})).status == 404
    assert await items(ada) == []


async def test_without_history_nothing_can_be_restored(ada: Api) -> None:
    await ada.put(GROUP, {"history_days": 0})
    item = await deleted(ada)
    assert (await ada.post(f"{PATH}/{item['output_id']}/restore", {})).status == 404


async def test_history_is_kept_unless_the_setting_says_otherwise(ada: Api, settings: Settings, mongo_url: str) -> None:
    assert (await ada.ok(GROUP))["history_days"] == settings.history_days == 30
    item = await deleted(ada)
    assert len(await versions(ada, item)) == 1
    without = Store.connect(replace(settings, history_days=0), mongo_url)
    await without.ensure_indexes()
    group = Group(ada.organization_id, "group-2")
    encode = await without.outputs.encoder(group)
    for title in ("one", "two"):
        put = encode(OutputInput().load(make_output(1, data={"title": title})))
        (written,) = await without.outputs.write(group, [put])
    assert (await without.groups.settings(group))["history_days"] == 0
    assert (await without.outputs.versions(group, written["output_id"], 10, 0)).documents == []
    await without.close()


async def test_a_version_says_who_replaced_it_and_when(ada: Api, bob: Api) -> None:
    await ada.ok(PATH, [make_output(1, data={"version": 0}), make_output(2)])
    both = [make_output(1, data={"version": 1})], [make_output(2, data={"version": 1})]
    await ada.ok(PATH, both[0])
    await bob.ok(PATH, both[1])
    (one, two) = sorted(await items(ada), key=lambda item: str(item["key_hash"]))
    await bob.delete(f"{PATH}/{one['output_id']}")
    assert [version["by"] for version in await versions(ada, one)] == ["bob", "ada"]
    (version,) = await versions(ada, two)
    assert (version["by"], version["replaced_date"]) == ("bob", two["update_date"])


async def test_an_approval_is_stored_with_its_author_and_date(ada: Api, bob: Api) -> None:
    item = await stored(ada)
    assert "approved_by" not in await one(ada, item)
    await bob.patch(f"{PATH}/{item['output_id']}", {"is_approved": True})
    approved = await one(ada, item)
    assert (approved["approved_by"], approved["approved_date"]) == ("bob", approved["update_date"])
    assert "approved_by" not in (await items(ada))[0]
    (listed,) = await items(ada, "fields=approved_by,approved_date")
    assert listed == {name: approved[name] for name in ("id", "approved_by", "approved_date")}
    exported = await ada.get(f"{PATH}/export?format=csv&fields=approved_by,approved_date")
    assert exported.body.decode().splitlines()[1].startswith(f"{item['id'] + 1},bob,{approved['approved_date']}")

    await ada.patch(f"{PATH}/{item['output_id']}", {"tags": {"checked": True}})
    await ada.ok(PATH, [make_output(tags={"checked": 2})])
    assert (await one(ada, item))["approved_by"] == "bob", "the approval is kept, and with it who gave it"
    await ada.patch(f"{PATH}/{item['output_id']}", {"is_approved": False})
    assert "approved_by" not in await one(ada, item)


async def test_a_rejection_is_stored_with_its_author_and_date(ada: Api, bob: Api) -> None:
    item = await stored(ada)
    await bob.patch(f"{PATH}/{item['output_id']}", {"tags": {"rejected": "wrong price"}})
    assert (await one(ada, item))["approved_by"] == "bob"
    await ada.ok(PATH, [make_output(tags={"checked": 2})])
    assert (await one(ada, item))["approved_by"] == "bob"
    await ada.ok(PATH, [make_output(data={"title": "another"})])
    assert "approved_by" not in await one(ada, item), "other data are not judged"
    await ada.ok(PATH, [make_output(data={"title": "another"}, is_approved=True)])
    found = await one(ada, item)
    assert (found["approved_by"], found["approved_date"]) == ("ada", found["update_date"])
    assert datetime.fromisoformat(found["approved_date"])
