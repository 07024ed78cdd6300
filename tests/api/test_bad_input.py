"""Bodies, paths, queries and headers that are wrong on purpose: each has its decided answer."""

from __future__ import annotations

import gc
import gzip
import json
import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from service.runtime.tuning import tune_collector
from service.settings import Settings
from tests.support.api import Answer, Api, make_cookie, make_entry, make_file, make_output, make_review
from tests.support.stall import without_stall


@pytest.fixture(scope="module", autouse=True)
def tuned() -> Iterator[None]:
    """Collect garbage as the service does: a full collection is a stall of its own."""
    before = gc.get_threshold()
    tune_collector()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


MIB = 1024 * 1024
JSON = {"Content-Type": "application/json"}

STATE = "/v1/storage-state"
POSTS = {
    "/v1/cookies": make_cookie,
    "/v1/local-storage": make_entry,
    "/v1/reviews/g": make_review,
    "/v1/outputs/g": make_output,
}


async def send(api: Api, path: str, body: bytes, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await api.request("POST", path, data=body, headers={**JSON, **named})


async def refused(api: Api, path: str, body: bytes, *problems: tuple[list[str], str], **headers: str) -> None:
    """Check that a body is refused for exactly these problems, and that nothing of it was stored."""
    answer = await send(api, path, body, **headers)
    assert (answer.status, answer.problems()) == (422, list(problems)), answer.body[:500]
    assert (await api.ok(path))["items" if "outputs" in path else slice(None)] == []


def bodies(records: list[Any]) -> bytes:
    return json.dumps(records).encode()


# -- what is not JSON ----------------------------------------------------------------------------

NOT_JSON = {
    "an empty body": b"",
    "only spaces": b"   \n",
    "broken JSON": b'[{"domain": ',
    "two values": b"[] []",
    "a trailing comma": b"[1,]",
    "a comment": b"[] // no",
    "single quotes": b"[{'domain': 1}]",
    "invalid UTF-8": b'[{"domain": "\xff\xfe"}]',
    "invalid UTF-8 in a key": b'[{"\xc3\x28": 1}]',
    "an overlong encoding": b'[{"domain": "\xc0\xaf"}]',
    "an encoded surrogate": b'[{"domain": "\xed\xa0\x80"}]',
    "UTF-16": json.dumps([]).encode("utf-16"),
    "UTF-16 without a mark": "[{}]".encode("utf-16-le"),
    "UTF-32": "[]".encode("utf-32"),
    "a byte order mark": b"\xef\xbb\xbf[]",
    "nested 100,000 deep": b"[" * 100_000 + b"]" * 100_000,
    "objects nested 100,000 deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "100,000 open brackets": b"[" * 100_000,
    "a 5,000-digit integer": b"[" + b"9" * 5000 + b"]",
    "a 5,000-digit negative integer": b"[-" + b"9" * 5000 + b"]",
    "NaN": b'[{"value": NaN}]',
    "Infinity": b'[{"value": Infinity}]',
    "minus Infinity": b'[{"value": -Infinity}]',
    "1e999": b'[{"value": 1e999}]',
    "a lone surrogate in a value": b'[{"domain": "\\ud800"}]',
    "a lone low surrogate in a value": b'[{"domain": "x\\udc00y"}]',
    "a lone surrogate in a key": b'[{"\\udfff": 1}]',
    "surrogates in the wrong order": b'[{"domain": "\\ude00\\ud83d"}]',
    "a bare control character": b'[{"domain": "\x01"}]',
    "a bare NUL": b'[{"domain": "\x00"}]',
    "a leading zero": b"[01]",
    "a plus sign": b"[+1]",
    "a hexadecimal number": b"[0x10]",
    "a word": b"undefined",
    "HTML": b"<html></html>",
    "a form": b"domain=x&name=y",
}


@pytest.mark.parametrize("case", NOT_JSON)
async def test_what_is_not_json_is_refused(api: Api, case: str) -> None:
    for path in POSTS:
        await without_stall(partial(refused, api, path, NOT_JSON[case], (["body"], "json_invalid")))
    answer = await send(api, STATE, NOT_JSON[case])
    assert (answer.status, answer.problems()) == (422, [(["body"], "json_invalid")])


@pytest.mark.parametrize("path", POSTS)
async def test_anything_but_an_array_is_refused(api: Api, path: str) -> None:
    for text in (b"null", b"1", b"true", b'"x"', b"{}", b'{"domain": "x"}', b'{"0": {}}'):
        await refused(api, path, text, (["body"], "list_type"))


@pytest.mark.parametrize("path", POSTS)
async def test_a_record_that_is_not_an_object_is_refused(api: Api, path: str) -> None:
    elements: list[Any] = [None, 1, True, "x", [], [{}]]
    for element in elements:
        await refused(api, path, bodies([POSTS[path](), element]), (["body", "1"], "dict_type"))


@pytest.mark.parametrize("path", POSTS)
async def test_an_empty_array_stores_nothing(api: Api, path: str) -> None:
    answer = await api.ok(path, [])
    assert answer["created"] == 0


async def test_of_two_equal_keys_the_last_one_counts(api: Api) -> None:
    body = b'[{"domain": "a.example", "name": "n", "value": "1", "value": "2"}]'
    assert (await send(api, "/v1/cookies", body)).status == 200
    (cookie,) = await api.ok("/v1/cookies")
    assert cookie["value"] == "2"


# -- how it is sent --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "text/json",
        "application/xml",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=utf-16",
        "application/json; charset=latin-1",
        "application/json; charset=nonsense",
        "application/vnd.api+json",
        "application/jsonx",
        "application",
        "*/*",
        "",
        ";",
    ],
)
async def test_content_types_other_than_json_are_refused(api: Api, content_type: str) -> None:
    for path, make in POSTS.items():
        answer = await send(api, path, bodies([make()]), Content_Type=content_type)
        assert (answer.status, answer.problems()) == (415, [(["header", "Content-Type"], "unsupported_media_type")])


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
        "Application/JSON",
        "application/json; charset=utf8",
        "application/json; profile=x",
    ],
)
async def test_json_may_be_named_in_several_ways(api: Api, content_type: str) -> None:
    assert (await send(api, "/v1/cookies", bodies([make_cookie()]), Content_Type=content_type)).status == 200


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "gzip;q=1", "nonsense", "ｇｚｉｐ"])
async def test_an_unknown_content_encoding_is_refused(api: Api, encoding: str) -> None:
    answer = await send(api, "/v1/cookies", gzip.compress(bodies([make_cookie()])), Content_Encoding=encoding)
    assert (answer.status, answer.problems()) == (415, [(["header", "Content-Encoding"], "unsupported_encoding")])


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [
        ("gzip", gzip.compress),
        ("GZIP", gzip.compress),
        ("deflate", zlib.compress),
        ("identity", bytes),
        ("gzip", lambda text: gzip.compress(text[:5]) + gzip.compress(text[5:])),
    ],
    ids=["gzip", "capitals", "deflate", "identity", "gzip in two members"],
)
async def test_a_body_may_be_compressed(api: Api, encoding: str, compress: Any) -> None:
    answer = await send(api, "/v1/cookies", compress(bodies([make_cookie()])), Content_Encoding=encoding)
    assert answer.json == {"created": 1, "updated": 0}


