"""Reviews: every one is kept, the latest of each job is read."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

from service.store.browser_state import now
from service.store.connection import DURABLE, MAJORITY, Collection, Database
from service.store.contract import stored, streamed
from service.store.counters import Counters
from service.store.errors import CursorInvalid
from service.store.indexes import Indexes
from service.store.listing import Batch, Key, Listing, Record, after, split

_ORDER = ("review_date", "order")
_READ = 1000
# What a review has besides its comment, roughly, in bytes.
_OVERHEAD = 300
_SERVED = {"_id": 0, "job_id": 1, "review_id": 1, "review_date": 1, "status": 1, "comment": 1}


class Reviews:
    """The reviews of the jobs of a group."""

    def __init__(self, database: Database, counters: Counters, indexes: Indexes) -> None:
        self._reviews: Collection = database.get_collection("reviews", write_concern=DURABLE, read_concern=MAJORITY)
        self._counters, self._indexes = counters, indexes

    @stored
    async def add(self, organization_id: int, group_id: str, reviews: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Store the reviews and return them as they are served."""
        self._indexes.require("reviews")
        if not reviews:
            return []
        # Of two reviews of one job at one date, the one stored later is the latest.
        first = await self._counters.take(organization_id, "reviews", len(reviews))
        moment = now()
        served = [
            {
                "job_id": review["job_id"],
                "review_id": str(uuid.uuid4()),
                "review_date": review["review_date"] or moment,
                "status": review["status"],
                "comment": review["comment"],
            }
            for review in reviews
        ]
        owner = {"organization_id": organization_id, "group_id": group_id}
        await self._reviews.insert_many(
            {**owner, **review, "order": first + offset} for offset, review in enumerate(served)
        )
        return served

    @stored
    async def latest(self, organization_id: int, group_id: str, limit: int | None, cursor: Key | None) -> Listing:
        """Return the latest review of each reviewed job of a group, newest first: `limit` of them after a cursor."""
        self._indexes.require("reviews")
        pipeline = _latest(organization_id, group_id)
        if cursor is not None:
            pipeline.append({"$match": after(_ORDER, _key(cursor), "$lt")})
        if limit is None:
            return Listing(self._batches(pipeline))
        ends = [*pipeline, {"$skip": limit - 1}, {"$limit": 2}, {"$project": {"_id": 0, **dict.fromkeys(_ORDER, 1)}}]
        found = await self._reviews.aggregate(ends, allowDiskUse=True).to_list(2)
        next_key = None
        if len(found) > 1:
            next_key = (found[0]["review_date"].isoformat(), found[0]["order"])
        return Listing(self._batches([*pipeline, {"$limit": limit}]), next_key)

    @stored
    async def latest_of(self, organization_id: int, group_id: str, jobs: list[str]) -> dict[str, Record]:
        """Return the latest review of each of some jobs."""
        self._indexes.require("reviews")
        pipeline = [*_latest(organization_id, group_id, {"$in": jobs}), {"$project": _SERVED}]
        return {review["job_id"]: review async for review in self._reviews.aggregate(pipeline)}

    @stored
    async def remove(self, organization_id: int, group_id: str) -> None:
        """Delete every review of a group."""
        self._indexes.require("reviews")
        await self._reviews.delete_many({"organization_id": organization_id, "group_id": group_id})

    @streamed
    async def _batches(self, pipeline: list[Record]) -> AsyncIterator[Batch]:
        found = self._reviews.aggregate([*pipeline, {"$project": _SERVED}], batchSize=_READ, allowDiskUse=True)
        while reviews := await found.to_list(_READ):
            for size, part in split(reviews, _size):
                yield Batch(size, partial(list, part))


def _size(review: Record) -> int:
    return len(review["comment"]) + _OVERHEAD


def _latest(organization_id: int, group_id: str, job_id: Record | None = None) -> list[Record]:
    where: Record = {"organization_id": organization_id, "group_id": group_id}
    if job_id is not None:
        where["job_id"] = job_id
    return [
        {"$match": where},
        {"$sort": {"job_id": 1, "review_date": -1, "order": -1}},
        {"$group": {"_id": "$job_id", "latest": {"$first": "$$ROOT"}}},
        {"$replaceRoot": {"newRoot": "$latest"}},
        {"$sort": {"review_date": -1, "order": -1}},
    ]


def _key(cursor: Key) -> Key:
    """Return the place in the list that a cursor names."""
    match cursor:
        case (str(date), int(order)):
            try:
                return datetime.fromisoformat(date).astimezone(UTC), order
            except (ValueError, OverflowError):
                pass
    raise CursorInvalid
