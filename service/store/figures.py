"""Figures of the database as a whole, for /metrics, which anyone may ask for."""

from __future__ import annotations

import asyncio
import contextvars
import time
from typing import Any, NamedTuple

from service.store.connection import Database, opened
from service.store.contract import stored
from service.store.errors import StoreError
from service.store.sessions.pools import Pools
from service.store.time_budget import time_budget
from service.store.upkeep import Upkeep

# How long figures are returned again instead of read.
MAX_AGE_SECONDS = 1.0
_READ_SECONDS = 1.0


class InFlight(NamedTuple):
    """The batches in flight of all groups, the age of the oldest, and how long the oldest group waits for upkeep."""

    batches: int
    oldest_seconds: float
    oldest_upkeep_seconds: float


class Figures:
    """Reads the figures, at most once per second, however many ask."""

    def __init__(self, database: Database, upkeep: Upkeep, pools: Pools) -> None:
        self._groups, self._upkeep, self._pools = database["groups"], upkeep, pools
        self._read: asyncio.Future[tuple[InFlight | None, dict[str, int]]] | None = None
        self._read_at = 0.0

    async def current(self) -> tuple[InFlight | None, dict[str, int]]:
        """Return the batches in flight, None if the database does not respond; and the sessions by state."""
        if self._read is None or time.monotonic() >= self._read_at + MAX_AGE_SECONDS:
            # In a context of its own: it must not end with the time of the request that began it.
            context = contextvars.Context()
            self._read, self._read_at = asyncio.create_task(self._both(), context=context), time.monotonic()
        return await asyncio.shield(self._read)

    async def _both(self) -> tuple[InFlight | None, dict[str, int]]:
        return await asyncio.gather(self.in_flight(), self._pools.by_state())

    async def in_flight(self) -> InFlight | None:
        """Read the batches in flight; None if the database does not respond within a second."""
        try:
            with time_budget(_READ_SECONDS):
                return await self._in_flight()
        except StoreError:
            return None

    @stored
    async def _in_flight(self) -> InFlight:
        pipeline: list[dict[str, Any]] = [
            {"$match": {"open.0": {"$exists": True}}},
            {"$unwind": "$open"},
            {"$group": {"_id": None, "batches": {"$sum": 1}, "oldest": {"$min": "$open.date"}}},
            {"$project": {"batches": 1, "millis": {"$subtract": ["$$NOW", "$oldest"]}}},
        ]
        late = await self._upkeep.seconds_late()
        for row in await (await opened(self._groups.aggregate(pipeline, hint="deadline"))).to_list(1):
            return InFlight(row["batches"], max(0.0, row["millis"] / 1000), late)
        return InFlight(0, 0.0, late)
