"""The connection to MongoDB: how it is opened, and what durable and committed mean."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
from collections.abc import Awaitable, Callable
from contextvars import Context
from datetime import UTC, datetime
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from pymongo import WriteConcern
from pymongo.errors import AutoReconnect, InvalidOperation, PyMongoError
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent
from pymongo.read_concern import ReadConcern

from service.settings import Settings
from service.store.decoding import NAIVE
from service.store.errors import DUPLICATE_KEY, StoreError, StoreUnavailable, is_passing_code

if TYPE_CHECKING:
    from motor.motor_asyncio import AsyncIOMotorClient, AsyncIOMotorCollection, AsyncIOMotorDatabase

    Client = AsyncIOMotorClient[dict[str, Any]]
    Database = AsyncIOMotorDatabase[dict[str, Any]]
    Collection = AsyncIOMotorCollection[dict[str, Any]]
else:
    Client = Database = Collection = Any

log = logging.getLogger("service.store")

T = TypeVar("T")

# The event loop keeps no task that nobody else refers to.
_endings: set[asyncio.Task[None]] = set()

# `j` matters on a single server, where a majority is itself; a replica set journals it anyway.
DURABLE = WriteConcern(w="majority", j=True)
# For writes that the reaper repeats if a crash loses them.
COMMITTED = WriteConcern(w="majority")
MAJORITY = ReadConcern("majority")
# For a read whose result a durable write checks again: the majority snapshot of a new primary may be older than what
# was acknowledged.
LOCAL = ReadConcern("local")

# The driver's heartbeat notices a server that vanished without closing its connections within 3 s:
# the pause between two heartbeats plus the time to connect. It then drops the connections. Without
# it, each of them would cost one request its whole time budget.
_HEARTBEAT_SECONDS = 1.0
_CONNECT_SECONDS = 2.0
# Until a member without a committed snapshot is asked again.
_NO_SNAPSHOT_SECONDS = 0.05

# Whatever MONGO_URL says: a secondary may be behind what was acknowledged, and behind a revoked token.
_PRIMARY: dict[str, Any] = {"readPreference": "primary", "readPreferenceTags": "", "maxStalenessSeconds": -1}

_THREADS = "MOTOR_MAX_WORKERS"


class PoolUse(CommandListener):
    """Counts the commands that the database works on, each on a connection of its own; called from many threads."""

    def __init__(self) -> None:
        self.in_use = 0
        self._lock = Lock()
        # Called with the name of each command, the seconds it took, and whether it failed.
        self.on_command: Callable[[str, float, bool], None] = lambda name, seconds, failed: None

    def started(self, event: CommandStartedEvent) -> None:
        with self._lock:
            self.in_use += 1

    def succeeded(self, event: CommandSucceededEvent) -> None:
        self._ended(event, failed=False)

    def failed(self, event: CommandFailedEvent) -> None:
        self._ended(event, failed=True)

    def _ended(self, event: CommandSucceededEvent | CommandFailedEvent, failed: bool) -> None:
        with self._lock:
            self.in_use -= 1
        self.on_command(event.command_name, event.duration_micros / 1e6, failed)


def connect(settings: Settings, url: str, pool: PoolUse) -> Client:
    """Return a client that gives up on an operation after `mongo_timeout`; connects when used."""
    limit = settings.mongo_timeout
    try:
        client: Client = client_class(settings.mongo_pool)(
            url,
            tz_aware=True,
            maxPoolSize=settings.mongo_pool,
            timeoutMS=int(limit * 1000),
            serverSelectionTimeoutMS=int(limit * 1000),
            connectTimeoutMS=int(min(limit, _CONNECT_SECONDS) * 1000),
            **_PRIMARY,
            heartbeatFrequencyMS=int(_HEARTBEAT_SECONDS * 1000),
            event_listeners=[pool],
            appname="scraping-data-service",
        )
        return client
    except (PyMongoError, ValueError) as error:
        # Without the driver's text, which quotes the address and the password in it.
        hint = "it is mongodb://host:port, with user name and password percent-encoded"
        raise StoreError(f"MONGO_URL cannot be used ({type(error).__name__}): {hint}.") from None


def client_class(threads: int) -> Any:
    """Return Motor's client. Motor takes this many threads when it is first imported.

    It would take 5 x cores: fewer threads than connections let a few slow operations hold up all.
    PyMongo's own asyncio client works in its place: `tests/store` passes with it (docs/decisions/motor.md).
    """
    number = os.environ.setdefault(_THREADS, str(threads))
    from motor.motor_asyncio import AsyncIOMotorClient

    if number == str(threads):
        os.environ.pop(_THREADS, None)  # a process started by this one has its own number
    return AsyncIOMotorClient


async def opened(cursor: Any) -> Any:
    """Return a cursor, a change stream or a session, whether the driver gives it at once or has to be waited for."""
    return await cursor if inspect.isawaitable(cursor) else cursor


async def close(client: Client) -> None:
    """Close a client: it tells the server about its sessions, which is a round trip."""
    await opened(await asyncio.to_thread(client.close))


async def server_time(database: Database) -> datetime:
    """Return the time on the clock of the database."""
    local: datetime = (await database.command("hello"))["localTime"]
    return local.replace(tzinfo=UTC)


async def durably(database: Database, command: dict[str, Any]) -> Any:
    """Run a command that writes; return its reply, with naive dates, once the write is durable.

    The driver does not check that, and does not send such a command again after a failover: the caller must find out
    what became of it. In return the database need not remember the outcome, a quarter of what a turn would cost it.
    Raises StoreError if the database refuses a document for any other reason than a duplicate key.
    """
    reply = await database.command({**command, "writeConcern": DURABLE.document}, codec_options=NAIVE)
    codes = {error["code"] for error in reply.get("writeErrors", ())} - {DUPLICATE_KEY}
    if "writeConcernError" in reply or any(map(is_passing_code, codes)):
        raise StoreUnavailable("write concern")
    if codes:
        log.error("the database refused an item", extra={"code": min(codes)})
        raise StoreError(f"write error {min(codes)}")
    return reply


async def read_committed(database: Database, command: dict[str, Any], since: Any = None, **options: Any) -> Any:
    """Run a read on the primary, from a committed snapshot no older than `since`.

    A command, not a cursor: it is cheaper, and its reply has the time of the snapshot. A member that has just started
    may reply without one, and is asked again.
    """
    concern = MAJORITY.document if since is None else {**MAJORITY.document, "afterClusterTime": since}
    command = {**command, "readConcern": concern}
    while True:
        try:
            reply = await database.command(command, **options)
        except AutoReconnect:  # once more, as the driver itself does for cursors
            reply = await database.command(command, **options)
        if "operationTime" in reply:
            return reply
        await asyncio.sleep(_NO_SNAPSHOT_SECONDS)


async def in_transaction(client: Client, work: Callable[[Any], Awaitable[T]]) -> T:
    """Return what `work` returns, once all its writes are durable; it runs again after a conflict or a failover."""
    session = await opened(client.start_session())
    try:
        result: T = await session.with_transaction(work, write_concern=DURABLE)
    except BaseException as error:
        # In the background, without the time limit of the request: once that is over, the driver sends nothing, and a
        # transaction that stays open locks its documents for a minute.
        ending = asyncio.create_task(_end_transaction(client, session), context=Context())
        _endings.add(ending)
        ending.add_done_callback(_endings.discard)
        if isinstance(error, InvalidOperation):  # the driver loses track of a transaction in a failover
            raise StoreUnavailable("a transaction was interrupted") from None
        raise
    await session.end_session()
    return result


async def _end_transaction(client: Client, session: Any) -> None:
    """End the transaction that a session may have open on the server, then the session."""
    with contextlib.suppress(PyMongoError):
        await client.admin.command({"killSessions": [session.session_id]})
    with contextlib.suppress(PyMongoError):
        await session.end_session()


async def kill_cursor(database: Database, collection: str, cursor: int) -> None:
    """Close a cursor whose remaining documents are not needed."""
    await database.command({"killCursors": collection, "cursors": [cursor]})