COMPRESSED = gzip.compress(bodies([make_cookie(value="x" * 1000)]), mtime=0)
CORRUPT = {
    "not gzip at all": bodies([make_cookie()]),
    "cut in the middle": COMPRESSED[: len(COMPRESSED) // 2],
    "without its checksum": COMPRESSED[:-8],
    "with another checksum": COMPRESSED[:-8] + bytes(8),
    "with a flipped bit": COMPRESSED[:40] + bytes([COMPRESSED[40] ^ 0xFF]) + COMPRESSED[41:],
    "only a header": COMPRESSED[:10],
    "with something else behind it": COMPRESSED + b"[]",
}


@pytest.mark.parametrize("case", CORRUPT)
async def test_a_corrupt_gzip_body_is_refused(api: Api, case: str) -> None:
    answer = await send(api, "/v1/cookies", CORRUPT[case], Content_Encoding="gzip")
    assert (answer.status, answer.problems()) == (400, [(["body"], "encoding_invalid")])
    assert await api.ok("/v1/cookies") == []


async def test_a_gzip_bomb_of_200_mb_is_refused_without_being_unpacked(api: Api) -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(b" " * MIB) for _ in range(200)) + packer.flush()
    assert len(bomb) < MIB
    answer = await without_stall(lambda: send(api, "/v1/outputs/g", bomb, Content_Encoding="gzip"))
    assert (answer.status, answer.problems()) == (413, [(["body"], "too_large")])


async def test_a_body_over_the_limit_is_refused_by_its_length(api: Api) -> None:
    answer = await send(api, "/v1/cookies", b" " * (16 * MIB + 1))
    assert (answer.status, answer.problems()) == (413, [(["body"], "too_large")])


