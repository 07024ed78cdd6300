"""One test that walks every way to fail, and checks that each response has the one shape."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from service.capacity.gate import Holder
from service.http.errors import MAX_PROBLEMS, error_body, problem
from service.http.keys import GATES
from service.settings import Settings
from service.store import Store, StoreError, StoreUnavailable
from tests.conftest import MakeApi
from tests.support.api import Api, Response, make_cookie, make_output
from tests.support.raw import RawResponse, exchange

JSON = {"Content-Type": "application/json"}
HEAD = b" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"

# The documented types: a small set that clients can rely on.
TYPES = {
    "auth_invalid",
    "auth_missing",
    "bad_request",
    "bool_type",
    "conflict",
    "cursor_expired",
    "datetime_invalid",
    "datetime_type",
    "dict_type",
    "encoding_invalid",
    "float_type",
    "greater_than_equal",
    "held_back",
    "int_type",
    "internal_error",
    "json_invalid",
    "lease_in_use",
    "lease_lost",
    "less_than_equal",
    "list_type",
    "method_not_allowed",
    "missing",
    "no_session",
    "not_found",
    "own_token",
    "precondition_failed",
    "rate_limited",
    "scope_missing",
    "string_too_long",
    "string_too_short",
    "string_type",
    "timeout",
    "too_deep",
    "too_large",
    "too_many",
    "unavailable",
    "unknown_field",
    "unknown_parameter",
    "unknown_path",
    "unknown_series",
    "unsupported_encoding",
    "unsupported_media_type",
    "value_error",
}


@pytest.fixture
def settings() -> Settings:
    return Settings(mongo_database="test", receive_timeout=0.5, rate_limit=20)


Failing = Callable[[Api, Store, pytest.MonkeyPatch], Awaitable[Response | RawResponse]]


def raising(error: Exception) -> Failing:
    async def fail(api: Api, store: Store, monkeypatch: pytest.MonkeyPatch) -> Response:
        def broken(*_: Any, **__: Any) -> Any:
            raise error

        monkeypatch.setattr(store.reviews, "latest", broken)  # no request makes it fail in these ways
        return await api.get("/v1/reviews/g")

    return fail


def getting(path: str, **options: Any) -> Failing:
    return lambda api, store, monkeypatch: api.get(path, **options)


def posting(path: str, value: Any = None, **options: Any) -> Failing:
    return lambda api, store, monkeypatch: api.post(path, value, **options)


def sending(start: bytes, rest: bytes = b"\r\n") -> Failing:
    return lambda api, store, monkeypatch: exchange(api, start + HEAD + rest)


async def limited(api: Api, store: Store, monkeypatch: pytest.MonkeyPatch) -> Response:
    while (response := await api.get("/v1/cookies")).status == 200:
        pass
    return response


async def crowded(api: Api, store: Store, monkeypatch: pytest.MonkeyPatch) -> Response:
    connections, others = api.client.app[GATES].connections, itertools.count()
    while connections.take(Holder(next(others), "")):
        pass
    return await api.get("/v1/cookies")


async def slow_head(api: Api, store: Store, monkeypatch: pytest.MonkeyPatch) -> RawResponse:
    return await exchange(api, b"GET /healthz HTTP/1.1\r\n")


FAILURES: dict[str, tuple[int, Failing]] = {
    "no token": (401, getting("/v1/cookies", headers={"Authorization": ""})),
    "a wrong token": (401, getting("/v1/cookies", headers={"Authorization": "Bearer x"})),
    "an unknown path": (404, getting("/nothing")),
    "an unknown file": (404, getting("/docs/static/nothing.js")),
    "an unknown picture of the page": (404, getting("/page/nothing.js")),
    "another method": (405, sending(b"PUT /v1/cookies")),
    "another method for a page": (405, sending(b"POST /docs")),
    "an unknown method": (400, sending(b"BREW /v1/cookies")),
    "not HTTP": (400, lambda api, store, monkeypatch: exchange(api, b"\x00\x01\r\n\r\n")),
    "two hosts": (400, sending(b"GET /v1/cookies", b"Host: x\r\n\r\n")),
    "a head that does not end": (408, slow_head),
    "a body that does not end": (
        408,
        sending(b"POST /v1/cookies", b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n["),
    ),
    "a body too large": (
        413,
        sending(b"POST /v1/cookies", b"Content-Type: application/json\r\nContent-Length: 99999999\r\n\r\n["),
    ),
    "a target too long": (414, sending(b"GET /" + b"x" * 100_000)),
    "another content type": (415, posting("/v1/cookies", data=b"x", headers={"Content-Type": "text/plain"})),
    "another encoding": (415, posting("/v1/cookies", data=b"x", headers={**JSON, "Content-Encoding": "br"})),
    "an unknown expectation": (417, sending(b"GET /v1/cookies", b"Expect: miracles\r\n\r\n")),
    "corrupt gzip": (400, posting("/v1/cookies", data=b"x", headers={**JSON, "Content-Encoding": "gzip"})),
    "broken JSON": (422, posting("/v1/cookies", data=b"[", headers=JSON)),
    "not an array": (422, posting("/v1/cookies", {"a": 1})),
    "a missing field": (422, posting("/v1/cookies", [{}])),
    "an unknown field": (422, posting("/v1/cookies", [make_cookie(other=1)])),
    "too many records": (422, posting("/v1/cookies", [make_cookie()] * 1001)),
    "an item too large": (422, posting("/v1/outputs/g", [make_output(data={"x": "x" * 2**20})])),
    "a value too deep": (422, posting("/v1/outputs/g", [make_output(data={"x": eval("[" * 70 + "]" * 70)})])),  # noqa: S307
    "an unknown parameter": (422, getting("/v1/cookies?domian=x")),
    "a wrong parameter": (422, getting("/v1/outputs/g?limit=0")),
    "a parameter twice": (422, getting("/v1/outputs/g?limit=1&limit=2")),
    "a broken escape": (422, sending(b"GET /v1/outputs/%ZZ")),
    "an id too long": (422, getting("/v1/outputs/" + "x" * 257)),
    "a token too often": (429, limited),
    "headers too large": (431, sending(b"GET /v1/cookies", b"X: " + b"x" * 20_000 + b"\r\n\r\n")),
    "a bug": (500, raising(RuntimeError("secret text"))),
    "a key error": (500, raising(KeyError("secret text"))),
    "a time-out inside": (500, raising(TimeoutError("secret text"))),
    "an assertion": (500, raising(AssertionError("secret text"))),
    "running out of depth": (500, raising(RecursionError("secret text"))),
    "a refusal of the database": (500, raising(StoreError("secret text"))),
    "a database that is away": (503, raising(StoreUnavailable("secret text"))),
    "too much at once": (503, crowded),
}

HEADERS = {401: "WWW-Authenticate", 405: "Allow", 429: "Retry-After", 503: "Retry-After"}


@pytest.mark.parametrize("case", FAILURES)
async def test_every_failure_has_the_one_shape(
    api: Api, store: Store, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    await api.get("/v1/cookies")
    status, fail = FAILURES[case]
    async with asyncio.timeout(60):
        response = await fail(api, store, monkeypatch)
    assert response.status == status, response.body[:300]
    headers = {name.lower(): value for name, value in response.headers.items()}
    assert headers["content-type"] == "application/json"
    assert set(response.json) == {"detail"}
    assert 1 <= len(response.json["detail"]) <= MAX_PROBLEMS
    for entry in response.json["detail"]:
        assert set(entry) == {"loc", "msg", "type"}
        assert type(entry["loc"]) is list
        assert all(type(part) is str for part in entry["loc"])
        assert type(entry["msg"]) is str and entry["msg"]
        assert entry["type"] in TYPES
    text = response.body.decode()
    assert "secret text" not in text
    assert "Traceback" not in text and "Error" not in text and api.token not in text
    if status in HEADERS:
        assert headers[HEADERS[status].lower()]
    for name in ("x-content-type-options", "content-security-policy", "cache-control", "referrer-policy"):
        assert headers[name]


def keys_below_keys(names: list[str], values: bytes) -> bytes:
    return b"".join(b'{"%b":' % name.encode() for name in names) + values + b"}" * len(names)


NULS = b"[" + b",".join([rb'"\u0000"'] * 100) + b"]"
# The keys of 1 KB are written with escapes, as long in JSON again as in the body.
LONG_LOCATIONS = {
    "two keys of 300 KB": ("/v1/storage-state", keys_below_keys(["a" * 300_000, "b" * 300_000], NULS)),
    "62 keys of 1,024 characters": (
        "/v1/outputs/g",
        b'[{"source_url":"u","root_job_id":"j","data":%b}]' % keys_below_keys([r"\u0001" * 1024] * 62, NULS),
    ),
}


@pytest.mark.parametrize("case", LONG_LOCATIONS)
async def test_problems_below_long_keys_do_not_repeat_them(api: Api, case: str) -> None:
    """They were 60 and 38 MB of errors, for bodies of 0.6 and 0.4 MB."""
    path, body = LONG_LOCATIONS[case]
    response = await api.request("POST", path, data=body, headers=JSON)
    assert response.status == 422
    assert {kind for _, kind in response.problems()} == {"value_error"}
    assert len(response.body) < 70_000


def test_an_error_body_has_as_many_problems_as_fit_and_at_least_one() -> None:
    several = [problem("value_error", "x" * 20_000, "body", str(n)) for n in range(10)]
    assert [entry["loc"][1] for entry in json.loads(error_body(several))["detail"]] == ["0", "1", "2"]
    assert len(json.loads(error_body([problem("value_error", "x" * 100_000)]))["detail"]) == 1


@pytest.mark.parametrize("value", [{"msg": 1, "type": 2}, {"msg": 1}, {"type": 1, "x": 1}])
async def test_unknown_fields_with_the_names_of_a_problem_are_reported_each(api: Api, value: dict[str, int]) -> None:
    await api.ok("/v1/outputs/g", [make_output()])
    (item,) = (await api.ok("/v1/outputs/g"))["items"]
    response = await api.patch(f"/v1/outputs/g/{item['output_id']}", value)
    assert response.status == 422
    assert sorted(response.problems()) == [(["body", name], "unknown_field") for name in sorted(value)]
    assert all(type(entry["msg"]) is str for entry in response.json["detail"])


UNKNOWN_FIELDS: list[tuple[str, dict[str, Any], str, str]] = [
    ("/v1/outputs/g", {"title": "Oak"}, "title", 'put it into data, as in "data": {"title": …}'),
    ("/v1/outputs/g", {"country": "Peru"}, "country", 'put it into tags, as in "tags": {"country": …}'),
    ("/v1/outputs/g", {"is_aproved": True}, "is_aproved", "did you mean is_approved?"),
    ("/v1/outputs/g", {"output_id": "x"}, "output_id", "the service gives it; leave it out"),
    ("/v1/outputs/g", {"files": [{"file_rul": "x"}]}, "file_rul", "did you mean file_url?"),
    ("/v1/cookies", {"httponly": True}, "httponly", "did you mean http_only?"),
]


async def test_an_unknown_field_is_told_where_it_belongs(api: Api) -> None:
    cookie = {"domain": "a.example", "name": "x", "value": "1"}
    for path, wrong, name, hint in UNKNOWN_FIELDS:
        valid = make_output() if "outputs" in path else cookie
        response = await api.post(path, [valid | wrong])
        assert [(entry["loc"][-1], entry["msg"]) for entry in response.json["detail"]] == [
            (name, f"Unknown field: {hint}")
        ], name
    output = {name: value for name, value in make_output().items() if name != "source_url"}
    response = await api.post("/v1/outputs/g", [output | {"url": "https://a.example"}])
    assert "Unknown field: did you mean source_url?" in [entry["msg"] for entry in response.json["detail"]]
    nothing_alike = await api.put("/v1/groups/g", {"xyz": 1})
    assert nothing_alike.json["detail"][0]["msg"] == "Unknown field"


async def test_a_job_or_output_of_a_misspelled_group_names_the_similar_one_of_the_same_organization(
    api: Api, make_api: MakeApi
) -> None:
    stranger = await make_api()
    await api.ok("/v1/outputs/lamps", [make_output()])
    for path in ("/v1/groups/lamsp/jobs/job-1", "/v1/outputs/lamsp/00000000-0000-0000-0000-000000000000"):
        what = "job" if "jobs" in path else "output"
        response = await api.get(path)
        hint = ": its group does not exist, did you mean lamps?"
        assert (response.status, response.json["detail"][0]["msg"]) == (404, f"There is no such {what}{hint}")
        assert (await api.get(path.replace("lamsp", "xyz"))).json["detail"][0]["msg"] == f"There is no such {what}"
        missing = path.replace("lamsp", "lamps").replace("job-1", "job-2")
        assert (await api.get(missing)).json["detail"][0]["msg"] == f"There is no such {what}"
        assert (await stranger.get(path)).json["detail"][0]["msg"] == f"There is no such {what}"
    assert (await api.ok("/v1/outputs/lamsp"))["items"] == []


async def test_a_token_without_the_scope_has_the_one_shape(make_api: MakeApi) -> None:
    reader = await make_api(scopes=["read"])
    response = await reader.post("/v1/cookies", [])
    assert (response.status, response.problems()) == (403, [(["header", "Authorization"], "scope_missing")])


def test_every_type_that_the_code_names_is_in_the_documented_set() -> None:
    call = re.compile(r"""(?:problem|invalid)\(\s*"([a-z_]+)",""")
    root = Path(__file__).parents[2]
    named = set()
    for folder in ("service", "schemas"):
        for file in (root / folder).rglob("*.py"):
            named |= set(call.findall(file.read_text()))
    named |= set(re.findall(r'^    \d{3}: \("([a-z_]+)"', (root / "service/http/errors.py").read_text(), re.MULTILINE))
    assert named
    assert named <= TYPES
