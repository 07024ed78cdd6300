"""HTTP itself: HEAD, 404, 405, request ids, log lines, compression, content types."""

from __future__ import annotations

import gzip
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from service.http.middleware.access_log import access
from service.runtime.logging import JsonFormatter
from tests.support.api import Api, make_cookie, make_entry, make_output, make_review, until_ready
from tests.support.routes import API_ROUTES
from tests.support.sessions import put

GETS = [
    path.replace("{group_id}", "group-1")
    .replace("{job_id}", "job-1")
    .replace("{pool}", "shop")
    .replace("{name}", "anna")
    for method, path, scope, _ in API_ROUTES
    if method == "GET" and scope != "admin" and "{output_id}" not in path and "{webhook_id}" not in path
]
POSTS = {
    "/v1/cookies": make_cookie,
    "/v1/local-storage": make_entry,
    "/v1/reviews/group-1": make_review,
    "/v1/outputs/group-1": make_output,
}


async def fill(api: Api) -> None:
    for path, make in POSTS.items():
        await api.ok(path, [make()])
    await put(api, "/v1/sessions/shop/anna", {})


async def test_head_responds_like_get_without_a_body(api: Api) -> None:
    await fill(api)
    for path in (*GETS, "/openapi.json", "/docs"):
        if path == "/readyz":
            await until_ready(api)
        get = await api.get(path)
        head = await api.request("HEAD", path)
        assert head.status == get.status == 200, path
        assert head.body == b"", path
        assert head.headers["Content-Type"] == get.headers["Content-Type"], path
        if "Content-Length" in get.headers and path != "/metrics":
            assert head.headers["Content-Length"] == get.headers["Content-Length"], path


async def test_head_needs_a_token_like_get(api: Api) -> None:
    for path in [path for path in GETS if path.startswith("/v1/")]:
        async with api.client.head(path) as response:
            assert response.status == 401, path


def methods_of(path: str) -> set[str]:
    """Return the methods of the routes of a path in which every variable is `x`."""
    known = {route.method for route in API_ROUTES if re.sub(r"{\w+}", "x", route.path) == path}
    return known | ({"HEAD"} if "GET" in known else set())


PATHS = sorted({re.sub(r"{\w+}", "x", route.path) for route in API_ROUTES})
OTHER_METHODS = [
    (method, path)
    for path in PATHS
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    if method not in methods_of(path)
]


async def test_another_method_is_405_with_those_allowed(api: Api) -> None:
    for method, path in OTHER_METHODS:
        response = await api.request(method, path)
        assert (response.status, response.problems()) == (405, [(["method"], "method_not_allowed")]), (method, path)
        assert {word.strip() for word in response.headers["Allow"].split(",")} == methods_of(path), (method, path)


@pytest.mark.parametrize("given", ["a", "req-1.2:3/4+5=_", "x" * 128, "3f6c2f7e-53a8-4d0f-8ac8-0d7f7b1b2c3d"])
async def test_a_request_id_is_taken_and_returned(api: Api, given: str) -> None:
    response = await api.get("/v1/cookies", headers={"X-Request-ID": given})
    assert response.headers["X-Request-ID"] == given


async def test_an_invalid_request_id_is_replaced(api: Api) -> None:
    for given in ["", "two words", "x" * 129, "ü", '"quoted"', "a,b"]:
        response = await api.get("/v1/cookies", headers={"X-Request-ID": given})
        assert re.fullmatch("[0-9a-f]{32}", response.headers["X-Request-ID"]), given


async def test_every_response_has_a_request_id_of_its_own(api: Api) -> None:
    paths = ["/v1/cookies", "/nowhere", "/healthz", "/v1/outputs/g?limit=0", "/docs"]
    ids = [(await api.get(path)).headers["X-Request-ID"] for path in paths]
    ids.append((await api.request("DELETE", "/v1/cookies")).headers["X-Request-ID"])
    ids.append((await api.post("/v1/cookies", data=b"{")).headers["X-Request-ID"])
    assert len(set(ids)) == len(ids)


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What goes to the access log, as it is written."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(self.format(record))

    handler = Handler()
    handler.setFormatter(JsonFormatter())
    level = access.level
    access.setLevel(logging.INFO)
    access.addHandler(handler)
    yield found
    access.removeHandler(handler)
    access.setLevel(level)


async def logged(api: Api, lines: list[str], method: str, path: str, **options: Any) -> dict[str, Any]:
    """Send a request and return its one log line."""
    lines.clear()
    await api.request(method, path, **options)
    (line,) = lines
    assert "\n" not in line
    loaded: dict[str, Any] = json.loads(line)
    return loaded


