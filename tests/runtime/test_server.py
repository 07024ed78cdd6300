"""The server below the application: what it takes from aiohttp, and its limit of connections."""

from __future__ import annotations

import asyncio
import inspect
import random
import resource
import shlex
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

import service
from service.http.output.static import asset, serve
from service.http.reply import Reply, send
from service.runtime.drain import stop_listening
from service.runtime.server import Protocol, Runner, Server
from service.runtime.sockets import bind
from service.runtime.tuning import raise_file_limit
from service.settings import Settings
from tests.support.limits import Small
from tests.support.processes import SECONDS, ServiceProcess, make_token
from tests.support.tls import make_certificate

# Private parts of aiohttp that `service/runtime/server.py` uses, and what it needs of each.
PRIVATE = (
    "_make_server",
    "_messages",
    "_pause_reading_for_buffer",
    "_resume_reading_for_buffer",
    "_buffer_paused",
)


def test_the_private_parts_of_aiohttp_are_there() -> None:
    assert inspect.iscoroutinefunction(web.AppRunner._make_server)
    slots = {name for kind in web.RequestHandler.__mro__ for name in getattr(kind, "__slots__", ())}
    assert {"_messages", "_buffer_paused"} <= slots
    assert callable(web.RequestHandler._pause_reading_for_buffer)
    assert callable(web.RequestHandler._resume_reading_for_buffer)


async def test_the_runner_makes_our_server_with_the_handler_of_the_application() -> None:
    runner = Runner(web.Application(), Settings())
    await runner.setup()
    assert isinstance(runner.server, Server)
    assert isinstance(runner.server(), Protocol)
    await runner.cleanup()


def test_no_other_module_overrides_or_calls_a_private_part_of_aiohttp() -> None:
    files = [path for path in Path(service.__file__).parent.rglob("*.py") if path.name != "server.py"]
    for path in files:
        text = path.read_text()
        assert not any(name in text for name in PRIVATE), path
        assert "aiohttp.web_protocol import RequestHandler" not in text, path


def limited(files: int) -> list[str]:
    """Return the start of a command that may open this many files."""
    return ["bash", "-c", f'ulimit -n {files}; exec {shlex.quote(sys.executable)} -m service "$@"', "bash"]


@pytest.mark.slow
def test_the_soft_limit_of_files_is_raised_and_logged(mongo_url: str) -> None:
    entry = ["bash", "-c", f'ulimit -S -n 256; exec {shlex.quote(sys.executable)} -m service "$@"', "bash"]
    with ServiceProcess(mongo_url, entry=entry) as service:
        (line,) = service.wait_for("file limit")
        assert line["before"] == 256
        assert line["files"] > 256
        assert line["max_connections"] == line["files"] - 128 - Settings().mongo_pool


def test_a_high_limit_of_files_does_not_raise_the_limit_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker often gives a container 1,048,576 files; as many idle connections would take 5 GB."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_048_576, 1_048_576))
    assert raise_file_limit(mongo_pool=64) == 65_536 - 128 - 64


def ask(port: int, path: str = "/healthz", token: str = "") -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        head = f"GET {path} HTTP/1.0\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
        connection.sendall(head.encode())
        return connection.recv(100)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHo"], ids=["silent", "half a head"])
def test_more_connections_than_files_do_not_block_other_clients(mongo_url: str, sent: bytes) -> None:
    with ServiceProcess(mongo_url, entry=limited(300), mongo_pool=8) as service:
        service.wait_until_ready()
        (line,) = service.events("file limit")
        assert line["max_connections"] == 300 - 128 - 8
        held = []
        try:
            for _ in range(400):
                held.append(connection := socket.create_connection(("127.0.0.1", service.port), timeout=SECONDS))
                connection.sendall(sent)
            for _ in range(20):
                assert b" 200 " in ask(service.port)
            service.wait_for("too many connections")
        finally:
            for connection in held:
                connection.close()


