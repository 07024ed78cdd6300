"""Wakes readers that wait for something new in a group.

One change stream per process follows the groups' documents. A wake-up is only a hint: the watermark decides what is
readable.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from pymongo.errors import PyMongoError

from service.bounded import Bounded
from service.store.connection import MAJORITY, Collection, Database, opened, read_committed
from service.store.group import Group

log = logging.getLogger("service.store")

_MAX_KNOWN = 100_000
_RETRY_SECONDS = 1.0
_MAJORITY_READ = {"find": "meta", "limit": 1, "singleBatch": True}
# How long the stream stays open after the last reader has gone.
_IDLE_SECONDS = 30.0
# `rounds` is counted up whenever a batch is finished.
_PIPELINE: list[dict[str, Any]] = [
    {
        "$match": {
            "$or": [
                {"operationType": "insert"},
                {"operationType": "replace"},
                {"updateDescription.updatedFields.rounds": {"$exists": True}},
            ]
        }
    },
    {"$project": {"documentKey": 1, "fullDocument.organization_id": 1, "fullDocument.group_id": 1}},
]


class Watch:
    """The readers of this process that wait, by group."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._groups: Collection = database.get_collection("groups", read_concern=MAJORITY)
        self._waiting: dict[Group, set[asyncio.Event]] = {}
        self._known: Bounded[Any, Group] = Bounded(_MAX_KNOWN)  # the group of a document's _id
        self.stopped = False
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None

    @contextmanager
    def waiting(self, group: Group) -> Iterator[asyncio.Event]:
        """Yield an event that is set whenever something may have become readable in a group."""
        event = asyncio.Event()
        self._waiting.setdefault(group, set()).add(event)
        if self._task is None or self._task.done():
            # In a context of its own: it must not have the time limit of the reader that started it.
            self._task = asyncio.create_task(self._follow(), context=contextvars.Context())
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        try:
            yield event
        finally:
            self._waiting[group].discard(event)
            if not self._waiting[group]:
                del self._waiting[group]
            if not self._waiting:
                self._idle = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._stop)

    def stop(self) -> None:
        """Wake every reader, now and later: the service stops."""
        self.stopped = True
        self._wake_all()

    async def close(self) -> None:
        """Stop following."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _stop(self) -> None:
        if self._task is not None and not self._waiting:
            self._task.cancel()
            self._task = None  # a reader that comes while it ends starts another one

    def _wake(self, group: Group) -> None:
        for event in self._waiting.get(group, ()):
            event.set()

    def _wake_all(self) -> None:
        for group in list(self._waiting):
            self._wake(group)

    async def _follow(self) -> None:
        while True:
            try:
                async for group in self._changes():
                    self._wake(group)
            except PyMongoError as error:
                log.warning("following the groups was interrupted", extra={"error": type(error).__name__})
            await asyncio.sleep(_RETRY_SECONDS)

    async def _changes(self) -> AsyncIterator[Group]:
        # The time of a majority read: that of a ping may be later than a change that readers do not see yet.
        start = (await read_committed(self._database, _MAJORITY_READ))["operationTime"]
        self._wake_all()  # earlier changes are not in the stream, nor those from after the previous one broke
        async with await opened(self._groups.watch(_PIPELINE, start_at_operation_time=start)) as stream:
            async for event in stream:
                group = await self._group_of(event)
                if group is not None:
                    yield group

    async def _group_of(self, event: dict[str, Any]) -> Group | None:
        """Return the group of an event; an update carries only the document's id."""
        id, whole = event["documentKey"]["_id"], event.get("fullDocument") or event["documentKey"]
        if "group_id" in whole:  # always, where the collection is sharded
            self._known[id] = Group.of(whole)
        elif id not in self._known:
            document = await self._groups.find_one({"_id": id}, ["organization_id", "group_id"])
            if document is None:
                return None
            self._known[id] = Group.of(document)
        return self._known.get(id)
