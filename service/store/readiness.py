"""Whether the database takes durable writes, asked at most once per second."""

from __future__ import annotations

import asyncio
import time

from service.store.clock import now
from service.store.connection import DURABLE, Collection, Database
from service.store.contract import stored
from service.store.errors import StoreError
from service.store.time_budget import time_budget

_SECONDS = 1.0
_PROBE = "readiness"


class Readiness:
    """Writes one small document with a majority, as every write of data does.

    A primary without a majority still responds to `ping` and to reads.
    """

    def __init__(self, database: Database) -> None:
        self._probes: Collection = database.get_collection("probes", write_concern=DURABLE)
        self._lock = asyncio.Lock()
        self._asked = float("-inf")
        self._ready = False

    async def check(self) -> bool:
        """Return whether a write was durable within a second; concurrent callers share the result."""
        async with self._lock:
            if time.monotonic() - self._asked >= _SECONDS:
                try:
                    with time_budget(_SECONDS):
                        await self._write()
                    self._ready = True
                except StoreError:
                    self._ready = False
                self._asked = time.monotonic()
            return self._ready

    @stored
    async def _write(self) -> None:
        await self._probes.update_one({"_id": _PROBE}, {"$set": {"date": now()}}, upsert=True)
