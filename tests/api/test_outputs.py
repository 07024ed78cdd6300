"""GET and POST /v1/outputs/{group_id}: every field, filter and bound, one caller at a time."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import itertools
import json
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import pytest
from pytest_aiohttp.plugin import AiohttpClient

from service.app import create_app
from service.settings import Settings
from service.store import Store
from tests.conftest import MakeApi
from tests.support.api import Answer, Api, make_file, make_output, walk
from tests.support.contract import HeldApi

PATH = "/v1/outputs/group-1"
ODD = "a b+c&d=e#f%g/ü?漢;'\"\\<>{}|^`~"


@pytest.fixture
def api(api: Api) -> Api:
    return HeldApi(api.client, api.token, api.organization_id)


async def items(api: Api, query: str = "limit=1000") -> list[dict[str, Any]]:
    page = await api.ok(f"{PATH}?{query}")
    assert set(page) == {"metadata", "items"}
    return list(page["items"])


async def stored(api: Api, **changes: Any) -> dict[str, Any]:
    """Write one output and return it as it is read."""
    await api.ok(PATH, [make_output(**changes)])
    (item,) = await items(api)
    return item


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


async def tick(item: dict[str, Any]) -> None:
    """Wait until the clock has moved on from an item's last change."""
    while datetime.now(UTC) - datetime.fromisoformat(item["update_date"]) < timedelta(milliseconds=2):
        await asyncio.sleep(0.001)


# -- what comes out ----------------------------------------------------------------------------


async def test_an_output_comes_out_with_exactly_the_fields_of_the_contract(api: Api) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    item = await stored(api)
    for name in ("create_date", "update_date", "last_scraped_date"):
        assert before <= datetime.fromisoformat(item.pop(name)) <= datetime.now(UTC), name
    assert uuid.UUID(item.pop("output_id"))
    (file,) = item.pop("files")
    assert uuid.UUID(file.pop("id"))
    assert before <= datetime.fromisoformat(file.pop("create_date")) <= datetime.now(UTC)
    assert file == make_file()
    sent = make_output()
    assert item == {
        "source_url": sent["source_url"],
        "data": sent["data"],
        "id": 1,
        "root_job_id": "job-1",
        "key_hash": "key-1",
        "value_hash": hashlib.sha256(canonical(sent["data"])).hexdigest(),
        "is_approved": False,
        "tags": sent["tags"],
    }


async def test_an_unknown_group_is_an_empty_page(api: Api) -> None:
    page = await api.ok("/v1/outputs/nobody-knows-it")
    assert page == {"metadata": {"next_url": None, "next_cursor": None}, "items": []}


async def test_the_last_page_has_null_for_the_next(api: Api) -> None:
    await api.ok(PATH, [make_output(n) for n in range(3)])
    for limit in (3, 4, 1000):
        page = await api.ok(f"{PATH}?limit={limit}")
        assert page["metadata"] == {"next_url": None, "next_cursor": None}


async def test_with_a_further_page_next_cursor_is_the_last_id_of_this_one(api: Api) -> None:
    await api.ok(PATH, [make_output(n) for n in range(3)])
    page = await api.ok(f"{PATH}?limit=2")
    assert page["metadata"]["next_cursor"] == page["items"][-1]["id"]
    rest = await api.ok(f"{PATH}?limit=2&cursor={page['metadata']['next_cursor']}")
    assert [item["key_hash"] for item in page["items"] + rest["items"]] == ["key-0", "key-1", "key-2"]


# -- what goes in ------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["source_url", "data", "root_job_id"])
async def test_required_fields_are_required(api: Api, field: str) -> None:
    output = make_output()
    del output[field]
    answer = await api.post(PATH, [make_output(2), output])
    assert (answer.status, answer.problems()) == (422, [(["body", "1", field], "missing")])
    assert await items(api) == []


