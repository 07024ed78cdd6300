"""Name the series of a crawl."""

from __future__ import annotations

import asyncio

from sds_client.aio import AsyncClient


class Series:
    """Names the series of a job once, before the first item is written.

    A crawl that dies before it has named one takes the items that it saw out of their series.
    """

    def __init__(self, client: AsyncClient, group: str, series: str | None) -> None:
        self._client, self._group, self.name = client, group, series
        self._lock, self._is_named = asyncio.Lock(), series is None

    async def declare(self, job_id: str) -> None:
        """Return when the service knows the series of the job. Call it before every write."""
        async with self._lock:
            if not self._is_named:
                await self._client.finish_job(self._group, job_id, state="running", series=self.name)
                self._is_named = True
