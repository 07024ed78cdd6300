"""Endless heads and unexpected bodies: bounded, and rejected in the one error shape."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from service.http.keys import GATES
from service.settings import Settings
from tests.support.api import Api, make_cookie
from tests.support.raw import connect, exchange
from tests.support.stall import without_stall

HOST = b"Host: localhost\r\n"
LARGE_HEADER = b": " + b"x" * 16_000 + b"\r\n"
POST = b"POST /v1/cookies HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
AUTHORIZED = POST + b"Authorization: Bearer {token}\r\n"


@pytest.fixture
def settings() -> Settings:
    return Settings(mongo_database="test", receive_timeout=60, max_bytes_in_flight=4 * 2**20)


def headers(count: int) -> bytes:
    return b"".join(b"X-%d" % n + LARGE_HEADER for n in range(count))


@pytest.mark.parametrize("end", [b"", b"\r\n"], ids=["that never ends", "that is whole"])
async def test_a_head_of_more_than_64_kb_is_431(api: Api, end: bytes) -> None:
    response = await exchange(api, b"GET /healthz HTTP/1.1\r\n" + HOST + headers(5) + end)
    assert (response.status, response.problems()) == (431, [(["header"], "too_large")])


async def test_a_head_of_less_is_served(api: Api) -> None:
    response = await exchange(api, b"GET /healthz HTTP/1.1\r\n" + HOST + headers(4) + b"\r\n")
    assert response.status == 200


PATHS = {
    "only slashes": b"/" * 64_000,
    "names": b"/v1/outputs" + b"/a" * 32_000,
    "a URL": b"http://localhost" + b"/" * 64_000,
}


@pytest.mark.alone
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
async def test_a_path_of_many_slashes_is_404_at_once(api: Api, path: bytes) -> None:
    response = await without_stall(lambda: exchange(api, b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n"))
    assert (response.status, response.problems()) == (404, [(["path"], "not_found")])


async def test_slashes_in_a_query_are_no_part_of_the_path(api: Api) -> None:
    page = await api.ok("/v1/outputs/g?url=https://a.example" + "/a" * 1000)
    assert page["items"] == []


@pytest.mark.parametrize(("count", "connection"), [(0, None), (1, "close")])
async def test_an_idle_connection_keeps_no_large_head(api: Api, count: int, connection: str | None) -> None:
    """aiohttp keeps the last request of a connection until the next one: 520 of 64 KB were 170 MB."""
    response = await exchange(api, b"GET /healthz HTTP/1.1\r\n" + HOST + headers(count) + b"\r\n")
    assert response.headers.get("connection") == connection


async def test_heads_that_never_end_are_counted_and_leave_room_for_others(api: Api) -> None:
    ledger = api.client.app[GATES].receiving
    async with AsyncExitStack() as stack:
        responses = []
        for _ in range(20):
            connection = await stack.enter_async_context(connect(api))
            await connection.send(b"GET /healthz HTTP/1.1\r\n" + HOST + headers(3))
            responses.append(asyncio.create_task(connection.read_response(seconds=60)))
        async with asyncio.timeout(60):
            while not any(response.done() for response in responses):
                await asyncio.sleep(0.01)
        assert 0 < ledger.used <= ledger.total // 2
        assert {(await response).status for response in responses if response.done()} == {503}
        assert await api.ok("/v1/cookies", [make_cookie()]) == {"created": 1, "updated": 0}
        for response in responses:
            response.cancel()
    async with asyncio.timeout(60):
        while ledger.used:
            await asyncio.sleep(0.01)


BODIES = {
    "a length": b"Content-Length: 2\r\n\r\n[]",
    "a length and nothing of it": b"Content-Length: 1000\r\n\r\n",
    "chunks": b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
    "chunks that go on": b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 1000,
}


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_body_on_a_method_without_one_is_400_and_ends_the_connection(
    api: Api, method: str, body: bytes
) -> None:
    async with connect(api) as connection:
        await connection.send(f"{method} /v1/cookies HTTP/1.1\r\n".encode() + HOST + body)
        response = await connection.read_response(head_only=method == "HEAD")
        assert (response.status, response.headers["connection"]) == (400, "close")
        if method != "HEAD":
            assert response.problems() == [(["body"], "bad_request")]
        assert await connection.closed()


REFUSED = {
    401: POST + b"Content-Length: 100000\r\n\r\n[",
    404: POST.replace(b"/v1/cookies", b"/nowhere") + b"Transfer-Encoding: chunked\r\n\r\n1\r\n[\r\n",
    405: POST.replace(b"/v1/cookies", b"/healthz") + b"Content-Length: 100000\r\n\r\n[",
    413: AUTHORIZED + b"Content-Length: 100000000\r\n\r\n[",
}


@pytest.mark.parametrize("status", REFUSED)
async def test_a_response_to_an_unread_body_ends_the_connection(api: Api, status: int) -> None:
    async with connect(api) as connection:
        await connection.send(REFUSED[status].replace(b"{token}", api.token.encode()))
        response = await connection.read_response()
        assert (response.status, response.headers["connection"]) == (status, "close")
        assert await connection.closed(20)


async def test_a_client_that_goes_on_sending_gets_to_read_why_it_was_refused(api: Api) -> None:
    async with connect(api) as connection:
        await connection.send(REFUSED[413].replace(b"{token}", api.token.encode()))
        for _ in range(20):
            await connection.send(b" " * 2**20)
        response = await connection.read_response()
        assert (response.status, response.problems()) == (413, [(["body"], "too_large")])


@pytest.mark.slow
async def test_what_a_refused_client_goes_on_sending_is_read_slowly(api: Api) -> None:
    async with connect(api) as connection:
        await connection.send(REFUSED[413].replace(b"{token}", api.token.encode()))
        began = time.perf_counter()
        for _ in range(24):
            await connection.send(b" " * 2**20)
        # 96 reads take 1 s, fewer if the kernel holds some MB. At full speed it is 0.03 s of the event loop.
        assert time.perf_counter() - began > 0.25
        assert (await connection.read_response()).status == 413


async def test_a_body_in_tiny_chunks_is_400_and_ends_the_connection(api: Api) -> None:
    async with connect(api) as connection:
        head = AUTHORIZED.replace(b"{token}", api.token.encode()) + b"Transfer-Encoding: chunked\r\n\r\n"
        await connection.send(head + b"1\r\n \r\n" * 5000)
        response = await connection.read_response()
        assert (response.status, response.problems()) == (400, [([], "bad_request")])
        assert await connection.closed(20)


@pytest.mark.parametrize("size", [300, 1], ids=["small chunks", "a few tiny chunks"])
async def test_a_body_in_ordinary_chunks_is_read(api: Api, size: int) -> None:
    body = b"[" + b" " * (100_000 if size > 1 else 500) + b"]"
    chunks = [body[n : n + size] for n in range(0, len(body), size)]
    text = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    response = await exchange(api, AUTHORIZED + b"Transfer-Encoding: chunked\r\n\r\n" + text + b"0\r\n\r\n")
    assert response.status == 200


async def test_lines_that_end_like_chunks_do_not_count_as_chunks(api: Api) -> None:
    text = (
        b"[\r\n" + b",\r\n".join(b'{"domain": "a",\r\n"name": "%d",\r\n"value":\r\n"1"}' % n for n in range(900)) + b"]"
    )
    data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text)
    response = await exchange(api, AUTHORIZED + b"Transfer-Encoding: chunked\r\n\r\n" + data)
    assert (response.status, response.json) == (200, {"created": 900, "updated": 0})
