"""A storage state that is wrong is refused whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.api import Api
from tests.support.bad_input import MIB, STATE, nested, send
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
    response = await without_stall(lambda: send(api, STATE, json.dumps(state).encode()))
    assert response.status == 422, response.body[:300]
    assert response.problems()
    assert await api.ok("/v1/cookies") == []
