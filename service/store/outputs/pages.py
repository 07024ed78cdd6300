"""Pages, walks over several of them, single items and their versions: all read below the watermark."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from itertools import accumulate
from typing import Any, Protocol

from pymongo import DESCENDING

from service.bounded import Bounded
from service.settings import Settings
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
from service.store.outputs.query import JUDGED, LIVE, REPLACED, WHOLE, Query, is_search, select
from service.store.outputs.ranges import Found, Ranges
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


class Work(Protocol):
    """The capacity that the current request has reserved."""

    async def read(self, size: int, searches: bool) -> None:
        """Reserve, in turn, so many bytes for a reading and what is made of it."""

    def shrink(self, size: int) -> None:
        """Keep no more than so many bytes."""


def _no_work() -> Work | None:
    return None


class Reading:
    """Reads the outputs of groups."""

    def __init__(self, database: Database, ids: Ids, watch: Watch, indexes: Indexes, settings: Settings) -> None:
        self._database, self._ids, self._watch, self._indexes = database, ids, watch, indexes
        self._ranges = Ranges(database, settings.max_page_bytes)
        self.current_work: Callable[[], Work | None] = _no_work
        # By the hash of the requested fields: their names may be long.
        self._averages: Bounded[tuple[Group, int], int] = Bounded(_MAX_REMEMBERED)

    @patient
    @stored
    async def page(self, group: Group, query: Query) -> Page:
        """Return the page after `query.cursor`, in the order of ids, without gaps."""
        self._indexes.require("outputs", "groups")
        if query.newest_first:
            watermark = await self._ids.watermark(group)
            page = await self._range(group, query, watermark)
            return Page(page.documents, page.size, page.next, watermark.version, cut=page.cut)
        if query.deleted and not query.cursor:
            query = query._replace(walk=(await self._ids.watermark(group)).version)
        watermark = self._ids.remembered(group)
        page = await self._range(group, query, watermark)
        if page.next is None:
            return await self._last(group, query, page, watermark)
        if query.deleted:
            _check_expired(query, await self._ids.watermark(group))
        return Page(page.documents, page.size, page.next, watermark.version, page.next, query.walk, page.cut)

    @patient
    @stored
    async def below(self, group: Group, query: Query, watermark: Watermark) -> Page:
        """Return what is between the cursor and a watermark.

        Without a next page it is not the end of a walk: an item may be in flight that no page has shown.
        """
        page = await self._range(group, query, watermark)
        if query.deleted:
            _check_expired(query, await self._ids.watermark(group))
        return Page(page.documents, page.size, page.next, watermark.version, page.next or watermark.version)

    async def _last(self, group: Group, query: Query, found: Found, watermark: Watermark) -> Page:
        """Return what was found below a watermark and the rest of the group, as the end of a walk.

        An item may be in a batch that is still in flight, or behind one. The page waits for it; after a second, it is
        not the last one.
        """
        began = reached = max(query.cursor, watermark.version)
        deadline = time.monotonic() + _WALK_SECONDS
        version = watermark.version
        watermark = latest = await self._ids.watermark(group)
        seen, next_cursor = latest.allocated, None
        while True:
            if not found.documents:  # else they may be older than this watermark: nobody must take them for current
                version = watermark.version
            if reached < watermark.version:
                found = await self._with_rest(group, query._replace(cursor=reached), found, watermark)
                reached = watermark.version
                if found.next is None or query.deleted:
                    # Items may have got new ids before this range was read.
                    latest = await self._ids.watermark(group)
            if found.next is not None or not await self._has_moved_on(group, query, watermark, latest, began, seen):
                break
            newer = await self._newer(group, watermark.version, deadline)
            if newer is None:
                next_cursor = reached
                break
            watermark = latest = newer
        if query.deleted:
            _check_expired(query, latest)
        if found.next is not None:
            next_cursor = reached = found.next
        elif query.cursor > seen:  # of another database
            reached = watermark.version
        return Page(found.documents, found.size, next_cursor, version, reached, query.walk, found.cut)

    async def _with_rest(self, group: Group, query: Query, found: Found, watermark: Watermark) -> Found:
        """Return what was found, and up to the limit what comes after `query.cursor`."""
        room = query.limit - len(found.documents)
        last_page = await self._range(group, query._replace(limit=max(1, room)), watermark)
        if not room:
            last = documents.id_of(found.documents[-1])
            return found._replace(
                next=last if last_page.documents else last_page.next
            )  # it may have searched in vain so far
        return Found(found.documents + last_page.documents, found.size + last_page.size, last_page.next, last_page.cut)

    async def _has_moved_on(
        self, group: Group, query: Query, watermark: Watermark, latest: Watermark, began: int, seen: int
    ) -> bool:
        """Return whether an item that the walk has not returned may be beyond the watermark.

        Its id is at most `seen`, the newest allocated id when the walk came to the end of the group: it is new, or it
        changed before the walk came to its old id. Or it has changed again since then: its previous id is above
        `began`, up to which the walk had read. `latest` was read after this page.
        """
        if not latest.in_flight and latest.version == watermark.version:
            return False
        # Not up to the newest id: a crawl that changes nothing uses up ids too, and must not keep walks going.
        if latest.last_id - watermark.end > _MAX_BEYOND:  # reading all of them would take too long
            return True
        moved = [{"id": {"$lte": seen}}, {"prev_id": {"$gt": began}}]
        selection = select(group, query, watermark.hidden)
        where = {**group.owner, **selection.indexed, **selection.residual, "id": {"$gte": watermark.end}}
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

    async def _newer(self, group: Group, version: int, deadline: float) -> Watermark | None:
        """Return a watermark above a version as soon as there is one; None at the deadline."""
        with self._watch.waiting(group) as changed:
            while (seconds_left := deadline - time.monotonic()) > 0 and not self._watch.stopped:
                changed.clear()
                newer = await self._ids.watermark(group)
                if newer.version > version:
                    return newer
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds_left):
                        await changed.wait()
        return None

    def fitting(self, group: Group, fields: tuple[str, ...] = ()) -> int:
        """Return the number of items of a group in about a megabyte, estimated from those read last."""
        average = self._average(group, fields)
        return _FIRST_STREAMED if average is None else max(1, min(_MAX_STREAMED, _STREAMED_BYTES // average))

    def _average(self, group: Group, fields: tuple[str, ...]) -> int | None:
        """Return the bytes of an item, or of these fields of it; None before the first one is read."""
        return self._averages.get((group, hash(fields))) or self._averages.get((group, hash(())))

    async def _range(self, group: Group, query: Query, watermark: Watermark) -> Found:
        """Read a range."""
        item_bytes = _ID_BYTES if query.fields == _IDS else watermark.largest
        reading = self._ranges.read(group, query, watermark)
        page = await self._within(reading, (query.limit + 1) * item_bytes, is_search(group, query))
        if page.documents and query.fields != _IDS:
            key = group, hash(query.fields)
            self._averages.pop(key, None)
            self._averages[key] = max(1, page.size // len(page.documents))
        return page

    async def _within(self, reading: Coroutine[Any, Any, Found], size: int, searches: bool = False) -> Found:
        """Return what a reading of at most so many bytes returns: here, and only here, a reader reserves capacity."""
        work = self.current_work()
        if work is None:
            return _bounded(await reading)
        try:
            await work.read(max(_REPLY_COPIES * min(size, MAX_REPLY), _COPIES * min(size, _MAX_PAGE)), searches)
        except BaseException:
            reading.close()
            raise
        page = _bounded(await reading)
        work.shrink(_COPIES * page.size)
        return page

    async def pages(self, group: Group, query: Query, max_items: int | None = None) -> AsyncGenerator[Page, None]:
        """Yield pages from the cursor to the present end, or `max_items` items of them.

        Every item that is there when it begins is part of it, unless it is deleted meanwhile.
        """
        remaining = max_items
        while True:
            fitting = self.fitting(group, query.fields)
            limit = fitting if remaining is None else min(fitting, remaining)
            page = await self.page(group, query._replace(limit=limit))
            query = query._replace(walk=page.walk)
            remaining, next_cursor = None if remaining is None else remaining - len(page.documents), page.next_cursor
            yield page
            refill_budget()
            if remaining == 0 or next_cursor is None:
                return
            query = query._replace(cursor=next_cursor)

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
            cursor = watermark.end if present is None else present.version
        earlier = {
            "find": "versions",
            "filter": {**group.owner, "output_id": output_id, "id": {"$lt": cursor}},
            "projection": WHOLE | dict.fromkeys((*JUDGED, *REPLACED), 1),
            "sort": {"id": DESCENDING},
            "hint": "version",
        }
        page = await self._within(self._ranges.find(earlier, limit, watermark.time), (limit + 1) * MAX_REPLY)
        return Page(page.documents, page.size, page.next, watermark.version)

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
        watermark = (await self._ids.watermark(group))._replace(end=until + 1)
        page = await self._range(group, query._replace(fields=_IDS), watermark)
        return [(item["output_id"], item["id"]) for item in map(decode, page.documents)], page.next


def _bounded(found: Found) -> Found:
    """Return the documents up to about a megabyte, at least one, as if no more had been asked for.

    The estimate comes from other items than those read now, and a megabyte of control characters is 6 MB of JSON.
    """
    if found.size <= _MAX_PAGE:
        return found
    average = found.size // len(found.documents)
    sizes = (len(document) if isinstance(document, bytes) else average for document in found.documents)
    ends = list(accumulate(sizes))
    count = max(1, bisect_right(ends, _STREAMED_BYTES))
    if count == len(ends):
        return found
    return Found(found.documents[:count], ends[count - 1], documents.id_of(found.documents[count - 1]), cut=True)


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
