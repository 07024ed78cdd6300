"""Reading: one indexed range per page, below the watermark; windows where no index serves all filters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, NamedTuple

from pymongo import ASCENDING, DESCENDING

from schemas.base import INT64_MAX
from service.bounded import Bounded
from service.settings import Settings
from service.store.connection import Database
from service.store.contract import patient, stored
from service.store.decoding import RAW, Document, decode
from service.store.errors import CursorExpired
from service.store.group import Group
from service.store.outputs import documents
from service.store.outputs.documents import Page
from service.store.outputs.fields import has_value, is_missing
from service.store.outputs.ids import Ids, Watermark
from service.store.time_budget import refill_budget
from service.store.watch import Watch

# A streamed page is about this many bytes, in memory a few times over.
_STREAMED_BYTES = 1024 * 1024
_FIRST_STREAMED = 2  # of a group whose items may be 1 MiB each
_MAX_STREAMED = 1000
# What an item of a group that was not read yet is taken for.
_UNKNOWN_BYTES = 20_000
# Groups whose items' size a process remembers: 10,000 are about 2 MB.
_MAX_REMEMBERED = 10_000
# Records passed over by one plain read; where a group has more of them, it is read in windows.
_MAX_HIDDEN = 1000
# Documents looked at in the first window of a page and in each further one, and seconds after which a page ends early.
_FIRST_WINDOW = 500
_WINDOW = 5000
_WINDOWS_SECONDS = 1.0
# How long the last page of a walk waits for batches in flight, before the client asks again.
_WALK_SECONDS = 1.0
# Index entries that are counted to choose between two filters.
_COUNTED = 2000

SERVED = (
    *("source_url", "data", "id", "output_id", "root_job_id", "create_date", "update_date", "last_scraped_date"),
    *("key_hash", "value_hash", "is_approved", "tags", "files"),
)
# Filter -> name of its index and the field after (group), the narrowest first.
INDEXED = {
    "url": ("url", "source_url"),
    "region": ("region", "region"),
    "country": ("country", "country"),
    "job_id": ("job", "root_job_id"),
}
_LIVE = {"deleted": {"$exists": False}}
_NO_TOMBSTONE = {"tombstone": {"$exists": False}}


class Walk(NamedTuple):
    """What passes from one page of a walk to the next."""

    began: int  # the newest id when the walk began
    seen: int  # the newest id that was allocated when the page before was read; 0: unknown


class Query(NamedTuple):
    """Which outputs of a group a page is made of."""

    cursor: int = 0
    limit: int = 10
    created_after: datetime | None = None
    job_id: str | None = None
    url: str | None = None
    country: str | None = None
    region: str | None = None
    is_approved: bool | None = None
    key_hash: str | None = None
    scraped_before: datetime | None = None
    change: str | None = None  # what the job did: created, changed or unchanged
    missing: str | None = None  # a path below `data`
    where: tuple[str, str] | None = None  # a path below `data`, and the text of its value
    rejected: bool | None = None
    of_jobs: tuple[str, ...] | None = None  # of any of these jobs
    not_of_job: str | None = None
    walk: Walk | None = None  # None: a cursor that comes alone
    newest_first: bool = False
    deleted: bool = False
    fields: tuple[str, ...] = ()  # paths to keep; empty keeps all


class Selection(NamedTuple):
    """How a query is read: by which index, and what is compared for each document that it leads to."""

    hint: str
    indexed: dict[str, Any]
    residual: dict[str, Any]
    choices: tuple[str, ...] = ()  # the fields of several filters, of which one is to be the index


class _Found(NamedTuple):
    """Documents of a range, about how many bytes they are, and the id after which it goes on; None at its end."""

    documents: list[Document]
    size: int
    next: int | None


class Reading:
    """Reads the outputs of groups."""

    def __init__(self, database: Database, ids: Ids, watch: Watch, settings: Settings) -> None:
        self._ids, self._watch = ids, watch
        self._page_bytes = settings.max_page_bytes
        self._averages: Bounded[Group, int] = Bounded(_MAX_REMEMBERED)

    @patient
    @stored
    async def page(self, group: Group, query: Query) -> Page:
        """Return the page after `query.cursor`, in the order of ids, without gaps."""
        begins = query.cursor == 0 and not query.newest_first
        if query.newest_first or query.deleted or begins:
            watermark = await self._ids.watermark(group)
            if begins:
                query = query._replace(walk=Walk(watermark.last_id, 0))
            found = await self._range(group, query, watermark)
            if query.deleted:
                await self._check_expired(group, query)
            return await self._page(group, query, found, watermark)
        watermark = self._ids.remembered(group)
        read: _Found | None = None
        if query.cursor + 1 < watermark.end:
            read = await self._range(group, query, watermark)
            if read.next is not None:
                # What was allocated since this watermark was read is unknown.
                return await self._page(group, query, read, watermark._replace(allocated=0))
        # At the tail only a new watermark can tell whether there is more.
        new = await self._ids.watermark(group)
        if read is None or new.version != watermark.version:
            read = await self._range(group, query, new)
        return await self._page(group, query, read, new)

    async def _page(self, group: Group, query: Query, found: _Found, watermark: Watermark) -> Page:
        """Return what was found as a page, with the state of its walk."""
        next_cursor, checkpoint = found.next, max(query.cursor, watermark.version)
        if next_cursor is not None:
            checkpoint = next_cursor
        elif not query.newest_first and await self._has_moved_on(group, query, watermark):
            next_cursor = checkpoint
            if not found.documents:
                await self.wait(group, watermark.version, _WALK_SECONDS)
        walk = query.walk and query.walk._replace(seen=watermark.allocated)
        return Page(found.documents, found.size, next_cursor, watermark.version, checkpoint, walk)

    async def _has_moved_on(self, group: Group, query: Query, watermark: Watermark) -> bool:
        """Return whether an item that a walk has not offered may be in a batch in flight, beyond the watermark.

        Such an item has left its place before the walk came there. Where the batch has begun since the page before this
        one, that place is on this page; where it may be older, it can be on any page of the walk.
        """
        if not watermark.in_flight:
            return False
        moved: dict[str, Any] = {"prev_id": {"$gt": query.cursor}}
        if query.walk is not None:
            older: dict[str, Any] = {"prev_id": {"$exists": True}}
            if query.walk.seen:
                older["id"] = {"$lte": query.walk.seen}
            moved = {"$or": [moved, older]}
        beyond = query._replace(cursor=watermark.end - 1, limit=1, fields=("id",), created_after=None)
        selection = select(group, beyond, watermark.hidden)
        where = {**group.owner, **selection.indexed, **selection.residual, "id": {"$gte": watermark.end}}
        reply = await self._ids.command(
            {"find": "outputs", "filter": {"$and": [where, moved]}, "projection": {"_id": 1}, "limit": 1, "hint": "id"},
            watermark.time,
        )
        return bool(reply["cursor"]["firstBatch"])

    def fitting(self, group: Group) -> int:
        """Return how many items of a group make about a megabyte, by those that were read last."""
        average = self._averages.get(group)
        return _FIRST_STREAMED if average is None else max(1, min(_MAX_STREAMED, _STREAMED_BYTES // average))

    def expected_bytes(self, group: Group, limit: int) -> int:
        """Return about how many bytes some items of a group are, by those that were read last."""
        return limit * self._averages.get(group, _UNKNOWN_BYTES)

    def _remember(self, group: Group, query: Query, found: _Found) -> None:
        if found.documents and not query.fields:  # parts of documents say nothing about their size
            self._averages.pop(group, None)
            self._averages[group] = max(1, found.size // len(found.documents))

    @patient
    async def wait(self, group: Group, cursor: int, seconds: float) -> None:
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

    async def pages(self, group: Group, query: Query, max_items: int | None = None) -> AsyncIterator[Page]:
        """Yield pages from the cursor to the present end, or `max_items` items of them.

        Every item that is there when it begins is part of it, unless it is deleted meanwhile.
        """
        left, query = max_items, query._replace(walk=query.walk or Walk(0, 0))
        while True:
            limit = self.fitting(group) if left is None else min(self.fitting(group), left)
            page = await self.page(group, query._replace(limit=limit))
            query = query._replace(walk=page.walk)
            left, next_cursor = None if left is None else left - len(page.documents), page.next_cursor
            handed_on = [page]
            del page
            yield handed_on.pop()  # whoever takes it decides how long it stays in memory
            refill_budget()
            if left == 0 or next_cursor is None:
                return
            query = query._replace(cursor=next_cursor)

    async def version(self, group: Group) -> int:
        """Return the version that a page read now would show."""
        return (await self._watermark(group)).version

    @patient
    async def _watermark(self, group: Group) -> Watermark:
        return await self._ids.watermark(group)

    @stored
    async def one(self, group: Group, output_id: str) -> Page | None:
        """Return one item as a page of its own; None when there is none."""
        # The newest watermark first, so that this is no older than what a page has shown.
        watermark = await self._ids.watermark(group)
        reply = await self._ids.command(
            {
                "find": "outputs",
                "filter": {
                    **group.owner,
                    "_id": output_id,
                    **_LIVE,
                },
                "projection": _projection(Query()),
                "limit": 1,
                "singleBatch": True,
                "hint": "_id_",
            },
            watermark.time,
            codec_options=RAW,
        )
        found = documents.read_reply(reply)
        return Page(found.documents, found.size, None, documents.id_of(found.documents[0])) if found.documents else None

    @stored
    async def versions(self, group: Group, output_id: str, limit: int, cursor: int) -> Page:
        """Return earlier versions of an item, newest first: those before a cursor, or before the one that is there."""
        watermark = await self._ids.watermark(group)
        if not cursor:
            present = await self.one(group, output_id)
            cursor = watermark.end if present is None else present.version
        reply = await self._ids.command(
            {
                "find": "versions",
                "filter": {**group.owner, "output_id": output_id, "id": {"$lt": cursor}},
                "projection": _WHOLE,
                "sort": {"id": DESCENDING},
                "limit": limit + 1,
                "batchSize": limit + 1,
                "hint": "version",
            },
            watermark.time,
            codec_options=RAW,
        )
        found = documents.read_reply(reply)
        if found.cursor:  # one message of 16 MB holds no more
            await self._ids.kill_cursor("versions", found.cursor)
            return Page(found.documents, found.size, documents.id_of(found.documents[-1]), watermark.version)
        part = _cut(found.documents, found.size, limit)
        return Page(part.documents, part.size, part.next, watermark.version)

    @stored
    async def selected(self, group: Group, query: Query) -> tuple[list[tuple[str, int]], int | None]:
        """Return output_id and id of up to `limit` items that a query selects, and the cursor to go on with.

        Also of items behind a batch in flight: they are acknowledged, though no page shows them yet.
        """
        watermark = (await self._ids.watermark(group))._replace(end=INT64_MAX)
        found = await self._range(group, query._replace(fields=("output_id",)), watermark)
        return [(item["output_id"], item["id"]) for item in map(decode, found.documents)], found.next

    async def _check_expired(self, group: Group, query: Query) -> None:
        """Refuse a cursor behind which deletion records were removed, unless its walk has begun since.

        Looked up after the page: removing notes the id first, so a page without a record finds the note.
        """
        safe = max(query.cursor, query.walk.began if query.walk else 0)
        if query.cursor and safe < (await self._ids.watermark(group)).expired_id:
            raise CursorExpired

    # -- ranges -------------------------------------------------------------------------------

    async def _range(self, group: Group, query: Query, watermark: Watermark) -> _Found:
        """Return up to `limit` documents between the cursor and the watermark; fewer if they are very large."""
        low, high = query.cursor, watermark.end
        if query.newest_first:
            low, high = 0, min(high, query.cursor or high)
        selection = select(group, query, watermark.hidden)
        by_date = query.created_after is not None and selection.hint == "id" and not selection.residual
        if query.created_after is not None and (query.cursor or query.newest_first or not by_date):
            # After the watermark: an item in flight before it could have an id below the one found here.
            first = await self._first_id_since(group, query.created_after, watermark)
            low, by_date = max(low, first - 1), False
        if low + 1 >= high:
            return _Found([], 0, None)
        if selection.choices:
            selection = await self._narrowest(group, selection, low, high, watermark)
        read = self._plain if not selection.residual else self._windows
        found = await read(group, query, selection, low, high, watermark, by_date)
        self._remember(group, query, found)
        return found

    async def _plain(
        self,
        group: Group,
        query: Query,
        selection: Selection,
        low: int,
        high: int,
        watermark: Watermark,
        by_date: bool,
    ) -> _Found:
        """Read a range that its index serves alone."""
        where = {**group.owner, **selection.indexed, "id": {"$gt": low, "$lt": high}}
        sort, hint = {"id": DESCENDING if query.newest_first else ASCENDING}, selection.hint
        if by_date:
            # The first of many, as a rule: dates never decrease along ids, so their order is the ids'.
            where["update_date"] = {"$gte": query.created_after}
            sort, hint = {"update_date": ASCENDING, "id": ASCENDING}, "updated"
        wanted = {
            "filter": where,
            "projection": _projection(query),
            "sort": sort,
            "hint": hint,
            "limit": query.limit + 1,  # one more tells whether there is a further page
        }
        reply = await self._ids.command(
            {"find": "outputs", **wanted, "batchSize": wanted["limit"]}, watermark.time, codec_options=RAW
        )
        found = documents.read_reply(reply)
        if not found.cursor:
            return _cut(found.documents, found.size, query.limit)
        # One message of 16 MB holds no more: the rest is another page.
        await self._ids.kill_cursor("outputs", found.cursor)
        return _Found(found.documents, found.size, documents.id_of(found.documents[-1]))

    async def _windows(
        self,
        group: Group,
        query: Query,
        selection: Selection,
        low: int,
        high: int,
        watermark: Watermark,
        by_date: bool,
    ) -> _Found:
        """Read a range whose index leads to more than what is wanted: a bounded number of documents at a time.

        The page may end early, even empty, with the id to go on from.
        """
        found: list[Document] = []
        found_bytes = 0
        deadline, size = time.monotonic() + _WINDOWS_SECONDS, _FIRST_WINDOW
        order = {"id": DESCENDING if query.newest_first else ASCENDING}
        while True:
            indexed = {**group.owner, **selection.indexed}
            # Its end first: documents that change meanwhile leave the window, and one that is counted
            # again after it was read would reach beyond what was looked at.
            last = await self._end_of_window(indexed, low, high, size, order, selection.hint, watermark)
            bounds = {"$gt": low, "$lt": high}
            if last is not None:
                bounds |= {"$gte": last} if query.newest_first else {"$lte": last}
            wanted = query.limit + 1 - len(found)
            reply = await self._ids.command(
                {
                    "find": "outputs",
                    "filter": {**indexed, "id": bounds, **selection.residual},
                    "projection": _projection(query),
                    "sort": order,
                    "limit": wanted,
                    "batchSize": wanted,
                    "hint": selection.hint,
                },
                watermark.time,
                codec_options=RAW,
            )
            part = documents.read_reply(reply)
            found += part.documents
            found_bytes += part.size
            if part.cursor:  # more than one message
                await self._ids.kill_cursor("outputs", part.cursor)
                return _Found(found, found_bytes, documents.id_of(found[-1]))
            if len(found) > query.limit:
                return _cut(found, found_bytes, query.limit)
            if last is None:
                return _Found(found, found_bytes, None)
            low, high = (low, last) if query.newest_first else (last, high)
            if time.monotonic() > deadline or found_bytes > self._page_bytes:
                return _Found(found, found_bytes, last)
            size = _WINDOW

    async def _end_of_window(
        self,
        indexed: dict[str, Any],
        low: int,
        high: int,
        size: int,
        order: dict[str, int],
        hint: str,
        watermark: Watermark,
    ) -> int | None:
        """Return the id of the last of `size` documents of a range; None if it has fewer."""
        reply = await self._ids.command(
            {
                "find": "outputs",
                "filter": {**indexed, "id": {"$gt": low, "$lt": high}},
                "projection": {"_id": 0, "id": 1},
                "sort": order,
                "skip": size - 1,
                "limit": 1,
                "singleBatch": True,
                "hint": hint,
            },
            watermark.time,
        )
        last = reply["cursor"]["firstBatch"]
        return int(last[0]["id"]) if last else None

    async def _narrowest(
        self, group: Group, selection: Selection, low: int, high: int, watermark: Watermark
    ) -> Selection:
        """Return a selection of several filters by the index that leads to the fewest documents."""

        async def count(field: str) -> int:
            reply = await self._ids.command(
                {
                    "count": "outputs",
                    "query": {**group.owner, field: selection.indexed[field], "id": {"$gt": low, "$lt": high}},
                    "limit": _COUNTED,
                    "hint": _HINTS[field],
                },
                watermark.time,
            )
            return int(reply["n"])

        fields = selection.choices
        counts = await asyncio.gather(*map(count, fields))
        best = fields[counts.index(min(counts))]
        others = {field: value for field, value in selection.indexed.items() if field != best}
        return Selection(_HINTS[best], {best: selection.indexed[best]}, {**others, **selection.residual})

    async def _first_id_since(self, group: Group, moment: datetime, watermark: Watermark) -> int:
        """Return the lowest id updated at `moment` or later: dates never decrease along ids."""
        reply = await self._ids.command(
            {
                "find": "outputs",
                "filter": {**group.owner, "update_date": {"$gte": moment}},
                "projection": {"_id": 0, "id": 1},
                "sort": {"update_date": ASCENDING, "id": ASCENDING},
                "limit": 1,
                "singleBatch": True,
                "hint": "updated",
            },
            watermark.time,
        )
        found = reply["cursor"]["firstBatch"]
        return int(found[0]["id"]) if found else watermark.end


_HINTS = {field: name for name, field in INDEXED.values()}


def select(group: Group, query: Query, hidden: int) -> Selection:
    """Return how a query is read, as far as it can be told without looking."""
    indexed = {field: value for name, (_, field) in INDEXED.items() if (value := getattr(query, name)) is not None}
    residual: dict[str, Any] = {}
    passed_over = {} if query.deleted else dict(_LIVE)
    if not indexed:
        passed_over |= _NO_TOMBSTONE
        hint = "id"
    else:
        hint = _HINTS[next(iter(indexed))]
    if query.is_approved is True and not indexed and query.key_hash is None:
        indexed, hint, passed_over = {"is_approved": True}, "approved", {}
    elif query.is_approved is not None:
        residual["is_approved"] = query.is_approved
    if query.scraped_before is not None:
        residual["last_scraped_date"] = {"$lt": query.scraped_before}
    if conditions := _conditions(query):
        residual["$and"] = conditions
    if query.key_hash is not None:  # one item at most: all else is compared
        identity = {"_id": group.output_id(query.key_hash)}
        return Selection("_id_", {**identity, **indexed, **residual, **passed_over}, {})
    choices = tuple(indexed) if len(indexed) > 1 else ()
    if hidden > _MAX_HIDDEN or residual or choices:
        residual |= passed_over
    else:
        indexed = {**indexed, **passed_over}
    return Selection(hint, indexed, residual, choices)


def _conditions(query: Query) -> list[dict[str, Any]]:
    """Return what no index serves. The record of a deletion has lost its data and tags: it is never kept back."""
    of_content: list[dict[str, Any]] = []
    if query.missing is not None:
        of_content.append(is_missing(query.missing))
    if query.where is not None:
        of_content.append(has_value(*query.where))
    if query.rejected is not None:
        of_content.append({"tags.rejected": {"$exists": query.rejected}})
    if query.deleted:
        of_content = [{"$or": [{"deleted": True}, condition]} for condition in of_content]
    of_jobs: list[dict[str, Any]] = []
    if query.change is not None:
        of_jobs.append({"change": query.change})
    if query.of_jobs is not None:
        of_jobs.append({"root_job_id": {"$in": list(query.of_jobs)}})
    if query.not_of_job is not None:
        of_jobs.append({"root_job_id": {"$ne": query.not_of_job}})
    return of_content + of_jobs


def _cut(found: list[Document], size: int, limit: int) -> _Found:
    if len(found) <= limit:
        return _Found(found, size, None)
    return _Found(found[:limit], size * limit // len(found), documents.id_of(found[limit - 1]))


_WHOLE = {"_id": 0, **dict.fromkeys(SERVED, 1), "deleted": 1}


def _projection(query: Query) -> dict[str, int]:
    if not query.fields:
        return _WHOLE
    return {"_id": 0, "id": 1, **dict.fromkeys(query.fields, 1), **({"deleted": 1} if query.deleted else {})}
