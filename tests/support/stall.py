"""How long the event loop stood still."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import msgspec

_STEP = 0.002
LONGEST = 0.1
_ESCAPES = b'"%b"' % (rb"\u00e9" * 700_000)

T = TypeVar("T")


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


async def without_stall(work: Callable[[], Awaitable[T]]) -> T:
    """Do something that must not hold up the loop for 100 ms, or on a slow machine for as long as `_yardstick`.

    Only for tests marked `alone`: without coverage, which slows Python down and not the yardstick.
    """
    async with watch_loop() as stalls:
        result = await work()
    limit = LONGEST if stalls.worst < LONGEST else max(LONGEST, _yardstick())
    assert stalls.worst < limit, f"the loop stood still for {stalls.worst:.3f} s; the limit is {limit:.3f} s now"
    return result


def _yardstick() -> float:
    """Return the processor time of work that takes about 100 ms on a machine of two slow cores: how fast it is now."""
    start = time.process_time()
    for _ in range(3):
        msgspec.json.decode(_ESCAPES)
    return time.process_time() - start
