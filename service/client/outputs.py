"""Outputs: items into bodies, pages into items, and a cursor that survives."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from service.client.errors import ClientError
from service.client.transport import LOST, Transport, dump

Item = dict[str, Any]

PAGE = 500
_NDJSON = "application/x-ndjson"
# A kill repeats at most this many seconds' worth of items, or a page.
_SAVE_EVERY = 1.0


@dataclass
class Pushed:
    """What became of the items: each was created, updated, or there already with nothing changed."""

    created: int = 0
    updated: int = 0
    unchanged: int = 0

    def add(self, answer: Mapping[str, Any]) -> None:
        self.created += answer["created"]
        self.updated += answer["updated"]
        self.unchanged += answer["unchanged"]

    @property
    def total(self) -> int:
        return self.created + self.updated + self.unchanged


@dataclass
class Batch:
    """Items of one request, as JSON, and the number of the first of them in the whole."""

    first: int
    items: list[bytes] = field(default_factory=list)
    size: int = 0


class Batcher:
    """Gathers items until they fill a request."""

    def __init__(self, most_items: int, most_bytes: int) -> None:
        self._most_items, self._most_bytes = most_items, most_bytes
        self._batch = Batch(0)

    def add(self, item: Mapping[str, Any]) -> Batch | None:
        """Take an item; return the batch that was full without it."""
        encoded = dump(item)
        full = None
        batch = self._batch
        if batch.items and (len(batch.items) >= self._most_items or batch.size + len(encoded) + 1 > self._most_bytes):
            full = self.rest()
            batch = self._batch
        batch.items.append(encoded)
        batch.size += len(encoded) + 1
        return full

    def rest(self) -> Batch | None:
        """Return what has gathered."""
        batch = self._batch
        self._batch = Batch(batch.first + len(batch.items))
        return batch if batch.items else None


class Sender:
    """Sends batches, up to `concurrency` at once, and counts; errors come out in the order of sending."""

    def __init__(
        self, transport: Transport, group: str, concurrency: int, on_batch: Callable[[int, Item], None] | None
    ) -> None:
        self.pushed = Pushed()
        self._transport, self._path = transport, outputs_path(group)
        self._concurrency, self._on_batch = concurrency, on_batch
        self._sending: deque[asyncio.Task[list[Item]]] = deque()

    async def send(self, batch: Batch | None) -> None:
        """Send a batch; wait while too many are on their way."""
        if batch is None:
            return
        self._sending.append(asyncio.create_task(self._post(batch.first, batch.items)))
        while len(self._sending) >= self._concurrency:
            await self._first()

    async def finish(self) -> Pushed:
        """Wait for all, and return the counts."""
        while self._sending:
            await self._first()
        return self.pushed

    async def stop(self) -> None:
        """Wait for what is on its way, whatever becomes of it."""
        await asyncio.gather(*self._sending, return_exceptions=True)
        self._sending.clear()

    async def _first(self) -> None:
        answers = await self._sending[0]
        self._sending.popleft()
        for answer in answers:
            self.pushed.add(answer)
            if self._on_batch is not None:
                self._on_batch(len(answer["items"]), answer)

    async def _post(self, first: int, items: list[bytes]) -> list[Item]:
        """Return the answers: more than one when the service takes less at once than was sent."""
        try:
            answer = await self._transport.call("POST", self._path, body=b"[" + b",".join(items) + b"]")
            return [answer.json]
        except ClientError as error:
            too_much = error.status == 413 or any(p.get("type") == "too_many" for p in error.problems)
            if too_much and len(items) > 1:
                half = len(items) // 2
                return [*await self._post(first, items[:half]), *await self._post(first + half, items[half:])]
            raise _counted_from(error, first) from None


def _counted_from(error: ClientError, first: int) -> ClientError:
    """Return the error with places counted over all items, not within one request."""
    problems = []
    for problem in error.problems:
        loc = list(problem.get("loc", []))
        if len(loc) > 1 and loc[0] == "body" and str(loc[1]).isdecimal():
            loc[1] = str(int(loc[1]) + first)
        problems.append({**problem, "loc": loc})
    return ClientError(error.status, problems) if problems else error


def key_hash(data: Mapping[str, Any], fields: Iterable[str]) -> str:
    """Return the identity that an item has by some of its fields, which may be dotted paths.

    Raises KeyError with the field that is not there.
    """
    values = []
    for path in fields:
        value: Any = data
        for name in path.split("."):
            if not isinstance(value, Mapping) or value.get(name) is None:
                raise KeyError(path)
            value = value[name]
        values.append(value)
    return hashlib.sha256(dump(values)).hexdigest()


def outputs_path(group: str) -> str:
    return f"/v1/outputs/{quote(group, safe='')}"


def query(cursor: int | None = None, limit: int | None = None, **filters: Any) -> dict[str, str]:
    """Return the query of a read; dates may be dates, `fields` a list."""
    known = {"job_id", "created_after", "url", "country", "region", "fields"}
    if unknown := set(filters) - known:
        raise TypeError(f"unknown filter: {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    if isinstance(filters.get("fields"), (list, tuple)):
        filters["fields"] = ",".join(filters["fields"])
    if hasattr(filters.get("created_after"), "isoformat"):
        filters["created_after"] = filters["created_after"].isoformat()
    found = {name: str(value) for name, value in filters.items() if value not in (None, "")}
    return found | {k: str(v) for k, v in (("cursor", cursor), ("limit", limit)) if v is not None}


class Reader:
    """Reads a group page by page from a cursor on."""

    def __init__(self, transport: Transport, group: str, cursor: int, page_size: int, **filters: Any) -> None:
        self._transport, self._path = transport, outputs_path(group)
        self._query, self._limit = query(**filters), page_size
        self._cursor: int | None = cursor

    async def page(self) -> list[Item] | None:
        """Return the next page, or None at the end."""
        if self._cursor is None:
            return None
        query = {**self._query, "cursor": str(self._cursor), "limit": str(self._limit)}
        answer = await self._transport.call("GET", self._path, query=query)
        self._cursor = answer.json["metadata"]["next_cursor"]
        items: list[Item] = answer.json["items"]
        return items


async def blocks(transport: Transport, group: str, cursor: int, **filters: Any) -> AsyncGenerator[bytes]:
    """Yield NDJSON from a cursor to the present end, whole lines at a time.

    After a lost connection it goes on from the last line that came.
    """
    path, only = outputs_path(group), query(**filters)
    retry = transport.retry()
    while True:
        try:
            asked = {**only, "cursor": str(cursor)}
            async with transport.open("GET", path, query=asked, headers={"Accept": _NDJSON}) as response:
                rest = b""
                async for chunk in response.content.iter_any():
                    lines, end, rest = (rest + chunk).rpartition(b"\n")
                    if end:
                        cursor = json.loads(lines[lines.rfind(b"\n") + 1 :])["id"]
                        retry.progress()
                        yield lines + end
            return
        except (ClientError, *LOST) as error:
            await retry.pause(error)


class Follower:
    """Reads what is new or changed, for as long as it comes, and remembers what was taken.

    Leaving the `with` block saves the cursor; in between it is saved once a page, and once a second within one.
    """

    def __init__(
        self,
        transport: Transport,
        group: str,
        cursor_file: str | os.PathLike[str] | None,
        poll: float | None,
        cursor: int,
        page_size: int,
        **filters: Any,
    ) -> None:
        self._transport, self._path = transport, outputs_path(group)
        self._query, self._limit, self._poll = query(**filters), page_size, poll
        about = {"group": group, "filters": {k: v for k, v in self._query.items() if k != "fields"}}
        self._file = None if cursor_file is None else CursorFile(Path(cursor_file), about)
        self._taken = self._saved = cursor if self._file is None else self._file.load(cursor)
        self._read = self._taken
        self._saved_at = time.monotonic()
        self._etag: str | None = None
        self._at_end = False

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self._save()

    async def page(self) -> list[Item] | None:
        """Return the next page that has items, waiting for one; None if nothing waits and `poll` is None."""
        self._save()
        while True:
            if self._at_end:
                if self._poll is None:
                    return None
                await asyncio.sleep(self._poll)
            query = {**self._query, "cursor": str(self._read), "limit": str(self._limit)}
            answer = await self._transport.call("GET", self._path, query=query, etag=self._etag)
            if answer.status == 304:
                continue
            items: list[Item] = answer.json["items"]
            self._at_end = answer.json["metadata"]["next_cursor"] is None
            # The tag says that all up to here is known: only the last page's does.
            self._etag = answer.etag if self._at_end else None
            if items:
                self._read = items[-1]["id"]
                return items

    def taken(self, item: Item) -> None:
        """Note that the consumer came back for more: it has dealt with this one."""
        self._taken = item["id"]
        if time.monotonic() - self._saved_at > _SAVE_EVERY:
            self._save()

    def _save(self) -> None:
        self._saved_at = time.monotonic()
        if self._file is not None and self._taken != self._saved:
            self._file.save(self._taken)
            self._saved = self._taken


class CursorFile:
    """A cursor in a file, with what it is a cursor of; replaced as a whole or not at all."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self._path, self._about = path, about

    def load(self, default: int) -> int:
        """Return the saved cursor. Raises ValueError for a file of another group or other filters."""
        try:
            kept = json.loads(self._path.read_text())
            cursor = kept.pop("cursor")
        except FileNotFoundError:
            return default
        except (ValueError, KeyError, AttributeError):
            raise ValueError(f"{self._path} is not a cursor file") from None
        if kept != self._about or type(cursor) is not int:
            raise ValueError(f"{self._path} is the cursor of another group or of other filters")
        return cursor

    def save(self, cursor: int) -> None:
        """Write the cursor, durably."""
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with beside.open("w") as file:
            json.dump({**self._about, "cursor": cursor}, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
