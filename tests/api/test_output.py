"""One output by its output_id: read it, change its approval and tags, delete it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.api import Api, make_file, make_output

UNKNOWN = "/v1/outputs/shop/00000000-0000-4000-8000-000000000000"


async def written(api: Api, group: str = "shop", **changes: Any) -> dict[str, Any]:
    """Write one output and return it as it is served."""
    result = await api.ok(f"/v1/outputs/{group}", [make_output(**changes)])
    item: dict[str, Any] = await api.ok(f"/v1/outputs/{group}/{result['items'][0]['output_id']}")
    return item


def path_of(item: dict[str, Any], group: str = "shop") -> str:
    return f"/v1/outputs/{group}/{item['output_id']}"


# -- GET ----------------------------------------------------------------------------------------


async def test_one_output_is_what_the_page_has(admin: Api) -> None:
    item = await written(admin)
    page = await admin.ok("/v1/outputs/shop")
    assert page["items"] == [item]


async def test_the_etag_is_the_id_and_changes_with_it(admin: Api) -> None:
    item = await written(admin)
    assert (await admin.get(path_of(item))).headers["ETag"] == f'"{item["id"]}"'
    changed = await written(admin, data={"title": "Another"})
    assert changed["output_id"] == item["output_id"]
    assert (await admin.get(path_of(item))).headers["ETag"] == f'"{changed["id"]}"' != f'"{item["id"]}"'


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
async def test_an_output_that_does_not_exist_is_not_found(admin: Api, method: str) -> None:
    await written(admin)
    body = {"json": {"is_approved": True}} if method == "PATCH" else {}
    response = await admin.request(method, UNKNOWN, **body)
    assert (response.status, response.problems()) == (404, [(["path", "output_id"], "not_found")])


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
async def test_an_output_is_not_found_in_another_group(admin: Api, method: str) -> None:
    item = await written(admin)
    await written(admin, "other")
    body = {"json": {"is_approved": True}} if method == "PATCH" else {}
    response = await admin.request(method, path_of(item, "other"), **body)
    assert (response.status, response.problems()) == (404, [(["path", "output_id"], "not_found")])
    assert await admin.ok(path_of(item)) == item


async def test_head_of_one_output_has_the_etag_and_no_body(admin: Api) -> None:
    item = await written(admin)
    response = await admin.request("HEAD", path_of(item))
    assert (response.status, response.headers["ETag"], response.body) == (200, f'"{item["id"]}"', b"")


KNOWN = ['"{id}"', 'W/"{id}"', '"0", "{id}"', '"a,b" , W/"{id}"', "*", ',"{id}",']


async def test_an_output_that_the_client_has_is_not_sent_again(admin: Api) -> None:
    item = await written(admin)
    for seen in KNOWN:
        for method in ("GET", "HEAD"):
            headers = {"If-None-Match": seen.format(id=item["id"])}
            response = await admin.request(method, path_of(item), headers=headers)
            assert (response.status, response.body) == (304, b""), (method, seen)
            assert response.headers["ETag"] == f'"{item["id"]}"', (method, seen)
            assert "Cache-Control" in response.headers, (method, seen)


NOT_KNOWN = ['"0"', '"{old}"', "{id}", '"{id}', '"{old}" "{id}"', '"{old},{id}"', "", '"*"']


async def test_an_output_that_the_client_does_not_have_is_sent(admin: Api) -> None:
    old = await written(admin)
    item = await written(admin, data={"title": "Newer"})
    for seen in NOT_KNOWN:
        headers = {"If-None-Match": seen.format(id=item["id"], old=old["id"])}
        response = await admin.get(path_of(item), headers=headers)
        assert (response.status, response.json) == (200, item), seen


async def test_an_unknown_output_is_not_found_whatever_the_client_has(admin: Api) -> None:
    assert (await admin.get(UNKNOWN, headers={"If-None-Match": "*"})).status == 404


# -- PATCH --------------------------------------------------------------------------------------


async def test_approving_is_a_change_with_a_new_id_and_date(admin: Api) -> None:
    item = await written(admin)
    response = await admin.patch(path_of(item), {"is_approved": True})
    assert response.status == 200
    now = await admin.ok(path_of(item))
    assert (now.pop("approved_by"), now.pop("approved_date")) == ("", now["update_date"])
    assert response.json == {
        "id": now["id"],
        "output_id": item["output_id"],
        "key_hash": item["key_hash"],
        "result": "updated",
    }
    assert response.headers["ETag"] == f'"{now["id"]}"'
    assert now["id"] > item["id"] and now["update_date"] > item["update_date"]
    assert now == {**item, "id": now["id"], "update_date": now["update_date"], "is_approved": True}
    assert (await admin.ok(f"/v1/outputs/shop?cursor={item['id']}"))["items"] == [now]
    assert (await admin.ok("/v1/groups/shop/stats"))["approved"] == 1


async def test_an_approval_is_taken_back(admin: Api) -> None:
    item = await written(admin, is_approved=True)
    assert (await admin.patch(path_of(item), {"is_approved": False})).json["result"] == "updated"
    assert (await admin.ok(path_of(item)))["is_approved"] is False
    assert (await admin.ok("/v1/groups/shop/stats"))["approved"] == 0


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({"note": "sold out"}, {"country": "Germany", "deep": {"a": 1, "b": [1]}, "note": "sold out"}),
        ({"country": None}, {"deep": {"a": 1, "b": [1]}}),
        ({"deep": {"a": None, "c": {"d": 2}}}, {"country": "Germany", "deep": {"b": [1], "c": {"d": 2}}}),
        ({"deep": 1}, {"country": "Germany", "deep": 1}),
        ({"deep": {"b": [2, None]}}, {"country": "Germany", "deep": {"a": 1, "b": [2, None]}}),
        ({"country": {"name": "Germany", "none": None}}, {"country": {"name": "Germany"}, "deep": {"a": 1, "b": [1]}}),
    ],
    ids=["add", "remove", "nested", "replace an object", "an array is replaced", "replace by an object"],
)
async def test_tags_are_a_json_merge_patch(admin: Api, patch: dict[str, Any], expected: dict[str, Any]) -> None:
    item = await written(admin, tags={"country": "Germany", "deep": {"a": 1, "b": [1]}})
    assert (await admin.patch(path_of(item), {"tags": patch})).json["result"] == "updated"
    assert (await admin.ok(path_of(item)))["tags"] == expected


async def test_the_filters_follow_the_tags(admin: Api) -> None:
    item = await written(admin)
    await admin.patch(path_of(item), {"tags": {"country": "France", "region": None}})
    for query, count in (("country=France", 1), ("country=Germany", 0), ("region=DE-BE", 0)):
        assert len((await admin.ok(f"/v1/outputs/shop?{query}"))["items"]) == count, query


async def test_a_patch_that_changes_nothing_is_unchanged(admin: Api) -> None:
    item = await written(admin)
    bodies: list[dict[str, Any]] = [{}, {"is_approved": False}, {"tags": {}}]
    for body in (*bodies, {"tags": {"country": "Germany", "unknown": None}}):
        response = await admin.patch(path_of(item), body)
        assert (response.status, response.json["result"], response.json["id"]) == (200, "unchanged", item["id"])
    assert await admin.ok(path_of(item)) == item


async def test_the_same_patch_again_is_unchanged(admin: Api) -> None:
    item = await written(admin)
    body = {"is_approved": True, "tags": {"note": "checked"}}
    first, second = [await admin.patch(path_of(item), body) for _ in range(2)]
    assert (first.json["result"], second.json["result"]) == ("updated", "unchanged")
    assert first.json["id"] == second.json["id"]


async def test_the_next_scrape_of_the_same_data_keeps_the_approval(admin: Api) -> None:
    item = await written(admin)
    await admin.patch(path_of(item), {"is_approved": True})
    assert (await admin.ok("/v1/outputs/shop", [make_output()]))["unchanged"] == 1
    assert (await admin.ok(path_of(item)))["is_approved"] is True


WRONG_PATCHES: list[tuple[Any, list[str], str]] = [
    ({"approved": True}, ["body", "approved"], "unknown_field"),
    ({"data": {}}, ["body", "data"], "unknown_field"),
    ({"if_id": 1}, ["body", "if_id"], "unknown_field"),
    ({"is_approved": "yes"}, ["body", "is_approved"], "bool_type"),
    ({"is_approved": None}, ["body", "is_approved"], "bool_type"),
    ({"tags": []}, ["body", "tags"], "dict_type"),
    ({"tags": None}, ["body", "tags"], "dict_type"),
    ({"tags": {"a": "\0"}}, ["body", "tags", "a"], "value_error"),
    ({"tags": {"a": 2**63}}, ["body", "tags", "a"], "value_error"),
    ([], ["body"], "dict_type"),
    ("text", ["body"], "dict_type"),
]


async def test_a_wrong_patch_changes_nothing(admin: Api) -> None:
    item = await written(admin)
    for body, loc, kind in WRONG_PATCHES:
        response = await admin.patch(path_of(item), body)
        assert (response.status, response.problems()) == (422, [(loc, kind)]), body
        assert await admin.ok(path_of(item)) == item, body


async def test_tags_that_would_become_too_large_are_refused(admin: Api) -> None:
    item = await written(admin)
    assert (await admin.patch(path_of(item), {"tags": {"a": "x" * 600_000}})).status == 200
    response = await admin.patch(path_of(item), {"tags": {"b": "x" * 600_000}})
    assert (response.status, response.problems()) == (422, [(["body", "tags"], "too_large")])
    assert "b" not in (await admin.ok(path_of(item)))["tags"]


async def test_tags_with_which_the_item_would_be_too_large_are_refused(admin: Api) -> None:
    item = await written(admin, data={"text": "x" * 600_000})
    response = await admin.patch(path_of(item), {"tags": {"b": "x" * 600_000}})
    assert (response.status, response.problems()) == (422, [(["body", "tags"], "too_large")])
    assert (await admin.patch(path_of(item), {"tags": {"b": "x" * 300_000}})).status == 200


async def test_what_the_service_adds_to_files_does_not_count_in_the_size_of_an_item(admin: Api) -> None:
    files = [make_file(file_checksum=str(n)) for n in range(1000)]
    room = 2**20 - 2000 - len(json.dumps(files, separators=(",", ":")))
    item = await written(admin, data={"text": "x" * room}, files=files)
    assert (await admin.patch(path_of(item), {"tags": {"rejected": "blurred"}})).status == 200


async def test_a_broken_body_is_invalid_json(admin: Api) -> None:
    item = await written(admin)
    for body in (b"", b"{", b"\xff"):
        response = await admin.request("PATCH", path_of(item), data=body, headers={"Content-Type": "application/json"})
        assert (response.status, response.problems()) == (422, [(["body"], "json_invalid")])
    response = await admin.request("PATCH", path_of(item), data=b"{}", headers={"Content-Type": "text/plain"})
    assert response.status == 415 and response.problems()


# -- DELETE -------------------------------------------------------------------------------------


async def test_a_deleted_output_is_gone_for_readers(admin: Api) -> None:
    item = await written(admin)
    response = await admin.delete(path_of(item))
    assert (response.status, response.json) == (200, {"deleted": 1})
    assert (await admin.ok("/v1/outputs/shop"))["items"] == []
    assert (await admin.ok("/v1/groups/shop/stats"))["items"] == 0
    for method, options in (("GET", {}), ("PATCH", {"json": {"is_approved": True}}), ("DELETE", {})):
        assert (await admin.request(method, path_of(item), **options)).status == 404


# -- If-Match -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
class TestIfMatch:
    async def send(self, api: Api, method: str, item: dict[str, Any], if_match: str) -> Any:
        body = {"json": {"is_approved": True}} if method == "PATCH" else {}
        return await api.request(method, path_of(item), headers={"If-Match": if_match}, **body)

    async def test_the_present_version_goes_through(self, admin: Api, method: str) -> None:
        await written(admin, "shop", number=7)
        for if_match in ('"{id}"', ' "{id}" ', "*", '"0", "{id}"', 'W/"0","{id}" , "x"', '"a,b", "{id}"', ', "{id}",'):
            item = await written(admin)
            response = await self.send(admin, method, item, if_match.format(id=item["id"]))
            assert response.status == 200, if_match

    async def test_any_other_is_refused_and_changes_nothing(self, admin: Api, method: str) -> None:
        old = await written(admin)
        item = await written(admin, data={"title": "Newer"})
        for if_match in (
            *('"{old}"', '"0"', "{id}", 'W/"{id}"', '""', "nonsense", '"99999999999999999999"'),
            *('"0", "{old}"', '"0", W/"{id}"', '"{old}" "{id}"', '"0,{id}"', '"{id}", nonsense', "", '"*"', '*, "0"'),
        ):
            response = await self.send(admin, method, item, if_match.format(id=item["id"], old=old["id"]))
            assert response.status == 412, if_match
            assert response.problems() == [(["header", "If-Match"], "precondition_failed")], if_match
            assert await admin.ok(path_of(item)) == item, if_match

    async def test_of_two_that_saw_the_same_version_one_goes_through(self, admin: Api, method: str) -> None:
        item = await written(admin)
        etag = f'"{item["id"]}"'
        first = await admin.patch(path_of(item), {"tags": {"by": "first"}}, headers={"If-Match": etag})
        assert first.status == 200
        assert (await self.send(admin, method, item, etag)).status == 412
        assert (await self.send(admin, method, item, first.headers["ETag"])).status == 200

    async def test_nothing_is_there_to_match(self, admin: Api, method: str) -> None:
        response = await self.send(admin, method, {"output_id": "nothing"}, "*")
        assert (response.status, response.problems()) == (404, [(["path", "output_id"], "not_found")])
