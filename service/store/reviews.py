"""Reviews: every one is kept, the latest of each job is read."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from pymongo import DESCENDING

from service.store.clock import now
from service.store.connection import DURABLE, MAJORITY, Collection, Database, opened
from service.store.contract import stored, streamed
from service.store.counters import Counters
from service.store.errors import CursorInvalid
from service.store.group import Group
from service.store.indexes import Indexes
from service.store.listing import CHUNK_BYTES, Chunk, Key, Listing, Record, after, by_bytes

_ORDER = ("review_date", "order")
_INDEX, _HISTORY = "latest", "history"
_NEWEST = [(name, DESCENDING) for name in _ORDER]
# Keys read at once, and reviews in the first read, which may be of the largest.
_READ, _FIRST = 1000, 20
# Reviews made before other tasks run.
_MADE_AT_ONCE = 100
# Characters of a comment in the list of jobs.
MAX_SHOWN = 1000
# Approximate bytes of a review besides its comment.
_OVERHEAD = 300
_SERVED = {"_id": 0, "job_id": 1, "review_id": 1, "review_date": 1, "status": 1, "comment": 1}


class Reviews:
    """The reviews of the jobs of a group."""

    def __init__(self, database: Database, counters: Counters, indexes: Indexes) -> None:
        self._reviews: Collection = database.get_collection("reviews", write_concern=DURABLE, read_concern=MAJORITY)
        self._counters, self._indexes = counters, indexes

    @stored
    async def add(self, group: Group, reviews: list[dict[str, Any]], author: str = "") -> list[dict[str, Any]]:
        """Store the reviews with the label of their author's token, and return them as they are served."""
        self._indexes.require("reviews")
        if not reviews:
            return []
        # Of two reviews of one job at one date, the one stored later is the latest.
        first = await self._counters.take(group.organization_id, "reviews", len(reviews))
        moment = now()
        records: list[dict[str, Any]] = []
        for review in reviews:
            records.append(
                {
                    "job_id": review["job_id"],
                    "review_id": str(uuid.uuid4()),
                    "review_date": review["review_date"] or moment,
                    "status": review["status"],
                    "comment": review["comment"],
                }
            )
            if len(records) % _MADE_AT_ONCE == 0:
                await asyncio.sleep(0)
        owner = group.owner
        await self._reviews.insert_many(
            {**owner, **review, "author": author, "order": first + offset} for offset, review in enumerate(records)
        )
        return records

    @stored
    async def latest(self, group: Group, limit: int | None, cursor: Key | None) -> Listing:
        """Return the latest review of each reviewed job of a group, newest first: `limit` of them after a cursor."""
        self._indexes.require("reviews")
        owner = group.owner
        pipeline = _latest(owner)
        if cursor is not None:
            pipeline.append({"$match": after(_ORDER, _key(cursor), "$lt")})
        if limit is None:
            return Listing(self._chunks(owner, pipeline))
        ends = [*pipeline, {"$skip": limit - 1}, {"$limit": 2}]
        ends_reply = await (await opened(self._reviews.aggregate(ends, hint=_INDEX))).to_list(2)
        if len(ends_reply) < 2:
            return Listing(self._chunks(owner, pipeline))
        # By the last one, not by number: a job that is reviewed meanwhile comes first, and none may be left out.
        last = ends_reply[0]["review_date"], ends_reply[0]["order"]
        page = [*pipeline, {"$match": {"$nor": [after(_ORDER, last, "$lt")]}}]
        return Listing(self._chunks(owner, page), (last[0].isoformat(), last[1]))

    @stored
    async def history(self, group: Group, limit: int | None, cursor: Key | None) -> Listing:
        """Return every review of a group with its author, newest first: `limit` of them after a cursor."""
        self._indexes.require("reviews")
        begin = None if cursor is None else _key(cursor)
        if limit is None:
            return Listing(self._every(group.owner, begin, None))
        found = self._reviews.find(_before(group.owner, begin), dict.fromkeys(_ORDER, 1), hint=_HISTORY)
        ends = await found.sort(_NEWEST).skip(limit - 1).limit(2).to_list(2)
        if len(ends) < 2:
            return Listing(self._every(group.owner, begin, None))
        date, order = _position(ends[0])
        return Listing(self._every(group.owner, begin, (date, order)), (date.isoformat(), order))

    @streamed
    async def _every(self, owner: Record, begin: Key | None, end: Key | None) -> AsyncIterator[Chunk]:
        """Yield the reviews between two positions of the history, some at a time."""

        async def read(key: Key | None, count: int) -> list[Record]:
            where = _before(owner, key)
            if end is not None:
                where = {"$and": [where, {"$nor": [after(_ORDER, end, "$lt")]}]}
            # A negative limit is one reply of the server, which ends at 16 MB.
            cursor = self._reviews.find(where, hint=_HISTORY, limit=-count, batch_size=count).sort(_NEWEST)
            reviews: list[Record] = await cursor.to_list(count)
            return reviews

        async for size, reviews in by_bytes(read, _position, _size, begin):
            yield Chunk(size, reviews, lambda review: {**_served(review), "author": review.get("author", "")})

    @stored
    async def latest_of(self, group: Group, jobs: list[str]) -> dict[str, Record]:
        """Return the latest review of each of some jobs, with its author and a comment cut to MAX_SHOWN."""
        self._indexes.require("reviews")
        owner = group.owner
        latest = _latest({**owner, "job_id": {"$in": jobs}})
        keys = await (await opened(self._reviews.aggregate(latest, hint=_INDEX))).to_list(None)
        comment = {"$substrCP": ["$comment", 0, MAX_SHOWN]}
        shown = {**_SERVED, "comment": comment, "author": {"$ifNull": ["$author", ""]}}
        return {review["job_id"]: review for review in await self._read(owner, keys, shown)}

    @stored
    async def remove(self, group: Group) -> None:
        """Delete every review of a group."""
        self._indexes.require("reviews")
        await self._reviews.delete_many(group.owner)

    @streamed
    async def _chunks(self, owner: Record, pipeline: list[Record]) -> AsyncIterator[Chunk]:
        """Yield the reviews of a pipeline's keys, some at a time: a comment may be 256 KB."""
        cursor, at_once = await opened(self._reviews.aggregate(pipeline, batchSize=_READ, hint=_INDEX)), _FIRST
        while keys := await cursor.to_list(_READ):
            while keys:
                reviews = await self._read(owner, keys[:at_once], _SERVED)
                del keys[:at_once]
                size = sum(map(_size, reviews))
                at_once = max(1, min(_READ, CHUNK_BYTES * len(reviews) // max(1, size)))
                yield Chunk(size, reviews)

    async def _read(self, owner: Record, keys: list[Record], fields: Record) -> list[Record]:
        """Return the reviews of some keys, in their order."""
        orders = [key["order"] for key in keys]
        where = {**owner, "job_id": {"$in": [key["_id"] for key in keys]}, "order": {"$in": orders}}
        where["review_date"] = {"$in": [key["review_date"] for key in keys]}  # a job may have very many reviews
        documents = await self._reviews.find(where, {**fields, "order": 1}).hint(_INDEX).to_list(None)
        by_order = {review.pop("order"): review for review in documents}
        return [by_order[order] for order in orders if order in by_order]


def _before(owner: Record, key: Key | None) -> Record:
    """Return the filter for the reviews of a group that are older than a position of its history."""
    return dict(owner) if key is None else {**owner, **after(_ORDER, key, "$lt")}


def _position(review: Record) -> Key:
    return tuple(review[name] for name in _ORDER)


def _served(review: Record) -> Record:
    return {name: review[name] for name in _SERVED if name != "_id"}


def _size(review: Record) -> int:
    return len(review["comment"].encode()) + _OVERHEAD


def _latest(where: Record) -> list[Record]:
    """Return the pipeline that gives job, date and order of the latest review of each job, from the index alone."""
    return [
        {"$match": where},
        {"$sort": {"organization_id": 1, "group_id": 1, "job_id": 1, "review_date": -1, "order": -1}},
        {"$group": {"_id": "$job_id", **{field: {"$first": f"${field}"} for field in _ORDER}}},
        {"$sort": dict.fromkeys(_ORDER, -1)},
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
