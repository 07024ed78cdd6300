"""Reviews: every one is kept, the latest of each job is read."""

from __future__ import annotations

import uuid
from typing import Any

from pymongo import ASCENDING, DESCENDING

from service.store.browser_state import now
from service.store.connection import DURABLE, MAJORITY, Collection, Database
from service.store.contract import stored
from service.store.sequences import Sequences

_SERVED = {"_id": 0, "job_id": 1, "review_id": 1, "review_date": 1, "status": 1, "comment": 1}


class Reviews:
    """The reviews of the jobs of a group."""

    def __init__(self, database: Database, sequences: Sequences) -> None:
        self._reviews: Collection = database.get_collection("reviews", write_concern=DURABLE, read_concern=MAJORITY)
        self._sequences = sequences

    async def ensure_indexes(self) -> None:
        """Make the index that leads to the latest review of each job."""
        await self._reviews.create_index(
            [
                ("organization_id", ASCENDING),
                ("group_id", ASCENDING),
                ("job_id", ASCENDING),
                ("review_date", DESCENDING),
                ("order", DESCENDING),
            ],
            name="latest",
        )

    @stored
    async def add(self, organization_id: int, group_id: str, reviews: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Store the reviews and return them as they are served."""
        if not reviews:
            return []
        # Of two reviews of one job at one date, the one stored later is the latest.
        first = await self._sequences.count(organization_id, "reviews", len(reviews))
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
    async def latest(self, organization_id: int, group_id: str) -> list[dict[str, Any]]:
        """Return the latest review of each reviewed job of a group, newest first."""
        pipeline: list[dict[str, Any]] = [
            {"$match": {"organization_id": organization_id, "group_id": group_id}},
            {"$sort": {"job_id": 1, "review_date": -1, "order": -1}},
            {"$group": {"_id": "$job_id", "latest": {"$first": "$$ROOT"}}},
            {"$replaceRoot": {"newRoot": "$latest"}},
            {"$sort": {"review_date": -1, "order": -1}},
            {"$project": _SERVED},
        ]
        return await self._reviews.aggregate(pipeline).to_list(None)