async def test_a_body_over_the_limit_is_refused_without_a_length(api: Api) -> None:
    async def pieces() -> Any:
        for _ in range(17):
            yield b" " * MIB

    answer = await api.request("POST", "/v1/cookies", data=pieces(), headers=JSON)
    assert (answer.status, answer.problems()) == (413, [(["body"], "too_large")])


async def test_a_body_of_exactly_the_limit_is_taken(api: Api) -> None:
    body = bodies([make_cookie()])
    assert (await send(api, "/v1/cookies", body + b" " * (16 * MIB - len(body)))).status == 200


# -- how much of it, how deep ------------------------------------------------------------------------


@pytest.mark.parametrize("path", POSTS)
async def test_1001_records_are_refused(api: Api, path: str) -> None:
    await refused(api, path, bodies([POSTS[path]()] * 1001), (["body"], "too_many"))


async def test_1000_records_all_wrong_are_answered_with_the_first_100_problems(api: Api) -> None:
    wrong = [{"domain": 1, "nam": "x", "expires": "never"}] * 1000
    answer = await without_stall(lambda: send(api, "/v1/cookies", bodies(wrong)))
    assert answer.status == 422
    assert len(answer.problems()) == 100
    assert answer.problems()[0] == (["body", "0", "domain"], "string_type")
    assert await api.ok("/v1/cookies") == []


async def test_all_problems_of_a_body_are_reported_at_once(api: Api) -> None:
    body = bodies([make_cookie(), {"domain": "", "value": None, "secure": 1}, make_cookie(expires="soon")])
    answer = await send(api, "/v1/cookies", body)
    assert sorted(answer.problems()) == [
        (["body", "1", "domain"], "string_too_short"),
        (["body", "1", "name"], "missing"),
        (["body", "1", "secure"], "bool_type"),
        (["body", "1", "value"], "string_type"),
        (["body", "2", "expires"], "datetime_invalid"),
    ]


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = {"a": value} if level % 2 else [value]
    return value


@pytest.mark.parametrize("field", ["data", "tags"])
async def test_values_are_kept_up_to_64_levels_deep(api: Api, field: str) -> None:
    value = {"deep": nested(63)}
    await api.ok("/v1/outputs/g", [make_output(**{field: value})])
    (item,) = (await api.ok("/v1/outputs/g"))["items"]
    assert item[field] == value


@pytest.mark.parametrize("field", ["data", "tags"])
@pytest.mark.parametrize("depth", [64, 150, 500])
async def test_values_over_64_levels_deep_are_refused(api: Api, field: str, depth: int) -> None:
    answer = await send(api, "/v1/outputs/g", bodies([make_output(**{field: {"deep": nested(depth)}})]))
    assert answer.status == 422
    assert [kind for _, kind in answer.problems()] == ["too_deep"]


async def test_file_metadata_over_the_depth_is_refused(api: Api) -> None:
    file = make_file(file_metadata={"deep": nested(64)})
    answer = await send(api, "/v1/outputs/g", bodies([make_output(files=[file])]))
    assert [kind for _, kind in answer.problems()] == ["too_deep"]


async def test_an_item_over_1_mib_is_refused_and_named(api: Api) -> None:
    large = make_output(2, data={"text": "x" * MIB})
    await refused(api, "/v1/outputs/g", bodies([make_output(1), large]), (["body", "1"], "too_large"))


async def test_an_item_just_under_1_mib_is_taken(api: Api) -> None:
    data = {"text": "x" * (MIB - 2000)}
    await api.ok("/v1/outputs/g", [make_output(data=data)])
    assert (await api.ok("/v1/outputs/g"))["items"][0]["data"] == data


@pytest.mark.alone
class TestLargeBodies:
    @pytest.fixture
    def settings(self) -> Settings:
        # Time for a busy machine to write 16 MiB durably.
        return Settings(mongo_database="test", mongo_timeout=60, receive_timeout=60, lease_seconds=90)

    async def test_16_mib_of_valid_items_are_taken_without_a_stall(self, api: Api) -> None:
        rows = [{"name": f"row {n}", "price": n + 0.5, "stock": {"berlin": n}, "tags": ["a", "b"]} for n in range(150)]
        items = [make_output(n, data={"rows": rows, "text": "x" * 4000}) for n in range(1000)]
        body = bodies(items)
        assert 14 * MIB < len(body) < 16 * MIB
        answer = await without_stall(lambda: send(api, "/v1/outputs/g", body))
        assert len(answer.json["items"]) == 1000


