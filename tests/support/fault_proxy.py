"""Stands between the service and the database, and breaks what passes, as told while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from service.store import Store, StoreUnavailable

# latency  each message waits before it goes on
# hang     nothing goes on until the fault is over, then all of it does
# lost     nothing goes on, and connections of that time stay dead: a host that went without a word
# reset    every connection is reset at its next message
# refused  nobody listens
# cut      the database gets the message and replies; half the reply arrives, then a reset
Fault = Literal["latency", "hang", "lost", "reset", "refused", "cut"]
FAULTS: tuple[Fault, ...] = ("latency", "hang", "lost", "reset", "refused", "cut")

_HEADER = struct.Struct("<iiii")
_OP_MSG = 2013


class Command(NamedTuple):
    """What a message asks for: `Command("insert", "outputs")`."""

    name: str
    collection: str


Which = Callable[[Command], bool]


def command(message: bytes) -> Command:
    """Return the command of a message: the first key of its document, and its value if a string."""
    if _HEADER.unpack_from(message)[3] != _OP_MSG:
        return Command("hello", "")  # a new connection's first message is of an older kind
    at = 16 + 4 + 1 + 4  # header, flags, kind of section, length of the document
    end = message.index(b"\0", at + 1)
    name, value = message[at + 1 : end].decode(), ""
    if message[at] == 2:
        size = int.from_bytes(message[end + 1 : end + 5], "little")
        value = message[end + 5 : end + 4 + size].decode()
    return Command(name, value)


@dataclass
class FaultProxy:
    """Listens on `port`; `target` is the database's address, and may change while it runs."""

    target: str
    port: int = 0
    latency: float = 0.0
    fault: Fault | None = None
    _which: Which = lambda _: True
    _healed: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None
    _connections: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        """The address of the proxy, with the user and the password of the target."""
        login, at, _ = urlsplit(self.target).netloc.rpartition("@")
        return f"mongodb://{login}{at}127.0.0.1:{self.port}/?directConnection=true"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FaultProxy]:
        with socket.socket() as kept:  # nobody else can take the port while connections to it are refused
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            kept.bind(("127.0.0.1", 0))
            self.port = kept.getsockname()[1]
            await self._listen()
            try:
                yield self
            finally:
                self._stop_listening()
                tasks = list(self._connections)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def start(self, fault: Fault, which: Which = lambda _: True, latency: float = 0.0) -> None:
        """Begin a fault, of the commands that `which` says."""
        self.fault, self._which, self.latency = fault, which, latency
        self._healed.clear()
        if fault == "refused":
            self._stop_listening()
            for task in self._connections:
                task.cancel()

    async def heal(self) -> None:
        """End the fault."""
        was, self.fault = self.fault, None
        self._healed.set()
        if was == "refused":
            await self._listen()

    @asynccontextmanager
    async def faulty(self, fault: Fault, which: Which = lambda _: True, latency: float = 0.0) -> AsyncIterator[None]:
        await self.start(fault, which, latency)
        try:
            yield
        finally:
            await self.heal()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._pass(reader, writer)
        finally:
            self._connections.discard(task)
            _reset(writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = urlsplit(self.target)
        up_reader, up_writer = await asyncio.open_connection(target.hostname, target.port or 27017)
        last = [Command("hello", "")]
        ways = [
            asyncio.create_task(self._pump(reader, up_writer, last, asks=True)),
            asyncio.create_task(self._pump(up_reader, writer, last, asks=False)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            up_writer.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, last: list[Command], *, asks: bool
    ) -> None:
        while True:
            message = await reader.readexactly(4)
            message += await reader.readexactly(int.from_bytes(message, "little") - 4)
            if asks:
                last[0] = command(message)
            if self.fault is not None and self._which(last[0]):
                match self.fault:
                    case "latency":
                        await asyncio.sleep(self.latency)
                    case "hang":
                        await self._healed.wait()
                    case "lost":
                        await asyncio.Event().wait()
                    case "reset":
                        return
                    case "cut" if not asks:
                        writer.write(message[: len(message) // 2])
                        await writer.drain()
                        return
            writer.write(message)
            await writer.drain()


async def until_ready(store: Store, seconds: float = 20) -> None:
    """Make the indexes, however long the machine takes over it: the time limits in these tests are short."""
    async with asyncio.timeout(seconds):
        while True:
            with contextlib.suppress(StoreUnavailable):
                return await store.ensure_indexes()
            await asyncio.sleep(0.05)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close at once, with a reset instead of an orderly end."""
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
