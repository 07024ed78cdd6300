"""Reviews: every one is kept, the latest of each job is read."""

from __future__ import annotations

import uuid
from typing import Any

from service.store.browser_state import now
from service.store.connection import DURABLE, MAJORITY, Collection, Database
from service.store.contract import stored
from service.store.counters import Counters

_SERVED = {"_id": 0, "job_id": 1, "review_id": 1, "review_date": 1, "status": 1, "comment": 1}


class Reviews:
    """The reviews of the jobs of a group."""

    def __init__(self, database: Database, counters: Counters) -> None:
        self._reviews: Collection = database.get_collection("reviews", write_concern=DURABLE, read_concern=MAJORITY)
        self._counters = counters

    @stored
    async def add(self, organization_id: int, group_id: str, reviews: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Store the reviews and return them as they are served."""
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

    @stored
    async def latest_of(self, organization_id: int, group_id: str, jobs: list[str]) -> dict[str, dict[str, Any]]:
        """Return the latest review of each of some jobs."""
        pipeline: list[dict[str, Any]] = [
            {"$match": {"organization_id": organization_id, "group_id": group_id, "job_id": {"$in": jobs}}},
            {"$sort": {"job_id": 1, "review_date": -1, "order": -1}},
            {"$group": {"_id": "$job_id", "latest": {"$first": "$$ROOT"}}},
            {"$replaceRoot": {"newRoot": "$latest"}},
            {"$project": _SERVED},
        ]
        return {review["job_id"]: review async for review in self._reviews.aggregate(pipeline)}

    @stored
    async def remove(self, organization_id: int, group_id: str) -> None:
        """Delete every review of a group."""
        await self._reviews.delete_many({"organization_id": organization_id, "group_id": group_id})
