"""Outputs: every field, as it goes in and as it comes out."""

from __future__ import annotations

import hashlib
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.api import Api, make_file, make_output
from tests.support.contract import HeldApi
from tests.support.outputs import PATH, canonical, items, stored, tick


@pytest.fixture
def api(api: Api) -> Api:
    return HeldApi(api.client, api.token, api.organization_id)


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
    response = await api.post(PATH, [make_output(2), output])
    assert (response.status, response.problems()) == (422, [(["body", "1", field], "missing")])
    assert await items(api) == []


@pytest.mark.parametrize(("field", "default"), [("is_approved", False), ("tags", {}), ("files", [])])
async def test_fields_left_out_have_their_defaults(api: Api, field: str, default: Any) -> None:
    output = make_output()
    output.pop(field, None)
    await api.ok(PATH, [output])
    (item,) = await items(api)
    assert item[field] == default


FAULTY: list[tuple[str, Any, str]] = [
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
]


async def test_faulty_fields_are_named(api: Api) -> None:
    for field, value, kind in FAULTY:
        response = await api.post(PATH, [make_output(2), make_output(**{field: value})])
        assert (response.status, response.problems()) == (422, [(["body", "1", field], kind)]), field
        assert await items(api) == [], field


async def test_fields_come_out_as_they_went_in(api: Api) -> None:
    for field, value in [
        ("last_scraped_date", "2026-01-31T12:00:00.000Z"),  # first: it only moves forward
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
    ]:
        assert (await stored(api, **{field: value}))[field] == value, (field, value)


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


TEXTS_OF_FILES = [
    "field",
    "url_etag_hash",
    "blob_key",
    "blob_url",
    "source_url",
    "file_url",
    "file_type",
    "file_checksum",
    "id",
]


async def test_a_text_of_a_file_comes_out_as_it_went_in(api: Api) -> None:
    for field in TEXTS_OF_FILES:
        (file,) = (await stored(api, files=[make_file(**{field: "ü/ 1"})]))["files"]
        assert file[field] == "ü/ 1", field
        response = await api.post(PATH, [make_output(files=[make_file(), make_file(**{field: 1})])])
        assert (response.status, response.problems()) == (422, [(["body", "0", "files", "1", field], "string_type")]), (
            field
        )


async def test_a_files_metadata_and_create_date_come_out_as_they_went_in(api: Api) -> None:
    sent = make_file(file_metadata={"exif": {"$iso": 100}}, create_date="2026-01-31T13:00:00+01:00")
    (file,) = (await stored(api, files=[sent]))["files"]
    assert file["file_metadata"] == {"exif": {"$iso": 100}}
    assert file["create_date"] == "2026-01-31T12:00:00.000Z"


FAULTY_IN_FILES: list[tuple[str, Any, str]] = [
    ("file_metadata", [], "dict_type"),
    ("create_date", "soon", "datetime_invalid"),
    ("id", "i" * 257, "string_too_long"),
    ("blob_url", "u" * 8193, "string_too_long"),
    ("size", 1, "unknown_field"),
]


async def test_faulty_fields_of_a_file_are_named(api: Api) -> None:
    for field, value, kind in FAULTY_IN_FILES:
        response = await api.post(PATH, [make_output(files=[make_file(**{field: value})])])
        assert (response.status, response.problems()) == (422, [(["body", "0", "files", "0", field], kind)]), field


async def test_a_file_with_nothing_given_has_all_fields(api: Api) -> None:
    item = await stored(api, files=[{}])
    (file,) = item["files"]
    assert uuid.UUID(file.pop("id"))
    assert item["create_date"][:16] <= file.pop("create_date")[:16] <= item["create_date"]
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
    assert first["update_date"] < second["files"][2]["create_date"] <= second["update_date"]
