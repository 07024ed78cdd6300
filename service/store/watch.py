"""Wakes readers that wait for something new in a group.

One change stream per process follows the groups' documents; a server without replica set has none,
and the groups that somebody waits for are looked at four times per second. A wake-up is only a
hint: the watermark decides what is readable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from pymongo.errors import PyMongoError

from service.bounded import Bounded
from service.store.connection import MAJORITY, Collection, Database

log = logging.getLogger("service.store")

GroupKey = tuple[int, str]

_MAX_KEYS = 100_000
_POLL_SECONDS = 0.25
_RETRY_SECONDS = 1.0
# How long the stream is kept after the last reader has gone.
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
        self._waiting: dict[GroupKey, set[asyncio.Event]] = {}
        self._keys: Bounded[Any, GroupKey] = Bounded(_MAX_KEYS)  # the group of a document's _id
        self.stopped = False
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None

    @contextmanager
    def waiting(self, organization_id: int, group_id: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set whenever something may have become readable in a group."""
        key, event = (organization_id, group_id), asyncio.Event()
        self._waiting.setdefault(key, set()).add(event)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow())
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        try:
            yield event
        finally:
            self._waiting[key].discard(event)
            if not self._waiting[key]:
                del self._waiting[key]
            if not self._waiting:
                self._idle = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._stop)

    def stop(self) -> None:
        """Wake every reader for good: the service is told to stop."""
        self.stopped = True
        self._wake_all()

    async def close(self) -> None:
        """Stop following."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @property
    def readers(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _stop(self) -> None:
        if self._task is not None and not self._waiting:
            self._task.cancel()
            self._task = None  # whoever comes while it ends starts another one

    def _wake(self, key: GroupKey) -> None:
        for event in self._waiting.get(key, ()):
            event.set()

    def _wake_all(self) -> None:
        for key in list(self._waiting):
            self._wake(key)

    async def _follow(self) -> None:
        while True:
            try:
                async for key in self._changes():
                    self._wake(key)
            except PyMongoError as error:
                log.warning("following the groups was interrupted", extra={"error": type(error).__name__})
            await asyncio.sleep(_RETRY_SECONDS)

    async def _changes(self) -> AsyncIterator[GroupKey]:
        start = (await self._database.command("ping")).get("operationTime")
        self._wake_all()  # what came before is not in the stream
        if start is None:
            await self._poll()
        async with self._groups.watch(_PIPELINE, start_at_operation_time=start) as stream:
            async for event in stream:
                key = await self._key_of(event)
                if key is not None:
                    yield key

    async def _key_of(self, event: dict[str, Any]) -> GroupKey | None:
        """Return the group of an event; an update carries only the document's id."""
        id, whole = event["documentKey"]["_id"], event.get("fullDocument") or event["documentKey"]
        if "group_id" in whole:  # always, where the collection is sharded
            self._keys[id] = whole["organization_id"], whole["group_id"]
        elif id not in self._keys:
            found = await self._groups.find_one({"_id": id}, ["organization_id", "group_id"])
            if found is None:
                return None
            self._keys[id] = found["organization_id"], found["group_id"]
        return self._keys.get(id)

    async def _poll(self) -> None:
        """Look at the groups that somebody waits for, again and again."""
        seen: dict[GroupKey, int] = {}
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            for key in list(self._waiting):
                where = {"organization_id": key[0], "group_id": key[1]}
                found = await self._groups.find_one(where, {"rounds": 1}) or {}
                rounds = found.get("rounds", 0)
                if seen.get(key) != rounds:
                    seen[key] = rounds
                    self._wake(key)
            seen = {key: rounds for key, rounds in seen.items() if key in self._waiting}
