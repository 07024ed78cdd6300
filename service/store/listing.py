"""Lists of any length: read about 256 KB at a time, each chunk continued after the last key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

CHUNK_BYTES = 256 * 1024
_FIRST_RECORDS = 100
_MAX_RECORDS = 5000
# The server ends a reply at 16 MB: a reply below this size with fewer records than requested is the last.
_REPLY_BYTES = 8 * 1024 * 1024

Record = dict[str, Any]
Key = tuple[Any, ...]


def _as_it_is(record: Record) -> Record:
    return record


@dataclass(frozen=True)
class Chunk:
    """Records as the database sent them."""

    size: int
    records: list[Record]
    read: Callable[[Record], Record] = _as_it_is

    def open(self) -> list[Record]:
        """Return the records as they are served; may take long, so the caller decides in which thread.

        Nothing is left in the chunk: whoever still has it, while the next one is read, holds no memory.
        """
        served = list(map(self.read, self.records))
        self.records.clear()
        return served


@dataclass(frozen=True)
class Listing:
    """The chunks of a list, and the key after which the next page begins, if there is one."""

    chunks: AsyncIterator[Chunk]
    next_key: Key | None = None


def after(fields: Sequence[str], key: Key, operator: str = "$gt") -> Record:
    """Return the filter for what comes after a key in the order of several fields."""
    steps = [
        {**dict(zip(fields[:place], key, strict=False)), fields[place]: {operator: key[place]}}
        for place in range(len(fields))
    ]
    return {"$or": steps}


def split(records: list[Record], size_of: Callable[[Record], int]) -> Iterator[tuple[int, list[Record]]]:
    """Yield the records in lists of about CHUNK_BYTES, each with its size; keeps no reference to them."""
    records.reverse()
    part: list[Record] = []
    size = 0
    while records:
        weight = size_of(records[-1])
        if part and size + weight > CHUNK_BYTES:
            yield size, part
            part, size = [], 0
        part.append(records.pop())
        size += weight
    if part:
        yield size, part


async def by_bytes(
    read: Callable[[Key | None, int], Awaitable[list[Record]]],
    key_of: Callable[[Record], Key],
    size_of: Callable[[Record], int],
    begin: Key | None = None,
) -> AsyncIterator[tuple[int, list[Record]]]:
    """Yield the records in lists of about CHUNK_BYTES; `read` returns a limited number of records after a key.

    Every read is a query of its own: a reader that takes an hour holds no cursor open in the database.
    """
    count_wanted, key = _FIRST_RECORDS, begin
    while records := await read(key, count_wanted):
        key, count, total = key_of(records[-1]), len(records), 0
        for size, part in split(records, size_of):
            total += size
            yield size, part
        if count < count_wanted and total < _REPLY_BYTES:
            return
        count_wanted = max(1, min(_MAX_RECORDS, CHUNK_BYTES * count // total))
