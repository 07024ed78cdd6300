"""The one loop that deletes what a query selects, as it was when the deletion began.

Filters, missing items, retention and whole groups use it. Its progress is a `Place`, which a client carries as a cursor
or a document keeps: no process remembers it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from service.store.group import Group
from service.store.outputs.pages import Reading
from service.store.outputs.plan import Delete, Pending
from service.store.outputs.query import Query
from service.store.outputs.write_queue import WriteQueues

ITEMS_AT_ONCE = 500
# While others write, a deletion makes small rounds and pauses this many times as long as the last one took.
ITEMS_BESIDE_OTHERS = 100
PAUSE = 3
# A call ends after this long, so that its request is answered in time.
SECONDS = 2.0


class Place(NamedTuple):
    """How far a deletion has come: the ids up to `done` of those up to `until`, the newest one when it began."""

    until: int
    done: int = 0


class Deleted(NamedTuple):
    """How many items were deleted, and the place to go on from; None if nothing is left."""

    items: int
    place: Place | None


# Told of each round, before which it may end the deletion: how many it deleted, and the place to go on from.
Report = Callable[[int, Place | None], Awaitable[bool]]


class Deletion:
    """Deletes outputs by a query."""

    def __init__(self, reading: Reading, queues: WriteQueues) -> None:
        self._reading, self._queues = reading, queues

    async def begin(self, group: Group) -> Place:
        """Return the place at which a deletion begins: what is written from now on stays."""
        return Place((await self._reading.watermark(group)).allocated)

    async def run(
        self,
        group: Group,
        query: Query,
        place: Place,
        *,
        seconds: float | None = None,
        dry_run: bool = False,
        report: Report | None = None,
    ) -> Deleted:
        """Delete the items that a query selects, for a limited time. With `dry_run`, only count them.

        An item that has changed or was seen since the deletion began stays. So one pass over the ids is complete.
        """
        deadline, count, at_once = time.monotonic() + (SECONDS if seconds is None else seconds), 0, ITEMS_BESIDE_OTHERS
        while True:
            started, rounds = time.monotonic(), self._queues.rounds
            part = query._replace(cursor=place.done, limit=at_once)
            selected, next_id = await self._reading.selected(group, part, place.until)
            if dry_run:
                deleted = len(selected)
            else:
                deleted = await self._delete(group, query, selected, place.until)
                rounds += bool(selected)
            count += deleted
            next_place = None if next_id is None else place._replace(done=next_id)
            goes_on = report is None or await report(0 if dry_run else deleted, next_place)
            if next_place is None or not goes_on or time.monotonic() > deadline:
                return Deleted(count, next_place)
            place = next_place
            others_write = self._queues.rounds > rounds
            at_once = ITEMS_BESIDE_OTHERS if others_write else ITEMS_AT_ONCE
            if others_write:
                await asyncio.sleep(min(PAUSE * (time.monotonic() - started), max(0.0, deadline - time.monotonic())))

    async def _delete(self, group: Group, query: Query, selected: list[tuple[str, int]], until: int) -> int:
        """Delete selected items unless they have changed or were seen since; return how many."""
        deletes: dict[str, Pending] = {output_id: Delete(frozenset([id]), query, until) for output_id, id in selected}
        results = await self._queues.apply(group, deletes)
        return sum(result["result"] == "updated" for result in results.values())
