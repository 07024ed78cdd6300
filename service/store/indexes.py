"""Every index of every collection, and how they are made.

Index builds may take hours: they run in the upkeep, without the time limit of requests.
A collection may be written only when its indexes exist: without the unique ones two writers
could store one record twice.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from pymongo import IndexModel
from pymongo.errors import OperationFailure

from service.store.connection import Database, opened
from service.store.contract import stored, without_time_limit
from service.store.errors import StoreUnavailable

log = logging.getLogger("service.store")

# Server codes: a duplicate key, and an index of the same name with other options or keys.
_CONFLICTS = {11000, 85, 86}
_GROUP = ("organization_id", "group_id")
_POOL = ("organization_id", "pool_id")
_WEBHOOK = ("organization_id", "webhook_id")

# How long a release that is repeated gets the same response.
_RECEIPT_SECONDS = 3600


def _index(name: str, *fields: str, **options: Any) -> IndexModel:
    keys = [(field.removeprefix("-"), -1 if field.startswith("-") else 1) for field in fields]
    return IndexModel(keys, name=name, **options)


def _present(field: str) -> dict[str, Any]:
    return {"partialFilterExpression": {field: {"$exists": True}}}


INDEXES: dict[str, list[IndexModel]] = {
    "outputs": [
        _index("id", *_GROUP, "id", unique=True),
        _index("job", *_GROUP, "root_job_id", "id", **_present("root_job_id")),
        _index("url", *_GROUP, "source_url", "id", **_present("source_url")),
        _index("country", *_GROUP, "country", "id", **_present("country")),
        _index("region", *_GROUP, "region", "id", **_present("region")),
        _index("updated", *_GROUP, "update_date", "id", **_present("update_date")),
        _index("approved", *_GROUP, "id", "is_approved", partialFilterExpression={"is_approved": True}),
        _index("deleted", *_GROUP, "update_date", "id", partialFilterExpression={"deleted": True}),
        _index("removed", *_GROUP, "id", "deleted", partialFilterExpression={"deleted": True}),
        _index("tombstone", *_GROUP, "tombstone", **_present("tombstone")),
    ],
    "versions": [
        _index("version", *_GROUP, "output_id", "-id", unique=True),
        _index("replaced", *_GROUP, "replaced_date"),
    ],
    "groups": [
        _index("group", *_GROUP, unique=True),
        _index("recent", "organization_id", "last_change", "group_id", **_present("last_change")),
        _index("deadline", "open.deadline", **_present("open.deadline")),
        _index("due", "due", **_present("due")),
        _index("silent", "silent_due", **_present("silent_due")),
    ],
    "jobs": [
        _index("job", *_GROUP, "job_id", unique=True),
        _index("recent", *_GROUP, "-last_write", "-_id"),
        # Finds the few jobs of a series that still hold items, and the job of a series that finished last.
        _index("held", *_GROUP, "series", "items", partialFilterExpression={"items": {"$gt": 0}}),
        _index("finished", *_GROUP, "series", "-finish_date", partialFilterExpression={"state": "finished"}),
        _index("newest", *_GROUP, "-finish_date", partialFilterExpression={"state": "finished"}),
        _index("untold", "finish_date", partialFilterExpression={"untold": True}),
        _index("deleting", "deleting.date", **_present("deleting.date")),
    ],
    "days": [_index("day", *_GROUP, "date", unique=True)],
    "reviews": [
        _index("latest", *_GROUP, "job_id", "-review_date", "-order"),
        _index("history", *_GROUP, "-review_date", "-order"),
    ],
    "tokens": [_index("organization", "organization_id", "create_date")],
    "cookies": [_index("identity", "organization_id", "domain", "path_key", "name", unique=True)],
    "local_storage": [_index("identity", "organization_id", "domain", "path", "key", unique=True)],
    "origins": [
        _index("identity", "organization_id", "origin", unique=True),
        _index("domain", "organization_id", "domain", "origin"),
    ],
    "pools": [
        _index("pool", "organization_id", "pool", unique=True, **_present("pool")),
        _index("removed", "removed", **_present("removed")),
    ],
    "sessions": [
        _index("name", *_POOL, "name", unique=True),
        _index("take", *_POOL, "state", "turn"),
        _index("due", *_POOL, "due", **_present("due")),
        _index("lease", "organization_id", "leases.id", unique=True, **_present("leases.id")),
    ],
    "session_secrets": [_index("pool", *_POOL)],
    "released_leases": [_index("date", "date", expireAfterSeconds=_RECEIPT_SECONDS)],
    "webhooks": [
        _index("identity", "organization_id", "webhook_id", unique=True),
        _index("due", "due", **_present("due")),
    ],
    "deliveries": [
        _index("due", *_WEBHOOK, "due", **_present("due")),
        _index("recent", *_WEBHOOK, "-create_date", "-_id"),
        _index("group", *_WEBHOOK, "group_id"),
        _index("ended", *_WEBHOOK, "state", "-create_date"),
    ],
}


class Indexes:
    """Knows which collections have their indexes, and makes those that are missing."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ready: set[str] = set()
        self._all_ready = asyncio.Event()

    @property
    def are_ready(self) -> bool:
        return self._ready >= set(INDEXES)

    async def wait_until_ready(self) -> None:
        """Return when every collection has its indexes."""
        await self._all_ready.wait()

    def have(self, *collections: str) -> bool:
        """Return whether some collections have their indexes."""
        return self._ready.issuperset(collections)

    def require(self, *collections: str) -> None:
        """Raise StoreUnavailable while a collection has no indexes yet."""
        if not self.have(*collections):
            raise StoreUnavailable("indexes are being built")

    def forget(self) -> None:
        """Refuse reads and writes until `ensure` has run again."""
        self._ready.clear()

    @stored
    @without_time_limit
    async def ensure(self) -> None:
        """Make all indexes, with one command per collection; cheap when they exist already.

        One collection does not wait for another, which may take hours or fail.
        """
        results = await asyncio.gather(*map(self._make, INDEXES), return_exceptions=True)
        for error in results:
            if error is not None:
                raise error
        self._all_ready.set()

    @stored
    async def verify(self) -> None:
        """Raise StoreUnavailable if indexes are missing, for example because the database was dropped.

        Their collections are not read or written until `ensure` has run again: without unique indexes two writers would
        store one record twice.
        """
        found = await asyncio.gather(*map(self._missing, INDEXES))
        vanished = {name for name, missing in zip(INDEXES, found, strict=True) if missing}
        if vanished:
            self._ready -= vanished
            log.error("indexes have vanished, and are made again", extra={"collections": sorted(vanished)})
            raise StoreUnavailable("indexes have vanished")

    async def _missing(self, name: str) -> set[str]:
        names = {index["name"] async for index in await opened(self._database[name].list_indexes())}
        return {index.document["name"] for index in INDEXES[name]} - names

    async def _make(self, name: str) -> None:
        try:
            await self._database[name].create_indexes(INDEXES[name])
            self._ready.add(name)
        except OperationFailure as error:
            if error.code in _CONFLICTS:
                self._ready.discard(name)
                log.error(
                    "indexes cannot be made: remove records that are stored twice, or the index that differs",
                    extra={"collection": name, "code": error.code},
                )
            raise