HEAVY = {
    "a million empty arrays": b"[" + b",".join([b"[]"] * 1_000_000) + b"]",
    "8 million numbers": b"[" + b"1," * 8_000_000 + b"1]",
    "a million unknown fields": b"[{" + b",".join(b'"k%d":1' % n for n in range(1_000_000)) + b"}]",
    "700,000 unknown fields in many records": b"["
    + b",".join(b"{" + b",".join(b'"k%d":1' % n for n in range(700)) + b"}" for _ in range(1000))
    + b"]",
    "1,000 records of 1,000 wrong files": b"["
    + b",".join([b'{"files":[' + b",".join([b'{"x":1}'] * 700) + b"]}"] * 1000)
    + b"]",
    "16 MB of spaces": b" " * (16 * MIB - 1),
    "16 MB of text": b'[{"data":{"text":"' + b"x" * (16 * MIB - 50) + b'"}}]',
    "16 MB of escapes": b'[{"data":{"text":"' + b"\\u00e9" * (2 * MIB) + b'"}}]',
    "a large array 60 levels down": b"[" * 60 + b"[" + b",".join([b"[]"] * 600_000) + b"]" + b"]" * 60,
}


@pytest.mark.alone
@pytest.mark.parametrize("case", HEAVY)
async def test_a_body_made_to_be_heavy_is_refused_without_a_stall(api: Api, case: str) -> None:
    answer = await without_stall(lambda: send(api, "/v1/outputs/g", HEAVY[case]))
    assert answer.status == 422
    assert answer.problems()


async def test_64_kb_of_wrong_records_do_not_stall_the_loop(api: Api) -> None:
    files = b'{"source_url":"u","root_job_id":"j","data":{},"files":[' + b",".join([b'{"x":1}'] * 7900) + b"]}"
    answer = await without_stall(lambda: send(api, "/v1/outputs/g", b"[" + files + b"]"))
    assert answer.status == 422


# -- values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**64, 10**30], ids=str)
async def test_integers_beyond_64_bits_are_refused(api: Api, number: int) -> None:
    body = bodies([make_output(data={"a": [1, {"n": number}]})])
    await refused(api, "/v1/outputs/g", body, (["body", "0", "data", "a", "1", "n"], "value_error"))


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 0, -1, 1.5, 1e308, 5e-324, 0.1], ids=repr)
async def test_numbers_within_64_bits_come_back_as_they_were(api: Api, number: float) -> None:
    await api.ok("/v1/outputs/g", [make_output(data={"n": number})])
    back = (await api.ok("/v1/outputs/g"))["items"][0]["data"]["n"]
    assert (back, type(back)) == (number, type(number))


