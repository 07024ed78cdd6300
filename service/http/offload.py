"""Work that would hold the event loop goes to a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# Work on more than this goes to a thread: 64 KB of items take about 2 ms to check and hash.
OFF_LOOP_BYTES = 64 * 1024


# More threads would not be faster, they share one interpreter lock, but would keep the event loop waiting for it.
_threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="off-loop")


async def in_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns, from a thread."""
    return await asyncio.get_running_loop().run_in_executor(_threads, work)


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Return what `work` returns, from a thread if it is work for more than a few milliseconds."""
    return work() if size <= OFF_LOOP_BYTES else await in_thread(work)
