"""Listens to the commands that a store sends to the database."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from motor.motor_asyncio import AsyncIOMotorClient
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from service.settings import Settings
from service.store import Store

# Fields of a command that explain() does not take.
_CONTEXT = {
    *("lsid", "$db", "$clusterTime", "readConcern", "writeConcern", "maxTimeMS"),
    *("txnNumber", "startTransaction", "autocommit"),
}
_DATA = {
    *("find", "aggregate", "count", "distinct", "insert", "update", "delete", "findAndModify", "getMore"),
    "killCursors",
}


@dataclass
class Command:
    """One command, and when it was under way."""

    name: str
    collection: str
    body: dict[str, Any]
    started: float
    ended: float = field(default=float("inf"))

    def wheres(self) -> list[dict[str, Any]]:
        """Return the filters of everything that the command reads or writes; of an insert, its documents."""
        match self.name:
            case "find":
                return [self.body.get("filter", {})]
            case "count" | "distinct" | "findAndModify":
                return [self.body.get("query", {})]
            case "aggregate":
                first = self.body["pipeline"][0]
                return [] if "$changeStream" in first else [first.get("$match", {})]
            case "update":
                return [update["q"] for update in self.body["updates"]]
            case "delete":
                return [delete["q"] for delete in self.body["deletes"]]
            case "insert":
                return list(self.body["documents"])
        return []


class Commands(CommandListener):
    """Keeps what was sent; called from many threads."""

    def __init__(self) -> None:
        self.sent: list[Command] = []
        self.delay = 0.0  # seconds that each command takes longer, so that what is sent together overlaps for sure
        self._lock = Lock()
        self._under_way: dict[int, Command] = {}

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name in _DATA:
            collection = event.command.get("collection") or event.command[event.command_name]
            body = copy.deepcopy(dict(event.command))
            command = Command(event.command_name, str(collection), body, time.perf_counter())
            with self._lock:
                self.sent.append(command)
                self._under_way[event.request_id] = command
            time.sleep(self.delay)

    def _ended(self, event: CommandSucceededEvent | CommandFailedEvent) -> None:
        with self._lock:
            command = self._under_way.pop(event.request_id, None)
        if command is not None:
            command.ended = time.perf_counter()

    succeeded = failed = _ended

    def clear(self) -> None:
        self.sent.clear()

    def rounds(self) -> int:
        """Return how many commands waited for the end of another one: the round trips in sequence."""
        count, end = 0, 0.0
        for command in sorted(self.sent, key=lambda command: command.started):
            if command.started >= end:
                count += 1
                end = command.ended
            else:
                end = min(end, command.ended)
        return count


def listening_store(settings: Settings, url: str, commands: Commands) -> Store:
    """Return a store whose commands are seen."""
    client: Any = AsyncIOMotorClient(url, tz_aware=True, event_listeners=[commands])
    return Store(settings, client)


class Cost:
    """What one command made the database do."""

    def __init__(self, explained: dict[str, Any]) -> None:
        stats = explained["executionStats"]
        self.documents, self.keys = stats["totalDocsExamined"], stats["totalKeysExamined"]
        self.stages = {stage["stage"] for stage in _stages(stats["executionStages"])}


def _stages(stage: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield stage
    for child in [*stage.get("inputStages", ()), *([stage["inputStage"]] if "inputStage" in stage else [])]:
        yield from _stages(child)


async def explained(store: Store, command: Command) -> Cost:
    """Return what a command would cost now, by explain()."""
    bare = {name: value for name, value in command.body.items() if name not in _CONTEXT}
    return Cost(await store.database.command("explain", bare, verbosity="executionStats"))
