"""Reading: one indexed range per page, below the watermark; windows where no index serves all filters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, NamedTuple

from pymongo import ASCENDING, DESCENDING

from service.settings import Settings
from service.store.connection import MAJORITY, Client, Collection, Database
from service.store.contract import stored, streamed
from service.store.errors import CursorExpired, StoreUnavailable
from service.store.outputs import documents
from service.store.outputs.documents import Document, Page
from service.store.outputs.ids import Ids, Watermark
from service.store.outputs.items import SERVED
from service.store.watch import Watch

# A streamed page is about this many bytes, in memory a few times over.
_STREAMED_BYTES = 1024 * 1024
_FIRST_STREAMED = 50
_MAX_STREAMED = 1000
# The driver decodes pages up to this, the cheapest way: 39 instead of 43 ms for each 1000 items at a
# limit of 100. It holds the interpreter lock meanwhile, 17 ms for 1000 items of 2 KB: larger pages
# are decoded here, item by item.
_DECODED_BY_DRIVER = 128
# Records passed over by one plain read; where a group has more of them, it is read in windows.
_MAX_HIDDEN = 1000
# Documents looked at in one window, and seconds after which a page ends early.
_WINDOW = 5000
_WINDOWS_SECONDS = 1.0
# Index entries that are counted to choose between two filters.
_COUNTED = 2000

# Filter -> name of its index and the field after (organization_id, group_id), the narrowest first.
INDEXED = {
    "key_hash": ("key", "key_hash"),
    "url": ("url", "source_url"),
    "region": ("region", "region"),
    "country": ("country", "country"),
    "job_id": ("job", "root_job_id"),
}
_LIVE = {"deleted": {"$exists": False}}
_NO_TOMBSTONE = {"tombstone": {"$exists": False}}


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
    """Documents of a range, and the id after which it goes on; None at its end."""

    documents: list[Document]
    next: int | None


class Reading:
    """Reads the outputs of groups."""

    def __init__(self, client: Client, database: Database, ids: Ids, watch: Watch, settings: Settings) -> None:
        self._client = client
        self._outputs: Collection = database.get_collection("outputs", read_concern=MAJORITY)
        self._ids, self._watch = ids, watch
        self._page_bytes = settings.max_page_bytes
        self._patience = settings.lease_seconds + 10

    @stored
    async def page(self, organization_id: int, group_id: str, query: Query) -> Page:
        """Return the page after `query.cursor`, in the order of ids, without gaps."""
        owner = (organization_id, group_id)
        if query.newest_first or query.deleted:
            watermark = await self._ids.watermark(*owner)
            whole = await self._range(owner, query, watermark)
            if query.deleted:
                await self._check_expired(owner, query)
            return self._page(whole, watermark)
        watermark = self._ids.remembered(*owner)
        found: _Found | None = None
        if query.cursor + 1 < watermark.end:
            found = await self._range(owner, query, watermark)
            if found.next is not None:
                return self._page(found, watermark)
        # At the tail only a new watermark can tell whether there is more.
        new = await self._ids.watermark(*owner)
        if found is None or new.version != watermark.version:
            found = await self._range(owner, query, new)
        return self._page(found, new)

    async def wait(self, organization_id: int, group_id: str, cursor: int, seconds: float) -> None:
        """Return as soon as something after a cursor may be readable, or after some seconds."""
        deadline = time.monotonic() + seconds
        with self._watch.waiting(organization_id, group_id) as waiting:
            while (left := deadline - time.monotonic()) > 0:
                waiting.clear()
                if (await self._ids.watermark(organization_id, group_id)).end > cursor + 1:
                    return
                try:
                    await asyncio.wait_for(waiting.wait(), left)
                except TimeoutError:
                    return

    @streamed
    async def pages(
        self, organization_id: int, group_id: str, query: Query, max_items: int | None = None
    ) -> AsyncIterator[Page]:
        """Yield pages from the cursor to the present end, or `max_items` items of them.

        What is in flight when it begins is part of it: a reader that comes only once misses nothing.
        """
        begun = await self._ids.watermark(organization_id, group_id)
        left, limit, deadline = max_items, _FIRST_STREAMED, time.monotonic() + self._patience
        while True:
            page = await self.page(
                organization_id, group_id, query._replace(limit=limit if left is None else min(limit, left))
            )
            yield page
            if page.documents:
                average = max(1, page.size // len(page.documents))
                limit = max(1, min(_MAX_STREAMED, _STREAMED_BYTES // average))
            left = None if left is None else left - len(page.documents)
            if left == 0:
                return
            if page.next_cursor is not None:
                query = query._replace(cursor=page.next_cursor)
            elif query.newest_first or page.version + 1 >= begun.next:
                return
            elif time.monotonic() > deadline:
                raise StoreUnavailable("batches stay in flight")
            else:
                query = query._replace(cursor=max(query.cursor, page.version))
                await self.wait(organization_id, group_id, page.version, 0.5)

    async def version(self, organization_id: int, group_id: str) -> int:
        """Return the version that a page read now would show."""
        return (await self._ids.watermark(organization_id, group_id)).version

    @stored
    async def one(self, organization_id: int, group_id: str, output_id: str) -> Page | None:
        """Return one item as a page of its own; None when there is none."""
        # The newest watermark first, so that this is no older than what a page has shown.
        watermark = await self._ids.watermark(organization_id, group_id)
        reply = await self._ids.command(
            {
                "find": "outputs",
                "filter": {
                    "organization_id": organization_id,
                    "group_id": group_id,
                    "output_id": output_id,
                    **_LIVE,
                },
                "projection": _projection(Query()),
                "limit": 1,
                "singleBatch": True,
                "hint": "output_id",
            },
            watermark.time,
            codec_options=documents.NAIVE,
        )
        found = reply["cursor"]["firstBatch"]
        return Page(found, None, found[0]["id"]) if found else None

    @stored
    async def keys(self, organization_id: int, group_id: str, query: Query) -> tuple[list[tuple[str, int]], int | None]:
        """Return key and id of up to `limit` items that a query selects, and the cursor to go on with."""
        owner = (organization_id, group_id)
        watermark = await self._ids.watermark(*owner)
        found = await self._range(owner, query._replace(fields=("key_hash",)), watermark)
        keys = [(item["key_hash"], item["id"]) for item in map(documents.decode, found.documents)]
        return keys, found.next

    @staticmethod
    def _page(found: _Found, watermark: Watermark) -> Page:
        return Page(found.documents, found.next, watermark.version)

    async def _check_expired(self, owner: tuple[int, str], query: Query) -> None:
        """Refuse a cursor behind which deletion records were removed.

        Looked up after the page: removing notes the id first, so a page without a record finds the note.
        """
        if query.cursor and query.cursor < (await self._ids.watermark(*owner)).expired_id:
            raise CursorExpired

    # -- ranges -------------------------------------------------------------------------------

    async def _range(self, owner: tuple[int, str], query: Query, watermark: Watermark) -> _Found:
        """Return up to `limit` documents between the cursor and the watermark; fewer if they are very large."""
        low, high = query.cursor, watermark.end
        if query.newest_first:
            low, high = 0, min(high, query.cursor or high)
        selection = select(query, watermark.hidden)
        by_date = query.created_after is not None and selection.hint == "id" and not selection.residual
        if query.created_after is not None and (query.cursor or query.newest_first or not by_date):
            # After the watermark: an item in flight before it could have an id below the one found here.
            first = await self._first_id_since(owner, query.created_after, watermark)
            low, by_date = max(low, first - 1), False
        if low + 1 >= high:
            return _Found([], None)
        if selection.choices:
            selection = await self._narrowest(owner, selection, low, high, watermark)
        read = self._plain if not selection.residual else self._windows
        return await read(owner, query, selection, low, high, watermark, by_date)

    async def _plain(
        self,
        owner: tuple[int, str],
        query: Query,
        selection: Selection,
        low: int,
        high: int,
        watermark: Watermark,
        by_date: bool,
    ) -> _Found:
        """Read a range that its index serves alone."""
        where = {**_owner(owner), **selection.indexed, "id": {"$gt": low, "$lt": high}}
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
        if query.limit <= _DECODED_BY_DRIVER:
            reply = await self._ids.command(
                {"find": "outputs", **wanted, "batchSize": wanted["limit"]},
                watermark.time,
                codec_options=documents.NAIVE,
            )
            found: list[Document] = list(reply["cursor"]["firstBatch"])
            if not reply["cursor"]["id"]:
                return _cut(found, query.limit)
            # One message of 16 MB holds no more: the rest is another page.
            await self._ids.kill_cursor("outputs", reply["cursor"]["id"])
            return _Found(found, documents.decode(found[-1])["id"])
        return await self._encoded(wanted, query.limit, watermark)

    async def _encoded(self, wanted: dict[str, Any], limit: int, watermark: Watermark) -> _Found:
        """Return the first `limit` documents still encoded, or fewer once they are too many bytes."""
        found: list[Document] = []
        size = 0
        async with await self._client.start_session(causal_consistency=True) as session:
            if watermark.time is not None:
                session.advance_operation_time(watermark.time)
            batches = self._outputs.find_raw_batches(**wanted, batch_size=wanted["limit"], session=session)
            async for raw in batches:  # of 16 MB at most each
                found += documents.split(raw)
                size += len(raw)
                if size > self._page_bytes:
                    cut = len(found) <= limit and batches.alive
                    await batches.close()
                    if cut:
                        return _Found(found, documents.decode(found[-1])["id"])
                    break
        return _cut(found, limit)

    async def _windows(
        self,
        owner: tuple[int, str],
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
        deadline = time.monotonic() + _WINDOWS_SECONDS
        while len(found) <= query.limit:
            indexed = {**_owner(owner), **selection.indexed, "id": {"$gt": low, "$lt": high}}
            order = {"id": DESCENDING if query.newest_first else ASCENDING}
            wanted = query.limit + 1 - len(found)
            reply = await self._ids.command(
                {
                    "aggregate": "outputs",
                    "pipeline": [
                        {"$match": indexed},
                        {"$sort": order},
                        {"$limit": _WINDOW},
                        {"$match": selection.residual},
                        {"$limit": wanted},
                        {"$project": _projection(query)},
                    ],
                    # One more than can come: else the cursor stays open when all has come.
                    "cursor": {"batchSize": wanted + 1},
                    "hint": selection.hint,
                },
                watermark.time,
                codec_options=documents.NAIVE,
            )
            part = list(reply["cursor"]["firstBatch"])
            found += part
            if reply["cursor"]["id"]:  # more than one message
                await self._ids.kill_cursor("outputs", reply["cursor"]["id"])
                return _Found(found, documents.decode(found[-1])["id"])
            if len(found) > query.limit:
                break
            last = await self._last_of_window(indexed, order, selection.hint, watermark)
            if last is None:
                return _Found(found, None)
            if query.newest_first:
                high = last
            else:
                low = last
            if time.monotonic() > deadline:
                return _Found(found, last)
        return _cut(found, query.limit)

    async def _last_of_window(
        self, indexed: dict[str, Any], order: dict[str, int], hint: str, watermark: Watermark
    ) -> int | None:
        """Return the id of the last document of a window; None if the range ends inside of it."""
        reply = await self._ids.command(
            {
                "find": "outputs",
                "filter": indexed,
                "projection": {"_id": 0, "id": 1},
                "sort": order,
                "skip": _WINDOW - 1,
                "limit": 1,
                "singleBatch": True,
                "hint": hint,
            },
            watermark.time,
        )
        last = reply["cursor"]["firstBatch"]
        return int(last[0]["id"]) if last else None

    async def _narrowest(
        self, owner: tuple[int, str], selection: Selection, low: int, high: int, watermark: Watermark
    ) -> Selection:
        """Return a selection of several filters by the index that leads to the fewest documents."""

        async def count(field: str) -> int:
            reply = await self._ids.command(
                {
                    "count": "outputs",
                    "query": {**_owner(owner), field: selection.indexed[field], "id": {"$gt": low, "$lt": high}},
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

    async def _first_id_since(self, owner: tuple[int, str], moment: datetime, watermark: Watermark) -> int:
        """Return the lowest id updated at `moment` or later: dates never decrease along ids."""
        reply = await self._ids.command(
            {
                "find": "outputs",
                "filter": {**_owner(owner), "update_date": {"$gte": moment}},
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


def select(query: Query, hidden: int) -> Selection:
    """Return how a query is read, as far as it can be told without looking."""
    indexed = {field: value for name, (_, field) in INDEXED.items() if (value := getattr(query, name)) is not None}
    residual: dict[str, Any] = {}
    passed_over = {} if query.deleted else dict(_LIVE)
    if not indexed:
        passed_over |= _NO_TOMBSTONE
        hint = "id"
    else:
        hint = _HINTS[next(iter(indexed))]
    if query.is_approved is True and not indexed:
        indexed, hint, passed_over = {"is_approved": True}, "approved", {}
    elif query.is_approved is not None:
        residual["is_approved"] = query.is_approved
    if query.scraped_before is not None:
        residual["last_scraped_date"] = {"$lt": query.scraped_before}
    choices = tuple(indexed) if len(indexed) > 1 else ()
    if hidden > _MAX_HIDDEN or residual or choices:
        residual |= passed_over
    else:
        indexed = {**indexed, **passed_over}
    return Selection(hint, indexed, residual, choices)


def _cut(found: list[Document], limit: int) -> _Found:
    if len(found) <= limit:
        return _Found(found, None)
    return _Found(found[:limit], documents.decode(found[limit - 1])["id"])


def _owner(owner: tuple[int, str]) -> dict[str, Any]:
    return {"organization_id": owner[0], "group_id": owner[1]}


_WHOLE = {"_id": 0, **dict.fromkeys(SERVED, 1), "deleted": 1}


def _projection(query: Query) -> dict[str, int]:
    if not query.fields:
        return _WHOLE
    return {"_id": 0, "id": 1, **dict.fromkeys(query.fields, 1), **({"deleted": 1} if query.deleted else {})}
