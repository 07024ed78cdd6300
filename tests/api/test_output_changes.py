"""Outputs that are written again: created, updated or unchanged, in the order of their ids."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.conftest import MakeApi
from tests.support.api import Api, make_file, make_output
from tests.support.contract import HeldApi
from tests.support.outputs import PATH, items, stored, tick


@pytest.fixture
def api(api: Api) -> Api:
    return HeldApi(api.client, api.token, api.organization_id)


async def test_a_new_key_creates_an_output(api: Api) -> None:
    written = await api.ok(PATH, [make_output(n) for n in range(3)])
    assert {name: written[name] for name in ("created", "updated", "unchanged")} == {
        "created": 3,
        "updated": 0,
        "unchanged": 0,
    }
    assert [(i["key_hash"], i["result"]) for i in written["items"]] == [(f"key-{n}", "created") for n in range(3)]
    read = await items(api)
    assert [(i["id"], i["output_id"]) for i in read] == [(i["id"], i["output_id"]) for i in written["items"]]
    assert len({i["output_id"] for i in read}) == 3
    assert all(i["create_date"] == i["update_date"] for i in read)


CHANGES: list[dict[str, Any]] = [
    {"source_url": "https://shop.example/moved"},
    {"data": {"title": "Lamp"}},
    {"value_hash": "other"},
    {"is_approved": True},
    {"tags": {"country": "France"}},
    {"files": []},
    {"files": [make_file(file_checksum="other")]},
]


async def test_the_value_hash_that_was_served_is_the_same_content(api: Api) -> None:
    item = make_output()
    await api.ok(PATH, [item])
    (served,) = await items(api)
    for again in ({"value_hash": served["value_hash"]}, {}):
        assert (await api.ok(PATH, [item | again]))["items"][0]["result"] == "unchanged"
    assert (await api.ok(PATH, [item | {"value_hash": "other"}]))["items"][0]["result"] == "updated"


async def test_the_same_content_under_a_new_job_is_unchanged_and_moves_to_that_job(api: Api) -> None:
    first = await stored(api)
    await tick(first)
    written = await api.ok(PATH, [make_output(root_job_id="job-2")])
    assert (written["created"], written["updated"], written["unchanged"]) == (0, 0, 1)
    (second,) = await items(api)
    assert (second["id"], second["update_date"]) == (first["id"], first["update_date"])
    assert second["root_job_id"] == "job-2"
    assert second["last_scraped_date"] > first["last_scraped_date"]
    assert (await api.ok(f"{PATH}?job_id=job-1"))["items"] == []
    assert (await api.ok(f"{PATH}?job_id=job-2"))["items"] == [second]


async def test_an_item_belongs_to_the_job_that_delivered_it_last_whatever_its_date(api: Api) -> None:
    first = await stored(api)
    await api.ok(PATH, [make_output(root_job_id="job-0", last_scraped_date="2020-01-01")])
    (item,) = await items(api)
    assert item["root_job_id"] == "job-0"
    assert item["last_scraped_date"] == first["last_scraped_date"]


async def test_an_approval_stays_while_the_data_is_the_same_and_ends_when_it_changes(api: Api) -> None:
    await api.ok(PATH, [make_output(is_approved=True)])
    await api.ok(PATH, [make_output()])
    assert (await items(api))[0]["is_approved"] is True
    await api.ok(PATH, [make_output(tags={"country": "France"})])
    assert (await items(api))[0]["is_approved"] is True
    await api.ok(PATH, [make_output(data={"title": "Other"})])
    assert (await items(api))[0]["is_approved"] is False


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: "-".join(change))
async def test_a_known_key_with_anything_changed_updates_the_output(api: Api, change: dict[str, Any]) -> None:
    first = await stored(api)
    await tick(first)
    written = await api.ok(PATH, [make_output(**change)])
    assert (written["created"], written["updated"], written["unchanged"]) == (0, 1, 0)
    (second,) = await items(api)
    assert second["id"] > first["id"]
    assert second["update_date"] > first["update_date"]
    assert second["last_scraped_date"] > first["last_scraped_date"]
    for name in ("output_id", "create_date", "key_hash"):
        assert second[name] == first[name]
    assert written["items"] == [
        {"id": second["id"], "output_id": first["output_id"], "key_hash": "key-1", "result": "updated"}
    ]
    (name,) = change
    if name != "files":
        assert second[name] == change[name]
    assert (await stored(api, **change))["id"] == second["id"]


async def test_a_known_key_with_nothing_changed_only_moves_last_scraped_date(api: Api) -> None:
    first = await stored(api)
    await tick(first)
    written = await api.ok(PATH, [make_output()])
    assert (written["created"], written["updated"], written["unchanged"]) == (0, 0, 1)
    result = {"id": first["id"], "output_id": first["output_id"], "key_hash": "key-1", "result": "unchanged"}
    assert written["items"] == [result]
    (second,) = await items(api)
    assert second["last_scraped_date"] > first["last_scraped_date"]
    assert second == first | {"last_scraped_date": second["last_scraped_date"]}


async def test_the_order_of_keys_in_data_is_no_change(api: Api) -> None:
    await stored(api, data={"a": 1, "b": {"c": 2, "d": 3}}, tags={"x": 1, "y": 2})
    again = make_output(data={"b": {"d": 3, "c": 2}, "a": 1}, tags={"y": 2, "x": 1})
    assert (await api.ok(PATH, [again]))["unchanged"] == 1


async def test_a_last_scraped_date_that_is_given_moves_forward_only(api: Api) -> None:
    await stored(api, last_scraped_date="2026-01-31")
    later = await stored(api, last_scraped_date="2026-02-01")
    assert later["last_scraped_date"] == "2026-02-01T00:00:00.000Z"
    assert await stored(api, last_scraped_date="2026-01-01") == later


async def test_results_come_in_the_order_sent(api: Api) -> None:
    await api.ok(PATH, [make_output(1), make_output(2)])
    written = await api.ok(PATH, [make_output(3), make_output(2), make_output(1, is_approved=True)])
    assert [(i["key_hash"], i["result"]) for i in written["items"]] == [
        ("key-3", "created"),
        ("key-2", "unchanged"),
        ("key-1", "updated"),
    ]
    assert (written["created"], written["updated"], written["unchanged"]) == (1, 1, 1)
    read = {item["key_hash"]: item["id"] for item in await items(api)}
    assert [item["id"] for item in written["items"]] == [read[item["key_hash"]] for item in written["items"]]


async def test_of_one_key_twice_in_one_array_the_last_one_wins(api: Api) -> None:
    written = await api.ok(PATH, [make_output(data={"n": n}) for n in (1, 2, 3)] + [make_output(2)])
    assert (written["created"], written["updated"], written["unchanged"]) == (2, 0, 0)
    assert len(written["items"]) == 4
    assert written["items"][0] == written["items"][1] == written["items"][2]
    read = await items(api)
    assert {item["key_hash"]: item["data"].get("n") for item in read} == {"key-1": 3, "key-2": None}


async def test_an_empty_array_writes_nothing(api: Api) -> None:
    assert await api.ok(PATH, []) == {"created": 0, "updated": 0, "unchanged": 0, "items": []}


async def test_ids_are_the_order_of_changes(api: Api) -> None:
    await api.ok(PATH, [make_output(n) for n in range(4)])
    cursor = (await items(api))[-1]["id"]
    assert await items(api, f"cursor={cursor}") == []
    await api.ok(PATH, [make_output(9), make_output(1, is_approved=True), make_output(2)])
    # What is new or changed since, and nothing else.
    assert [item["key_hash"] for item in await items(api, f"cursor={cursor}")] == ["key-9", "key-1"]
    read = await items(api)
    assert [item["key_hash"] for item in read] == ["key-0", "key-2", "key-3", "key-9", "key-1"]
    ids = [item["id"] for item in read]
    assert ids == sorted(set(ids))
    dates = [item["update_date"] for item in read]
    assert dates == sorted(dates)


async def test_one_key_in_two_groups_is_two_outputs(api: Api) -> None:
    await api.ok(PATH, [make_output(data={"n": 1})])
    assert (await api.ok("/v1/outputs/group-2", [make_output(data={"n": 2})]))["created"] == 1
    assert [item["data"] for item in await items(api)] == [{"n": 1}]


async def test_a_thousand_outputs_are_taken_at_once_and_one_more_is_not(make_api: MakeApi) -> None:
    api = await make_api()
    outputs = [make_output(n) for n in range(1001)]
    response = await api.post(PATH, outputs)
    assert (response.status, response.problems()) == (422, [(["body"], "too_many")])
    assert (await api.ok(PATH, outputs[:1000]))["created"] == 1000
    assert (await api.ok(PATH, outputs[1:]))["created"] == 1
    assert len(await items(api)) == 1000


def lines(outputs: list[dict[str, Any]], end: bytes = b"\n") -> bytes:
    return b"".join(json.dumps(output).encode() + end for output in outputs)


@pytest.mark.parametrize(
    "body",
    [
        lines([make_output(1), make_output(2)]),
        lines([make_output(1), make_output(2)], b"\r\n"),
        lines([make_output(1), make_output(2)]).strip(),
        b"\n" + lines([make_output(1), make_output(2)], b"\n\n"),
    ],
    ids=["lf", "crlf", "no end", "empty lines"],
)
async def test_outputs_are_taken_one_a_line(api: Api, body: bytes) -> None:
    response = await api.post(PATH, data=body, headers={"Content-Type": "application/x-ndjson"})
    assert response.json["created"] == 2
    assert [item["key_hash"] for item in await items(api)] == ["key-1", "key-2"]


async def test_faults_of_lines_are_named_by_record_or_line(api: Api) -> None:
    headers = {"Content-Type": "application/x-ndjson"}
    response = await api.post(PATH, data=lines([make_output(), make_output(data=1)]), headers=headers)
    assert (response.status, response.problems()) == (422, [(["body", "1", "data"], "dict_type")])
    response = await api.post(PATH, data=lines([make_output()]) + b"{oops\n", headers=headers)
    assert (response.status, response.problems()) == (422, [(["body"], "json_invalid")])
    assert "Line 2" in response.json["detail"][0]["msg"]
    assert await items(api) == []


@pytest.mark.parametrize("body", [b"", b"\n", b" \r\n\n"])
async def test_a_body_without_a_line_is_refused(api: Api, body: bytes) -> None:
    response = await api.post(PATH, data=body, headers={"Content-Type": "application/x-ndjson"})
    assert (response.status, response.problems()) == (422, [(["body"], "json_invalid")])


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
async def test_bodies_may_be_gzip_encoded(api: Api, kind: str) -> None:
    outputs = [make_output(n) for n in range(50)]
    body = gzip.compress(lines(outputs) if "ndjson" in kind else json.dumps(outputs).encode())
    response = await api.post(PATH, data=body, headers={"Content-Type": kind, "Content-Encoding": "gzip"})
    assert (response.status, response.json["created"]) == (200, 50)


# -- rejections -----------------------------------------------------------------------------------


async def rejected_again(admin: Api, **changes: Any) -> tuple[str, dict[str, Any]]:
    """Reject an item, let the next crawl send it again with some changes; return the result and the item."""
    item = make_output(1, root_job_id="monday", data={"title": "Lamp"}, tags={"country": "Germany"})
    await admin.ok("/v1/outputs/shop", [item])
    rejection = [{"key_hash": item["key_hash"], "is_approved": False, "tags": {"rejected": "blurred"}}]
    assert (await admin.patch("/v1/outputs/shop", rejection)).json["updated"] == 1
    written = await admin.ok("/v1/outputs/shop", [item | {"root_job_id": "tuesday"} | changes])
    (found,) = (await admin.ok("/v1/outputs/shop"))["items"]
    return written["items"][0]["result"], found


async def test_a_rejection_survives_a_crawl_that_finds_the_same(admin: Api) -> None:
    result, found = await rejected_again(admin)
    assert (result, found["root_job_id"]) == ("unchanged", "tuesday")
    assert found["tags"] == {"country": "Germany", "rejected": "blurred"}


@pytest.mark.parametrize(
    "changes",
    [{"tags": {"country": "France"}}, {"tags": {}}, {"source_url": "https://shop.example/moved"}, {"files": []}],
)
async def test_a_rejection_survives_a_crawl_that_finds_the_same_data(admin: Api, changes: dict[str, Any]) -> None:
    _, found = await rejected_again(admin, **changes)
    sent = changes.get("tags", {"country": "Germany"})
    assert found["tags"] == {**sent, "rejected": "blurred"}
    assert (await admin.ok("/v1/outputs/shop?rejected=true"))["items"] == [found]


async def test_a_rejection_goes_when_the_data_changes(admin: Api) -> None:
    result, found = await rejected_again(admin, data={"title": "Another lamp"})
    assert (result, found["tags"]) == ("updated", {"country": "Germany"})


@pytest.mark.parametrize(("characters", "kept"), [(8000, True), (8200, False)])
async def test_a_reason_of_more_than_8_kb_is_stored_but_not_kept(admin: Api, characters: int, kept: bool) -> None:
    """Each write would read it for all its items."""
    item = make_output(1, tags={"rejected": "x" * characters})
    await admin.ok("/v1/outputs/shop", [item])
    (found,) = (await admin.ok("/v1/outputs/shop?rejected=true"))["items"]
    assert found["tags"] == item["tags"]
    await admin.ok("/v1/outputs/shop", [item | {"tags": {"country": "France"}}])
    (found,) = (await admin.ok("/v1/outputs/shop"))["items"]
    assert found["tags"] == {"country": "France"} | (item["tags"] if kept else {})


async def test_a_rejection_that_is_sent_counts(admin: Api) -> None:
    result, found = await rejected_again(admin, tags={"rejected": "wrong price"})
    assert (result, found["tags"]) == ("updated", {"rejected": "wrong price"})


async def test_an_item_that_was_approved_after_its_rejection_stays_so(admin: Api) -> None:
    _, found = await rejected_again(admin)
    approval = {"is_approved": True, "tags": {"rejected": None}}
    await admin.request("PATCH", f"/v1/outputs/shop/{found['output_id']}", json=approval)
    again = make_output(1, root_job_id="wednesday", data={"title": "Lamp"}, tags={"country": "Germany"})
    assert (await admin.ok("/v1/outputs/shop", [again]))["unchanged"] == 1
    (found,) = (await admin.ok("/v1/outputs/shop"))["items"]
    assert (found["is_approved"], found["tags"]) == (True, {"country": "Germany"})
