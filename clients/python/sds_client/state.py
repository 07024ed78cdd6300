"""Write browser state: counts, and bodies of a size that the service accepts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from sds_client.transport import dump
from sds_client.writing import Batch, Batcher

# Half of what the service accepts in one body by default.
RECORDS = 500
BYTES = 8 * 1024 * 1024


@dataclass
class Counts:
    """How many records were new, and how many were there already."""

    created: int = 0
    updated: int = 0

    def add(self, response: Mapping[str, int]) -> None:
        self.created += response["created"]
        self.updated += response["updated"]


@dataclass
class StateCounts:
    """The counts of a storage state."""

    cookies: Counts = field(default_factory=Counts)
    local_storage: Counts = field(default_factory=Counts)

    def add(self, response: Mapping[str, Mapping[str, int]]) -> None:
        self.cookies.add(response["cookies"])
        self.local_storage.add(response["local_storage"])


def chunks(records: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the records, some at a time."""
    left = iter(records)
    while chunk := list(islice(left, RECORDS)):
        yield chunk


def batches(records: Iterable[Mapping[str, Any]]) -> Iterator[Batch]:
    """Yield the records as JSON, as many at a time as the service accepts."""
    batcher = Batcher(RECORDS, BYTES)
    for record in records:
        if (full := batcher.add(record)) is not None:
            yield full
    if (rest := batcher.rest()) is not None:
        yield rest


def state_chunks(state: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the state itself, or several parts of it when it is too large for one body."""
    cookies, origins = state.get("cookies", []), state.get("origins", [])
    records = len(cookies) + sum(len(origin.get("localStorage", [])) for origin in origins)
    if records <= 10 * RECORDS and len(dump(state)) <= BYTES:
        yield state
        return
    for part in chunks(cookies):
        yield {"cookies": part, "origins": []}
    # Origins one by one: a browser allows each 5 MiB of local storage.
    for origin in origins:
        rest = {name: value for name, value in origin.items() if name != "localStorage"}
        for part in chunks(origin.get("localStorage", [])) if origin.get("localStorage") else [[]]:
            yield {"cookies": [], "origins": [{**rest, "localStorage": part}]}