ODD_KEYS = {
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
    await api.ok("/v1/outputs/g", [make_output(**{field: {**ODD_KEYS, "more": 1}})])
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


@pytest.mark.parametrize("case", NULS)
async def test_nul_is_refused(api: Api, case: str) -> None:
    path, record, loc = NULS[case]
    await refused(api, path, bodies([record]), (["body", "0", *loc], "value_error"))


OPERATOR = {"$gt": ""}
STRINGS = [(path, name) for path, make in POSTS.items() for name, value in make().items() if isinstance(value, str)]


@pytest.mark.parametrize(("path", "field"), STRINGS)
async def test_anything_else_where_a_string_belongs_is_refused(api: Api, path: str, field: str) -> None:
    kind = "datetime_type" if field == "expires" else "string_type"
    for value in (OPERATOR, 1, True, ["x"], {"$ne": None}):
        await refused(api, path, bodies([POSTS[path](**{field: value})]), (["body", "0", field], kind))


REQUIRED = {
    "/v1/cookies": ["domain", "name", "value"],
    "/v1/local-storage": ["domain", "key", "value"],
    "/v1/reviews/g": ["job_id", "status"],
    "/v1/outputs/g": ["source_url", "data", "root_job_id"],
}


@pytest.mark.parametrize(("path", "field"), [(path, name) for path in REQUIRED for name in REQUIRED[path]])
async def test_a_missing_required_field_is_named(api: Api, path: str, field: str) -> None:
    record = POSTS[path]()
    del record[field]
    await refused(api, path, bodies([record]), (["body", "0", field], "missing"))


@pytest.mark.parametrize(("path", "field"), STRINGS)
async def test_an_empty_string_is_taken_or_refused_but_never_fails(api: Api, path: str, field: str) -> None:
    answer = await send(api, path, bodies([POSTS[path](**{field: ""})]))
    never_empty = {"domain", "job_id", "status", "root_job_id", "expires"}
    if field in never_empty:
        kind = "datetime_invalid" if field == "expires" else "string_too_short"
        assert (answer.status, answer.problems()) == (422, [(["body", "0", field], kind)])
    else:
        assert answer.status == 200, answer.body
        assert await api.ok(path)


@pytest.mark.parametrize("path", POSTS)
async def test_fields_that_only_the_service_sets_are_refused(api: Api, path: str) -> None:
    owned = ("_id", "id", "organization_id", "create_date", "update_date", "output_id", "group_id", "content_hash")
    for field in (*owned, "tombstone"):
        await refused(api, path, bodies([POSTS[path](**{field: 1})]), (["body", "0", field], "unknown_field"))


@pytest.mark.parametrize("field", ["httpOnly", "Secure", "sameSite", "", "$set", "a.b"])
async def test_unknown_fields_are_refused(api: Api, field: str) -> None:
    await refused(api, "/v1/cookies", bodies([make_cookie(**{field: True})]), (["body", "0", field], "unknown_field"))


@pytest.mark.parametrize(
    ("path", "field"), [("/v1/cookies", "secure"), ("/v1/cookies", "http_only"), ("/v1/outputs/g", "is_approved")]
)
async def test_only_true_and_false_are_booleans(api: Api, path: str, field: str) -> None:
    values: list[Any] = ["yes", "true", "", 1, 0, 1.0, None, [], {}]
    for value in values:
        await refused(api, path, bodies([POSTS[path](**{field: value})]), (["body", "0", field], "bool_type"))


@pytest.mark.parametrize("value", ["x", 1, [], None, True], ids=repr)
@pytest.mark.parametrize("field", ["data", "tags"])
async def test_anything_else_where_an_object_belongs_is_refused(api: Api, field: str, value: Any) -> None:
    await refused(api, "/v1/outputs/g", bodies([make_output(**{field: value})]), (["body", "0", field], "dict_type"))


@pytest.mark.parametrize("value", ["x", 1, {}, None, True], ids=repr)
async def test_anything_else_where_an_array_belongs_is_refused(api: Api, value: Any) -> None:
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


@pytest.mark.parametrize("text", BAD_DATES)
async def test_impossible_dates_are_refused(api: Api, text: str) -> None:
    await refused(
        api, "/v1/cookies", bodies([make_cookie(expires=text)]), (["body", "0", "expires"], "datetime_invalid")
    )
    answer = await api.get("/v1/outputs/g", params={"created_after": text})
    assert (answer.status, answer.problems()) == (422, [(["query", "created_after"], "datetime_invalid")])


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


# -- path and query ------------------------------------------------------------------------------------


def raw_url(api: Api, target: str) -> Any:
    from yarl import URL

    return URL(f"http://{api.client.host}:{api.client.port}{target}", encoded=True)


async def get_raw(api: Api, target: str) -> Answer:
    headers = {"Authorization": f"Bearer {api.token}"}
    async with api.client.session.get(raw_url(api, target), headers=headers) as response:
        body = await response.read()
        return Answer(response.status, response.headers, body, json.loads(body))


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("limit", value)
        for value in (
            "0", "1001", "-1", "1.9", "1.0", "1e2", "1_000", "１０", "٣", "0x10", " 10", "10 ", "ten", "true", "NaN",
            "9223372036854775808", "9" * 5000, "", "+", "--1", "²",
        )
    ]
    + [("cursor", value) for value in ("-1", "-0.5", "1_000", "１", "9223372036854775808", "9" * 400, "", "null")],
)  # fmt: skip
async def test_numbers_that_are_none_or_out_of_bounds_are_refused(api: Api, parameter: str, value: str) -> None:
    answer = await api.get("/v1/outputs/g", params={parameter: value})
    assert answer.status == 422
    ((loc, kind),) = answer.problems()
    assert loc == ["query", parameter]
    assert kind in ("int_type", "greater_than_equal", "less_than_equal")


@pytest.mark.parametrize("cursor", ["0", "9223372036854775807", "00012"])
async def test_cursors_up_to_63_bits_are_fine(api: Api, cursor: str) -> None:
    assert (await get_raw(api, f"/v1/outputs/g?cursor={cursor}")).json["items"] == []


