"""Tokens and values sent through every route and every failure appear in no log, error response or metric."""

from __future__ import annotations

import asyncio
import gzip
import inspect
import io
import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Iterator
from operator import attrgetter
from typing import Any

import pytest
from aiohttp import web
from pymongo.errors import AutoReconnect, BulkWriteError, DuplicateKeyError, InvalidURI, OperationFailure

from service.runtime import logging as logs
from service.runtime.process import _log_unhandled
from service.settings import Settings
from service.store import Chunk, Listing, Store, StoreError, Vault, new_secret
from service.store.contract import stored
from tests.support.api import Api, make_cookie, make_entry, make_output, make_review
from tests.support.fault_proxy import Fault, FaultProxy, until_ready
from tests.support.routes import API_ROUTES

VALUE = "canary" + os.urandom(12).hex()
UNKNOWN = new_secret()
FOREIGN = ("pymongo", "pymongo.command", "pymongo.connection", "aiohttp", "aiohttp.server", "asyncio", "concurrent")


@pytest.fixture
def settings() -> Settings:
    return Settings(mongo_database="test", mongo_timeout=5.0, receive_timeout=2.0, secret_keys=Vault.new_key("k"))


@pytest.fixture
async def proxy(mongo_url: str) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(mongo_url).running() as proxy:
        yield proxy


@pytest.fixture
async def store(settings: Settings, proxy: FaultProxy) -> AsyncIterator[Store]:
    store = Store.connect(settings, proxy.url)
    await until_ready(store)
    yield store
    await proxy.heal()
    await store.close()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What the service writes at LOG_LEVEL=DEBUG, with the libraries' loggers opened as far as they go."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    hooks = threading.excepthook, sys.unraisablehook
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    logs.set_up("DEBUG")
    for name in FOREIGN:
        logging.getLogger(name).setLevel(logging.DEBUG)
    yield written
    root.handlers[:], _ = before
    root.setLevel(before[1])
    threading.excepthook, sys.unraisablehook = hooks
    for name in FOREIGN:
        logging.getLogger(name).setLevel(logging.NOTSET)


