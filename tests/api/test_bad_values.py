"""Values of fields that are wrong or odd on purpose: refused, or kept as they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.api import Api, make_cookie, make_entry, make_file, make_output, make_review
from tests.support.bad_input import POSTS, bodies, refused, send


async def test_integers_beyond_64_bits_are_refused(api: Api) -> None:
    for number in [2**63, -(2**63) - 1, 2**64, 10**30]:
        body = bodies([make_output(data={"a": [1, {"n": number}]})])
        await refused(api, "/v1/outputs/g", body, (["body", "0", "data", "a", "1", "n"], "value_error"))


async def test_numbers_within_64_bits_come_back_as_they_were(api: Api) -> None:
    for number in [2**63 - 1, -(2**63), 0, -1, 1.5, 1e308, 5e-324, 0.1]:
        await api.ok("/v1/outputs/g", [make_output(data={"n": number})])
        back = (await api.ok("/v1/outputs/g"))["items"][0]["data"]["n"]
        assert (back, type(back)) == (number, type(number)), number


ODD_KEYS: Any = {
    "$": 1,
    "$gt": "",
    "$set": {"a": 1},
    "$where": "sleep(1000)",
    "a.b": 1,
    ".": 2,
    "..": 3,
    "": 4,
    "a": {"": {"$x.y": [{"$in": [1]}]}},
    "_id": "mine",
    "__proto__": {},
    "key with spaces": 1,
    "ключ": "значение",
    "e\u0301": 1,
    "\u00e9": 2,
    "\ufeff": 3,
    "\u202e": "x",
    "😀": "👨‍👩‍👧",
    "0": 1,
    "\u0001\u001f\u007f": "\u0001",
}


@pytest.mark.parametrize("field", ["data", "tags"])
async def test_keys_with_dollars_dots_or_nothing_come_back_as_they_were(api: Api, field: str) -> None:
    await api.ok("/v1/outputs/g", [make_output(**{field: ODD_KEYS})])
    (item,) = (await api.ok("/v1/outputs/g"))["items"]
    assert item[field] == ODD_KEYS
    assert list(item[field]) == list(ODD_KEYS)
    # And again as an update: operators must not come to life there.
    more: Any = {**ODD_KEYS, "more": 1}
    await api.ok("/v1/outputs/g", [make_output(**{field: more})])
    (item,) = (await api.ok("/v1/outputs/g"))["items"]
    assert item[field] == {**ODD_KEYS, "more": 1}


async def test_odd_keys_of_file_metadata_come_back_as_they_were(api: Api) -> None:
    await api.ok("/v1/outputs/g", [make_output(files=[make_file(file_metadata=ODD_KEYS)])])
    (item,) = (await api.ok("/v1/outputs/g"))["items"]
    assert item["files"][0]["file_metadata"] == ODD_KEYS


@pytest.mark.parametrize(
    "data",
    [
        {"$ref": "outputs", "$id": 1},
        {"$ref": "outputs", "$id": 1, "$db": "admin"},
        {"$ref": "outputs", "$id": 1, "$db": None},
        {"$db": None, "first": 1, "$id": {"$ref": "x", "$id": None, "$db": None}, "$ref": "outputs"},
        {"dollars": "$" * 2000, "then": {"$ref": "outputs", "$id": 1, "$db": None}},
        {"$oid": "0123456789abcdef01234567"},
        {"$date": "2026-01-01"},
        {"$numberLong": "1"},
        {"$regex": ".*"},
        {"$binary": {"base64": "AA==", "subType": "00"}},
        {"$code": "x"},
        {"$undefined": True},
    ],
    ids=lambda data: "+".join(data),
)
class TestWhatLooksLikeExtendedJson:
    """Is data like any other, on every way in and out; compared as text, so that the order of members counts."""

    async def test_in_outputs(self, api: Api, data: dict[str, Any]) -> None:
        sent = {"x": data, "y": [data, [data]]}
        body = [make_output(data=sent, tags=sent, files=[make_file(file_metadata=sent)])]
        written = (await api.ok("/v1/outputs/g", body))["items"][0]
        path = f"/v1/outputs/g/{written['output_id']}"
        export = "/v1/outputs/g/export?format="
        lines = (await api.get(f"{export}ndjson")).body.splitlines()
        served = [
            *(await api.ok("/v1/outputs/g"))["items"],
            *(await api.ok("/v1/outputs/g?order=desc&is_approved=false"))["items"],
            await api.ok(path),
            *map(json.loads, lines),
            *await api.ok(f"{export}json"),
        ]
        assert len(served) == 5
        for item in served:
            for value in (item["data"], item["tags"], item["files"][0]["file_metadata"]):
                assert json.dumps(value) == json.dumps(sent)
        assert (await api.get(f"{export}csv&fields=data")).status == 200
        assert (await api.ok("/v1/outputs/g", body))["unchanged"] == 1

    async def test_in_tags_that_are_merged(self, api: Api, data: dict[str, Any]) -> None:
        tags = {"kept": data, "changed": {"in": [data]}, "deep": {"kept": {"x": data}}}
        item = (await api.ok("/v1/outputs/g", [make_output(tags=tags)]))["items"][0]
        path = f"/v1/outputs/g/{item['output_id']}"
        assert (await api.patch(path, {"tags": {"deep": {"kept": {}}}})).json["result"] == "unchanged"
        assert (await api.patch(path, {"tags": {"deep": {"more": 1}, "changed": [data]}})).json["result"] == "updated"
        merged = {"kept": data, "changed": [data], "deep": {"kept": {"x": data}, "more": 1}}
        assert json.dumps((await api.ok(path))["tags"]) == json.dumps(merged)
        # The content is known as if a scraper had sent it like this.
        assert (await api.ok("/v1/outputs/g", [make_output(tags=merged)]))["unchanged"] == 1

    async def test_in_a_storage_state(self, api: Api, data: dict[str, Any]) -> None:
        cookie = {"name": "n", "value": "v", "domain": "shop.example", "path": "/", "expires": -1, "partition": data}
        entries = [{"name": "k", "value": json.dumps(data)}]
        origin = {"origin": "https://shop.example", "localStorage": entries, "indexedDB": [data]}
        await api.ok("/v1/storage-state", {"cookies": [cookie], "origins": [origin]})
        state = await api.ok("/v1/storage-state")
        assert json.dumps(state["cookies"][0]["partition"]) == json.dumps(data)
        assert json.dumps(state["origins"][0]["indexedDB"]) == json.dumps([data])
        assert state["origins"][0]["localStorage"] == entries
        assert (await api.ok("/v1/local-storage"))[0]["value"] == json.dumps(data)


NULS = {
    "in a cookie's name": ("/v1/cookies", make_cookie(name="a\0b"), ["name"]),
    "in a cookie's domain": ("/v1/cookies", make_cookie(domain="a\0b"), ["domain"]),
    "in a cookie's value": ("/v1/cookies", make_cookie(value="\0"), ["value"]),
    "in an entry's key": ("/v1/local-storage", make_entry(key="\0"), ["key"]),
    "in a job id": ("/v1/reviews/g", make_review(job_id="a\0"), ["job_id"]),
    "in a key hash": ("/v1/outputs/g", make_output(key_hash="\0"), ["key_hash"]),
    "in a root job id": ("/v1/outputs/g", make_output(root_job_id="\0"), ["root_job_id"]),
    "in a key of data": ("/v1/outputs/g", make_output(data={"a": {"b\0": 1}}), ["data", "a"]),
    "in a key of tags": ("/v1/outputs/g", make_output(tags={"\0": 1}), ["tags"]),
    "deep inside data": ("/v1/outputs/g", make_output(data={"a": [{"b": "\0"}]}), ["data", "a", "0", "b"]),
    "in a file": ("/v1/outputs/g", make_output(files=[make_file(blob_key="\0")]), ["files", "0", "blob_key"]),
}


async def test_nul_is_refused(api: Api) -> None:
    for case in NULS:
        path, record, loc = NULS[case]
        await refused(api, path, bodies([record]), (["body", "0", *loc], "value_error"))


OPERATOR = {"$gt": ""}
STRINGS = [(path, name) for path, make in POSTS.items() for name, value in make().items() if isinstance(value, str)]


async def test_anything_else_where_a_string_belongs_is_refused(api: Api) -> None:
    for path, field in STRINGS:
        kind = "datetime_type" if field == "expires" else "string_type"
        takes_seconds = (path, field) == ("/v1/cookies", "expires")  # Unix seconds, as GET returns them
        for value in (OPERATOR, *(() if takes_seconds else (1,)), True, ["x"], {"$ne": None}):
            await refused(api, path, bodies([POSTS[path](**{field: value})]), (["body", "0", field], kind))


@pytest.mark.parametrize(("path", "field"), STRINGS)
async def test_an_empty_string_is_taken_or_refused_but_never_fails(api: Api, path: str, field: str) -> None:
    response = await send(api, path, bodies([POSTS[path](**{field: ""})]))
    never_empty = {"domain", "job_id", "status", "root_job_id", "expires"}
    if field in never_empty:
        kind = "datetime_invalid" if field == "expires" else "string_too_short"
        assert (response.status, response.problems()) == (422, [(["body", "0", field], kind)])
    else:
        assert response.status == 200, response.body
        found = await api.ok(path)
        assert len(found["items"] if "outputs" in path else found) == 1


@pytest.mark.parametrize("path", POSTS)
async def test_fields_that_only_the_service_sets_are_refused(api: Api, path: str) -> None:
    owned = ("_id", "id", "organization_id", "create_date", "update_date", "output_id", "group_id", "content_hash")
    for field in (*owned, "tombstone"):
        await refused(api, path, bodies([POSTS[path](**{field: 1})]), (["body", "0", field], "unknown_field"))


async def test_unknown_fields_are_refused(api: Api) -> None:
    for field in ("httpOnly", "Secure", "sameSite", "", "$set", "a.b"):
        body = bodies([make_cookie(**{field: True})])
        await refused(api, "/v1/cookies", body, (["body", "0", field], "unknown_field"))


@pytest.mark.parametrize(
    ("path", "field"), [("/v1/cookies", "secure"), ("/v1/cookies", "http_only"), ("/v1/outputs/g", "is_approved")]
)
async def test_only_true_and_false_are_booleans(api: Api, path: str, field: str) -> None:
    values: list[Any] = ["yes", "true", "", 1, 0, 1.0, None, [], {}]
    for value in values:
        await refused(api, path, bodies([POSTS[path](**{field: value})]), (["body", "0", field], "bool_type"))


async def test_anything_else_where_an_object_belongs_is_refused(api: Api) -> None:
    values: list[Any] = ["x", 1, [], None, True]
    for value in values:
        for field in ("data", "tags"):
            body = bodies([make_output(**{field: value})])
            await refused(api, "/v1/outputs/g", body, (["body", "0", field], "dict_type"))


async def test_anything_else_where_an_array_belongs_is_refused(api: Api) -> None:
    for value in ["x", 1, {}, None, True]:
        await refused(api, "/v1/outputs/g", bodies([make_output(files=value)]), (["body", "0", "files"], "list_type"))


BAD_DATES = [
    "2026-02-30",
    "2026-13-01",
    "2026-00-10",
    "2026-01-01T24:00:01Z",
    "2026-01-01T25:00:00Z",
    "2026-01-01T12:60:00Z",
    "2026-01-01T12:00:61Z",
    "0000-01-01",
    "0000-12-31T23:59:59Z",
    "10000-01-01",
    "+12026-01-01",
    "-2026-01-01",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "2026-01-01T00:00:00+25:00",
    "2026-01-01T00:00:00+99:99",
    "2026-01-01T00:00:00+02:60",
    "2026-01-01 00:00:00Z",
    "2026-01-01 23:59",
    "2026-W01-1",
    "2026-001",
    "20260101",
    "01/02/2026",
    "now",
    "1767225600",
    "２０２６-01-01",
    " 2026-01-01",
    "2026-01-01\n",
    "2026-01-01T00:00:00Z; DROP",
    "2023-02-29",
]


async def test_impossible_dates_are_refused(api: Api) -> None:
    for text in BAD_DATES:
        await refused(
            api, "/v1/cookies", bodies([make_cookie(expires=text)]), (["body", "0", "expires"], "datetime_invalid")
        )
        response = await api.get("/v1/outputs/g", params={"created_after": text})
        assert (response.status, response.problems()) == (422, [(["query", "created_after"], "datetime_invalid")]), text


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ("0001-01-01", "0001-01-01T00:00:00.000Z"),
        ("0001-01-01T14:00:00+14:00", "0001-01-01T00:00:00.000Z"),
        ("9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z"),
        ("9999-12-31T09:59:59.9999-14:00", "9999-12-31T23:59:59.999Z"),
        ("1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.999Z"),
        ("2024-02-29", "2024-02-29T00:00:00.000Z"),
        ("2026-01-31T12:00:00.123456789+05:30", "2026-01-31T06:30:00.123Z"),
        ("2026-01-31t12:00z", "2026-01-31T12:00:00.000Z"),
    ],
)
async def test_dates_at_the_edges_come_back_in_utc(api: Api, text: str, out: str) -> None:
    await api.ok("/v1/local-storage", [make_entry(expires=text)])
    (entry,) = await api.ok("/v1/local-storage")
    assert entry["expires"] == out
    await api.ok("/v1/cookies", [make_cookie(expires=text)])
    await api.ok("/v1/outputs/g", [make_output(last_scraped_date=text, files=[make_file(create_date=text)])])
    await api.ok("/v1/reviews/g", [make_review(review_date=text)])
    assert (await api.ok("/v1/reviews/g"))[0]["review_date"] == out
    (item,) = (await api.ok("/v1/outputs/g", params={"created_after": "2026-01-01T00:00:00+01:00"}))["items"]
    assert (item["last_scraped_date"], item["files"][0]["create_date"]) == (out, out)
    assert (await api.get("/v1/outputs/g", params={"created_after": text})).status == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [("data", {"a": [{"k" * 1025: 1}]}), ("tags", {"ü" * 1025: "x"}), ("data", {"a" * 2000: {"b": 1}})],
)
async def test_a_key_of_more_than_1024_characters_is_refused(api: Api, field: str, value: Any) -> None:
    inside = ["a", "0"] if "a" in value else []
    body = bodies([make_output(1), make_output(2, **{field: value})])
    await refused(api, "/v1/outputs/g", body, (["body", "1", field, *inside], "string_too_long"))


async def test_a_tag_of_more_than_1024_characters_is_refused_in_a_patch(api: Api) -> None:
    await api.ok("/v1/outputs/g", [make_output()])
    response = await api.patch("/v1/outputs/g", [{"key_hash": "key-1", "tags": {"k" * 1025: 1}}])
    assert (response.status, response.problems()) == (422, [(["body", "0", "tags"], "string_too_long")])


async def test_a_key_of_1024_characters_comes_back_as_it_was(api: Api) -> None:
    data = {"ü" * 1024: {"k" * 1024: 1}}
    await api.ok("/v1/outputs/g", [make_output(data=data)])
    assert (await api.ok("/v1/outputs/g"))["items"][0]["data"] == data


async def test_what_a_browser_keeps_may_have_longer_keys(api: Api) -> None:
    databases = [{"name": "d", "stores": [{"records": [{"value": {"k" * 5000: 1}}]}]}]
    origin = {"origin": "https://shop.example", "localStorage": [], "indexedDB": databases}
    await api.ok("/v1/storage-state", {"cookies": [], "origins": [origin]})
    assert (await api.ok("/v1/storage-state"))["origins"][0]["indexedDB"] == databases


async def test_a_value_that_cannot_be_stored_hides_no_other_problem(api: Api) -> None:
    cookie = {"domain": "a", "name": "n\0", "valeu": "v", "secure": 1}
    response = await api.post("/v1/cookies", [cookie])
    assert response.status == 422
    assert sorted(response.problems()) == [
        (["body", "0", "name"], "value_error"),
        (["body", "0", "secure"], "bool_type"),
        (["body", "0", "valeu"], "unknown_field"),
        (["body", "0", "value"], "missing"),
    ]


async def test_a_number_that_cannot_be_stored_hides_no_other_problem_of_an_object(admin: Api) -> None:
    response = await admin.put("/v1/groups/g", {"rules": [{"min_items": 2**64}, {"path": "a", "min_fill": 2}]})
    assert response.status == 422
    assert {".".join(loc) for loc, _ in response.problems()} >= {"body.rules.0.min_items", "body.rules.1.min_fill"}
