"""Outputs: written in rounds with ids from `sequences`, read one indexed range a page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, KeysView
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pymongo import ASCENDING
from pymongo.errors import AutoReconnect, BulkWriteError

from service.settings import Settings
from service.store import documents
from service.store.connection import DURABLE, MAJORITY, Collection, Database
from service.store.contract import stored, streamed
from service.store.documents import Document
from service.store.errors import StoreUnavailable
from service.store.groups import Change, Groups
from service.store.items import IDENTITY, SERVED, Known, Row, make_row, messages, result
from service.store.sequences import DUPLICATE_KEY, Batch, GroupCommit, Mark, Sequences
from service.store.time_budget import time_budget

_PROJECTION = {"_id": 0, **dict.fromkeys(SERVED, 1)}
# Items of 2 KB: a streamed page is 1 MB, in memory a few times over.
STREAMED = 500
# The driver decodes pages up to this, the cheapest way: 39 instead of 43 ms for each 1000 items at a
# limit of 100. It holds the interpreter lock meanwhile, 17 ms for 1000 items of 2 KB: larger pages
# are decoded here, item by item.
_DECODED_BY_DRIVER = 128

# Index name -> the field after (organization_id, group_id), in the order of how few it leaves.
FILTERS = {
    "url": "source_url",
    "job_id": "root_job_id",
    "region": "tags.region",
    "country": "tags.country",
}
_TAGS = ("region", "country")
# Each lost round means that another writer changed the same keys: 20 losses in a row are a stuck
# database, not a race.
_MOST_ROUNDS = 20


class Query(NamedTuple):
    """Which outputs of a group a page is made of."""

    cursor: int = 0
    limit: int = 10
    created_after: datetime | None = None
    job_id: str | None = None
    url: str | None = None
    country: str | None = None
    region: str | None = None
    fields: tuple[str, ...] = ()  # paths to keep; empty keeps all


class Page(NamedTuple):
    """Documents in the order of their ids, the cursor of the next page, the version shown."""

    documents: list[Document]
    next_cursor: int | None
    version: int


class _Found(NamedTuple):
    """Documents of a range, and whether it goes on after them."""

    documents: list[Document]
    more: bool


@dataclass(eq=False)
class Write:
    """One request's items by key, the last of each key, and who waits for them."""

    items: dict[str, dict[str, Any]]
    deadline: float
    done: asyncio.Future[dict[str, dict[str, Any]]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def keys(self) -> KeysView[str]:
        return self.items.keys()

    @property
    def size(self) -> int:
        return sum(item["size"] for item in self.items.values())


class Outputs:
    """Outputs of the groups of an organization."""

    def __init__(self, database: Database, sequences: Sequences, groups: Groups, settings: Settings) -> None:
        self._outputs: Collection = database.get_collection("outputs", write_concern=DURABLE, read_concern=MAJORITY)
        self._database = database
        self._sequences = sequences
        self._groups = groups
        self._commits = GroupCommit[Write](self._commit, settings.group_commit)
        self._indexed = False
        self._seconds = settings.mongo_timeout
        self._page_bytes = settings.max_page_bytes

    async def ensure_indexes(self) -> None:
        """Make the indexes that every read and write here relies on."""
        group = [("organization_id", ASCENDING), ("group_id", ASCENDING)]

        async def index(name: str, *fields: str, **options: Any) -> None:
            keys = [*group, *((name, ASCENDING) for name in fields)]
            await self._outputs.create_index(keys, name=name, **options)

        await index("id", "id", unique=True)
        present = {"key_hash": {"$exists": True}}  # tombstones have none
        await index("key", "key_hash", unique=True, partialFilterExpression=present)
        for name, path in FILTERS.items():
            partial = {path: {"$exists": True}}
            await index(name, path, "id", partialFilterExpression=partial)
        await index("updated", "update_date", "id")
        await self._outputs.create_index(
            "tombstone", name="tombstone", partialFilterExpression={"tombstone": {"$exists": True}}
        )
        self._indexed = True

    # -- reading -----------------------------------------------------------------------------

    @stored
    async def page(self, organization_id: int, group_id: str, query: Query) -> Page:
        """Return the page after `query.cursor`, in the order of ids, without gaps."""
        mark = self._sequences.remembered(organization_id, group_id)
        if query.cursor + 1 < mark.end:
            found = await self._range(organization_id, group_id, query, mark)
            if found.more:
                return self._page(found, mark)
        else:
            found = None
        # At the tail only a new mark can tell whether there is more.
        new = await self._sequences.mark(organization_id, group_id)
        if found is None or new.version != mark.version:
            found = await self._range(organization_id, group_id, query, new)
        return self._page(found, new)

    @streamed
    async def pages(
        self, organization_id: int, group_id: str, query: Query, most: int | None = None
    ) -> AsyncIterator[Page]:
        """Yield pages from the cursor to the present end, or `most` items of them."""
        left = most
        while True:
            limit = STREAMED if left is None else min(STREAMED, left)
            page = await self.page(organization_id, group_id, query._replace(limit=limit))
            yield page
            left = None if left is None else left - len(page.documents)
            if page.next_cursor is None or left == 0:
                return
            query = query._replace(cursor=page.next_cursor, created_after=None)

    async def version(self, organization_id: int, group_id: str) -> int:
        """Return the version that a page read now would show."""
        return (await self._sequences.mark(organization_id, group_id)).version

    @staticmethod
    def _page(found: _Found, mark: Mark) -> Page:
        next_cursor = documents.decode(found.documents[-1])["id"] if found.more else None
        return Page(found.documents, next_cursor, mark.version)

    async def _range(self, organization_id: int, group_id: str, query: Query, mark: Mark) -> _Found:
        """Return up to `limit` documents between the cursor and the mark; fewer if they are very large."""
        where, hint = self.selection(organization_id, group_id, query)
        cursor, sort = query.cursor, {"id": ASCENDING}
        if query.created_after is not None and hint == "id" and not cursor:
            # The first of many, as a rule: dates never decrease along ids, so their order is the ids'.
            where["update_date"] = {"$gte": query.created_after}
            sort, hint = {"update_date": ASCENDING, "id": ASCENDING}, "updated"
        elif query.created_after is not None:
            # After the mark: an item in flight before it could have an id below the one found here.
            first = await self._first_id_since(organization_id, group_id, query.created_after)
            if first is None:
                return _Found([], more=False)
            cursor = max(cursor, first - 1)
        if cursor + 1 >= mark.end:
            return _Found([], more=False)
        where["id"] = {"$gt": cursor, "$lt": mark.end}
        wanted = {
            "filter": where,
            "projection": _projection(query.fields),
            "sort": sort,
            "limit": query.limit + 1,  # one more tells whether there is a further page
        }
        if hint is not None:
            wanted["hint"] = hint
        if query.limit <= _DECODED_BY_DRIVER:
            found = await self._decoded(wanted)
            if found is not None:
                return _Found(found[: query.limit], more=len(found) > query.limit)
        raw = self._outputs.find_raw_batches(**wanted, batch_size=wanted["limit"])
        return await self._encoded(raw, query.limit)

    async def _decoded(self, wanted: dict[str, Any]) -> list[Document] | None:
        """Return documents decoded by the driver, or None if they are more than one message of 16 MB.

        A command, not a cursor: it takes 70 µs less, a fifteenth of a page of 10 items.
        """
        command = {"find": "outputs", **wanted, "batchSize": wanted["limit"], "readConcern": MAJORITY.document}
        try:
            answer = await self._database.command(command, codec_options=documents.NAIVE)
        except AutoReconnect:  # once more, as the driver itself does for cursors
            answer = await self._database.command(command, codec_options=documents.NAIVE)
        cursor = answer["cursor"]
        if cursor["id"]:
            await self._database.command({"killCursors": "outputs", "cursors": [cursor["id"]]})
            return None
        return list(cursor["firstBatch"])

    async def _encoded(self, batches: Any, limit: int) -> _Found:
        """Return the first `limit` documents of raw batches, still encoded, or fewer once they are too many bytes."""
        found: list[Document] = []
        size = 0
        async for raw in batches:  # of 16 MB at most each
            found += documents.split(raw)
            size += len(raw)
            if size > self._page_bytes:
                cut = len(found) <= limit and batches.alive
                await batches.close()
                return _Found(found[:limit], more=len(found) > limit or cut)
        return _Found(found[:limit], more=len(found) > limit)

    @staticmethod
    def selection(organization_id: int, group_id: str, query: Query) -> tuple[dict[str, Any], str | None]:
        """Return the filter for a query, without its ids, and the index to read it by.

        With two filters or more the database chooses, except that one URL is always the fewest.
        """
        where: dict[str, Any] = {"organization_id": organization_id, "group_id": group_id}
        names = [name for name in FILTERS if getattr(query, name) is not None]
        for name in names:
            value = getattr(query, name)
            # A tag may hold an array, of which the database would compare each element.
            where[FILTERS[name]] = {"$eq": value, "$not": {"$type": "array"}} if name in _TAGS else value
        if not names:
            where["tombstone"] = {"$exists": False}
            return where, "id"
        return where, names[0] if len(names) == 1 or names[0] == "url" else None

    async def _first_id_since(self, organization_id: int, group_id: str, moment: datetime) -> int | None:
        """Return the lowest id updated at `moment` or later: dates never decrease along ids."""
        found = await self._outputs.find_one(
            {
                "organization_id": organization_id,
                "group_id": group_id,
                "update_date": {"$gte": moment},
            },
            {"_id": 0, "id": 1},
            sort=[("update_date", ASCENDING), ("id", ASCENDING)],
            hint="updated",
        )
        return None if found is None else int(found["id"])

    # -- writing -----------------------------------------------------------------------------

    @stored
    async def write(self, organization_id: int, group_id: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Create, update or leave each prepared item by its key; return the results in order.

        Returns when all of it is durable. The last of several items with one key wins.
        """
        write = Write({item["key_hash"]: item for item in items}, time.monotonic() + self._seconds)
        if not write.items:
            return []
        results = await self._commits.submit((organization_id, group_id), write)
        return [results[item["key_hash"]] for item in items]

    async def close(self) -> None:
        """Wait for the writes under way."""
        await self._commits.close()

    @property
    def rounds_in_flight(self) -> int:
        return self._commits.in_flight

    async def _commit(self, group: tuple[int, str], writes: list[Write]) -> None:
        now = time.monotonic()
        if any(write.deadline < now for write in writes):
            # Who waited too long has been told so, and may have sent the same again by now.
            late = [write for write in writes if write.deadline < now]
            writes = [write for write in writes if write not in late]
            for write in late:
                write.done.set_exception(StoreUnavailable("out of time"))
                write.done.exception()  # the caller may be gone: no "never retrieved" noise
        if writes:
            with time_budget(self._seconds):
                await self._rounds(group, writes)

    @stored
    async def _rounds(self, group: tuple[int, str], writes: list[Write]) -> None:
        if not self._indexed:
            # Without the unique ones two writers could make two items of one key.
            await self.ensure_indexes()
        pending = {key: item for write in writes for key, item in write.items.items()}
        results: dict[str, dict[str, Any]] = {}
        for _ in range(_MOST_ROUNDS):
            done = await self._round(*group, pending)
            results.update(done)
            pending = {key: item for key, item in pending.items() if key not in done}
            if not pending:
                break
        for write in writes:
            if write.done.done():
                continue
            if any(key not in results for key in write.items):
                write.done.set_exception(StoreUnavailable("lost every race"))
            else:
                write.done.set_result({key: results[key] for key in write.items})

    async def _round(
        self, organization_id: int, group_id: str, pending: dict[str, dict[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """Try to write all pending items once; return the results of those that are done.

        The others met a writer that changed the same key meanwhile, or a tombstone.
        """
        known = await self._known(organization_id, group_id, list(pending))
        moved = {
            key: item
            for key, item in pending.items()
            if key not in known or known[key].content_hash != item["content_hash"]
        }
        same = {key: item for key, item in pending.items() if key not in moved}
        results = {key: result(known[key].id, known[key].output_id, key, "unchanged") for key in same}
        await self._touch(organization_id, group_id, same)
        if not moved:
            return results
        began = time.monotonic()
        batch = await self._sequences.allocate(organization_id, group_id, len(moved))
        rows = [
            make_row(batch, batch.first + offset, item, known.get(key))
            for offset, (key, item) in enumerate(moved.items())
        ]
        lost = await self._write(batch, rows)
        change = Change(batch)
        for row in rows:
            if row.key in lost:
                continue
            change.add(row.document, row.known is None, row.known is not None and row.known.is_approved)
            results[row.key] = result(
                row.document["id"],
                row.output_id,
                row.key,
                "created" if row.known is None else "updated",
            )
        await self._groups.apply(change)
        await self._sequences.release(batch)
        if time.monotonic() - began < self._sequences.lease_seconds:
            # No reaper has seen it as expired, so none will come to count it.
            self._groups.forget(batch)
        return results

    async def _known(self, organization_id: int, group_id: str, keys: list[str]) -> dict[str, Known]:
        found = self._outputs.find(
            {
                "organization_id": organization_id,
                "group_id": group_id,
                "key_hash": {"$in": keys},
            },
            IDENTITY,
            hint="key",
            batch_size=len(keys) + 1,
        )
        return {
            document["key_hash"]: Known(
                document["id"],
                document["output_id"],
                document.get("content_hash", ""),
                document["is_approved"],
                {f["id"]: f["create_date"] for f in document.get("files", ())},
            )
            for document in await found.to_list(None)
        }

    async def _touch(self, organization_id: int, group_id: str, same: dict[str, dict[str, Any]]) -> None:
        """Move `last_scraped_date` forward; the items of one scrape mostly share one date."""
        by_date: dict[datetime, list[str]] = {}
        now = datetime.now(UTC)
        for key, item in same.items():
            by_date.setdefault(item.get("last_scraped_date", now), []).append(key)
        for date, keys in by_date.items():
            await self._outputs.update_many(
                {
                    "organization_id": organization_id,
                    "group_id": group_id,
                    "key_hash": {"$in": keys},
                },
                {"$max": {"last_scraped_date": date}},
                hint="key",
            )

    async def _write(self, batch: Batch, rows: list[Row]) -> set[str]:
        """Write the rows durably and return the keys that lost to another writer or a tombstone.

        When the outcome is unknown it raises, and the batch stays in flight for the reaper.
        """
        await self._sequences.step("before write")
        lost: set[str] = set()
        matched = 0
        for part in messages(rows):
            try:
                done = await self._outputs.bulk_write([row.operation for row in part], ordered=False)
                matched += done.matched_count
            except BulkWriteError as error:
                details = error.details
                if details.get("writeConcernErrors"):
                    raise
                if any(e["code"] != DUPLICATE_KEY for e in details["writeErrors"]):
                    # The server has answered: nothing of this batch can land any more.
                    await self._end(batch)
                    raise
                matched += details["nMatched"]
                lost |= {part[e["index"]].key for e in details["writeErrors"]}
        await self._sequences.step("written")
        updates = [row for row in rows if row.known is not None and row.key not in lost]
        if matched < len(updates):
            # Some had another id than when they were looked up: see which were written.
            now = await self._known(batch.organization_id, batch.group_id, [row.key for row in updates])
            lost |= {r.key for r in updates if r.key not in now or now[r.key].id != r.document["id"]}
        return lost

    # -- ending what dead writers left ---------------------------------------------------------

    async def reap(self) -> int:
        """End the batches whose writers are gone; return how many there were."""
        batches = await self._sequences.expired()
        for batch in batches:
            await self._sequences.fence(batch)
            await self._end(batch)
        return len(batches)

    async def _end(self, batch: Batch) -> None:
        """Take a batch out of flight that was written in part, when no more of it can land."""
        await self._groups.apply(await self._written(batch))
        await self._sequences.release(batch)

    @stored
    async def _written(self, batch: Batch) -> Change:
        """Return what a batch changed, as far as it can be seen."""
        change = Change(batch)
        ids = {"$gte": batch.first, "$lt": batch.first + batch.size}
        where = {
            "organization_id": batch.organization_id,
            "group_id": batch.group_id,
            # What it created may have been changed since, and have a higher id; no more than a
            # lease's worth of documents have.
            "id": {"$gte": batch.first},
            "$or": [{"id": ids, "tombstone": {"$exists": False}}, {"first_id": ids}],
        }
        fields = ["id", "first_id", "root_job_id", "is_approved"]
        seen = set()
        async for document in self._outputs.find(where, fields, hint="id"):
            if document["_id"] in seen:  # changed while this reads, and met again at its new id
                continue
            seen.add(document["_id"])
            created = document.get("first_id", 0) >= batch.first
            # Whether a changed one was approved before is not known: counted as no difference.
            in_place = document["id"] < batch.first + batch.size
            change.add(document, created, not (created and in_place) and document["is_approved"])
        return change


def _projection(fields: tuple[str, ...]) -> dict[str, int]:
    return {"_id": 0, "id": 1, **dict.fromkeys(fields, 1)} if fields else _PROJECTION
