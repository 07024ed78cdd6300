"""Pages, walks over several of them, single items and their versions: all read below the watermark."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator
from itertools import accumulate
from typing import Any

from pymongo import DESCENDING

from schemas.base import INT64_MAX
from service.bounded import Bounded
from service.settings import Settings
from service.store.connection import Database, read_committed
from service.store.contract import patient, stored
from service.store.decoding import decode
from service.store.errors import CursorExpired
from service.store.group import Group
from service.store.indexes import Indexes
from service.store.outputs import documents
from service.store.outputs.documents import Page
from service.store.outputs.ids import Ids, Watermark
from service.store.outputs.query import LIVE, WHOLE, Query, Walk, select
from service.store.outputs.ranges import Found, Ranges
from service.store.time_budget import refill_budget
from service.store.watch import Watch

# A streamed page is about this many bytes, in memory a few times over.
_STREAMED_BYTES = 1024 * 1024
# Documents beyond these bytes are dropped and read again: there were more than the estimate said.
_MAX_PAGE = 3 * _STREAMED_BYTES // 2
_FIRST_STREAMED = 2  # of a group whose items may be 1 MiB each
_MAX_STREAMED = 1000
# The assumed bytes of an item in a group that was not read yet.
_UNKNOWN_BYTES = 20_000
# Groups for which a process remembers the size of items: 10,000 are about 2 MB.
_MAX_REMEMBERED = 10_000
# Ids from the watermark to the newest change among which the end of a walk looks for items that have moved there.
_MAX_BEYOND = 5000
# How long the last page of a walk waits for batches in flight, before the client asks again.
_WALK_SECONDS = 1.0


class Reading:
    """Reads the outputs of groups."""

    def __init__(self, database: Database, ids: Ids, watch: Watch, indexes: Indexes, settings: Settings) -> None:
        self._database, self._ids, self._watch, self._indexes = database, ids, watch, indexes
        self._ranges = Ranges(database, settings.max_page_bytes)
        # By the hash of the requested fields: their names may be long.
        self._averages: Bounded[tuple[Group, int], int] = Bounded(_MAX_REMEMBERED)

    @patient
    @stored
    async def page(self, group: Group, query: Query) -> Page:
        """Return the page after `query.cursor`, in the order of ids, without gaps."""
        self._indexes.require("outputs", "groups")
        begins = query.cursor == 0 and not query.newest_first
        if query.newest_first or query.deleted or begins:
            watermark = await self._ids.watermark(group)
            if begins:
                query = query._replace(walk=Walk(watermark.version, 0))
            return await self._fresh(group, query, watermark)
        watermark = self._ids.remembered(group)
        read: Found | None = None
        if query.cursor + 1 < watermark.end:
            read = await self._range(group, query, watermark)
            if read.next is not None:
                # It is unknown which ids were allocated since this watermark was read.
                return await self._page(group, query, read, watermark, watermark._replace(allocated=0))
        # At the end of the group only a new watermark shows whether there is more.
        new = await self._ids.watermark(group)
        if read is None or new.version != watermark.version:
            return await self._fresh(group, query, new)
        return await self._page(group, query, read, new, new)

    async def _fresh(self, group: Group, query: Query, watermark: Watermark) -> Page:
        """Return the page below a watermark that was read just now."""
        found, latest = await self._range(group, query, watermark), watermark
        if not query.newest_first:
            if query.cursor + 1 < watermark.end and (query.walk is not None or query.deleted):
                # Items may have got new ids since the watermark was read, and before the page was.
                latest = await self._ids.watermark(group)
            if query.deleted:
                _check_expired(query, latest)
        return await self._page(group, query, found, watermark, latest)

    async def _page(self, group: Group, query: Query, found: Found, watermark: Watermark, latest: Watermark) -> Page:
        """Return the documents found below a watermark as a page, with the state of its walk."""
        next_cursor, checkpoint = found.next, max(query.cursor, watermark.version)
        if query.cursor > latest.allocated:  # of another database
            checkpoint = watermark.version
        if next_cursor is not None:
            checkpoint = next_cursor
        elif not query.newest_first and await self._has_moved_on(group, query, watermark, latest):
            next_cursor = max(query.cursor, checkpoint)
            if not found.documents:
                await self._wait(group, watermark.version, _WALK_SECONDS)
        walk = query.walk and query.walk._replace(seen=latest.allocated)
        return Page(found.documents, found.size, next_cursor, watermark.version, checkpoint, walk, found.cut)

    async def _has_moved_on(self, group: Group, query: Query, watermark: Watermark, latest: Watermark) -> bool:
        """Return whether an item may be beyond the watermark that the walk has not returned.

        Such an item changed before the walk reached its old id. If its batch began after the previous page was read,
        the old id is above the cursor; otherwise it may have been on any page. `latest` was read after this page.
        """
        if not latest.in_flight and latest.version == watermark.version:
            return False
        # Not up to the newest id: a crawl that changes nothing uses up ids too, and must not keep walks going.
        if latest.last_id - watermark.end > _MAX_BEYOND:  # reading all of them would take too long
            return True
        moved: dict[str, Any] = {"prev_id": {"$gt": query.cursor}}
        if query.walk is not None:
            older: dict[str, Any] = {"prev_id": {"$exists": True}}
            if query.walk.seen:
                older["id"] = {"$lte": query.walk.seen}
            moved = {"$or": [moved, older]}
        selection = select(group, query, watermark.hidden)
        where = {**group.owner, **selection.indexed, **selection.residual, "id": {"$gte": watermark.end}}
        reply = await read_committed(
            self._database,
            {"find": "outputs", "filter": {"$and": [where, moved]}, "projection": {"_id": 1}, "limit": 1, "hint": "id"},
            latest.time,
        )
        return bool(reply["cursor"]["firstBatch"])

    def fitting(self, group: Group, fields: tuple[str, ...] = ()) -> int:
        """Return the number of items of a group in about a megabyte, estimated from those read last."""
        average = self._average(group, fields)
        return _FIRST_STREAMED if average is None else max(1, min(_MAX_STREAMED, _STREAMED_BYTES // average))

    def expected_bytes(self, group: Group, limit: int, fields: tuple[str, ...] = ()) -> int:
        """Return the bytes of some items of a group, estimated from those read last."""
        return limit * (self._average(group, fields) or _UNKNOWN_BYTES)

    def _average(self, group: Group, fields: tuple[str, ...]) -> int | None:
        """Return the bytes of an item, or of these fields of it; None before the first one is read."""
        return self._averages.get((group, hash(fields))) or self._averages.get((group, hash(())))

    async def _range(self, group: Group, query: Query, watermark: Watermark) -> Found:
        found = await self._ranges.read(group, query, watermark)
        if found.documents:
            key = group, hash(query.fields)
            self._averages.pop(key, None)
            self._averages[key] = max(1, found.size // len(found.documents))
        return _cut(found) if found.size > _MAX_PAGE else found

    @patient
    async def _wait(self, group: Group, cursor: int, seconds: float) -> None:
        """Return as soon as something after a cursor may be readable, or after some seconds."""
        deadline = time.monotonic() + seconds
        with self._watch.waiting(group) as waiting:
            while (left := deadline - time.monotonic()) > 0 and not self._watch.stopped:
                waiting.clear()
                if (await self._ids.watermark(group)).end > cursor + 1:
                    return
                try:
                    await asyncio.wait_for(waiting.wait(), left)
                except TimeoutError:
                    return

    async def pages(self, group: Group, query: Query, max_items: int | None = None) -> AsyncGenerator[Page, None]:
        """Yield pages from the cursor to the present end, or `max_items` items of them.

        Every item that is there when it begins is part of it, unless it is deleted meanwhile.
        """
        left, query = max_items, query._replace(walk=query.walk or Walk(0, 0))
        while True:
            fitting = self.fitting(group, query.fields)
            limit = fitting if left is None else min(fitting, left)
            page = await self.page(group, query._replace(limit=limit))
            query = query._replace(walk=page.walk)
            left, next_cursor = None if left is None else left - len(page.documents), page.next_cursor
            handed_on = [page]
            del page
            yield handed_on.pop()  # no reference is kept: the consumer decides how long it stays in memory
            refill_budget()
            if left == 0 or next_cursor is None:
                return
            query = query._replace(cursor=next_cursor)

    @patient
    async def version(self, group: Group) -> int:
        """Return the version that a page read now would show."""
        self._indexes.require("outputs", "groups")
        return (await self._ids.watermark(group)).version

    @stored
    async def one(self, group: Group, output_id: str) -> Page | None:
        """Return one item as a page of its own, or None."""
        self._indexes.require("outputs", "groups")
        # Read the watermark first, so that this is no older than a page that was shown.
        watermark = await self._ids.watermark(group)
        where = {**group.owner, "_id": output_id, **LIVE}
        wanted = {"find": "outputs", "filter": where, "projection": WHOLE, "hint": "_id_"}
        found = await self._ranges.find(wanted, 1, watermark.time)
        return Page(found.documents, found.size, None, documents.id_of(found.documents[0])) if found.documents else None

    @stored
    async def versions(self, group: Group, output_id: str, limit: int, cursor: int) -> Page:
        """Return earlier versions of an item, newest first: those before a cursor, or before the current one."""
        self._indexes.require("outputs", "groups", "versions")
        watermark = await self._ids.watermark(group)
        if not cursor:
            present = await self.one(group, output_id)
            cursor = watermark.end if present is None else present.version
        earlier = {
            "find": "versions",
            "filter": {**group.owner, "output_id": output_id, "id": {"$lt": cursor}},
            "projection": WHOLE,
            "sort": {"id": DESCENDING},
            "hint": "version",
        }
        found = await self._ranges.find(earlier, limit, watermark.time)
        return Page(found.documents, found.size, found.next, watermark.version)

    @stored
    async def selected(self, group: Group, query: Query) -> tuple[list[tuple[str, int]], int | None]:
        """Return output_id and id of up to `limit` items that a query selects, and the cursor to go on with.

        Includes items beyond the watermark: they are acknowledged, although no page shows them yet.
        """
        watermark = (await self._ids.watermark(group))._replace(end=INT64_MAX)
        found = await self._range(group, query._replace(fields=("output_id",)), watermark)
        return [(item["output_id"], item["id"]) for item in map(decode, found.documents)], found.next


def _cut(found: Found) -> Found:
    """Return the documents up to about a megabyte, at least one, as if no more had been asked for.

    The estimate comes from other items than those read now, and a megabyte of control characters is 6 MB of JSON.
    """
    average = found.size // len(found.documents)
    sizes = (len(document) if isinstance(document, bytes) else average for document in found.documents)
    ends = list(accumulate(sizes))
    count = max(1, bisect_right(ends, _STREAMED_BYTES))
    if count == len(ends):
        return found
    return Found(found.documents[:count], ends[count - 1], documents.id_of(found.documents[count - 1]), cut=True)


def _check_expired(query: Query, latest: Watermark) -> None:
    """Refuse a cursor or a date if deletion records after it were removed, unless its walk began after that.

    Checked after the page is read: the id is noted before a record is removed, so no removal is missed. A walk
    back to older ids misses nothing that its beginning did not show.
    """
    safe = max(query.cursor, query.walk.began if query.walk else 0)
    if query.cursor and safe < latest.expired_id:
        raise CursorExpired
    begin, expired = query.created_after, latest.expired_date
    if query.cursor or begin is None or expired is None:
        return
    if begin.replace(tzinfo=None) <= expired.replace(tzinfo=None):  # both are UTC
        raise CursorExpired