def stream(port: int, token: str) -> tuple[socket.socket, bytes]:
    """Begin to follow a group; return the connection and the beginning of its response, which may be a refusal."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
    head = f"GET /v1/outputs/g/export?format=sse HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    connection.sendall(head.encode())
    return connection, connection.recv(100)


@pytest.mark.slow
def test_idle_streams_of_one_token_do_not_block_other_clients(mongo_url: str, organization: int) -> None:
    greedy, same, other = (make_token(mongo_url, organization + (n == 2)) for n in range(3))
    with ServiceProcess(mongo_url, entry=limited(400)) as service:
        service.wait_until_ready()
        held = []
        try:
            begun = 0
            for _ in range(260):
                connection, head = stream(service.port, greedy)
                held.append(connection)
                begun += b" 200 " in head
            assert 50 < begun < 260, "some are held, the others are over the token's share"
            for _ in range(20):
                assert b" 200 " in ask(service.port)
                for token in (greedy, same, other):
                    assert b" 200 " in ask(service.port, "/v1/outputs/g", token)
            for token in (same, other):
                connection, head = stream(service.port, token)
                held.append(connection)
                assert b" 200 " in head
                assert b" 200 " in ask(service.port)
        finally:
            for connection in held:
                connection.close()


class TestFullOfRequests:
    async def test_the_newest_connection_is_refused_with_503(self) -> None:
        hold = asyncio.Event()

        async def wait(request: web.Request) -> web.Response:
            await hold.wait()
            return web.Response()

        app = web.Application()
        app.router.add_get("/", wait)
        runner = Runner(app, Settings(), max_connections=3)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for _, writer in held:
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert runner.server is not None
        while sum(connection.handling for connection in runner.server.connections) < 3:  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        refusal = await reader.read()
        writer.close()
        assert refusal.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b'"type":"unavailable"' in refusal
        hold.set()
        for reader, writer in held:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()
        await runner.cleanup()


class TestTls:
    """A client that opens a connection and never begins its handshake."""

    @pytest.fixture
    def tls(self, tmp_path: Path) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*make_certificate(tmp_path))
        return context

    async def test_is_closed_after_some_seconds(self, tls: ssl.SSLContext, small: Small) -> None:
        small(handshake_seconds=0.2)
        (listener,) = bind("127.0.0.1", 0)
        runner = Runner(web.Application(), Settings())
        await runner.setup()
        await runner.listen([listener], tls)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        assert await asyncio.wait_for(reader.read(), SECONDS) == b""
        writer.close()
        runner.close_ports()
        await runner.cleanup()

    @pytest.mark.slow
    async def test_does_not_hold_up_a_stop(self, tls: ssl.SSLContext) -> None:
        listeners = bind("127.0.0.1", 0)
        runner = Runner(web.Application(), Settings())
        await runner.setup()
        await runner.listen(listeners, tls)
        with socket.create_connection(listeners[0].getsockname()), socket.create_connection(listeners[0].getsockname()):
            await asyncio.wait_for(stop_listening(runner, listeners, tls), 20)
        await runner.cleanup()


class TestUnreadFile:
    """A client without a token that does not read a large file."""

    BODY = random.Random(1).randbytes(3 * 2**20)

    @pytest.fixture
    async def address(self) -> AsyncIterator[tuple[str, int]]:
        file = asset("file.png", self.BODY)

        async def static(request: web.Request) -> web.StreamResponse:
            return await send(request, serve(request, file, {}), None)

        async def document(request: web.Request) -> web.StreamResponse:
            return await send(request, Reply(self.BODY), None)

        app = web.Application()
        app.add_routes([web.get("/static", static), web.get("/document", document)])
        self.runner = Runner(app, Settings())
        await self.runner.setup()
        (listener,) = bind("127.0.0.1", 0)
        await self.runner.listen([listener], None)
        yield listener.getsockname()
        self.runner.close_ports()
        await self.runner.cleanup()

    async def paused(self) -> Protocol:
        """Wait until the connection waits for its client, and return it."""
        assert self.runner.server is not None
        async with asyncio.timeout(SECONDS):
            while True:
                for connection in self.runner.server.connections:
                    if connection.writing_paused and isinstance(connection, Protocol):
                        return connection
                await asyncio.sleep(0.01)

    @pytest.mark.parametrize("path", ["/static", "/document"])
    async def test_holds_a_slice_of_it_and_gives_way_to_others(self, address: tuple[str, int], path: str) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, address)
            await loop.sock_sendall(client, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            connection = await self.paused()
            assert connection.transport is not None
            assert connection.transport.get_write_buffer_size() < 256 * 1024
            assert connection.busy and not connection.handling
            received = b""
            async with asyncio.timeout(SECONDS):
                while not received.endswith(self.BODY[-100:]):
                    received += await loop.sock_recv(client, 2**20)
            head, _, body = received.partition(b"\r\n\r\n")
            assert f"Content-Length: {len(self.BODY)}".encode() in head
            assert body == self.BODY
            await loop.sock_sendall(client, f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            async with asyncio.timeout(SECONDS):
                head = await loop.sock_recv(client, 10_000)
            assert f"Content-Length: {len(self.BODY)}".encode() in head and head.endswith(b"\r\n\r\n")


def test_the_kernel_takes_little_for_a_client_that_does_not_read() -> None:
    (listener,) = bind("127.0.0.1", 0)
    with listener, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.listen()
        client.connect(listener.getsockname())
        connection, _ = listener.accept()
        with connection, pytest.raises(BlockingIOError):
            connection.setblocking(False)
            taken = 0
            while True:
                taken += connection.send(b"x" * 64 * 1024)
        assert taken < 512 * 1024
