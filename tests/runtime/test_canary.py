"""Tokens and values sent through every route and every failure appear in no log, error answer or metric."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from aiohttp import web
from pymongo.errors import AutoReconnect, BulkWriteError, DuplicateKeyError, InvalidURI, OperationFailure

from service.runtime import logging as logs
from service.runtime.process import _log_unhandled
from service.settings import Settings
from service.store import Store, StoreError
from service.store.errors import driver_errors
from service.store.tokens import new_secret
from service.store.vault import Vault
from tests.support.api import Api, make_cookie, make_entry, make_output, make_review
from tests.support.fault_proxy import FaultProxy, until_ready
from tests.support.routes import API_ROUTES

VALUE = "canary" + os.urandom(12).hex()
UNKNOWN = new_secret()
FOREIGN = ("pymongo", "pymongo.command", "pymongo.connection", "aiohttp", "aiohttp.server", "asyncio", "concurrent")


@pytest.fixture
def settings() -> Settings:
    return Settings(mongo_database="test", mongo_timeout=2.0, receive_timeout=2.0, secret_keys=Vault.new_key("k"))


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
            for request, answer in self.failures:
                assert secret not in answer, request


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
WRONG_TYPES = [{VALUE: VALUE}, [VALUE], None, 1]
FIELDS = {
    "/v1/cookies": (make_cookie(value=VALUE), ("value", "domain", "name", "secure", "expires", "path")),
    "/v1/local-storage": (make_entry(value=VALUE), ("value", "domain", "key", "expires", "path")),
    "/v1/reviews/group": (make_review(comment=VALUE), ("job_id", "status", "comment", "review_date")),
    "/v1/outputs/group": (make_output(1, data={"secret": VALUE}), ("data", "tags", "files", "source_url")),
}


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
        for wrong in (VALUE, [VALUE], [{VALUE: VALUE}], {VALUE: VALUE}):
            assert await send("POST", "/v1/storage-state", json=STATE | {part: wrong}) == 422
    for method, path, _, _ in API_ROUTES:
        if method == "GET":
            path = path.format(group_id=token, name="x")
            await send("GET", path)
            await send("GET", path, token=UNKNOWN)
            for name in ("limit", "cursor", "created_after", "active", "fields", "domain"):
                await send("GET", f"{path}?{name}={VALUE}&token={token}")
    for path in (f"/{token}", f"/v1/{token}/{VALUE}", f"/v1/cookies/{VALUE}?access_token={token}", f"/%ff{VALUE}"):
        assert await send("GET", path) in (400, 404, 422)
    await send(VALUE, "/v1/cookies")


async def test_bad_requests_show_nothing_of_what_was_sent(api: Api, log: io.StringIO) -> None:
    canaries = Canaries(api)
    await send_everything_wrong(canaries)
    await canaries.send("GET", "/metrics")
    assert len(canaries.failures) > 100
    assert '"event":"request"' in log.getvalue()
    canaries.check(log.getvalue())


async def test_database_faults_show_nothing_of_what_was_sent(api: Api, log: io.StringIO, proxy: FaultProxy) -> None:
    canaries = Canaries(api)
    for path, body in GOOD.items():
        assert await canaries.send("POST", path, json=body) == 200
    for fault in ("cut", "reset", "hang"):
        async with proxy.faulty(fault):  # type: ignore[arg-type]
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


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_exceptions_anywhere_show_nothing_of_what_they_hold(
    api: Api, store: Store, log: io.StringIO, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    canaries = Canaries(api)
    for path, body in GOOD.items():
        assert await canaries.send("POST", path, json=body) == 200

    async def fail(*_: Any, **__: Any) -> Any:
        raise error

    async def fail_later(*_: Any, **__: Any) -> AsyncIterator[list[dict[str, Any]]]:
        yield [{"value": VALUE}]
        raise error

    forced = {
        ("cookies", "set"): ("POST", "/v1/cookies"),
        ("local_storage", "set"): ("POST", "/v1/local-storage"),
        ("origins", "set"): ("POST", "/v1/storage-state"),
        ("reviews", "add"): ("POST", "/v1/reviews/group"),
        ("reviews", "latest"): ("GET", "/v1/reviews/group"),
        ("outputs", "_round"): ("POST", "/v1/outputs/group"),
        ("outputs", "page"): ("GET", "/v1/outputs/group"),
        ("groups", "all"): ("GET", "/v1/groups"),
        ("tokens", "find"): ("GET", "/v1/groups"),
    }
    for (part, method), (verb, path) in forced.items():
        with monkeypatch.context() as patch:
            patch.setattr(getattr(store, part), method, fail)
            options = {"json": GOOD[path]} if verb == "POST" else {}
            options["token"] = UNKNOWN if part == "tokens" else None
            assert await canaries.send(verb, path, **options) in (400, 500, 503)
    with monkeypatch.context() as patch:
        patch.setattr(store.cookies, "records", fail_later)
        assert await canaries.send("GET", "/v1/cookies") in (400, 500, 503)
    canaries.check(log.getvalue())


def test_the_stores_errors_carry_nothing_of_the_drivers() -> None:
    for error in ERRORS[:5]:
        with pytest.raises(StoreError) as raised, driver_errors():
            raise error
        shown = "".join(traceback.format_exception(raised.value))
        assert VALUE not in shown.partition("Traceback")[2].replace(repr(error), "")
        assert VALUE not in str(raised.value) and UNKNOWN not in str(raised.value)


async def test_what_nobody_caught_is_logged_by_its_class_alone(log: io.StringIO) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_log_unhandled)

    async def fail() -> None:
        raise KeyError(VALUE)

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    del task  # asyncio says now that its exception was never retrieved
    loop.call_soon(lambda secret: 1 / 0, VALUE)
    await asyncio.sleep(0.01)
    thread = threading.Thread(target=lambda: {}[VALUE])
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
