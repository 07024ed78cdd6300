"""A storage state that is wrong is refused whole."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from tests.support.api import Api
from tests.support.bad_input import MIB, STATE, nested, send
from tests.support.capacity import bytes_held, held_at
from tests.support.fault_proxy import FaultProxy
from tests.support.stall import without_stall


@pytest.mark.parametrize("body", [b"[]", b"null", b"1", b'"x"'])
async def test_a_storage_state_that_is_no_object_is_refused(api: Api, body: bytes) -> None:
    response = await send(api, STATE, body)
    assert (response.status, response.problems()) == (422, [(["body"], "dict_type")])


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
    "9,000 empty cookies": {"cookies": [{}] * 9000},  # 30 KB, for Marshmallow 450 ms of work
    "9,000 empty entries": {"origins": [{"origin": "https://a", "localStorage": [{}] * 9000}]},
    "a cookie with a million letters more": {"cookies": [browser_cookie(other="x" * MIB)]},
    "an origin with too much more": {"origins": [{"origin": "https://a", "indexedDB": "x" * (2 * MIB)}]},
    "an integer beyond 64 bits": {"cookies": [browser_cookie(other=2**63)]},
    "nested too deep": {"cookies": [browser_cookie(other=nested(70))]},
}


@pytest.mark.slow
async def test_a_wrong_storage_state_is_refused_whole(api: Api) -> None:
    for case in BAD_STATES:
        state = BAD_STATES[case]
        if isinstance(state.get("cookies", []), list):
            state = {**state, "cookies": [browser_cookie(name="good"), *state.get("cookies", [])]}
        response = await send(api, STATE, json.dumps(state).encode())
        assert response.status == 422, (case, response.body[:300])
        assert response.problems(), case
        assert await api.ok("/v1/cookies") == [], case


@pytest.mark.alone
@pytest.mark.parametrize("case", ["100,000 empty cookies", "9,000 empty cookies", "9,000 empty entries"])
async def test_a_large_storage_state_is_refused_without_a_stall(api: Api, case: str) -> None:
    response = await without_stall(partial(send, api, STATE, json.dumps(BAD_STATES[case]).encode()))
    assert response.status == 422


async def test_the_tree_of_a_storage_state_is_counted(wired_api: Api, wire: FaultProxy) -> None:
    """1.2 MB of nested objects take 46 MB as Python's."""
    chain: Any = 0
    for _ in range(50):
        chain = {"a": chain}
    state = {"cookies": [browser_cookie(name=str(n), other=[chain] * 100) for n in range(10)]}
    held = held_at(wire, wired_api.client.app, "update", "cookies")
    body = json.dumps(state).encode()
    assert (await send(wired_api, STATE, body)).status == 200
    assert held[0] > 50_000 * 200 > 20 * len(body)
    assert bytes_held(wired_api.client.app) == 0


@pytest.mark.parametrize("wide", [False, True], ids=["ASCII", "an emoji"])
async def test_the_texts_and_keys_of_a_storage_state_are_held_as_wide_as_they_are(
    wired_api: Api, wire: FaultProxy, wide: bool
) -> None:
    text = "x" * 50_000 + ("😀" if wide else "")
    entries = [{"name": "text", "value": text}]
    state = {"cookies": [browser_cookie(other={text: 1})], "origins": [{"origin": "https://a.example"}]}
    state["origins"][0]["localStorage"] = entries
    held = held_at(wire, wired_api.client.app, "update", "cookies")
    assert (await send(wired_api, STATE, json.dumps(state).encode())).status == 200
    width = 4 if wide else 1
    assert held[0] >= width * 100_000


async def test_json_in_a_string_is_one_value(api: Api) -> None:
    entry = {"name": "k", "value": json.dumps([1] * 600_000)}
    state = {"origins": [{"origin": "https://a.example", "localStorage": [entry]}]}
    assert (await send(api, STATE, json.dumps(state).encode())).status == 200