class Canaries:
    """Sends requests and keeps all that must not show what was sent."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.secrets = (VALUE, UNKNOWN, api.token)
        self.failures: list[tuple[str, str]] = []

    async def send(self, method: str, path: str, *, token: str | None = None, **options: Any) -> int:
        headers = {"Authorization": f"Bearer {token or self.api.token}", **options.pop("headers", {})}
        async with self.api.client.request(method, path, headers=headers, **options) as response:
            body = await response.text(errors="replace")
            if response.status >= 400 or path == "/metrics":
                self.failures.append((f"{method} {path[:60]}", f"{response.status} {response.headers} {body}"))
            return response.status

    def check(self, log: str) -> None:
        for secret in self.secrets:
            assert secret not in log
            for request, response in self.failures:
                assert secret not in response, request


STATE = {
    "cookies": [{"name": "a", "value": VALUE, "domain": "a.example", "path": "/", "expires": -1}],
    "origins": [{"origin": "https://a.example", "localStorage": [{"name": "a", "value": VALUE}], "indexedDB": [VALUE]}],
}
GOOD: dict[str, Any] = {
    "/v1/cookies": [make_cookie(value=VALUE)],
    "/v1/local-storage": [make_entry(value=VALUE)],
    "/v1/storage-state": STATE,
    "/v1/reviews/group": [make_review(comment=VALUE)],
    "/v1/outputs/group": [make_output(1, data={"secret": VALUE})],
}
# The variables of paths.
NAMES = dict.fromkeys(("output_id", "job_id", "webhook_id", "token_id", "pool", "name", "lease_id"), VALUE)
SESSION = {"storage_state": STATE, "user_data": {"secret": VALUE}, "note": VALUE}
WRONG_TYPES = [{VALUE: VALUE}, [VALUE], None, 1]
FIELDS = {
    "/v1/cookies": (make_cookie(value=VALUE), ("value", "domain", "name", "secure", "expires", "path")),
    "/v1/local-storage": (make_entry(value=VALUE), ("value", "domain", "key", "expires", "path")),
    "/v1/reviews/group": (make_review(comment=VALUE), ("job_id", "status", "comment", "review_date")),
    "/v1/outputs/group": (make_output(1, data={"secret": VALUE}), ("data", "tags", "files", "source_url")),
}


async def send_wrong_changes(canaries: Canaries, method: str, path: str) -> None:
    """Send bodies of PATCH and PUT: text cut short, wrong types, unknown names, and a change of what is not there."""
    text = json.dumps({"tags": VALUE}).encode()
    for data in (text[:-1], b"\xff" + text):
        assert await canaries.send(method, path, data=data, headers={"Content-Type": "application/json"}) == 422
    assert await canaries.send(method, path, data=text, headers={"Content-Type": "text/plain"}) == 415
    for field in ("is_approved", "tags", "output_id", "key_hash", "if_id", "retention_days", "surprise"):
        for wrong in (VALUE, *WRONG_TYPES):
            await canaries.send(method, path, json={field: wrong})
            await canaries.send(method, path, json=[{"output_id": VALUE, field: wrong}])
    for body in ({"tags": {VALUE: VALUE}}, [{"key_hash": VALUE, "output_id": VALUE}], {"retention_days": 1}, VALUE):
        await canaries.send(method, path, json=body)


async def send_everything_wrong(canaries: Canaries) -> None:
    send, token = canaries.send, canaries.api.token
    json_type = {"Content-Type": "application/json"}
    for path, body in GOOD.items():
        assert await send("POST", path, json=body) == 200
        text = json.dumps(body).encode()
        for data in (text[:-1], text + b"}", text.replace(VALUE.encode(), VALUE.encode() + b"\\u0000"), b"\xff" + text):
            assert await send("POST", path, data=data, headers=json_type) >= 400
        for headers in (
            {"Content-Type": "text/plain"},
            {**json_type, "Content-Encoding": VALUE},
            {**json_type, "Content-Encoding": "gzip"},
            {**json_type, "Content-Type": f"application/json; charset={VALUE}"},
        ):
            assert await send("POST", path, data=text, headers=headers) >= 400
        half = gzip.compress(text)[:-9]
        assert await send("POST", path, data=half, headers={**json_type, "Content-Encoding": "gzip"}) >= 400
        assert await send("POST", path, json=body, token=UNKNOWN) == 401
        assert await send("POST", path, json=body, headers={"Authorization": f"Basic {token}"}) == 401
        assert await send("POST", path, json=body, headers={"Authorization": f"Bearer {token} {token}"}) == 401
        assert await send("POST", path, json=body, headers={"X-Request-ID": token}) == 200
        assert await send("PUT", path, json=body) == 405
    huge = b'["%b"]' % (VALUE.encode() * (17 * 1024 * 1024 // len(VALUE)))
    assert await send("POST", "/v1/cookies", data=huge, headers=json_type) == 413
    for path, (record, fields) in FIELDS.items():
        assert await send("POST", path, json=[record] * 1001) == 422
        assert await send("POST", path, json=record) == 422
        assert await send("POST", path, json=[record | {"surprise": VALUE}, {"value": VALUE}]) == 422
        for field in fields:
            for wrong in WRONG_TYPES:
                await send("POST", path, json=[record | {field: wrong}])
            await send("POST", path, json=[record | {field: VALUE * 100_000}])
    for part in ("cookies", "origins"):
        for broken in (VALUE, [VALUE], [{VALUE: VALUE}], {VALUE: VALUE}):
            assert await send("POST", "/v1/storage-state", json=STATE | {part: broken}) == 422
    for method, path, _, _ in API_ROUTES:
        path = path.format(**NAMES | {"group_id": token})
        await send(method, path)
        await send(method, path, token=UNKNOWN)
        conditions = dict.fromkeys(("If-Match", "If-None-Match", "Last-Event-ID"), VALUE)
        await send(method, path, headers=conditions)
        for name in ("limit", "cursor", "created_after", "active", "fields", "domain", "format", "follow", "surprise"):
            await send(method, f"{path}?{name}={VALUE}&token={token}")
        if method in ("PATCH", "PUT"):
            await send_wrong_changes(canaries, method, path)
    for path in (f"/{token}", f"/v1/{token}/{VALUE}", f"/v1/cookies/{VALUE}?access_token={token}", f"/%ff{VALUE}"):
        assert await send("GET", path) in (400, 404, 422)
    await send(VALUE, "/v1/cookies")


@pytest.mark.slow  # thousands of requests
async def test_bad_requests_show_nothing_of_what_was_sent(api: Api, log: io.StringIO) -> None:
    canaries = Canaries(api)
    await send_everything_wrong(canaries)
    await canaries.send("GET", "/metrics")
    assert len(canaries.failures) > 100
    assert '"event":"request"' in log.getvalue()
    canaries.check(log.getvalue())


@pytest.mark.slow
async def test_database_faults_show_nothing_of_what_was_sent(api: Api, log: io.StringIO, proxy: FaultProxy) -> None:
    canaries = Canaries(api)
    for path, body in GOOD.items():
        assert await canaries.send("POST", path, json=body) == 200
    faults: tuple[Fault, ...] = ("cut", "reset", "hang")
    for fault in faults:
        async with proxy.faulty(fault):
            sent = [canaries.send("POST", path, json=body) for path, body in GOOD.items()]
            sent += [canaries.send("GET", path) for path in GOOD]
            sent += [canaries.send("GET", path, token=UNKNOWN) for path in GOOD]
            assert 503 in await asyncio.gather(*sent)
    assert "StoreUnavailable" in log.getvalue()
    canaries.check(log.getvalue())


DOCUMENT = {"value": VALUE, "token": UNKNOWN}
ERRORS = [
    BulkWriteError({"writeErrors": [{"code": 11000, "errmsg": VALUE, "op": DOCUMENT}]}),
    DuplicateKeyError(f"E11000 dup key: {DOCUMENT}", 11000, {"keyValue": DOCUMENT}),
    OperationFailure(f"cannot {DOCUMENT}", 2, DOCUMENT),
    AutoReconnect(VALUE, [VALUE, UNKNOWN]),
    InvalidURI(VALUE),
    KeyError(VALUE, UNKNOWN),
    UnicodeEncodeError("utf-8", VALUE, 0, 1, UNKNOWN),
    web.HTTPBadRequest(reason=VALUE, text=UNKNOWN),
]
QUICK = (BulkWriteError, KeyError, web.HTTPException)


OUTPUTS, OUTPUT, GROUP = "/v1/outputs/{group_id}", "/v1/outputs/{group_id}/{output_id}", "/v1/groups/{group_id}"
JOB = f"{GROUP}/jobs/{{job_id}}"
POOL, SESSION_PATH, LEASE = "/v1/sessions/{pool}", "/v1/sessions/{pool}/{name}", "/v1/leases/{lease_id}"
# Part of the store, its method that fails, and the route that uses it.
FORCED = [
    ("cookies", "set", "POST", "/v1/cookies"),
    ("cookies", "page", "GET", "/v1/cookies"),
    ("cookies", "delete", "DELETE", "/v1/cookies"),
    ("local_storage", "set", "POST", "/v1/local-storage"),
    ("local_storage", "page", "GET", "/v1/local-storage"),
    ("local_storage", "delete", "DELETE", "/v1/local-storage"),
    ("origins", "set", "POST", "/v1/storage-state"),
    ("cookies", "records", "GET", "/v1/storage-state"),
    ("reviews", "add", "POST", "/v1/reviews/{group_id}"),
    ("reviews", "latest", "GET", "/v1/reviews/{group_id}"),
    ("outputs.write_queues", "apply", "POST", OUTPUTS),
    ("outputs.write_queues", "apply", "PATCH", OUTPUTS),
    ("outputs.write_queues", "apply", "PATCH", OUTPUT),
    ("outputs.write_queues", "apply", "DELETE", OUTPUT),
    ("outputs", "page", "GET", OUTPUTS),
    ("outputs", "pages", "GET", f"{OUTPUTS}/export"),
    ("outputs", "one", "GET", OUTPUT),
    ("outputs", "versions", "GET", f"{OUTPUT}/versions"),
    ("outputs", "restore", "POST", f"{OUTPUT}/restore"),
    ("outputs", "selected", "DELETE", OUTPUTS),
    ("groups", "listing", "GET", "/v1/groups"),
    ("groups", "settings", "GET", GROUP),
    ("groups", "set", "PUT", GROUP),
    ("crawls", "one", "GET", JOB),
    ("crawls", "declare", "PUT", JOB),
    ("crawls", "finish", "PUT", JOB),
    ("crawls", "span", "GET", f"{JOB}/changes"),
    ("outputs.job_changes", "page", "GET", f"{JOB}/changes"),
    ("sessions.pools", "list", "GET", "/v1/sessions"),
    ("sessions.pools", "find", "GET", POOL),
    ("sessions.pools", "set", "PUT", POOL),
    ("sessions.pools", "delete", "DELETE", POOL),
    ("sessions.pools", "find", "GET", SESSION_PATH),
    ("sessions.records", "put", "PUT", SESSION_PATH),
    ("sessions.pools", "find", "DELETE", SESSION_PATH),
    ("sessions.pools", "find", "POST", f"{POOL}/lease"),
    ("sessions.leases", "renew", "PUT", LEASE),
    ("sessions.leases", "release", "POST", f"{LEASE}/release"),
    ("webhooks", "list", "GET", "/v1/webhooks"),
    ("webhooks", "create", "POST", "/v1/webhooks"),
    ("webhooks", "delete", "DELETE", "/v1/webhooks/{webhook_id}"),
    ("webhooks", "find", "POST", "/v1/webhooks/{webhook_id}/test"),
    ("webhooks", "exists", "GET", "/v1/webhooks/{webhook_id}/deliveries"),
    ("outputs", "selected", "DELETE", GROUP),
    ("reviews", "remove", "DELETE", GROUP),
    ("groups", "remove", "DELETE", GROUP),
    ("groups", "one", "GET", f"{GROUP}/stats"),
    ("jobs", "batches", "GET", f"{GROUP}/jobs"),
    ("reviews", "latest_of", "GET", f"{GROUP}/jobs"),
    ("outputs", "pages", "GET", f"{GROUP}/fields"),
    ("tokens", "find", "GET", "/v1/token"),
]
CHANGES: dict[tuple[str, str], Any] = {
    ("PATCH", OUTPUTS): [{"output_id": VALUE, "tags": {"secret": VALUE}}],
    ("PATCH", OUTPUT): {"tags": {"secret": VALUE}},
    ("PUT", GROUP): {"retention_days": 1},
    ("PUT", JOB): {"state": "finished"},
    ("PUT", POOL): {"rest_seconds": 1},
    ("PUT", SESSION_PATH): SESSION,
    ("PUT", LEASE): {"user_data": SESSION["user_data"]},
    ("POST", f"{LEASE}/release"): {"outcome": "good", **SESSION},
    ("POST", "/v1/webhooks"): {"url": f"https://hooks.example/{VALUE}", "events": ["job.finished"]},
}
QUERIES = {
    ("DELETE", "/v1/cookies"): ["?all=true"],
    ("DELETE", "/v1/local-storage"): ["?all=true"],
    ("DELETE", OUTPUTS): ["?all=true"],
    ("GET", f"{OUTPUTS}/export"): ["", "?format=csv", "?format=json", "?follow=true", "?format=sse"],
}


# One of the driver with a document, one of Python and one of aiohttp; `make test-all` takes the others too.
@pytest.mark.parametrize(
    "error",
    [
        pytest.param(error, marks=() if isinstance(error, QUICK) else pytest.mark.slow, id=type(error).__name__)
        for error in ERRORS
    ],
)
async def test_exceptions_anywhere_show_nothing_of_what_they_hold(
    api: Api, store: Store, log: io.StringIO, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    canaries = Canaries(api)
    for path, body in GOOD.items():
        assert await canaries.send("POST", path, json=body) == 200
    job = JOB.format(**NAMES, group_id="group")
    assert await canaries.send("PUT", job, json={"state": "running"}) == 200  # only a job that exists can be finished

    async def fail(*_: Any, **__: Any) -> Any:
        raise error

    async def fail_at_once(*_: Any, **__: Any) -> AsyncIterator[Any]:
        raise error
        yield

    async def fail_later(*_: Any, **__: Any) -> AsyncIterator[Chunk]:
        yield Chunk(10, [{"value": VALUE}])
        raise error

    async def page_that_fails_later(*_: Any, **__: Any) -> Listing:
        return Listing(fail_later())

    for part, name, method, path in FORCED:
        owner = attrgetter(part)(store)
        is_stream = inspect.isasyncgenfunction(inspect.unwrap(getattr(owner, name))) or name in ("pages", "records")
        for query in QUERIES.get((method, path), [""]):
            with monkeypatch.context() as patch:
                # A method of the store's contract: no request makes it fail in these ways.
                patch.setattr(owner, name, fail_at_once if is_stream else fail)
                url = path.format(**NAMES | {"group_id": "group"})
                body = CHANGES.get((method, path), GOOD.get(url) if method == "POST" else None)
                options = {} if body is None else {"json": body}
                token = UNKNOWN if part == "tokens" else None
                status = await canaries.send(method, url + query, token=token, **options)
                assert status in (400, 500, 503), (part, name, method, path)
    with monkeypatch.context() as patch:
        patch.setattr(store.cookies, "page", page_that_fails_later)
        assert await canaries.send("GET", "/v1/cookies") in (400, 500, 503)
    canaries.check(log.getvalue())


def test_exceptions_are_forced_in_every_route_that_needs_a_token() -> None:
    forced = {(method, path) for _, _, method, path in FORCED}
    assert forced == {(route.method, route.path) for route in API_ROUTES if route.scope not in ("public", "admin")}


async def test_the_stores_errors_carry_nothing_of_the_drivers() -> None:
    @stored
    async def fail(error: Exception) -> None:
        raise error

    for error in ERRORS[:5]:
        with pytest.raises(StoreError) as raised:
            await fail(error)
        shown = "".join(traceback.format_exception(raised.value))
        assert VALUE not in shown.partition("Traceback")[2].replace(repr(error), "")
        assert VALUE not in str(raised.value) and UNKNOWN not in str(raised.value)


async def test_an_uncaught_exception_is_logged_by_its_class_only(log: io.StringIO) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_log_unhandled)

    async def fail() -> None:
        raise KeyError(VALUE)

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    del task  # asyncio says now that its exception was never retrieved
    loop.call_soon(lambda secret: 1 / 0, VALUE)
    await asyncio.sleep(0.01)
    nothing: dict[str, str] = {}
    thread = threading.Thread(target=lambda: nothing[VALUE])
    thread.start()
    thread.join()
    logging.getLogger("pymongo.command").debug("Command %s", VALUE)
    logging.getLogger("asyncio").error(f"Task exception was never retrieved: {VALUE}")
    try:
        raise KeyError(VALUE)
    except KeyError:
        logging.getLogger("aiohttp.server").exception("Error handling request from %s", VALUE)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert VALUE not in log.getvalue()
    assert [line.get("error") for line in lines if line["event"] in ("unhandled", "uncaught")] == [
        "KeyError",
        "ZeroDivisionError",
        "KeyError",
    ]
    assert {"event": "Error handling request from %s", "exception": "KeyError"}.items() <= lines[-1].items()
    loop.set_exception_handler(None)