@pytest.mark.parametrize(("field", "default"), [("is_approved", False), ("tags", {}), ("files", [])])
async def test_fields_left_out_have_their_defaults(api: Api, field: str, default: Any) -> None:
    output = make_output()
    output.pop(field, None)
    await api.ok(PATH, [output])
    (item,) = await items(api)
    assert item[field] == default


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("source_url", 1, "string_type"),
        ("source_url", "u" * 8193, "string_too_long"),
        ("data", [], "dict_type"),
        ("data", None, "dict_type"),
        ("root_job_id", "", "string_too_short"),
        ("root_job_id", "j" * 257, "string_too_long"),
        ("key_hash", 5, "string_type"),
        ("key_hash", "k" * 257, "string_too_long"),
        ("value_hash", None, "string_type"),
        ("value_hash", "v" * 257, "string_too_long"),
        ("is_approved", "false", "bool_type"),
        ("tags", "country", "dict_type"),
        ("files", {}, "list_type"),
        ("last_scraped_date", "now", "datetime_invalid"),
        ("last_scraped_date", 1, "datetime_type"),
        ("id", 1, "unknown_field"),
        ("output_id", "x", "unknown_field"),
        ("create_date", "2026-01-31", "unknown_field"),
        ("update_date", "2026-01-31", "unknown_field"),
        ("job_id", "job-1", "unknown_field"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_faulty_fields_are_named(api: Api, field: str, value: Any, kind: str) -> None:
    answer = await api.post(PATH, [make_output(2), make_output(**{field: value})])
    assert (answer.status, answer.problems()) == (422, [(["body", "1", field], kind)])
    assert await items(api) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("source_url", "https://shop.example/" + "u" * 8171),
        ("source_url", ""),
        ("data", {}),
        ("data", {"a": [None, True, 1, -1.5, "x", {"ü": {"$x": 1, "a.b": 2, "": 3}}], "b": 2**63 - 1}),
        ("root_job_id", "j" * 256),
        ("key_hash", "k" * 256),
        ("key_hash", ""),
        ("value_hash", "v" * 256),
        ("is_approved", True),
        ("tags", {"country": 1, "other": {"nested": [1]}}),
        ("last_scraped_date", "2026-01-31T12:00:00.000Z"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_fields_come_out_as_they_went_in(api: Api, field: str, value: Any) -> None:
    assert (await stored(api, **{field: value}))[field] == value


@pytest.mark.parametrize(
    ("sent", "out"),
    [
        ("2026-01-31", "2026-01-31T00:00:00.000Z"),
        ("2026-01-31T13:30:00+01:30", "2026-01-31T12:00:00.000Z"),
        ("2026-01-31T12:00:00", "2026-01-31T12:00:00.000Z"),
        ("2026-01-31T12:00:00.123456Z", "2026-01-31T12:00:00.123Z"),
    ],
)
async def test_last_scraped_date_comes_out_in_utc_with_milliseconds(api: Api, sent: str, out: str) -> None:
    assert (await stored(api, last_scraped_date=sent))["last_scraped_date"] == out


async def test_value_hash_is_the_sha_256_of_the_canonical_json_of_data(api: Api) -> None:
    data = {"ü": 1, "b": [1, 2.5, None], "a": {"z": "漢字", "y": '\n"\\/'}}
    expected = hashlib.sha256('{"a":{"y":"\\n\\"\\\\/","z":"漢字"},"b":[1,2.5,null],"ü":1}'.encode()).hexdigest()
    assert canonical(data) in ('{"a":{"y":"\\n\\"\\\\/","z":"漢字"},"b":[1,2.5,null],"ü":1}'.encode(),)
    assert (await stored(api, data=data))["value_hash"] == expected


async def test_key_hash_is_the_sha_256_of_source_url_and_the_canonical_json_of_data(api: Api) -> None:
    output = make_output()
    del output["key_hash"]
    await api.ok(PATH, [output])
    (item,) = await items(api)
    parts = output["source_url"].encode() + b"\n" + canonical(output["data"])
    assert item["key_hash"] == hashlib.sha256(parts).hexdigest()


@pytest.mark.parametrize(
    "field",
    [
        "field",
        "url_etag_hash",
        "blob_key",
        "blob_url",
        "source_url",
        "file_url",
        "file_type",
        "file_checksum",
        "id",
    ],
)
async def test_a_text_of_a_file_comes_out_as_it_went_in(api: Api, field: str) -> None:
    (file,) = (await stored(api, files=[make_file(**{field: "ü/ 1"})]))["files"]
    assert file[field] == "ü/ 1"
    answer = await api.post(PATH, [make_output(files=[make_file(), make_file(**{field: 1})])])
    assert (answer.status, answer.problems()) == (422, [(["body", "0", "files", "1", field], "string_type")])


async def test_a_files_metadata_and_create_date_come_out_as_they_went_in(api: Api) -> None:
    sent = make_file(file_metadata={"exif": {"$iso": 100}}, create_date="2026-01-31T13:00:00+01:00")
    (file,) = (await stored(api, files=[sent]))["files"]
    assert file["file_metadata"] == {"exif": {"$iso": 100}}
    assert file["create_date"] == "2026-01-31T12:00:00.000Z"


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("file_metadata", [], "dict_type"),
        ("create_date", "soon", "datetime_invalid"),
        ("id", "i" * 257, "string_too_long"),
        ("blob_url", "u" * 8193, "string_too_long"),
        ("size", 1, "unknown_field"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_faulty_fields_of_a_file_are_named(api: Api, field: str, value: Any, kind: str) -> None:
    answer = await api.post(PATH, [make_output(files=[make_file(**{field: value})])])
    assert (answer.status, answer.problems()) == (422, [(["body", "0", "files", "0", field], kind)])


async def test_a_file_with_nothing_given_has_all_fields(api: Api) -> None:
    item = await stored(api, files=[{}])
    (file,) = item["files"]
    assert uuid.UUID(file.pop("id"))
    assert file.pop("create_date") == item["create_date"]
    assert file == {
        "field": "",
        "url_etag_hash": "",
        "blob_key": "",
        "blob_url": "",
        "source_url": "",
        "file_url": "",
        "file_type": "",
        "file_checksum": "",
        "file_metadata": {},
    }


async def test_files_of_one_output_have_ids_of_their_own(api: Api) -> None:
    files = [make_file(), make_file(), make_file(field="other"), make_file(id="mine")]
    ids = [file["id"] for file in (await stored(api, files=files))["files"]]
    assert len(set(ids)) == 4
    assert ids[3] == "mine"


async def test_a_file_that_stays_keeps_its_id_and_date_when_its_output_changes(api: Api) -> None:
    first = await stored(api, files=[make_file(), make_file(id="mine")])
    await tick(first)
    await api.ok(PATH, [make_output(data={"new": 1}, files=[make_file(id="mine"), make_file(), make_file(field="b")])])
    (second,) = await items(api)
    assert second["files"][:2] == [first["files"][1], first["files"][0]]
    assert second["files"][2]["create_date"] == second["update_date"] > first["update_date"]


# -- created, updated, unchanged ---------------------------------------------------------------


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


async def test_a_late_delivery_of_an_older_scrape_does_not_take_the_item_back_to_its_job(api: Api) -> None:
    await stored(api)
    await api.ok(PATH, [make_output(root_job_id="job-0", last_scraped_date="2020-01-01")])
    (item,) = await items(api)
    assert item["root_job_id"] == "job-1"


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
    answer = await api.post(PATH, outputs)
    assert (answer.status, answer.problems()) == (422, [(["body"], "too_many")])
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
    answer = await api.post(PATH, data=body, headers={"Content-Type": "application/x-ndjson"})
    assert answer.json["created"] == 2
    assert [item["key_hash"] for item in await items(api)] == ["key-1", "key-2"]


async def test_faults_of_lines_are_named_by_record_or_line(api: Api) -> None:
    headers = {"Content-Type": "application/x-ndjson"}
    answer = await api.post(PATH, data=lines([make_output(), make_output(data=1)]), headers=headers)
    assert (answer.status, answer.problems()) == (422, [(["body", "1", "data"], "dict_type")])
    answer = await api.post(PATH, data=lines([make_output()]) + b"{oops\n", headers=headers)
    assert (answer.status, answer.problems()) == (422, [(["body"], "json_invalid")])
    assert "Line 2" in answer.json["detail"][0]["msg"]
    assert await items(api) == []


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
async def test_bodies_may_be_gzip_encoded(api: Api, kind: str) -> None:
    outputs = [make_output(n) for n in range(50)]
    body = gzip.compress(lines(outputs) if "ndjson" in kind else json.dumps(outputs).encode())
    answer = await api.post(PATH, data=body, headers={"Content-Type": kind, "Content-Encoding": "gzip"})
    assert (answer.status, answer.json["created"]) == (200, 50)


# -- query parameters --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "name", "kind"),
    [
        ("limit=0", "limit", "greater_than_equal"),
        ("limit=-1", "limit", "greater_than_equal"),
        ("limit=1001", "limit", "less_than_equal"),
        ("limit=abc", "limit", "int_type"),
        ("limit=1e3", "limit", "int_type"),
        ("limit=1.0", "limit", "int_type"),
        ("limit=1_000", "limit", "int_type"),
        ("limit=%2B5", "limit", "int_type"),
        ("limit=+5", "limit", "int_type"),
        ("limit=5%0A", "limit", "int_type"),
        ("limit=0x10", "limit", "int_type"),
        ("limit=%EF%BC%91", "limit", "int_type"),  # a full-width 1
        ("limit=%D9%A3", "limit", "int_type"),  # an Arabic 3
        ("limit=true", "limit", "int_type"),
        ("limit=null", "limit", "int_type"),
        ("limit=", "limit", "int_type"),
        ("limit=9999999999999999999999", "limit", "less_than_equal"),
        ("limit=5&limit=6", "limit", "value_error"),
        ("limit=5&limit=5", "limit", "value_error"),
        ("cursor=-1", "cursor", "greater_than_equal"),
        ("cursor=9223372036854775808", "cursor", "less_than_equal"),
        (f"cursor={2**70}", "cursor", "less_than_equal"),
        ("cursor=abc", "cursor", "int_type"),
        ("cursor=", "cursor", "int_type"),
        ("cursor=1.5", "cursor", "int_type"),
        ("cursor=1&cursor=2", "cursor", "value_error"),
        ("created_after=yesterday", "created_after", "datetime_invalid"),
        ("created_after=2026-02-30", "created_after", "datetime_invalid"),
        ("created_after=2026-1-1", "created_after", "datetime_invalid"),
        ("created_after=20260131", "created_after", "datetime_invalid"),
        ("created_after=2026-01-31T", "created_after", "datetime_invalid"),
        ("created_after=2026-01-31T25:00:00Z", "created_after", "datetime_invalid"),
        ("created_after=2026-01-31T12:00:00%2B99:00", "created_after", "datetime_invalid"),
        ("created_after=0000-01-01", "created_after", "datetime_invalid"),
        ("created_after=10000-01-01", "created_after", "datetime_invalid"),
        ("created_after=0001-01-01T00:00:00%2B01:00", "created_after", "datetime_invalid"),
        ("created_after=1769860800", "created_after", "datetime_invalid"),
        ("created_after=2026-01-31&created_after=2026-01-31", "created_after", "value_error"),
        ("job_id=" + "j" * 257, "job_id", "string_too_long"),
        ("job_id=a&job_id=a", "job_id", "value_error"),
        ("url=a&url=", "url", "value_error"),
        ("country=" + "c" * 1025, "country", "string_too_long"),
        ("country=a&country=b", "country", "value_error"),
        ("region=" + "r" * 1025, "region", "string_too_long"),
        ("region=a&region=b", "region", "value_error"),
    ],
    ids=lambda value: value[:40],
)
async def test_faulty_query_parameters_are_named(api: Api, query: str, name: str, kind: str) -> None:
    answer = await api.client.get(f"{PATH}?{query}", headers={"Authorization": f"Bearer {api.token}"})
    held = Answer(answer.status, answer.headers, await answer.read(), await answer.json())
    assert (held.status, held.problems()) == (422, [(["query", name], kind)])


async def test_all_faulty_query_parameters_are_reported(api: Api) -> None:
    answer = await api.get(f"{PATH}?limit=0&cursor=-1&created_after=x")
    assert sorted(loc[1] for loc, _ in answer.problems()) == ["created_after", "cursor", "limit"]


async def test_limit_is_10_unless_given(api: Api) -> None:
    await api.ok(PATH, [make_output(n) for n in range(12)])
    page = await api.ok(PATH)
    assert [item["key_hash"] for item in page["items"]] == [f"key-{n}" for n in range(10)]


async def test_limit_goes_from_1_to_1000(make_api: MakeApi) -> None:
    api = await make_api()
    await api.ok(PATH, [make_output(n) for n in range(1000)])
    await api.ok(PATH, [make_output(1000)])
    for limit in (1, 2, 999, 1000):
        page = await api.ok(f"{PATH}?limit={limit}")
        assert len(page["items"]) == limit
        assert page["metadata"]["next_cursor"] == page["items"][-1]["id"]
    assert len(await items(api, "limit=0001")) == 1


async def test_cursor_is_0_unless_given_and_goes_up_to_63_bits(api: Api) -> None:
    await api.ok(PATH, [make_output(n) for n in range(3)])
    everything = await items(api)
    assert await items(api, "cursor=0") == everything
    assert await items(api, f"cursor={everything[0]['id']}") == everything[1:]
    assert await items(api, f"cursor={everything[-1]['id']}") == []
    assert await items(api, f"cursor={2**63 - 1}") == []


async def test_empty_filters_count_as_left_out(api: Api) -> None:
    await api.ok(PATH, [make_output(), make_output(2, tags={})])
    everything = await items(api)
    for name in ("job_id", "created_after", "url", "country", "region"):
        assert await items(api, f"{name}=") == everything
    assert await items(api, "job_id=&created_after=&url=&country=&region=") == everything


async def test_job_id_filters_by_root_job_exactly(api: Api) -> None:
    jobs = ["job-1", "job-11", "Job-1", "null", ODD]
    await api.ok(PATH, [make_output(n, root_job_id=job) for n, job in enumerate(jobs)])
    for job in jobs:
        assert [i["root_job_id"] for i in await items(api, urlencode({"job_id": job}))] == [job]
    assert await items(api, "job_id=job") == []


async def test_url_filters_by_source_url_byte_for_byte(api: Api) -> None:
    urls = [
        "https://shop.example/p",
        "https://shop.example/p/",
        "https://shop.example/P",
        "https://SHOP.example/p",
        "http://shop.example/p",
        "https://shop.example:443/p",
        "https://shop.example/p?a=1&b=2",
        "https://shop.example/p?b=2&a=1",
        "https://shop.example/p?a=1+2",
        "https://shop.example/p?a=1%202",
        "https://shop.example/p?a=1 2",
        "https://shop.example/p#part",
        "https://shop.example/%C3%BC",
        "https://shop.example/%c3%bc",
        "https://shop.example/ü",
        "https://shop.example/u\u0308",  # the same sign, composed
        "https://shop.example/a/../p",
        "not a URL",
        ODD,
    ]
    await api.ok(PATH, [make_output(n, source_url=url) for n, url in enumerate(urls)])
    for url in urls:
        for encoded in (urlencode({"url": url}), "url=" + quote(url, safe="")):
            assert [i["source_url"] for i in await items(api, encoded)] == [url]
    assert await items(api, "url=https%3A%2F%2Fshop.example%2F") == []
    # What needs no encoding may come without.
    assert len(await items(api, "url=https://shop.example/p?a=1")) == 0
    assert len(await items(api, "url=https://shop.example/p/")) == 1


@pytest.mark.parametrize("name", ["country", "region"])
async def test_country_and_region_filter_by_their_tag_exactly(api: Api, name: str) -> None:
    values = ["Germany", "germany", "Germany ", "DE-BE", "Côte d’Ivoire", ODD]
    others: list[Any] = [1, None, ["Germany"], ["Germany", "France"], {"Germany": 1}, [["Germany"]]]
    tags: list[dict[str, Any]] = [{name: value} for value in values + others]
    tags += [{}, {"nested": {name: "Germany"}}, {"other": "Germany"}]
    await api.ok(PATH, [make_output(n, tags=tag) for n, tag in enumerate(tags)])
    for value in values:
        assert [i["tags"] for i in await items(api, urlencode({name: value}))] == [{name: value}]
    for value in ("Germ", "1", "null", "^G"):
        assert await items(api, urlencode({name: value})) == []


async def test_created_after_keeps_what_was_created_or_updated_then_or_later(api: Api) -> None:
    for n in range(3):
        await tick(await stored_last(api, make_output(n)))
    first, second, third = await items(api)

    async def keys(moment: str) -> list[str]:
        return [i["key_hash"] for i in await items(api, urlencode({"created_after": moment}))]

    # On or after: the very millisecond is in, the next is not.
    assert await keys(first["update_date"]) == ["key-0", "key-1", "key-2"]
    assert await keys(second["update_date"]) == ["key-1", "key-2"]
    assert await keys(third["update_date"]) == ["key-2"]
    after = datetime.fromisoformat(second["update_date"]) + timedelta(milliseconds=1)
    assert await keys(after.isoformat()) == ["key-2"]
    # The same moment in another zone, and without one.
    there = datetime.fromisoformat(second["update_date"]).astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert await keys(there.isoformat()) == ["key-1", "key-2"]
    assert await keys(second["update_date"].removesuffix("Z")) == ["key-1", "key-2"]
    # An item that changes is created or updated later than it was.
    await api.ok(PATH, [make_output(0, is_approved=True)])
    assert await keys(third["update_date"]) == ["key-2", "key-0"]


async def stored_last(api: Api, output: dict[str, Any]) -> dict[str, Any]:
    await api.ok(PATH, [output])
    return (await items(api))[-1]


@pytest.mark.parametrize(
    ("form", "found"),
    [
        ("2026-01-31", 1),
        ("2026-01-31T12:00:00Z", 1),
        ("2026-01-31T12:00:00.000Z", 1),
        ("2026-01-31T12:00:00", 1),
        ("2026-01-31T12:00:00%2B02:00", 1),
        ("2026-01-31T12:00:00-05:00", 1),
        ("0001-01-01", 1),
        ("2999-12-31", 0),
        ("2999-12-31T23:59:59Z", 0),
        ("9999-12-31T23:59:59.999Z", 0),
    ],
)
async def test_created_after_takes_dates_and_date_times(api: Api, form: str, found: int) -> None:
    await api.ok(PATH, [make_output()])
    answer = await api.client.get(f"{PATH}?created_after={form}", headers={"Authorization": f"Bearer {api.token}"})
    assert answer.status == 200
    assert len((await answer.json())["items"]) == found


async def test_a_plain_date_is_midnight_utc(api: Api, store: Store) -> None:
    await api.ok(PATH, [make_output(n) for n in range(2)])
    midnight = datetime(2026, 1, 31, tzinfo=UTC)
    for n, moment in enumerate([midnight - timedelta(milliseconds=1), midnight]):
        where = {"organization_id": api.organization_id, "key_hash": f"key-{n}"}
        await store.database["outputs"].update_one(where, {"$set": {"update_date": moment}})
    assert [item["key_hash"] for item in await items(api, "created_after=2026-01-31")] == ["key-1"]
    assert len(await items(api, "created_after=2026-01-30")) == 2


# -- next_url ----------------------------------------------------------------------------------


def parts(url: str) -> tuple[str, str, dict[str, str]]:
    """Return what is before the query, and the query."""
    split = urlsplit(url)
    pairs = parse_qsl(split.query, keep_blank_values=True, strict_parsing=True)
    assert len(dict(pairs)) == len(pairs)
    return f"{split.scheme}://{split.netloc}", split.path, dict(pairs)


async def test_next_url_is_absolute_and_starts_with_the_requests_own_host(api: Api) -> None:
    await api.ok(PATH, [make_output(n) for n in range(2)])
    page = await api.ok(f"{PATH}?limit=1")
    assert parts(page["metadata"]["next_url"]) == (
        str(api.client.make_url("")).rstrip("/"),
        PATH,
        {"limit": "1", "cursor": str(page["metadata"]["next_cursor"])},
    )
    page = await api.ok(f"{PATH}?limit=1", headers={"Host": "data.example:8443"})
    assert parts(page["metadata"]["next_url"])[0] == "http://data.example:8443"


@pytest.mark.parametrize("base", ["https://data.example", "https://data.example/", "https://example.com/scraping/"])
async def test_next_url_starts_with_base_url_where_set(
    settings: Settings, store: Store, aiohttp_client: AiohttpClient, organization: int, base: str
) -> None:
    given = Settings(**{**vars(settings), "base_url": base})
    client = await aiohttp_client(create_app(given, store))
    api = Api(client, await store.tokens.create(organization, ["read", "write"]), organization)
    await api.ok(PATH, [make_output(n) for n in range(2)])
    page = await api.ok(f"{PATH}?limit=1", headers={"Host": "elsewhere.example"})
    assert page["metadata"]["next_url"] == f"{base.rstrip('/')}{PATH}?limit=1&cursor={page['metadata']['next_cursor']}"


async def test_next_url_repeats_all_filters_whatever_characters_they_hold(api: Api) -> None:
    group = "/v1/outputs/" + quote(ODD, safe="")
    fields = {"source_url": ODD, "root_job_id": ODD, "tags": {"country": ODD, "region": ODD}}
    await api.ok(group, [make_output(n, **fields) for n in range(3)])
    query = {
        "job_id": ODD,
        "created_after": "2020-01-31T12:00:00+02:00",
        "url": ODD,
        "limit": "1",
        "country": ODD,
        "region": ODD,
        "fields": "",
    }
    page = await api.ok(f"{group}?{urlencode(query)}")
    _, path, repeated = parts(page["metadata"]["next_url"])
    assert unquote(path) == unquote(group)
    assert repeated == query | {"cursor": str(page["metadata"]["next_cursor"])}
    assert page["metadata"]["next_url"].isascii()
    found = await walk(api, f"{group}?{urlencode(query)}")
    assert [item["key_hash"] for item in found] == ["key-0", "key-1", "key-2"]


async def test_next_url_replaces_the_cursor_that_was_given(api: Api) -> None:
    await api.ok(PATH, [make_output(n) for n in range(4)])
    first = (await items(api))[0]["id"]
    page = await api.ok(f"{PATH}?cursor={first}&limit=2")
    assert parts(page["metadata"]["next_url"])[2] == {"limit": "2", "cursor": str(page["items"][-1]["id"])}


# -- a walk through many -----------------------------------------------------------------------

MANY = 25_000
FILTERS = ("job_id", "created_after", "url", "country", "region")


class Loaded:
    """25,000 outputs of an organization of their own, and what a filter should find."""

    def __init__(self, mongo_url: str) -> None:
        self.organization_id = 7_000_000_000 + uuid.uuid4().int % 10**9
        self.outputs = [
            make_output(
                n,
                source_url=f"https://shop.example/p/{n % 7}",
                root_job_id=f"job-{n % 3}",
                tags={"country": f"Country {n % 4}", "region": f"R-{n % 5}"},
                data={"n": n},
                files=[],
            )
            for n in range(MANY)
        ]
        self.dates: dict[str, str] = {}
        asyncio.run(self._load(mongo_url))
        self.moment = sorted(self.dates.values())[MANY * 2 // 5]

    async def _load(self, mongo_url: str) -> None:
        settings = Settings(mongo_database="test")
        store = Store.connect(settings, mongo_url)
        await store.ensure_indexes()
        for start in range(0, MANY, 1000):
            batch = [{"is_approved": False, **output} for output in self.outputs[start : start + 1000]]
            await store.outputs.write(self.organization_id, "group-1", store.outputs.prepare(batch))
        found = store.database["outputs"].find({"organization_id": self.organization_id})
        async for document in found:
            self.dates[document["key_hash"]] = document["update_date"].isoformat(timespec="milliseconds")
        await store.close()

    def query(self, names: tuple[str, ...]) -> dict[str, str]:
        values = {
            "job_id": "job-1",
            "created_after": self.moment,
            "url": "https://shop.example/p/3",
            "country": "Country 2",
            "region": "R-4",
        }
        return {name: values[name] for name in names}

    def expected(self, query: dict[str, str]) -> list[str]:
        fields = {
            "job_id": lambda output: output["root_job_id"],
            "url": lambda output: output["source_url"],
            "country": lambda output: output["tags"]["country"],
            "region": lambda output: output["tags"]["region"],
        }
        return [
            output["key_hash"]
            for output in self.outputs
            if all(name == "created_after" or fields[name](output) == value for name, value in query.items())
            and self.dates[output["key_hash"]] >= query.get("created_after", "")
        ]


async def test_a_walk_by_next_url_returns_each_of_25000_exactly_once_with_any_filters(
    make_api: MakeApi, mongo_url: str
) -> None:
    loaded = await asyncio.to_thread(Loaded, mongo_url)
    api = await make_api(loaded.organization_id)
    subsets = [names for count in range(len(FILTERS) + 1) for names in itertools.combinations(FILTERS, count)]
    assert len(subsets) == 32
    for names in subsets:
        query = loaded.query(names)
        found = await walk(api, f"{PATH}?{urlencode({**query, 'limit': '1000'})}")
        assert [item["key_hash"] for item in found] == loaded.expected(query), names
        assert found, names


async def test_short_and_long_pages_show_the_same_items(api: Api) -> None:
    odd = {"$ref": "x", "$id": 1, "": None, "a.b": 1.5, "create_date": "no date", "deep": [{"files": [{}]}]}
    await api.ok(PATH, [make_output(n, data={**odd, "n": n}) for n in range(130)])
    whole = await items(api)
    assert len(whole) == 130
    assert whole[7]["data"] == {**odd, "n": 7}
    for limit in (1, 10, 16, 17, 128, 129):
        assert await items(api, f"limit={limit}") == whole[:limit]


class TestVeryLargePages:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(mongo_database="test", max_page_bytes=1_000_000)

    async def test_a_page_of_too_many_bytes_ends_early_and_goes_on_at_its_cursor(self, api: Api) -> None:
        large = [make_output(n, data={"n": n, "text": "x" * 900_000}) for n in range(40)]
        for start in range(0, 40, 10):
            await api.ok(PATH, large[start : start + 10])
        first = await api.ok(f"{PATH}?limit=1000")
        assert 0 < len(first["items"]) < 40
        assert first["metadata"]["next_cursor"] == first["items"][-1]["id"]
        found = await walk(api, f"{PATH}?limit=1000")
        assert [item["data"]["n"] for item in found] == list(range(40))
        lines = await api.get(f"{PATH}/export?format=ndjson")
        assert [json.loads(line)["data"]["n"] for line in lines.body.splitlines()] == list(range(40))


# -- content -----------------------------------------------------------------------------------


async def test_a_page_is_not_read_again_while_nothing_changes(api: Api) -> None:
    await api.ok(PATH, [make_output()])
    first = await api.get(PATH)
    same = await api.get(PATH, headers={"If-None-Match": first.headers["ETag"]})
    assert (same.status, same.body) == (304, b"")
    await api.ok(PATH, [make_output(is_approved=True)])
    assert (await api.get(PATH, headers={"If-None-Match": first.headers["ETag"]})).status == 200


async def test_an_etag_of_one_organization_says_nothing_about_another(api: Api, stranger: Api) -> None:
    await api.ok(PATH, [make_output(1)])
    await stranger.ok(PATH, [make_output(2)])
    tag = (await api.get(PATH)).headers["ETag"]
    assert (await stranger.get(PATH)).headers["ETag"] != tag
    assert (await stranger.get(PATH, headers={"If-None-Match": tag})).status == 200


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_page_whose_filter_no_index_serves_alone_keeps_to_its_limit(api: Api, order: str) -> None:
    await api.ok("/v1/outputs/g", [make_output(number, is_approved=number % 2 == 0) for number in range(60)])
    pages, cursor = [], 0
    while cursor is not None:
        page = await api.ok(f"/v1/outputs/g?is_approved=false&limit=7&order={order}&cursor={cursor}")
        pages.append([item["key_hash"] for item in page["items"]])
        cursor = page["metadata"]["next_cursor"]
    assert [len(page) for page in pages] == [7, 7, 7, 7, 2]
    assert len({key for page in pages for key in page}) == 30