async def test_a_request_is_one_log_line_with_exactly_these_members(api: Api, lines: list[str]) -> None:
    line = await logged(api, lines, "GET", "/v1/outputs/group-1?limit=5", headers={"X-Request-ID": "r-1"})
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert 0 < line.pop("ms") < 60_000
    assert line == {
        "level": "INFO",
        "event": "request",
        "method": "GET",
        "route": "/v1/outputs/{group_id}",
        "status": 200,
        "organization": api.organization_id,
        "request_id": "r-1",
    }


@pytest.mark.parametrize(
    ("method", "path", "route", "status"),
    [
        ("GET", "/v1/cookies", "/v1/cookies", 200),
        ("HEAD", "/v1/local-storage", "/v1/local-storage", 200),
        ("POST", "/v1/cookies", "/v1/cookies", 415),
        ("GET", "/v1/outputs/g?limit=0", "/v1/outputs/{group_id}", 422),
        ("GET", "/nowhere/s3cret", "unmatched", 404),
        ("PUT", "/v1/cookies", "unmatched", 405),
        ("GET", "/healthz", "/healthz", 200),
    ],
)
async def test_the_log_names_the_route_and_the_status(
    api: Api, lines: list[str], method: str, path: str, route: str, status: int
) -> None:
    line = await logged(api, lines, method, path)
    assert (line["method"], line["route"], line["status"]) == (method, route, status)


async def test_a_request_without_a_valid_token_is_logged_without_an_organization(api: Api, lines: list[str]) -> None:
    line = await logged(api, lines, "GET", "/v1/cookies", headers={"Authorization": "Bearer s3cret"})
    assert (line["status"], line["organization"]) == (401, None)


async def test_no_secret_is_in_the_log(api: Api, lines: list[str]) -> None:
    await api.ok("/v1/cookies", [make_cookie(value="v4lue", name="n4me", domain="d0main.example")])
    await api.ok("/v1/local-storage", [make_entry(value="v4lue")])
    await api.get("/v1/cookies?domain=d0main.example&token=qu3ry")
    await api.get("/v1/outputs/gr0up?url=https://user:p4ss@shop.example/")
    await api.post("/v1/cookies", [{"domain": 1, "value": "v4lue"}])
    await api.post("/v1/cookies", data=b'{"value": "v4lue"', headers={"Content-Type": "application/json"})
    assert len(lines) == 6
    text = "".join(lines)
    for secret in ("v4lue", "n4me", "d0main", "qu3ry", "p4ss", "gr0up", api.token):
        assert secret not in text


async def test_large_responses_are_compressed_when_asked(api: Api) -> None:
    await api.ok("/v1/outputs/group-1", [make_output(n) for n in range(10)])
    for encoding in ["gzip", "GZIP", "deflate, gzip;q=0.5", "*", "br, gzip"]:
        plain = await api.get("/v1/outputs/group-1", headers={"Accept-Encoding": "identity"})
        assert "Content-Encoding" not in plain.headers, encoding
        async with api.client.get(
            "/v1/outputs/group-1",
            headers={"Authorization": f"Bearer {api.token}", "Accept-Encoding": encoding},
            auto_decompress=False,
        ) as response:
            assert response.headers["Content-Encoding"] == "gzip", encoding
            assert "Accept-Encoding" in response.headers["Vary"], encoding
            assert gzip.decompress(await response.read()) == plain.body, encoding
            assert int(response.headers["Content-Length"]) < len(plain.body), encoding


@pytest.mark.parametrize("encoding", ["", "identity", "gzip;q=0", "br"])
async def test_responses_are_not_compressed_unless_asked(api: Api, encoding: str) -> None:
    await api.ok("/v1/outputs/group-1", [make_output(n) for n in range(10)])
    response = await api.get("/v1/outputs/group-1", headers={"Accept-Encoding": encoding})
    assert "Content-Encoding" not in response.headers


async def test_small_responses_are_not_compressed(api: Api) -> None:
    response = await api.get("/v1/outputs/group-1", headers={"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in response.headers


JSON_KINDS = ["application/json", "application/json; charset=utf-8", 'application/JSON;charset="UTF-8"']


async def test_json_is_taken_under_its_names(api: Api) -> None:
    for path in POSTS:
        for kind in JSON_KINDS:
            body = json.dumps([POSTS[path]()]).encode()
            assert (await api.post(path, data=body, headers={"Content-Type": kind})).status == 200, (path, kind)


async def test_no_response_may_be_cached_by_others(api: Api) -> None:
    for path in [path for path in GETS if path.startswith("/v1/")] + ["/v1/nowhere"]:
        response = await api.get(path)
        assert response.headers["X-Content-Type-Options"] == "nosniff", path
        assert response.headers["Cache-Control"] in ("no-store", "private, no-cache"), path


async def test_the_health_checks_need_no_token(api: Api) -> None:
    await until_ready(api)
    for path in ("/healthz", "/readyz"):
        async with api.client.get(path) as response:
            assert response.status == 200
            assert await response.json() == {"status": "ok"}
