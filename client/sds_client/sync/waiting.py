"""Run the async client's work in a loop of its own and wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from sds_client.aio import AsyncClient

T = TypeVar("T")


class Waiting:
    _client: AsyncClient
    _loop: asyncio.AbstractEventLoop

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the work returns, from the loop's own thread; an interrupt here cancels it there."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
