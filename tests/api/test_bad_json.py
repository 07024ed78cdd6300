"""Bodies that are not JSON, or not of records: each is refused whole."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from tests.support.api import Api
from tests.support.bad_input import POSTS, STATE, bodies, refused, send
from tests.support.stall import without_stall

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
    "objects nested 100,000 deep": b"[" + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"]",
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


@pytest.mark.slow
async def test_what_is_not_json_is_refused(api: Api) -> None:
    for case in NOT_JSON:
        for path in POSTS:
            await refused(api, path, NOT_JSON[case], (["body"], "json_invalid"))
        response = await send(api, STATE, NOT_JSON[case])
        assert (response.status, response.problems()) == (422, [(["body"], "json_invalid")]), case


@pytest.mark.alone
@pytest.mark.parametrize("case", ["nested 100,000 deep", "objects nested 100,000 deep", "100,000 open brackets"])
async def test_deep_nesting_is_refused_without_a_stall(api: Api, case: str) -> None:
    for path in POSTS:
        await without_stall(partial(refused, api, path, NOT_JSON[case], (["body"], "json_invalid")))


@pytest.mark.parametrize("path", POSTS)
async def test_the_message_says_where_the_fault_is(api: Api, path: str) -> None:
    async def message(body: bytes) -> Any:
        return (await send(api, path, body)).json["detail"][0]["msg"]

    long = b'{"value": "%b"}, ' % (b"x" * 100_000)
    for before in (b"[", b"[" + long):
        fault = len(before) + len(b'{"value": ')
        assert await message(before + b'{"value": NaN}]') == f"The body is not valid JSON in UTF-8 (byte {fault})"
    assert await message(b'[1, {"value": 1e999}]') == "Record 1 has a number that is out of range"
    assert await message(b'[1, 2, {"value": "\xff"}]') == "Record 2 is not valid JSON in UTF-8"


@pytest.mark.parametrize("path", POSTS)
async def test_anything_but_an_array_is_refused(api: Api, path: str) -> None:
    for text in (b"null", b"1", b"true", b'"x"', b"{}", b'{"domain": "x"}', b'{"0": {}}'):
        await refused(api, path, text, (["body"], "list_type"))


@pytest.mark.parametrize("path", POSTS)
async def test_a_record_that_is_not_an_object_is_refused(api: Api, path: str) -> None:
    elements: list[Any] = [None, 1, True, "x", [], [{}]]
    for element in elements:
        await refused(api, path, bodies([POSTS[path](), element]), (["body", "1"], "dict_type"))


async def test_of_two_equal_keys_the_last_one_counts(api: Api) -> None:
    body = b'[{"domain": "a.example", "name": "n", "value": "1", "value": "2"}]'
    assert (await send(api, "/v1/cookies", body)).status == 200
    (cookie,) = await api.ok("/v1/cookies")
    assert cookie["value"] == "2"
