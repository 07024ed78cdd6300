"""How long the event loop stood still."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_STEP = 0.002


class Stalls:
    worst = 0.0


@asynccontextmanager
async def watch_loop() -> AsyncIterator[Stalls]:
    """Measure the longest time that the loop did nothing else, in seconds.

    Time in which this process did not run at all is not counted: the machine belongs to others too.
    """
    stalls = Stalls()

    async def watch() -> None:
        while True:
            wall, work = time.perf_counter(), time.process_time()
            await asyncio.sleep(_STEP)
            late = min(time.perf_counter() - wall, time.process_time() - work) - _STEP
            stalls.worst = max(stalls.worst, late)

    watcher = asyncio.create_task(watch())
    await asyncio.sleep(0)
    try:
        yield stalls
        await asyncio.sleep(2 * _STEP)
    finally:
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher
