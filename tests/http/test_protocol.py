"""What comes over the wire below HTTP clients: broken requests, slow ones, idle ones."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from service.capacity.work import HEADS
from service.http.keys import GATES
from service.http.middleware.security_headers import SECURITY_HEADERS
from service.runtime.server import Runner
from service.settings import Settings
from service.store import Store
from tests.support.api import Api, make_cookie, make_output
from tests.support.raw import RawResponse, connect, exchange

RECEIVE_TIMEOUT = 1.0
IN_TIME = RECEIVE_TIMEOUT + 10  # the rest is for the machine; what is not cut goes on for a minute


@pytest.fixture
def settings() -> Settings:
    return Settings(mongo_database="test", receive_timeout=RECEIVE_TIMEOUT, keepalive_timeout=30, mongo_timeout=30)


HOST = b"Host: localhost\r\n"
AUTH = HOST + b"Authorization: Bearer {token}\r\n"
COOKIES = b"POST /v1/cookies HTTP/1.1\r\n" + AUTH + b"Content-Type: application/json\r\n"
BODY = json.dumps([make_cookie()]).encode()


def check_headers(response: RawResponse) -> None:
    for name in SECURITY_HEADERS:
        assert name.lower() in response.headers, name
    assert not any(character.isdigit() for character in response.headers["server"])
    assert "aiohttp" not in response.headers["server"]


# -- requests that are none ------------------------------------------------------------------------

BROKEN = {
    "not HTTP": b"hello there\r\n\r\n",
    "TLS on a plain port": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "only NULs": bytes(100) + b"\r\n\r\n",
    "an unknown method": b"BREW /v1/cookies HTTP/1.1\r\n" + HOST + b"\r\n",
    "a method in small letters": b"get /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    "no target": b"GET HTTP/1.1\r\n" + HOST + b"\r\n",
    "a relative target": b"GET healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    "a space in the target": b"GET /v1/outputs/a b HTTP/1.1\r\n" + HOST + b"\r\n",
    "HTTP/2.0": b"GET /healthz HTTP/2.0\r\n" + HOST + b"\r\n",
    "HTTP/3.0": b"GET /healthz HTTP/3.0\r\n" + HOST + b"\r\n",
    "HTTP/2 without asking": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a header without a colon": b"GET /healthz HTTP/1.1\r\n" + HOST + b"Nonsense\r\n\r\n",
    "a space before the colon": b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-A : 1\r\n\r\n",
    "a folded header": b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-A: 1\r\n 2\r\n\r\n",
    "an empty header name": b"GET /healthz HTTP/1.1\r\n" + HOST + b": 1\r\n\r\n",
    "a NUL in a header": b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-A: a\x00b\r\n\r\n",
    "a bare CR in a header": b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-A: a\rSet-Cookie: x\r\n\r\n",
    "no Host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET /healthz HTTP/1.1\r\n" + HOST + b"Host: evil.example\r\n\r\n",
    "a Host with a path": b"GET /healthz HTTP/1.1\r\nHost: evil.example/a?b\r\n\r\n",
    "a Host with credentials": b"GET /healthz HTTP/1.1\r\nHost: user:pass@evil.example\r\n\r\n",
    "a Host with a bad port": b"GET /healthz HTTP/1.1\r\nHost: localhost:port\r\n\r\n",
    "an empty Host": b"GET /healthz HTTP/1.1\r\nHost: \r\n\r\n",
    "a Host with markup": b"GET /healthz HTTP/1.1\r\nHost: <script>\r\n\r\n",
    "Content-Length and chunks": COOKIES + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two Content-Lengths": COOKIES + b"Content-Length: 2\r\nContent-Length: 20\r\n\r\n[]",
    "a list of Content-Lengths": COOKIES + b"Content-Length: 2, 20\r\n\r\n[]",
    "a negative Content-Length": COOKIES + b"Content-Length: -1\r\n\r\n",
    "a Content-Length with a plus": COOKIES + b"Content-Length: +2\r\n\r\n[]",
    "a Content-Length of letters": COOKIES + b"Content-Length: two\r\n\r\n[]",
    "a Content-Length in hexadecimal": COOKIES + b"Content-Length: 0x2\r\n\r\n[]",
    "a Content-Length beyond 64 bits": COOKIES + b"Content-Length: 99999999999999999999999\r\n\r\n[]",
    "an unknown Transfer-Encoding": COOKIES + b"Transfer-Encoding: gzip\r\n\r\n[]",
    "chunked twice": COOKIES + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "chunked over something": COOKIES + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked in two headers": COOKIES + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": COOKIES.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked in disguise": COOKIES + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked and something": COOKIES + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a chunk size that is none": COOKIES + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n[]\r\n0\r\n\r\n",
    "a negative chunk size": COOKIES + b"Transfer-Encoding: chunked\r\n\r\n-2\r\n[]\r\n0\r\n\r\n",
    "a chunk size beyond 64 bits": COOKIES + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n[]\r\n0\r\n\r\n",
    "a chunk longer than its size": COOKIES + b"Transfer-Encoding: chunked\r\n\r\n2\r\n[  ]\r\n0\r\n\r\n",
    "a chunk without an end": COOKIES + b"Transfer-Encoding: chunked\r\n\r\n2\r\n[]0\r\n\r\n",
    "an absolute target without a host": b"GET http:///v1/cookies HTTP/1.1\r\n" + HOST + b"\r\n",
}


async def test_a_malformed_request_gets_400(api: Api) -> None:
    for case in BROKEN:
        response = await exchange(api, BROKEN[case])
        assert response.status == 400, case
        assert response.problems(), case
        check_headers(response)
        assert await api.ok("/v1/cookies") == [], case


async def test_a_malformed_chunk_after_a_good_one_gets_400_and_not_408(api: Api) -> None:
    async with connect(api) as connection:
        head = COOKIES + b"Transfer-Encoding: chunked\r\n\r\n1\r\n[\r\n"
        await connection.send(head.replace(b"{token}", api.token.encode()))
        await until(lambda: api.client.app[GATES].receiving.used > 0)
        await connection.send(b"zz\r\n]\r\n")
        assert (await connection.read_response()).status == 400
        assert await connection.closed()


async def test_other_methods_are_405_with_allow(api: Api) -> None:
    for path, allowed in [
        ("/v1/cookies", {"GET", "HEAD", "POST", "DELETE"}),
        ("/v1/outputs/g", {"GET", "HEAD", "POST", "PATCH", "DELETE"}),
        ("/v1/groups", {"GET", "HEAD"}),
        ("/healthz", {"GET", "HEAD"}),
        ("/metrics", {"GET", "HEAD"}),
        ("/openapi.json", {"GET", "HEAD"}),
        ("/docs", {"GET", "HEAD"}),
        ("/docs/static/swagger-ui.css", {"GET", "HEAD"}),
        ("/", {"GET", "HEAD"}),
    ]:
        for method in {"PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "QUERY", "M-SEARCH"} - allowed:
            response = await exchange(api, f"{method} {path} HTTP/1.1\r\n".encode() + AUTH + b"\r\n")
            assert (response.status, response.problems()) == (405, [(["method"], "method_not_allowed")]), (
                path,
                allowed,
            )
            assert set(response.headers["allow"].split(",")) == allowed, path
            check_headers(response)


@pytest.mark.parametrize("start", [b"GET *", b"OPTIONS *", b"CONNECT nowhere", b"CONNECT evil.example:443"])
async def test_a_target_that_is_no_path_leads_nowhere(api: Api, start: bytes) -> None:
    response = await exchange(api, start + b" HTTP/1.1\r\n" + HOST + b"\r\n")
    assert response.status in (400, 404)
    assert response.problems()
    check_headers(response)


GETS = [
    "/v1/cookies",
    "/v1/local-storage",
    "/healthz",
    "/metrics",
    "/openapi.json",
    "/docs",
    "/docs/static/swagger-ui-bundle.js",
    "/",
    "/nowhere",
    "/v1/outputs/%ZZ",
]


async def test_head_is_get_without_the_body(api: Api) -> None:
    for path in GETS:
        request = f"{path} HTTP/1.1\r\n".encode() + AUTH + b"\r\n"
        async with connect(api) as connection:
            await connection.send(b"HEAD " + request.replace(b"{token}", api.token.encode()))
            head = await connection.read_response(head_only=True)
            # The connection is still in step: the next response follows at once.
            await connection.send(b"GET " + request.replace(b"{token}", api.token.encode()))
            get = await connection.read_response()
        check_headers(head)
        check_headers(get)
        assert (head.status, head.headers["content-type"]) == (get.status, get.headers["content-type"]), path


# -- sizes --------------------------------------------------------------------------------------------


async def test_a_query_of_100_kb_gets_414(api: Api) -> None:
    response = await exchange(api, b"GET /v1/outputs/g?url=" + b"x" * 100_000 + b" HTTP/1.1\r\n" + AUTH + b"\r\n")
    assert (response.status, response.problems()) == (414, [(["path"], "too_large")])
    check_headers(response)


async def test_a_url_of_8192_characters_can_be_asked_for(api: Api) -> None:
    url = b"https://shop.example/" + b"x" * (8192 - 21)
    response = await exchange(api, b"GET /v1/outputs/g?url=" + url + b" HTTP/1.1\r\n" + AUTH + b"\r\n")
    assert (response.status, response.json["items"]) == (200, [])


async def test_headers_that_are_too_large_get_431(api: Api) -> None:
    for headers in [
        b"X-Large: " + b"x" * 20_000 + b"\r\n",
        b"x" * 20_000 + b": 1\r\n",
        b"".join(b"X-%d: 1\r\n" % n for n in range(500)),
        b"Authorization: Bearer " + b"x" * 100_000 + b"\r\n",
        b"Cookie: " + b"a=b;" * 10_000 + b"\r\n",
    ]:
        response = await exchange(api, b"GET /healthz HTTP/1.1\r\n" + HOST + headers + b"\r\n")
        assert (response.status, response.problems()) == (431, [(["header"], "too_large")]), headers
        check_headers(response)


async def test_a_body_over_the_limit_is_refused_before_it_is_sent(api: Api) -> None:
    response = await exchange(api, COOKIES + b"Content-Length: 99999999999\r\n\r\n")
    assert (response.status, response.problems()) == (413, [(["body"], "too_large")])


# -- Expect ------------------------------------------------------------------------------------------


async def test_a_client_that_waits_is_told_to_continue(api: Api) -> None:
    async with connect(api) as connection:
        head = COOKIES + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY)
        await connection.send(head.replace(b"{token}", api.token.encode()))
        assert (await connection.read_response(head_only=True)).status == 100
        await connection.send(BODY)
        assert (await connection.read_response()).json == {"created": 1, "updated": 0}


async def test_a_client_of_http_1_0_is_not_told_to_continue(api: Api) -> None:
    head = COOKIES.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Expect: 100-continue\r\n"
    response = await exchange(api, head + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
    assert (response.status, response.json) == (200, {"created": 1, "updated": 0})


async def test_a_client_that_waits_is_not_told_to_send_a_body_that_is_refused(api: Api) -> None:
    for head, status in [
        (COOKIES.replace(b"{token}", b"wrong"), 401),
        (COOKIES.replace(b"/json", b"/xml"), 415),
        (COOKIES + b"Content-Encoding: br\r\n", 415),
        (COOKIES.replace(b"cookies", b"nothing"), 404),
        (COOKIES.replace(b"POST", b"PUT"), 405),
    ]:
        response = await exchange(api, head + b"Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n")
        assert response.status == status, head
        assert response.problems(), head


@pytest.mark.parametrize("path", [b"/v1/cookies", b"/nothing"])
async def test_an_unknown_expectation_gets_417(api: Api, path: bytes) -> None:
    head = COOKIES.replace(b"/v1/cookies", path)
    response = await exchange(api, head + b"Expect: miracles\r\nContent-Length: 2\r\n\r\n[]")
    assert (response.status, response.problems()) == (417, [(["header", "Expect"], "bad_request")])
    check_headers(response)


# -- connections -----------------------------------------------------------------------------------


async def test_requests_sent_in_one_piece_get_their_responses_in_order(api: Api) -> None:
    async with connect(api) as connection:
        get = (b"GET /v1/cookies HTTP/1.1\r\n" + AUTH + b"\r\n").replace(b"{token}", api.token.encode())
        post = COOKIES.replace(b"{token}", api.token.encode()) + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
        await connection.send(get + post + get)
        responses = [await connection.read_response() for _ in range(3)]
    assert [response.status for response in responses] == [200, 200, 200]
    assert [len(responses[0].json), responses[1].json["created"], len(responses[2].json)] == [0, 1, 1]


async def test_what_follows_a_broken_request_is_not_taken_for_another(api: Api) -> None:
    smuggled = b"POST /v1/cookies HTTP/1.1\r\n" + AUTH + b"Content-Type: application/json\r\n"
    smuggled += b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    for head in (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"Transfer-Encoding: xchunked\r\n"):
        async with connect(api) as connection:
            data = b"POST /nothing HTTP/1.1\r\n" + HOST + head + b"\r\n0\r\n\r\n" + smuggled
            await connection.send(data.replace(b"{token}", api.token.encode()))
            assert (await connection.read_response()).status == 400
            assert await connection.closed()
    assert await api.ok("/v1/cookies") == []


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_a_client_that_closes_its_side_gets_its_response(api: Api, version: bytes) -> None:
    async with connect(api) as connection:
        get = b"GET /v1/cookies HTTP/" + version + b"\r\n" + AUTH + b"\r\n"
        await connection.send(get.replace(b"{token}", api.token.encode()))
        connection.writer.write_eof()
        assert (await connection.read_response()).json == []
        assert await connection.closed()


async def test_a_client_that_closes_its_side_after_several_requests_gets_all_responses(api: Api) -> None:
    async with connect(api) as connection:
        get = b"GET /v1/cookies HTTP/1.1\r\n" + AUTH + b"\r\n"
        await connection.send(3 * get.replace(b"{token}", api.token.encode()))
        connection.writer.write_eof()
        assert [(await connection.read_response()).status for _ in range(3)] == [200, 200, 200]
        assert await connection.closed()


async def test_a_client_that_closes_its_side_gets_a_long_response_too(api: Api) -> None:
    await api.ok("/v1/outputs/g", [make_output(n, data={"text": "x" * 100_000}) for n in range(60)])
    for format in ("ndjson", "csv", "json"):
        async with connect(api) as connection:
            get = b"GET /v1/outputs/g/export?format=" + format.encode() + b" HTTP/1.1\r\n" + AUTH + b"\r\n"
            await connection.send(get.replace(b"{token}", api.token.encode()))
            connection.writer.write_eof()
            response = await connection.read_response()
            assert response.headers["transfer-encoding"] == "chunked"
            assert response.body.count(b"x" * 100_000) == 60


async def test_a_head_that_there_is_no_room_for_is_refused_until_later(api: Api) -> None:
    ledger, runner = api.client.app[GATES].receiving, api.client.server.runner
    assert ledger.take(HEADS, ledger.total // 2)
    assert isinstance(runner, Runner) and runner.refused == 0
    response = await exchange(api, b"GET /healthz HTTP/1.1\r\nHost: x")
    ledger.put_back(HEADS, ledger.total // 2)
    assert (response.status, response.problems()) == (503, [([], "unavailable")])
    assert response.headers["retry-after"] == "1"
    assert runner.refused == 1
    check_headers(response)


async def test_a_client_that_leaves_inside_its_body_stores_nothing(api: Api) -> None:
    async with connect(api) as connection:
        data = COOKIES.replace(b"{token}", api.token.encode()) + b"Content-Length: 5000\r\n\r\n" + BODY
        await connection.send(data)
        await until(lambda: api.client.app[GATES].receiving.used > 0)
    await until(lambda: not api.client.app[GATES].receiving.used)
    assert await api.ok("/v1/cookies") == []


@pytest.mark.parametrize("token", [b"{token}", b"wrong"])
async def test_a_response_to_a_request_that_asked_before_it_sent_its_body_has_every_header(
    api: Api, token: bytes
) -> None:
    async with connect(api) as connection:
        head = COOKIES.replace(b"{token}", token) + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % len(BODY)
        await connection.send(head.replace(b"{token}", api.token.encode()))
        response = await connection.read_response()
        if token != b"wrong":
            assert response.status == 100
            await connection.send(BODY)
            response = await connection.read_response()
        assert response.status == (401 if token == b"wrong" else 200)
        check_headers(response)
        assert response.headers["x-request-id"]


async def test_http_1_0_without_a_host_is_fine(api: Api) -> None:
    response = await exchange(api, b"GET /healthz HTTP/1.0\r\n\r\n")
    assert response.json == {"status": "ok"}


async def test_an_upgrade_is_not_taken_up(api: Api) -> None:
    for upgrade in (b"websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13", b"h2c"):
        head = b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: " + upgrade + b"\r\n\r\n"
        assert (await exchange(api, head)).status == 200


async def test_header_lines_cannot_be_put_into_a_response(api: Api) -> None:
    for value in (b"a%0d%0aSet-Cookie: x", b"a\tb", b"x" * 200, b"\xff\xfe"):
        head = b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-Request-ID: " + value + b"\r\nOrigin: " + value + b"\r\n\r\n"
        response = await exchange(api, head)
        assert response.status == 200
        assert "set-cookie" not in response.headers
        assert len(response.headers["x-request-id"]) == 32


# -- slow clients --------------------------------------------------------------------------------------


async def drip(connection: Any, data: bytes, pause: float) -> None:
    try:
        for byte in data:
            await connection.send(bytes([byte]))
            await asyncio.sleep(pause)
    except ConnectionError:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.1, 0.4])
async def test_a_head_sent_byte_by_byte_gets_408_in_time(api: Api, pause: float) -> None:
    started = time.monotonic()
    async with connect(api) as connection:
        dripping = asyncio.create_task(drip(connection, b"GET /healthz HTTP/1.1\r\n" + b"X: 1\r\n" * 100, pause))
        response = await connection.read_response()
        assert (response.status, response.problems()) == (408, [([], "timeout")])
        check_headers(response)
        assert await connection.closed()
        assert RECEIVE_TIMEOUT - 0.1 < time.monotonic() - started < IN_TIME
        dripping.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("length", [b"Content-Length: 1000", b"Transfer-Encoding: chunked"])
async def test_a_body_sent_byte_by_byte_gets_408_in_time(api: Api, length: bytes) -> None:
    async with connect(api) as connection:
        await connection.send(COOKIES.replace(b"{token}", api.token.encode()) + length + b"\r\n\r\n")
        started = time.monotonic()
        dripping = asyncio.create_task(drip(connection, b"1\r\n \r\n" * 100, 0.1))
        response = await connection.read_response()
        assert (response.status, response.problems()) == (408, [([], "timeout")])
        assert response.headers["connection"] == "close"
        check_headers(response)
        assert await connection.closed()
        assert time.monotonic() - started < IN_TIME + RECEIVE_TIMEOUT
        dripping.cancel()
    assert await api.ok("/v1/cookies") == []


async def test_an_unread_body_does_not_keep_the_connection_open(api: Api) -> None:
    async with connect(api) as connection:
        await connection.send(COOKIES.replace(b"{token}", b"wrong") + b"Content-Length: 1000\r\n\r\n")
        dripping = asyncio.create_task(drip(connection, b" " * 600, 0.1))
        assert (await connection.read_response()).status == 401
        started = time.monotonic()
        assert await connection.closed()
        assert time.monotonic() - started < IN_TIME
        dripping.cancel()


class TestPatience:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(mongo_database="test", receive_timeout=120)

    async def test_a_refused_body_without_a_length_ends_the_connection_at_once(self, api: Api) -> None:
        async with connect(api) as connection:
            head = COOKIES.replace(b"{token}", b"wrong") + b"Transfer-Encoding: chunked\r\n\r\n1\r\n[\r\n"
            await connection.send(head)
            response = await connection.read_response()
            assert (response.status, response.headers["connection"]) == (401, "close")
            assert await connection.closed(60)  # and not after the time it has to send its request


async def fill(api: Api, store: Store, size: int) -> None:
    """Give a caller three entries of a size, past the limits of receiving them."""
    for n in range(3):
        entry = {"domain": "a", "key": str(n), "path": "/", "value": "x" * size, "expires": None}
        await store.local_storage.set(api.organization_id, [entry])


def open_connections(api: Api) -> int:
    runner = api.client.server.runner
    assert isinstance(runner, Runner) and runner.server is not None
    return len(runner.server.connections)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_client_that_takes_nothing_of_its_response_is_cut(api: Api, store: Store) -> None:
    await fill(api, store, 4_000_000)
    before = open_connections(api)
    async with connect(api) as connection:
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        get = b"GET /v1/local-storage HTTP/1.1\r\n" + AUTH + b"\r\n"
        await connection.send(get.replace(b"{token}", api.token.encode()))
        await until(lambda: open_connections(api) > before)
        await until(lambda: open_connections(api) <= before)


@pytest.mark.slow
async def test_a_client_that_reads_slowly_gets_it_all(api: Api, store: Store) -> None:
    await fill(api, store, 1_000_000)
    async with connect(api) as connection:
        get = b"GET /v1/local-storage HTTP/1.0\r\n" + AUTH + b"\r\n"
        await connection.send(get.replace(b"{token}", api.token.encode()))
        received = 0
        started = time.monotonic()
        while piece := await connection.reader.read(100_000):
            received += len(piece)
            await asyncio.sleep(0.05)
    assert received > 3_000_000
    assert time.monotonic() - started > RECEIVE_TIMEOUT


@pytest.mark.slow
async def test_2000_idle_connections_do_not_keep_others_out(api: Api) -> None:
    idle = []
    try:
        for _ in range(20):
            idle += await asyncio.gather(
                *(asyncio.open_connection(api.client.host, api.client.port) for _ in range(100))
            )
        for half in idle[:1000]:  # and half of them in the middle of a request's head
            half[1].write(b"GET /healthz HTTP/1.1\r\nHost: x")
        await until(lambda: open_connections(api) >= 2000)
        async with asyncio.timeout(60):
            for _ in range(20):
                assert await api.ok("/v1/cookies") == []
    finally:
        for _, writer in idle:
            writer.transport.abort()


class TestImpatience:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(mongo_database="test", keepalive_timeout=0.3)

    async def test_idle_connections_are_closed(self, api: Api) -> None:
        async with connect(api) as silent, connect(api) as used:
            await used.send(b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")
            assert (await used.read_response()).status == 200
            assert await silent.closed()
            assert await used.closed()


# -- next_url ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "host"),
    [
        (b"/v1/outputs/g?limit=1", b"data.example:8443"),
        (b"http://evil.example/v1/outputs/g?limit=1", b"data.example:8443"),
        (b"/v1/outputs/g?limit=1#fragment", b"data.example:8443"),
        (b"/v1/outputs/g?limit=1", b"[::1]:8080"),
    ],
)
async def test_next_url_starts_with_the_host_asked_for(api: Api, target: bytes, host: bytes) -> None:
    await api.ok("/v1/outputs/g", [make_output(1), make_output(2)])
    head = b"GET " + target + b" HTTP/1.1\r\nAuthorization: Bearer {token}\r\nHost: " + host + b"\r\n\r\n"
    page = (await exchange(api, head)).json
    cursor = page["metadata"]["next_cursor"]
    assert page["metadata"]["next_url"] == f"http://{host.decode()}/v1/outputs/g?limit=1&cursor={cursor}"


@pytest.mark.parametrize("path", ["/v1/outputs/g?limit=100", "/v1/outputs/g/export"], ids=["a large page", "an export"])
async def test_the_end_of_a_connection_with_a_large_head_is_announced(api: Api, path: str) -> None:
    """Else the client sends its next request to a connection that closes: 40 of 40 failed with http.client."""
    await api.ok("/v1/outputs/g", [make_output(n, data={"text": "x" * 3000}) for n in range(100)])
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api.token}\r\nX: {'x' * 9000}\r\n\r\n"
    response = await exchange(api, head.encode())
    assert (response.status, response.headers["connection"]) == (200, "close")