@pytest.mark.parametrize("name", ["job_id", "created_after", "url", "country", "region"])
async def test_an_empty_nullable_parameter_counts_as_left_out(api: Api, name: str) -> None:
    await api.ok("/v1/outputs/g", [make_output()])
    assert len((await get_raw(api, f"/v1/outputs/g?{name}=")).json["items"]) == 1
    assert len((await get_raw(api, f"/v1/outputs/g?{name}")).json["items"]) == 1


@pytest.mark.parametrize("name", ["job_id", "created_after", "url", "limit", "cursor", "country", "region"])
async def test_a_parameter_given_twice_is_refused(api: Api, name: str) -> None:
    answer = await get_raw(api, f"/v1/outputs/g?{name}=1&{name}=1")
    assert (answer.status, answer.problems()) == (422, [(["query", name], "value_error")])


@pytest.mark.parametrize(
    ("target", "part"),
    [
        ("/v1/outputs/%ZZ", "path"),
        ("/v1/outputs/a%", "path"),
        ("/v1/outputs/a%2", "path"),
        ("/v1/outputs/%FF%FE", "path"),
        ("/v1/outputs/%C0%AF", "path"),
        ("/v1/outputs/%ED%A0%80", "path"),
        ("/v1/outputs/a%00b", "path"),
        ("/v1/outputs/g?job_id=%ZZ", "query"),
        ("/v1/outputs/g?job_id=%FF", "query"),
        ("/v1/outputs/g?job_id=%00", "query"),
        ("/v1/outputs/g?%FF=1", "query"),
        ("/v1/outputs/g?job_id=100%", "query"),
        ("/v1/cookies?domain=%c3%28", "query"),
        ("/v1/reviews/%u0041", "path"),
    ],
)
async def test_percent_encoding_that_is_not_text_is_refused(api: Api, target: str, part: str) -> None:
    answer = await get_raw(api, target)
    assert (answer.status, answer.problems()) == (422, [([part], "value_error")])


GROUP_IDS = {
    "a slash": "a/b",
    "a question mark": "a?b=c",
    "a number sign": "a#b",
    "a percent sign": "100%",
    "what looks encoded": "a%2Fb",
    "what looks doubly encoded": "%252F",
    "braces": "{group_id}",
    "one brace": "a{",
    "a space": "a b",
    "a plus sign": "a+b",
    "dots": "...",
    "an operator": '{"$gt": ""}',
    "a dollar": "$where",
    "a quote": "'\"`",
    "a backslash": "a\\b",
    "a semicolon": "a;b=c",
    "an at sign": "user:pass@host",
    "Cyrillic": "группа",
    "an emoji": "😀",
    "a composed letter": "\u00e9",
    "a decomposed letter": "e\u0301",
    "a right-to-left mark": "\u202e",
    "a line feed": "a\nb",
    "a line separator": "a\u2028b",
    "256 letters": "x" * 256,
    "256 emojis": "😀" * 256,
    "a comma": "a,b",
    "null": "null",
    "a number": "0",
}


@pytest.mark.parametrize("case", GROUP_IDS)
async def test_any_text_can_be_a_group_id(api: Api, case: str) -> None:
    from urllib.parse import quote

    group = quote(GROUP_IDS[case], safe="")
    headers = {"Authorization": f"Bearer {api.token}"}
    for path, record in (("outputs", make_output()), ("outputs", make_output(2)), ("reviews", make_review())):
        async with api.client.session.post(raw_url(api, f"/v1/{path}/{group}"), json=[record], headers=headers) as r:
            assert r.status == 200, await r.text()
    page = (await get_raw(api, f"/v1/outputs/{group}?limit=1")).json
    assert len(page["items"]) == 1
    next_target = page["metadata"]["next_url"].removeprefix(str(raw_url(api, "")))
    assert len((await get_raw(api, next_target)).json["items"]) == 1
    assert len((await get_raw(api, f"/v1/reviews/{group}")).json) == 1
    groups = [g["group_id"] for g in await api.ok("/v1/groups")]
    assert groups == [GROUP_IDS[case]]
    assert (await get_raw(api, f"/v1/groups/{group}/stats")).json["items"] == 2


async def test_letters_composed_and_decomposed_are_different_groups(api: Api) -> None:
    await api.ok("/v1/outputs/%C3%A9", [make_output()])
    assert (await get_raw(api, "/v1/outputs/e%CC%81")).json["items"] == []
    assert len((await get_raw(api, "/v1/outputs/%C3%A9")).json["items"]) == 1


