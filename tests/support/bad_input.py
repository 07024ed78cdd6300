"""Bodies that are wrong on purpose: how they are sent, and what is checked of the response."""

from __future__ import annotations

import json
from typing import Any

from tests.support.api import Api, Response, make_cookie, make_entry, make_output, make_review

MIB = 1024 * 1024
JSON = {"Content-Type": "application/json"}

STATE = "/v1/storage-state"
POSTS = {
    "/v1/cookies": make_cookie,
    "/v1/local-storage": make_entry,
    "/v1/reviews/g": make_review,
    "/v1/outputs/g": make_output,
}


async def send(api: Api, path: str, body: bytes, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await api.request("POST", path, data=body, headers={**JSON, **named})


async def refused(api: Api, path: str, body: bytes, *problems: tuple[list[str], str], **headers: str) -> None:
    """Check that a body is refused for exactly these problems, and that nothing of it was stored."""
    response = await send(api, path, body, **headers)
    assert (response.status, response.problems()) == (422, list(problems)), (body[:200], response.body[:500])
    assert (await api.ok(path))["items" if "outputs" in path else slice(None)] == []


def bodies(records: list[Any]) -> bytes:
    return json.dumps(records).encode()


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = {"a": value} if level % 2 else [value]
    return value
