"""Bytes that follow a request: counted while they wait, and parsed only when the response is sent."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from service.capacity.gate import Shares
from service.capacity.parked import Parking
from service.capacity.work import Gates
from service.http.errors import respond_to_error
from service.http.keys import GATES, PARKING
from service.http.reply import end_with_client
from service.runtime.server import MAX_HEAD, Protocol, Runner
from service.settings import Settings

MAX_READ = 256 * 1024  # of the event loop
LARGE_HEADERS = b"".join(b"X-%d: %b\r\n" % (n, b"x" * 15_000) for n in range(60))


def get(path: bytes, headers: bytes = b"") -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n"


def post(body: bytes, headers: bytes = b"") -> bytes:
    return b"POST /echo HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n" + body


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Exception as error:
        response = respond_to_error(request, error)
    if response is None:
        raise ConnectionResetError
    return response


class Served(NamedTuple):
    port: int
    ledger: Shares
    runner: Runner
    hold: asyncio.Event
    ended: list[str]

    @property
    def connection(self) -> Protocol | None:
        """The only connection, as soon as it is accepted."""
        assert self.runner.server is not None
        found = next(iter(self.runner.server.connections), None)
        assert found is None or isinstance(found, Protocol)
        return found

    def handles(self) -> bool:
        return self.connection is not None and self.connection.handling


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    hold, ended = asyncio.Event(), list[str]()

    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async def large(_: web.Request) -> web.Response:
        return web.Response(body=bytes(8 * 2**20))

    async def held(_: web.Request) -> web.Response:
        await hold.wait()
        return web.Response(text="held")

    async def stay(request: web.Request) -> web.Response:
        end_with_client(request)
        try:
            await hold.wait()
        finally:
            ended.append(request.path)
        return web.Response()

    async def stay_late(request: web.Request) -> web.Response:
        await hold.wait()
        try:
            end_with_client(request)
            await asyncio.sleep(3600)
        finally:
            ended.append(request.path)
        return web.Response()

    app = web.Application(middlewares=[errors])
    gates = app[GATES] = Gates(Settings().max_bytes_in_flight)
    app[PARKING] = Parking(gates)
    app.add_routes([web.get("/large", large), web.get("/held", held), web.get("/stay", stay)])
    app.add_routes([web.get("/stay_late", stay_late)])
    app.add_routes([web.get("/echo", echo), web.post("/echo", echo)])
    runner = Runner(app, Settings())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield Served(runner.addresses[0][1], gates.receiving, runner, hold, ended)
    hold.set()
    await runner.cleanup()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


async def statuses(reader: asyncio.StreamReader, count: int) -> list[tuple[int, bytes]]:
    """Read responses; return the status and the body of each."""
    found = []
    async with asyncio.timeout(20):
        for _ in range(count):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            found.append((int(head.split(b" ")[1]), await reader.readexactly(length)))
    return found


BEFORE = {
    "while nobody reads the response": get(b"/large"),
    "while nobody reads the first of three responses": 3 * get(b"/large"),
    "while the request is handled": get(b"/held"),
}


@pytest.mark.parametrize("together", [True, False], ids=["in one packet", "later"])
@pytest.mark.parametrize("requests", BEFORE.values(), ids=BEFORE)
async def test_bytes_after_a_request_are_counted_and_reading_pauses(
    served: Served, requests: bytes, together: bool
) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", served.port))
        heads = 30 * get(b"/echo", LARGE_HEADERS)
        if together:
            requests, heads = requests + heads, b""
        sending = asyncio.create_task(loop.sock_sendall(client, requests))
        await until(lambda: served.connection is not None and served.connection.busy)
        if heads:
            await sending
            await asyncio.sleep(0.1)  # until the response is being sent
            sending = asyncio.create_task(loop.sock_sendall(client, heads))
        await until(lambda: served.ledger.used > MAX_HEAD)
        await asyncio.sleep(0.1)
        assert served.ledger.used <= MAX_HEAD + MAX_READ
        assert served.connection is not None and not served.connection._messages
        assert not sending.done()
        sending.cancel()
    served.hold.set()
    await until(lambda: served.ledger.used == 0)


async def test_hundreds_of_requests_in_one_piece_get_their_responses_in_order(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    bodies = [b"%d" % n for n in range(500)]
    writer.write(get(b"/held"))
    await until(served.handles)
    filler = b"X: " + b"x" * 1000 + b"\r\n"  # more than one read
    writer.write(b"".join(post(body, filler + b"Content-Length: %d\r\n" % len(body)) for body in bodies))
    await until(lambda: served.ledger.used > MAX_HEAD)
    served.hold.set()
    assert await statuses(reader, 501) == [(200, b"held"), *((200, body) for body in bodies)]
    assert served.ledger.used == 0
    writer.close()


async def test_hundreds_of_requests_after_a_chunked_body_get_their_responses(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(post(b"3\r\none\r\n0\r\n\r\n", b"Transfer-Encoding: chunked\r\n") + 300 * get(b"/echo"))
    assert await statuses(reader, 301) == [(200, b"one"), *300 * [(200, b"")]]
    writer.close()


async def test_a_blank_line_after_a_body_begins_no_request(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(post(b"one", b"Content-Length: 3\r\n") + b"\r\n")
    assert await statuses(reader, 1) == [(200, b"one")]
    writer.write(b"\r\n")
    await until(lambda: served.connection is not None and served.ledger.used == 4)
    assert served.connection is not None and not served.connection.busy  # no time limit runs
    writer.write(post(b"two", b"Content-Length: 3\r\n"))
    assert await statuses(reader, 1) == [(200, b"two")]
    writer.close()


@pytest.mark.slow
async def test_requests_are_found_wherever_they_are_cut(served: Served) -> None:
    chunked = b"Transfer-Encoding: chunked\r\n"
    data = post(b"3\r\none\r\n0\r\n\r\n", chunked) + b"\r\n" + post(b"two", b"Content-Length: 3\r\n")
    data += (
        post(b"5\r\nthree\r\n0\r\nTrailer: x\r\n\r\n", chunked)
        + post(b"four", b"Content-Length: 4\r\n")
        + get(b"/echo")
    )
    expected = [(200, body) for body in (b"one", b"two", b"three", b"four", b"")]
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for cut in range(1, len(data)):
        writer.write(data[:cut])
        await asyncio.sleep(0.002)
        writer.write(data[cut:])
        assert await statuses(reader, 5) == expected, (data[:cut], data[cut:])
    assert served.ledger.used == 0
    writer.close()


async def test_a_head_that_is_too_large_gets_431_after_the_response_before_it(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(get(b"/held"))
    await until(served.handles)
    writer.write(get(b"/echo")[:-2] + LARGE_HEADERS)
    await until(lambda: served.ledger.used > MAX_HEAD)
    served.hold.set()
    assert [status for status, _ in await statuses(reader, 2)] == [200, 431]
    writer.close()
    await until(lambda: served.ledger.used == 0)


async def test_an_incomplete_head_after_the_last_request_does_not_keep_a_half_closed_connection_open(
    served: Served,
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(get(b"/held"))
    await until(served.handles)
    writer.write(get(b"/echo") + get(b"/echo")[:-2])
    writer.write_eof()
    await until(lambda: served.connection is not None and served.connection.half_closed)
    served.hold.set()
    assert await statuses(reader, 2) == [(200, b"held"), (200, b"")]
    assert await asyncio.wait_for(reader.read(), 10) == b""  # before the time for a head is over
    writer.close()


@pytest.mark.parametrize("headers", [b"", b"Expect: 100-continue\r\n"], ids=["plain", "Expect"])
async def test_a_request_that_waits_ends_with_its_client(served: Served, headers: bytes) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(get(b"/stay", headers))
    await until(served.handles)
    writer.close()
    await until(lambda: served.ended == ["/stay"])


async def test_a_request_whose_client_left_before_it_began_to_wait_does_not_wait(served: Served) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(get(b"/stay_late"))
    await until(served.handles)
    writer.close()
    await until(lambda: served.connection is None or served.connection.half_closed)
    served.hold.set()
    await until(lambda: served.ended == ["/stay_late"])
