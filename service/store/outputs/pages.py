"""Pages, walks over several of them, single items and their versions: all read below the watermark."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress
from itertools import accumulate
from typing import Any

from pymongo import DESCENDING

from service.bounded import Bounded
from service.settings import Settings
from service.store.capacity import Capacity
from service.store.connection import Database, read_committed
from service.store.contract import patient, stored
from service.store.decoding import decode
from service.store.errors import CursorExpired, ItemExists
from service.store.group import Group
from service.store.indexes import Indexes
from service.store.outputs import documents
from service.store.outputs.counts import MAX_REPLY
from service.store.outputs.documents import Page
from service.store.outputs.ids import Ids, Watermark
from service.store.outputs.query import JUDGED, LIVE, REPLACED, WHOLE, Query, select
from service.store.outputs.ranges import Ranges, Rows
from service.store.time_budget import refill_budget
from service.store.watch import Watch

# A streamed page is about this many bytes, in memory a few times over.
_STREAMED_BYTES = 1024 * 1024
# Documents beyond these bytes are dropped and read again: there were more than the estimate said.
_MAX_PAGE = 3 * _STREAMED_BYTES // 2
_FIRST_STREAMED = 2  # of a group whose items may be 1 MiB each
_MAX_STREAMED = 1000
# Groups for which a process remembers the size of items: 10,000 are about 2 MB.
_MAX_REMEMBERED = 10_000
# Ids from the watermark to the newest change among which the end of a walk looks for items that have moved there.
_MAX_BEYOND = 5000
# How long the last page of a walk waits for batches in flight, before the client asks again.
_WALK_SECONDS = 1.0


# What a deletion reads of each item: its id and output_id.
_IDS, _ID_BYTES = ("output_id",), 256
# A reply, as the driver holds it. Documents that are kept, their text (six bytes for a control character), and its
# compressed form.
_REPLY_COPIES, _COPIES = 2, 8


class Reading:
    """Reads the outputs of groups."""

    def __init__(
        self, database: Database, ids: Ids, watch: Watch, indexes: Indexes, capacity: Capacity, settings: Settings
    ) -> None:
        self._database, self._ids, self._watch, self._indexes = database, ids, watch, indexes
        self._ranges, self._capacity = Ranges(database, settings.max_page_bytes), capacity
        self._max_page_bytes = settings.max_page_bytes
        self._averages: Bounded[tuple[Group, int], int] = Bounded(_MAX_REMEMBERED)

    @patient
    @stored
    async def page(self, group: Group, query: Query) -> Page:
        """Return the page after `query.cursor`, in the order of ids, without gaps."""
        self._indexes.require("outputs", "groups")
        if query.newest_first:
            watermark = await self._ids.watermark(group)
            page = await self._range(group, query, watermark)
            return Page(page.documents, page.size, page.next_position, watermark.position, cut=page.cut)
        if query.deleted and not query.cursor:
            query = query._replace(walk=(await self._ids.watermark(group)).position)
        watermark = self._ids.remembered(group)
        page = await self._range(group, query, watermark)
        if page.next_position is None:
            return await self._last(group, query, page, watermark)
        if query.deleted:
            _check_expired(query, await self._ids.watermark(group))
        return Page(
            page.documents, page.size, page.next_position, watermark.position, page.next_position, query.walk, page.cut
        )

    @patient
    @stored
    async def below(self, group: Group, query: Query, watermark: Watermark) -> Page:
        """Return what is between the cursor and a watermark.

        Without a next page it is not the end of a walk: an item may be in flight that no page has shown.
        """
        page = await self._range(group, query, watermark)
        if query.deleted:
            _check_expired(query, await self._ids.watermark(group))
        return Page(
            page.documents, page.size, page.next_position, watermark.position, page.next_position or watermark.position
        )

    async def _last(self, group: Group, query: Query, rows: Rows, watermark: Watermark) -> Page:
        """Return the rows below a watermark and the rest of the group, as the end of a walk.

        An item may be in a batch that is still in flight, or behind one. The page waits for it; after a second, it is
        not the last one.
        """
        start = position = max(query.cursor, watermark.position)
        deadline = time.monotonic() + _WALK_SECONDS
        version = watermark.position
        watermark = latest = await self._ids.watermark(group)
        allocated, next_cursor = latest.allocated, None
        while True:
            if not rows.documents:  # else they may be older than this watermark: nobody must take them for current
                version = watermark.position
            if position < watermark.position:
                rows = await self._with_rest(group, query._replace(cursor=position), rows, watermark)
                position = watermark.position
                if rows.next_position is None or query.deleted:
                    # Items may have got new ids before this range was read.
                    latest = await self._ids.watermark(group)
            if rows.next_position is not None or not await self._has_moved_on(
                group, query, watermark, latest, start, allocated
            ):
                break
            newer = await self._newer(group, watermark.position, deadline)
            if newer is None:
                next_cursor = position
                break
            watermark = latest = newer
        if query.deleted:
            _check_expired(query, latest)
        if rows.next_position is not None:
            next_cursor = position = rows.next_position
        elif query.cursor > allocated:  # of another database
            position = watermark.position
        return Page(rows.documents, rows.size, next_cursor, version, position, query.walk, rows.cut)

    async def _with_rest(self, group: Group, query: Query, rows: Rows, watermark: Watermark) -> Rows:
        """Return the rows, and up to the limit what comes after `query.cursor`."""
        room = query.limit - len(rows.documents)
        last_page = await self._range(group, query._replace(limit=max(1, room)), watermark)
        if not room:
            last = documents.id_of(rows.documents[-1])
            return rows._replace(
                next_position=last if last_page.documents else last_page.next_position
            )  # it may have searched in vain so far
        return Rows(
            rows.documents + last_page.documents, rows.size + last_page.size, last_page.next_position, last_page.cut
        )

    async def _has_moved_on(
        self, group: Group, query: Query, watermark: Watermark, latest: Watermark, start: int, allocated: int
    ) -> bool:
        """Return whether an item that the walk has not returned may be beyond the watermark.

        Its id is at most `allocated`, the newest allocated id when the walk came to the end of the group: it is new, or
        it changed before the walk came to its old id. Or it has changed again since then: its previous id is above
        `start`, up to which the walk had read. `latest` was read after this page.
        """
        if not latest.in_flight and latest.position == watermark.position:
            return False
        # Not up to the newest id: a crawl that changes nothing uses up ids too, and must not keep walks going.
        if latest.last_id - watermark.position > _MAX_BEYOND:  # reading all of them would take too long
            return True
        moved = [{"id": {"$lte": allocated}}, {"prev_id": {"$gt": start}}]
        selection = select(group, query, watermark.hidden)
        where = {**group.owner, **selection.indexed, **selection.residual, "id": {"$gt": watermark.position}}
        reply = await read_committed(
            self._database,
            {
                "find": "outputs",
                "filter": {"$and": [where, {"$or": moved}]},
                "projection": {"_id": 1},
                "limit": 1,
                "hint": "id",
            },
            latest.time,
        )
        return bool(reply["cursor"]["firstBatch"])

    async def _newer(self, group: Group, position: int, deadline: float) -> Watermark | None:
        """Return a watermark above a position as soon as there is one; None at the deadline."""
        with self._watch.waiting(group) as changed:
            while (seconds_left := deadline - time.monotonic()) > 0 and not self._watch.stopped:
                changed.clear()
                newer = await self._ids.watermark(group)
                if newer.position > position:
                    return newer
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds_left):
                        await changed.wait()
        return None

    async def part(self, group: Group, query: Query) -> Page:
        """Return the first part of a page, of about a megabyte; it is `cut` if the page has more."""
        part = query._replace(limit=min(query.limit, self.fitting(group, query.fields)))
        page = await self.page(group, part)
        is_full = len(page.documents) == part.limit < query.limit
        return page._replace(cut=True) if is_full and page.next_cursor is not None else page

    async def parts(self, group: Group, query: Query, part: Page) -> AsyncGenerator[Page, None]:
        """Yield the parts of a page of bounded size, beginning with the first."""
        size = 0
        while True:
            size += part.size
            yield part
            remaining = query.limit - len(part.documents)
            if not part.cut or not remaining or part.next_cursor is None or size > self._max_page_bytes:
                return
            query = query._replace(cursor=part.next_cursor, limit=remaining, walk=part.walk)
            part = await self.part(group, query)

    async def pages(self, group: Group, query: Query, max_items: int | None = None) -> AsyncGenerator[Page, None]:
        """Yield pages from the cursor to the present end, or `max_items` items of them.

        Every item that is there when it begins is part of it, unless it is deleted meanwhile.
        """
        remaining = max_items
        while True:
            limit = _MAX_STREAMED if remaining is None else remaining
            page = await self.part(group, query._replace(limit=limit))
            query = query._replace(walk=page.walk)
            remaining, next_cursor = None if remaining is None else remaining - len(page.documents), page.next_cursor
            yield page
            refill_budget()
            if remaining == 0 or next_cursor is None:
                return
            query = query._replace(cursor=next_cursor)

    def fitting(self, group: Group, fields: tuple[str, ...] = ()) -> int:
        """Return the number of items of a group in about a megabyte, estimated from those read last."""
        # By the hash of the requested fields: their names may be long.
        average = self._averages.get((group, hash(fields))) or self._averages.get((group, hash(())))
        return _FIRST_STREAMED if average is None else max(1, min(_MAX_STREAMED, _STREAMED_BYTES // average))

    async def _range(self, group: Group, query: Query, watermark: Watermark) -> Rows:
        """Read a range."""
        item_bytes = _ID_BYTES if query.fields == _IDS else watermark.largest
        selection = select(group, query, watermark.hidden)
        reading = self._ranges.read(group, query, selection, watermark)
        page = await self._within(reading, (query.limit + 1) * item_bytes, selection.is_search)
        if page.documents and query.fields != _IDS:
            key = group, hash(query.fields)
            self._averages.pop(key, None)
            self._averages[key] = max(1, page.size // len(page.documents))
        return page

    async def _within(self, reading: Coroutine[Any, Any, Rows], size: int, searches: bool = False) -> Rows:
        """Return what a reading of at most so many bytes returns: here, and only here, a reader reserves capacity."""
        try:
            await self._capacity.reserve(
                max(_REPLY_COPIES * min(size, MAX_REPLY), _COPIES * min(size, _MAX_PAGE)), searches
            )
            page = _bounded(await reading)
        finally:
            reading.close()
        self._capacity.shrink(_COPIES * page.size)
        return page

    @patient
    async def watermark(self, group: Group) -> Watermark:
        """Return how far a page that is read now would go."""
        self._indexes.require("outputs", "groups")
        return await self._ids.watermark(group)

    @stored
    async def one(self, group: Group, output_id: str) -> Page | None:
        """Return one item as a page of its own, or None."""
        self._indexes.require("outputs", "groups")
        # Read the watermark first, so that this is no older than a page that was shown.
        watermark = await self._ids.watermark(group)
        where = {**group.owner, "_id": output_id, **LIVE}
        command = {"find": "outputs", "filter": where, "projection": WHOLE | dict.fromkeys(JUDGED, 1), "hint": "_id_"}
        page = await self._within(self._ranges.find(command, 1, watermark.time), watermark.largest)
        return Page(page.documents, page.size, None, documents.id_of(page.documents[0])) if page.documents else None

    @stored
    async def versions(self, group: Group, output_id: str, limit: int, cursor: int) -> Page:
        """Return earlier versions of an item, newest first: those before a cursor, or before the current one."""
        self._indexes.require("outputs", "groups", "versions")
        watermark = await self._ids.watermark(group)
        if not cursor:
            present = await self.one(group, output_id)
            cursor = watermark.position + 1 if present is None else present.version
        earlier = {
            "find": "versions",
            "filter": {**group.owner, "output_id": output_id, "id": {"$lt": cursor}},
            "projection": WHOLE | dict.fromkeys((*JUDGED, *REPLACED), 1),
            "sort": {"id": DESCENDING},
            "hint": "version",
        }
        page = await self._within(self._ranges.find(earlier, limit, watermark.time), (limit + 1) * MAX_REPLY)
        return Page(page.documents, page.size, page.next_position, watermark.position)

    @stored
    async def version(self, group: Group, output_id: str, id: int | None) -> tuple[dict[str, Any] | None, int | None]:
        """Return an earlier version of an item, the newest unless an id is given, and the id of the item's record now.

        Raises ItemExists for a live item without an id.
        """
        self._indexes.require("outputs", "groups", "versions")
        watermark = await self._ids.watermark(group)
        here = {"find": "outputs", "filter": {**group.owner, "_id": output_id}, "limit": 1, "singleBatch": True}
        here |= {"projection": {"id": 1, "deleted": 1}, "hint": "_id_"}
        present = (await read_committed(self._database, here, watermark.time))["cursor"]["firstBatch"]
        if id is None and present and "deleted" not in present[0]:
            raise ItemExists
        command = {
            "find": "versions",
            "filter": {**group.owner, "output_id": output_id, **({} if id is None else {"id": id})},
            "sort": {"id": DESCENDING},
            "hint": "version",
            "limit": 1,
            "singleBatch": True,
        }
        versions = (await read_committed(self._database, command, watermark.time))["cursor"]["firstBatch"]
        return versions[0] if versions else None, present[0]["id"] if present else None

    @stored
    async def selected(self, group: Group, query: Query, until: int) -> tuple[list[tuple[str, int]], int | None]:
        """Return output_id and id of up to `limit` items with ids up to `until`, and the cursor to go on with.

        Includes items beyond the watermark: they are acknowledged, although no page shows them yet.
        """
        self._indexes.require("outputs", "groups")
        watermark = (await self._ids.watermark(group))._replace(position=until)
        page = await self._range(group, query._replace(fields=_IDS), watermark)
        return [(item["output_id"], item["id"]) for item in map(decode, page.documents)], page.next_position


def _bounded(rows: Rows) -> Rows:
    """Return the documents up to about a megabyte, at least one, as if no more had been asked for.

    The estimate comes from other items than those read now, and a megabyte of control characters is 6 MB of JSON.
    """
    if rows.size <= _MAX_PAGE:
        return rows
    average = rows.size // len(rows.documents)
    sizes = (len(document) if isinstance(document, bytes) else average for document in rows.documents)
    ends = list(accumulate(sizes))
    count = max(1, bisect_right(ends, _STREAMED_BYTES))
    if count == len(ends):
        return rows
    return Rows(rows.documents[:count], ends[count - 1], documents.id_of(rows.documents[count - 1]), cut=True)


def _check_expired(query: Query, latest: Watermark) -> None:
    """Refuse a cursor or a date if deletion records after it were removed, unless its walk began after that.

    Checked after the page is read: the id is noted before a record is removed, so no removal is missed.
    """
    # A walk with a date fills a copy that has earlier items: it must learn of every deletion.
    began = query.walk if query.walk and query.created_after is None else 0
    if query.cursor and max(query.cursor, began) < latest.expired_id:
        raise CursorExpired
    begin, expired = query.created_after, latest.expired_date
    if query.cursor or begin is None or expired is None:
        return
    if begin.replace(tzinfo=None) <= expired.replace(tzinfo=None):  # both are UTC
        raise CursorExpired
