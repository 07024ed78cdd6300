"""Stands between the service and the database: breaks what passes, or lets a test act while a command is on its way.

What happens between two commands of a process is played here, at a border that every inside has: another process is
faster, the database refuses, the connection is lost before or after a command was done.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import bson

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
Body = dict[str, Any]


class Refused(Exception):
    """Raised by an action: the service gets this reply instead of the database's."""

    def __init__(self, **reply: Any) -> None:
        self.reply = reply


def refuse(code: int = 8000) -> Callable[[], Awaitable[None]]:
    """Return an action that refuses a command with an error of the database."""

    async def action() -> None:
        raise Refused(ok=0.0, errmsg="refused by a test", code=code, codeName="Refused")

    return action


async def _pass() -> None: ...


async def cut() -> None:
    """Lose the connection: an action."""
    raise ConnectionResetError


@dataclass(eq=False)
class Act:
    """Something to do at the next commands of a kind, before the database gets them or before the service gets the
    reply; `bodies` are those of the commands at which it was done.
    """

    command: Command
    when: Literal["before", "after"]
    action: Callable[[], Awaitable[Any]]
    times: float
    where: Callable[[Body], object]
    bodies: list[Body] = field(default_factory=list)
    reached: asyncio.Event = field(default_factory=asyncio.Event)


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


def body_of(message: bytes) -> Body:
    """Return the document of a command, with the documents that follow it: what it inserts, updates or deletes."""
    at = 21
    end = at + int.from_bytes(message[at : at + 4], "little")
    body: Body = bson.decode(message[at:end])
    while end < len(message):  # a sequence: its kind, length and name, then its documents
        at, end = end + 5, end + 1 + int.from_bytes(message[end + 1 : end + 5], "little")
        name_end = message.index(b"\0", at)
        body[message[at:name_end].decode()] = bson.decode_all(message[name_end + 1 : end])
    return body


def reply_to(request: int, document: Body) -> bytes:
    """Return the message with which the database would reply to a request."""
    content = bson.encode(document)
    return _HEADER.pack(16 + 5 + len(content), 0, request, _OP_MSG) + b"\0\0\0\0\0" + content


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
    _acts: list[Act] = field(default_factory=list)
    _failed: list[Exception] = field(default_factory=list)

    def before(
        self,
        name: str,
        collection: str,
        action: Callable[[], Awaitable[Any]],
        *,
        times: float = 1,
        where: Callable[[Body], object] = bool,
    ) -> Act:
        """Do something before the database gets the next commands of a kind; `cut` and `Refused` stop them."""
        self._acts.append(act := Act(Command(name, collection), "before", action, times, where))
        return act

    def after(
        self,
        name: str,
        collection: str,
        action: Callable[[], Awaitable[Any]],
        *,
        times: float = 1,
        where: Callable[[Body], object] = bool,
    ) -> Act:
        """Do something when the database has done the next commands of a kind, before the service knows."""
        self._acts.append(act := Act(Command(name, collection), "after", action, times, where))
        return act

    def noting(self, name: str, collection: str, where: Callable[[Body], object] = bool) -> Act:
        """Note all commands of a kind in `bodies`, and let them pass."""
        return self.before(name, collection, _pass, times=math.inf, where=where)

    def clear(self) -> None:
        """Let all commands pass from now on."""
        self._acts.clear()

    @asynccontextmanager
    async def stopped(
        self,
        when: Literal["before", "after"],
        name: str,
        collection: str,
        work: Awaitable[Any],
        where: Callable[[Body], object] = bool,
    ) -> AsyncIterator[asyncio.Task[Any]]:
        """Run `work` up to a command; it goes on when the block is left, and is done after it."""
        go_on = asyncio.Event()
        act = getattr(self, when)(name, collection, go_on.wait, where=where)
        task = asyncio.ensure_future(work)
        await asyncio.wait_for(act.reached.wait(), 60)
        try:
            yield task
        finally:
            go_on.set()
            await asyncio.wait([task], timeout=60)

    async def _act(self, when: str, command: Command, body: Callable[[], Body]) -> None:
        for act in [act for act in self._acts if (act.when, act.command.name) == (when, command.name)]:
            try:
                await self._do(act, command, body())
            except (Refused, ConnectionResetError):
                raise
            except Exception as error:
                self._failed.append(error)
                raise

    async def _do(self, act: Act, command: Command, body: Body) -> None:
        if act.command.collection != body.get("collection", command.collection) or not act.where(body):
            return
        act.times -= 1
        if act.times <= 0:
            self._acts.remove(act)
        act.bodies.append(body)
        act.reached.set()
        await act.action()

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
                for error in self._failed:  # of the test itself
                    raise error

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
        last: list[Any] = [Command("hello", ""), dict]
        ways = [
            asyncio.create_task(self._pump(reader, up_writer, last, back=writer)),
            asyncio.create_task(self._pump(up_reader, writer, last)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            up_writer.close()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        last: list[Any],
        back: asyncio.StreamWriter | None = None,
    ) -> None:
        """Pass messages on: those to the database, if `back` is the way back from it, or the replies.

        `last` holds the command that is under way on this connection, and a function that returns its body.
        """
        while True:
            message = await reader.readexactly(4)
            message += await reader.readexactly(int.from_bytes(message, "little") - 4)
            if back is not None:
                last[:] = command(message), partial(body_of, message)
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
                    case "cut" if back is None:
                        writer.write(message[: len(message) // 2])
                        await writer.drain()
                        return
            _, id, answered, _ = _HEADER.unpack_from(message)
            try:
                await self._act("after" if back is None else "before", *last)
            except Refused as refused:
                to, message = back or writer, reply_to(id if back else answered, refused.reply)
            else:
                to = writer
            to.write(message)
            await to.drain()


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