@pytest.mark.parametrize("route", ["outputs", "reviews"])
async def test_a_group_id_over_256_characters_is_refused(api: Api, route: str) -> None:
    for answer in (await api.get(f"/v1/{route}/{'x' * 257}"), await api.post(f"/v1/{route}/{'x' * 257}", [])):
        assert (answer.status, answer.problems()) == (422, [(["path", "group_id"], "string_too_long")])


@pytest.mark.parametrize(
    "value",
    [
        "a&b=c",
        "a+b",
        "a b",
        "100%",
        "%2B",
        "é",
        "e\u0301",
        "#frag",
        "?x=y&z",
        "https://shop.example/p?a=1&b=%20#c",
        "\n",
    ],
)
async def test_next_url_repeats_the_filters_exactly(api: Api, value: str) -> None:
    items = [make_output(n, source_url=value, tags={"country": value}, root_job_id=value) for n in range(3)]
    await api.ok("/v1/outputs/g", [*items, make_output(9)])
    for name in ("url", "country", "job_id"):
        page = await api.ok("/v1/outputs/g", params={name: value, "limit": "1"})
        seen = [page["items"][0]["id"]]
        while page["metadata"]["next_url"]:
            target = page["metadata"]["next_url"].removeprefix(str(raw_url(api, "")))
            page = (await get_raw(api, target)).json
            seen += [item["id"] for item in page["items"]]
        assert len(seen) == 3


@pytest.mark.parametrize(
    "target",
    [
        "/v1/outputs/", "/v1/outputs", "/v1/outputs/g/", "/v1/outputs/g/h/i", "/v1/cookies/",
        "/v1//cookies", "//v1/cookies",
        "/V1/cookies", "/v1/Cookies", "/v1/cookies/../cookies/x", "/v2/cookies", "/v1", "/docs/static/../../setup.cfg",
        "/docs/static/%2e%2e/%2e%2e/setup.cfg", "/docs/static/..%2f..%2fsetup.cfg", "/docs/static//etc/passwd",
        "/docs/static/%2Fetc%2Fpasswd", "/docs/static/", "/docs/static", "/docs/static/nothing.js",
        "/docs/static/..\\x",
        "/.git/config", "/.env", "/openapi.json/", "/healthz/", "/admin", "/v1/cookies;x=y",
        "/v1/outputs/g/../h/../../..",
    ],
)  # fmt: skip
async def test_a_path_that_is_none_of_the_routes_is_not_found(api: Api, target: str) -> None:
    answer = await get_raw(api, target)
    assert (answer.status, answer.problems()) == (404, [(["path"], "not_found")])


# -- headers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "accept", ["", "nonsense", "*/*;q=0", "application/xml", "x" * 8000, ",,,;;;", "text/html, */*;q=0.1", "a/b;q=nan"]
)
async def test_any_accept_header_gets_json(api: Api, accept: str) -> None:
    answer = await api.get("/v1/outputs/g", headers={"Accept": accept})
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")


@pytest.mark.parametrize("given", ["a b", "x" * 129, "ö", "<script>", "a;b", '"', "a\tb", "{}"])
async def test_a_request_id_that_is_not_plain_is_replaced(api: Api, given: str) -> None:
    answer = await api.get("/v1/cookies", headers={"X-Request-ID": given})
    assert answer.headers.getall("X-Request-ID") != [given]
    assert len(answer.headers["X-Request-ID"]) == 32


async def test_a_plain_request_id_comes_back(api: Api) -> None:
    answer = await api.get("/v1/cookies", headers={"X-Request-ID": "job-1:run/2"})
    assert answer.headers["X-Request-ID"] == "job-1:run/2"


@pytest.mark.parametrize(
    "etag", ["*", '"1"', "W/", 'W/"1", W/"2"', "x" * 8000, 'W/"99999999999999999999"', 'W/"-1"', "é"]
)
async def test_any_if_none_match_is_survived(api: Api, etag: str) -> None:
    await api.ok("/v1/outputs/g", [make_output()])
    assert (await api.get("/v1/outputs/g", headers={"If-None-Match": etag})).status in (200, 304)


# -- storage state -------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"[]", b"null", b"1", b'"x"'])
async def test_a_storage_state_that_is_no_object_is_refused(api: Api, body: bytes) -> None:
    answer = await send(api, STATE, body)
    assert (answer.status, answer.problems()) == (422, [(["body"], "dict_type")])


def browser_cookie(**changes: Any) -> dict[str, Any]:
    return {"name": "n", "value": "v", "domain": "a.example", "path": "/", "expires": -1} | changes


