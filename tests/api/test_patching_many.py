"""PATCH /v1/outputs/{group_id}: approvals and tags of many outputs in one request."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import Api, Response, make_output


@pytest.fixture
async def items(admin: Api) -> list[dict[str, Any]]:
    """The outputs key-0 to key-3 of the group `shop`."""
    await admin.ok("/v1/outputs/shop", [make_output(n) for n in range(4)])
    return await listed(admin)


async def listed(api: Api) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await api.ok("/v1/outputs/shop?limit=1000"))["items"]
    return sorted(found, key=lambda item: item["key_hash"])


async def patch(api: Api, *patches: Any) -> Response:
    return await api.patch("/v1/outputs/shop", list(patches))


async def patched(api: Api, *patches: Any) -> dict[str, Any]:
    response = await patch(api, *patches)
    assert response.status == 200, response.body
    counts: dict[str, Any] = response.json
    return counts


def counts_of(body: dict[str, Any]) -> tuple[int, int, int, int]:
    return body["updated"], body["unchanged"], body["not_found"], body["conflict"]


async def test_outputs_are_named_by_output_id_or_key_hash(admin: Api, items: list[dict[str, Any]]) -> None:
    body = await patched(
        admin,
        {"output_id": items[2]["output_id"], "is_approved": True},
        {"key_hash": "key-0", "tags": {"note": "seen", "region": None}},
    )
    assert counts_of(body) == (2, 0, 0, 0)
    now = await listed(admin)
    assert [item["is_approved"] for item in now] == [False, False, True, False]
    assert now[0]["tags"] == {"country": "Germany", "note": "seen"}
    # In the order sent, each with its new id.
    assert body["items"] == [
        {"id": now[n]["id"], "output_id": now[n]["output_id"], "key_hash": f"key-{n}", "result": "updated"}
        for n in (2, 0)
    ]
    assert min(now[0]["id"], now[2]["id"]) > items[3]["id"]
    assert [now[1], now[3]] == [items[1], items[3]]


async def test_each_item_has_its_own_result(admin: Api, items: list[dict[str, Any]]) -> None:
    body = await patched(
        admin,
        {"key_hash": "key-0", "is_approved": True},
        {"key_hash": "key-1", "is_approved": False},
        {"key_hash": "nothing", "is_approved": True},
        {"output_id": "nobody", "tags": {"a": 1}},
        {"key_hash": "key-2", "is_approved": True, "if_id": items[2]["id"] + 1},
        {"key_hash": "key-3"},
    )
    assert counts_of(body) == (1, 2, 2, 1)
    results = ["updated", "unchanged", "not_found", "not_found", "conflict", "unchanged"]
    assert [item["result"] for item in body["items"]] == results
    assert body["items"][2] == {"id": None, "output_id": None, "key_hash": "nothing", "result": "not_found"}
    assert body["items"][3] == {"id": None, "output_id": "nobody", "key_hash": None, "result": "not_found"}
    # A conflict tells the id that the item has now.
    assert body["items"][4]["id"] == items[2]["id"]
    now = await listed(admin)
    assert [item["is_approved"] for item in now] == [True, False, False, False]
    assert now[1:] == items[1:]


async def test_if_id_lets_the_present_version_through(admin: Api, items: list[dict[str, Any]]) -> None:
    first = {"key_hash": "key-0", "is_approved": True, "if_id": items[0]["id"]}
    assert counts_of(await patched(admin, first)) == (1, 0, 0, 0)
    assert counts_of(await patched(admin, {**first, "is_approved": False})) == (0, 0, 0, 1)
    assert (await listed(admin))[0]["is_approved"] is True


async def test_the_same_request_again_changes_nothing(admin: Api, items: list[dict[str, Any]]) -> None:
    patches = [{"key_hash": f"key-{n}", "is_approved": True, "tags": {"n": n}} for n in range(4)]
    assert counts_of(await patched(admin, *patches)) == (4, 0, 0, 0)
    before = await listed(admin)
    assert counts_of(await patched(admin, *patches)) == (0, 4, 0, 0)
    assert await listed(admin) == before


async def test_the_last_patch_of_one_item_wins(admin: Api, items: list[dict[str, Any]]) -> None:
    body = await patched(
        admin,
        {"key_hash": "key-0", "tags": {"note": "first"}},
        {"key_hash": "key-0", "is_approved": True},
    )
    assert counts_of(body) == (1, 0, 0, 0)
    assert body["items"][0] == body["items"][1]
    now = (await listed(admin))[0]
    assert (now["is_approved"], "note" in now["tags"]) == (True, False)


async def test_an_item_named_in_both_ways_gets_both_patches(admin: Api, items: list[dict[str, Any]]) -> None:
    body = await patched(
        admin,
        {"key_hash": "key-0", "is_approved": True},
        {"output_id": items[0]["output_id"], "tags": {"note": "also"}},
    )
    assert counts_of(body) == (2, 0, 0, 0)
    now = (await listed(admin))[0]
    assert (now["is_approved"], now["tags"]["note"]) == (True, "also")


async def test_a_deleted_item_is_not_found(admin: Api, items: list[dict[str, Any]]) -> None:
    await admin.delete(f"/v1/outputs/shop/{items[0]['output_id']}")
    assert counts_of(await patched(admin, {"key_hash": "key-0", "is_approved": True})) == (0, 0, 1, 0)
    assert len(await listed(admin)) == 3


async def test_an_unknown_group_has_none_of_them_and_does_not_come_to_exist(admin: Api) -> None:
    response = await admin.patch("/v1/outputs/nothing", [{"key_hash": "key-0", "is_approved": True}])
    assert (response.status, counts_of(response.json)) == (200, (0, 0, 1, 0))
    assert await admin.ok("/v1/groups") == []


async def test_no_patches_are_no_changes(admin: Api, items: list[dict[str, Any]]) -> None:
    body = await patched(admin)
    assert (counts_of(body), body["items"]) == ((0, 0, 0, 0), [])


async def test_one_wrong_entry_stops_all(admin: Api, items: list[dict[str, Any]]) -> None:
    for entry, loc, kind in [
        ({"is_approved": True}, ["body", "1"], "missing"),
        ({"output_id": "a", "key_hash": "b"}, ["body", "1"], "value_error"),
        ({"output_id": ""}, ["body", "1", "output_id"], "string_too_short"),
        ({"key_hash": 1}, ["body", "1", "key_hash"], "string_type"),
        ({"key_hash": "a", "is_approved": 1}, ["body", "1", "is_approved"], "bool_type"),
        ({"key_hash": "a", "tags": "x"}, ["body", "1", "tags"], "dict_type"),
        ({"key_hash": "a", "if_id": "1"}, ["body", "1", "if_id"], "int_type"),
        ({"key_hash": "a", "if_id": 1.0}, ["body", "1", "if_id"], "int_type"),
        ({"key_hash": "a", "if_id": -1}, ["body", "1", "if_id"], "greater_than_equal"),
        ({"key_hash": "a", "id": 1}, ["body", "1", "id"], "unknown_field"),
        ("key-0", ["body", "1"], "dict_type"),
    ]:
        response = await patch(admin, {"key_hash": "key-0", "is_approved": True}, entry)
        assert (response.status, response.problems()) == (422, [(loc, kind)]), entry
        assert await listed(admin) == items, entry


async def test_every_entry_without_a_name_is_reported(admin: Api) -> None:
    response = await patch(admin, {}, {"key_hash": "key-0"}, {"output_id": "a", "key_hash": "b"})
    assert (response.status, response.problems()) == (
        422,
        [(["body", "0"], "missing"), (["body", "2"], "value_error")],
    )


@pytest.mark.slow
async def test_a_thousand_are_taken_and_no_more(admin: Api) -> None:
    outputs = [make_output(n, files=[], tags={}) for n in range(1000)]
    await admin.ok("/v1/outputs/shop", outputs)
    patches = [{"key_hash": f"key-{n}", "tags": {"n": n}, "is_approved": True} for n in range(1000)]
    assert counts_of(await patched(admin, *patches)) == (1000, 0, 0, 0)
    now = {item["key_hash"]: item["tags"] for item in await listed(admin)}
    assert now == {f"key-{n}": {"n": n} for n in range(1000)}
    response = await patch(admin, *patches, {"key_hash": "key-0"})
    assert (response.status, response.problems()) == (422, [(["body"], "too_many")])


async def test_a_patch_that_would_take_long_to_merge_is_refused(admin: Api, items: list[dict[str, Any]]) -> None:
    tags = {f"{number:0100}": number for number in range(22_000)}
    one = await admin.patch(f"/v1/outputs/shop/{items[0]['output_id']}", {"tags": tags})
    assert (one.status, one.problems()) == (422, [(["body"], "too_large")])
    many = await admin.patch("/v1/outputs/shop", [{"key_hash": "key-0"}, {"key_hash": "key-1", "tags": tags}])
    assert (many.status, many.problems()) == (422, [(["body", "1"], "too_large")])


async def test_tags_that_would_become_too_large_are_left_as_they_are(admin: Api, items: list[dict[str, Any]]) -> None:
    await patched(admin, {"key_hash": "key-1", "tags": {"a": "x" * 600_000}})
    body = await patched(
        admin, {"key_hash": "key-0", "is_approved": True}, {"key_hash": "key-1", "tags": {"b": "x" * 600_000}}
    )
    assert [item["result"] for item in body["items"]] == ["updated", "too_large"]
    assert (body["updated"], body["too_large"]) == (1, 1)
    now = await listed(admin)
    assert now[0]["is_approved"] is True
    assert "b" not in now[1]["tags"]
