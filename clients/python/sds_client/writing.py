"""Write outputs: items into request bodies of a size that the service accepts."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sds_client.errors import ClientError
from sds_client.paths import outputs_path
from sds_client.transport import Transport, dump
from sds_client.types import Item

BATCH_ITEMS = 500
BATCH_BYTES = 4 * 1024 * 1024


@dataclass
class Pushed:
    """How many items were created, updated, or already stored with the same content."""

    created: int = 0
    updated: int = 0
    unchanged: int = 0

    def add(self, response: Mapping[str, Any]) -> None:
        self.created += response["created"]
        self.updated += response["updated"]
        self.unchanged += response["unchanged"]

    @property
    def total(self) -> int:
        return self.created + self.updated + self.unchanged


@dataclass
class Batch:
    """The items of one request as JSON, and the index of the first of them among all items."""

    first: int
    items: list[bytes] = field(default_factory=list)
    size: int = 0

    @property
    def body(self) -> bytes:
        return b"[" + b",".join(self.items) + b"]"


class Batcher:
    """Collects items until they fill a request."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items, self._max_bytes = max_items, max_bytes
        self._batch = Batch(0)
        self.failure: Exception | None = None  # of where the items come from

    def add(self, item: Mapping[str, Any]) -> Batch | None:
        """Take an item; return the batch that had no room for it. Raises ValueError for an item without a JSON form."""
        full = None
        batch = self._batch
        try:
            encoded = dump(item)
        except (TypeError, ValueError) as error:
            index = batch.first + len(batch.items)
            raise ValueError(f"the item at index {index} cannot be sent as JSON: {error}") from error
        if batch.items and (len(batch.items) >= self._max_items or batch.size + len(encoded) + 1 > self._max_bytes):
            full = self.rest()
            batch = self._batch
        batch.items.append(encoded)
        batch.size += len(encoded) + 1
        return full

    def rest(self) -> Batch | None:
        """Return the items gathered so far."""
        batch = self._batch
        self._batch = Batch(batch.first + len(batch.items))
        return batch if batch.items else None


class Sender:
    """Sends batches, up to `concurrency` at once, and counts; errors are raised in the order of sending."""

    def __init__(
        self, transport: Transport, group: str, concurrency: int, on_batch: Callable[[int, Item], None] | None
    ) -> None:
        self.pushed = Pushed()
        self._transport, self._path = transport, outputs_path(group)
        self._concurrency, self._on_batch = concurrency, on_batch
        self._sending: deque[asyncio.Task[list[Item]]] = deque()

    async def send(self, batch: Batch | None) -> None:
        """Send a batch; wait while too many are in flight."""
        if batch is None:
            return
        self._sending.append(asyncio.create_task(self._post(batch)))
        while len(self._sending) >= self._concurrency:
            await self._first()

    async def finish(self) -> Pushed:
        """Wait for all batches and return the counts."""
        while self._sending:
            await self._first()
        return self.pushed

    async def stop(self, error: BaseException) -> None:
        """Wait for the batches in flight and ignore their results; an interrupt ends them."""
        if not isinstance(error, Exception):
            for task in self._sending:
                task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def _first(self) -> None:
        responses = await self._sending[0]
        self._sending.popleft()
        for response in responses:
            self.pushed.add(response)
            if self._on_batch is not None:
                self._on_batch(len(response["items"]), response)

    async def _post(self, batch: Batch) -> list[Item]:
        """Return the responses: several when the service accepts less in one body, or in time, than was sent."""
        try:
            return [(await self._transport.call("POST", self._path, body=batch.body)).json]
        except ClientError as error:
            first, items, half = batch.first, batch.items, len(batch.items) // 2
            if (error.status in (408, 413) or error.has_type("too_many")) and half:
                return [
                    *await self._post(Batch(first, items[:half])),
                    *await self._post(Batch(first + half, items[half:])),
                ]
            if error.status == 413:
                problem = {"loc": ["body", str(first)], "msg": "The item is too large for a body", "type": "too_large"}
                raise ClientError(413, [problem]) from None
            raise counted_from(error, first, is_item=not half) from None


def counted_from(error: ClientError, first: int, is_item: bool = False) -> ClientError:
    """Return the error with places counted over all items, not within one request, which may be of one item."""
    problems = []
    for problem in error.problems:
        loc = list(problem.get("loc", []))
        if is_item and loc == ["body"]:
            loc.append("0")
        if len(loc) > 1 and loc[0] == "body" and str(loc[1]).isdecimal():
            loc[1] = str(int(loc[1]) + first)
        problems.append({**problem, "loc": loc})
    if not problems:
        return error
    counted = ClientError(error.status, problems)
    counted.retry_after = error.retry_after
    return counted


def key_hash(data: Mapping[str, Any], fields: Iterable[str]) -> str:
    """Return the identity that an item has by some of its fields, which may be dotted paths.

    Raises KeyError with the field that is missing or empty: items without a key must not become one.
    """
    values = []
    for path in fields:
        value: Any = data
        for name in path.split("."):
            if not isinstance(value, Mapping) or value.get(name) in (None, "", [], {}):
                raise KeyError(path)
            value = value[name]
        values.append(value)
    return hashlib.sha256(dump(values)).hexdigest()
