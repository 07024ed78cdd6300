"""Reading a range of ids: by one index where it serves all filters, else in windows of bounded size."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Any, NamedTuple

from pymongo import ASCENDING, DESCENDING

from service.store.connection import MAJORITY, Collection, Database, kill_cursor, read_committed
from service.store.decoding import RAW, Document
from service.store.group import Group
from service.store.outputs import documents
from service.store.outputs.ids import Watermark
from service.store.outputs.missing import Missing
from service.store.outputs.query import Query, Selection

# Documents looked at in the first window of a page, and at most in each further one. Seconds after which a page ends
# early: a further window is at most ten times as large, if the time that is left allows. Items may be 1 MiB each.
_FIRST_WINDOW = 100
_WINDOW = 5000
_WINDOWS_SECONDS = 1.0
# Index entries that are counted to choose between two filters.
_COUNTED = 2000
_BY_DATE = {"update_date": ASCENDING, "id": ASCENDING}


class Rows(NamedTuple):
    """Documents of a range, about how many bytes they are, and the position from which it goes on; None at its end.

    `cut` means that there are fewer than requested because they are large.
    """

    documents: list[Document]
    size: int
    next_position: int | None
    cut: bool = False


class Range(NamedTuple):
    """The ids above `low` and below `high` that a query selects, read no older than `time`."""

    group: Group
    query: Query
    selection: Selection
    low: int
    high: int
    time: Any

    @property
    def indexed(self) -> dict[str, Any]:
        """The filter that the index serves."""
        return {**self.group.owner, **self.selection.indexed, "id": {"$gt": self.low, "$lt": self.high}}

    @property
    def order(self) -> dict[str, int]:
        return {"id": DESCENDING if self.query.newest_first else ASCENDING}

    def after(self, last: int) -> Range:
        """Return the rest of the range after an id."""
        return self._replace(high=last) if self.query.newest_first else self._replace(low=last)


class Ranges:
    """Reads ranges of the outputs of groups."""

    def __init__(self, database: Database, max_bytes: int) -> None:
        self._database, self._max_bytes = database, max_bytes
        self._jobs: Collection = database.get_collection("jobs", read_concern=MAJORITY)

    async def read(self, group: Group, query: Query, selection: Selection, watermark: Watermark) -> Rows:
        """Return up to `limit` documents between the cursor and the watermark; fewer if they are very large."""
        low, high = query.cursor, watermark.position + 1
        if query.newest_first:
            low, high = 0, min(high, query.cursor or high)
        by_date = query.created_after is not None and selection.hint == "id" and not selection.residual
        if query.created_after is not None and (query.cursor or query.newest_first or not by_date):
            # After the watermark was read: an item that was in flight before could have an id below the one found here.
            first = await self._first_id_since(group, query.created_after, watermark)
            low, by_date = max(low, first - 1), False
        if low + 1 >= high:
            return Rows([], 0, None)
        within = Range(group, query, selection, low, high, watermark.time)
        if selection.choices:
            within = within._replace(selection=await self._narrowest(within))
        if within.selection.residual:
            return await self._windows(within)
        return await self._plain(within, by_date)

    async def _plain(self, within: Range, by_date: bool) -> Rows:
        """Read a range that its index serves alone."""
        query, where = within.query, within.indexed
        sort, hint = within.order, within.selection.hint
        if by_date:
            # Dates never decrease along ids, so the order by date is the order by id.
            where["update_date"] = {"$gte": query.created_after}
            sort, hint = _BY_DATE, "updated"
        command = {"find": "outputs", "filter": where, "projection": query.projection, "sort": sort, "hint": hint}
        return await self.find(command, query.limit, within.time)

    async def find(self, wanted: dict[str, Any], limit: int, since: Any) -> Rows:
        """Read up to `limit` documents; fewer where one message of 16 MB holds no more."""
        more = {**wanted, "limit": limit + 1, "batchSize": limit + 1}  # one more tells whether there is a further page
        reply = await read_committed(self._database, more, since, codec_options=RAW)
        batch, size, cursor = documents.read_reply(reply)
        if cursor:
            await kill_cursor(self._database, wanted["find"], cursor)
            return Rows(batch, size, documents.id_of(batch[-1]))
        if len(batch) <= limit:
            return Rows(batch, size, None)
        return Rows(batch[:limit], size * limit // len(batch), documents.id_of(batch[limit - 1]))

    async def _windows(self, within: Range) -> Rows:
        """Read a range whose index does not serve all filters: a bounded number of documents at a time.

        The page may end early, even empty, with the id to go on from.
        """
        query, selection = within.query, within.selection
        items: list[Document] = []
        total_bytes = 0
        began, size = time.monotonic(), _FIRST_WINDOW
        deadline = began + _WINDOWS_SECONDS
        while True:
            # The end of the window is fixed first: documents that change meanwhile leave it, and a window
            # counted after the read would include documents that were not read.
            last = await self._end_of_window(within, size)
            bounds = {"$gt": within.low, "$lt": within.high}
            if last is not None:
                bounds |= {"$gte": last} if query.newest_first else {"$lte": last}
            where = {**within.indexed, "id": bounds, **selection.residual}
            if query.missing_from is not None and query.missing_from.holders is None:
                where["root_job_id"] = {"$in": await self._holders(where, within, query.missing_from)}
            command = {
                "find": "outputs",
                "filter": where,
                "projection": query.projection,
                "sort": within.order,
                "hint": selection.hint,
            }
            part = await self.find(command, query.limit - len(items), within.time)
            items += part.documents
            total_bytes += part.size
            if part.next_position is not None:
                return Rows(items, total_bytes, documents.id_of(items[-1]))
            if last is None:
                return Rows(items, total_bytes, None)
            within = within.after(last)
            now = time.monotonic()
            if now > deadline or total_bytes > self._max_bytes:
                return Rows(items, total_bytes, last)
            size = max(_FIRST_WINDOW, min(_WINDOW, 10 * size, int(size * (deadline - now) / (now - began))))
            began = now

    async def _holders(self, where: dict[str, Any], within: Range, missing: Missing) -> list[str]:
        """Return the other jobs of a series that hold items of a window."""
        pipeline: list[dict[str, Any]] = [{"$match": where}, {"$group": {"_id": "$root_job_id"}}]
        command = {"aggregate": "outputs", "pipeline": pipeline, "hint": within.selection.hint}
        reply = await read_committed(self._database, {**command, "cursor": {"batchSize": _WINDOW + 1}}, within.time)
        names = [group["_id"] for group in reply["cursor"]["firstBatch"]]
        jobs = {**within.group.owner, "job_id": {"$in": names, "$ne": missing.job_id}, "series": missing.series}
        return [job["job_id"] async for job in self._jobs.find(jobs, ["job_id"], hint="job")]

    async def _end_of_window(self, within: Range, size: int) -> int | None:
        """Return the id of the last of `size` documents of a range; None if it has fewer."""
        return await self._id_at(within.indexed, within.order, within.selection.hint, within.time, size - 1)

    async def _id_at(
        self, where: dict[str, Any], order: dict[str, int], hint: str, since: Any, skip: int = 0
    ) -> int | None:
        """Return the id of the first document in an order, after some that are skipped; None if there is none."""
        command = {"find": "outputs", "filter": where, "projection": {"_id": 0, "id": 1}, "sort": order, "hint": hint}
        one = {**command, "skip": skip, "limit": 1, "singleBatch": True}
        items = (await read_committed(self._database, one, since))["cursor"]["firstBatch"]
        return int(items[0]["id"]) if items else None

    async def _narrowest(self, within: Range) -> Selection:
        """Return a selection of several filters by the index that leads to the fewest documents."""

        async def count(choice: Selection) -> int:
            where = within._replace(selection=choice).indexed
            command = {"count": "outputs", "query": where, "limit": _COUNTED, "hint": choice.hint}
            return int((await read_committed(self._database, command, within.time))["n"])

        choices = [within.selection.by(field) for field in within.selection.choices]
        counts = await asyncio.gather(*map(count, choices))
        return choices[counts.index(min(counts))]

    async def _first_id_since(self, group: Group, moment: datetime, watermark: Watermark) -> int:
        """Return the lowest id updated at `moment` or later: dates never decrease along ids."""
        since = {**group.owner, "update_date": {"$gte": moment}}
        return await self._id_at(since, _BY_DATE, "updated", watermark.time) or watermark.position + 1