BAD_STATES: dict[str, Any] = {
    "a NUL in a name": {"cookies": [browser_cookie(name="\0")]},
    "a NUL in what is not known": {"cookies": [browser_cookie(other={"\0": 1})]},
    "an expiry beyond 64 bits": {"cookies": [browser_cookie(expires=2**64)]},
    "an expiry in milliseconds": {"cookies": [browser_cookie(expires=1767225600000)]},
    "a negative expiry": {"cookies": [browser_cookie(expires=-2)]},
    "an expiry in words": {"cookies": [browser_cookie(expires="never")]},
    "an expiry of true": {"cookies": [browser_cookie(expires=True)]},
    "cookies that are no array": {"cookies": {}},
    "cookies that are null": {"cookies": None},
    "a cookie that is no object": {"cookies": [1]},
    "an unknown member": {"cookie": []},
    "an origin that is none": {"origins": [{"origin": "nowhere", "localStorage": []}]},
    "an origin with a bad port": {"origins": [{"origin": "https://a:99999", "localStorage": []}]},
    "an origin of another scheme": {"origins": [{"origin": "file:///etc/passwd", "localStorage": []}]},
    "local storage that is no array": {"origins": [{"origin": "https://a", "localStorage": {}}]},
    "too many cookies": {"cookies": [browser_cookie()] * 10_001},
    "too many entries": {"origins": [{"origin": "https://a", "localStorage": [{}] * 10_001}]},
    "too many origins": {"origins": [{}] * 10_001},
    "100,000 empty cookies": {"cookies": [{}] * 100_000},
    "a cookie with a million letters more": {"cookies": [browser_cookie(other="x" * MIB)]},
    "an origin with too much more": {"origins": [{"origin": "https://a", "indexedDB": "x" * (2 * MIB)}]},
    "an integer beyond 64 bits": {"cookies": [browser_cookie(other=2**63)]},
    "nested too deep": {"cookies": [browser_cookie(other=nested(70))]},
}


@pytest.mark.parametrize("case", BAD_STATES)
async def test_a_wrong_storage_state_is_refused_whole(api: Api, case: str) -> None:
    state = BAD_STATES[case]
    if isinstance(state.get("cookies"), list):
        state = {**state, "cookies": [browser_cookie(name="good"), *state["cookies"]]}
    answer = await without_stall(lambda: send(api, STATE, json.dumps(state).encode()))
    assert answer.status == 422, answer.body[:300]
    assert answer.problems()
    assert await api.ok("/v1/cookies") == []


# -- settings --------------------------------------------------------------------------------------------


class TestSmallLimits:
    """Every size is a setting."""

    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(
            mongo_database="test",
            max_body_bytes=1000,
            max_records=2,
            max_item_bytes=300,
            max_depth=3,
            max_values=20,
        )

    async def test_the_body(self, api: Api) -> None:
        assert (await send(api, "/v1/cookies", b" " * 1001)).status == 413
        assert (await send(api, "/v1/cookies", gzip.compress(b" " * 1001), Content_Encoding="gzip")).status == 413
        assert (await send(api, "/v1/cookies", b" " * 998 + b"[]")).status == 200

    async def test_the_records(self, api: Api) -> None:
        assert (await api.post("/v1/cookies", [make_cookie()] * 2)).status == 200
        await refused(api, "/v1/local-storage", bodies([make_entry()] * 3), (["body"], "too_many"))

    async def test_the_item(self, api: Api) -> None:
        small = {"source_url": "u", "root_job_id": "j", "data": {"a": "x" * 200}}
        assert (await api.post("/v1/outputs/h", [small])).status == 200
        large = {**small, "data": {"a": "x" * 300}}
        await refused(api, "/v1/outputs/g", bodies([large]), (["body", "0"], "too_large"))

    async def test_the_depth(self, api: Api) -> None:
        item = {"source_url": "u", "root_job_id": "j", "data": {"a": [[1]]}}
        assert (await api.post("/v1/outputs/h", [item])).status == 200
        item["data"] = {"a": [[[1]]]}
        assert (await api.post("/v1/outputs/g", [item])).problems()[0][1] == "too_deep"

    async def test_the_values(self, api: Api) -> None:
        item = {"source_url": "u", "root_job_id": "j", "data": {"a": [1] * 10}}
        assert (await api.post("/v1/outputs/h", [item])).status == 200
        item["data"] = {"a": [1] * 30}
        await refused(api, "/v1/outputs/g", bodies([item]), (["body"], "too_many"))
