"""Begin the job of a crawl."""

from __future__ import annotations

import asyncio
import logging
import secrets
from datetime import UTC, datetime

from sds_client.aio import AsyncClient

log = logging.getLogger(__name__)


def new_job_id(name: str) -> str:
    """Return a job id with the time, and a random end: crawls of two parts may begin in the same second."""
    return f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


class Beginning:
    """Tells the service once, before the first item is written, that a job runs, its series, and the group's history.

    A job that was finished before is counted and judged again. A crawl that dies before it has named its series takes
    the items that it saw out of it.
    """

    def __init__(self, client: AsyncClient, group: str, series: str | None, history_days: int | None = None) -> None:
        self._client, self._group, self.series = client, group, series
        self._history_days = history_days
        self._lock, self._is_declared = asyncio.Lock(), False

    async def declare(self, job_id: str) -> None:
        """Return when the service knows that the job runs. Call it before every write."""
        async with self._lock:
            if not self._is_declared:
                if self._history_days is not None:
                    await self._client.set_group(self._group, history_days=self._history_days)
                job = await self._client.finish_job(self._group, job_id, state="running", series=self.series)
                for warning in job["warnings"]:
                    log.warning("%s", warning["msg"])
                self._is_declared = True
