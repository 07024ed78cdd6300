"""Tells which pools have sessions that other processes have released: one change stream while somebody waits."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pymongo.errors import PyMongoError

from service.store.connection import MAJORITY, Collection, Database, opened
from service.store.sessions.changes import LEASED
from service.store.sessions.secrets import pool_of

log = logging.getLogger("service.store")

_RETRY_SECONDS = 1.0
# How long the stream stays open after the last waiter has gone.
_IDLE_SECONDS = 30.0
_PIPELINE: list[dict[str, Any]] = [
    {
        "$match": {
            "$or": [
                {"operationType": {"$in": ["insert", "replace"]}},
                {"updateDescription.updatedFields.state": {"$exists": True, "$nin": list(LEASED)}},
                # A session with shared leases that has room again, or a lease that was released as unused.
                {"updateDescription.updatedFields.turn": {"$exists": True}},
            ]
        }
    },
    {"$project": {"documentKey": 1}},
]


class SessionWatch:
    """Follows the sessions of all pools while somebody waits in this process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sessions: Collection = database.get_collection("sessions", read_concern=MAJORITY)
        self.wake: Callable[[str | None], None] = lambda pool_id: None
        self._waiting = 0
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Keep the stream open while somebody waits."""
        self._waiting += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow(), context=contextvars.Context())
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._idle = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._stop)

    async def close(self) -> None:
        """Stop following."""
        if self._idle is not None:
            self._idle.cancel()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _stop(self) -> None:
        if self._task is not None and not self._waiting:
            self._task.cancel()
            self._task = None

    async def _follow(self) -> None:
        while True:
            try:
                start = (await self._database.command("ping"))["operationTime"]
                self.wake(None)  # earlier changes are not in the stream
                stream = await opened(self._sessions.watch(_PIPELINE, start_at_operation_time=start))
                async with stream:
                    async for event in stream:
                        self.wake(pool_of(event["documentKey"]["_id"]))
            except PyMongoError as error:
                log.warning("following the sessions was interrupted", extra={"error": type(error).__name__})
            await asyncio.sleep(_RETRY_SECONDS)
