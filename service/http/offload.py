"""Runs work that would block the event loop in a thread; organizations take turns."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakKeyDictionary

from service.http.turns import Turns

T = TypeVar("T")

# Work on more bytes goes to a thread: 64 KB of items take about 2 ms to check and hash.
OFF_LOOP_BYTES = 64 * 1024

# More threads would not be faster, they share one interpreter lock, but would keep the event loop waiting for it.
_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="off-loop")

# Seconds after which the thread lets others run. A request waits for that several times, in the event loop and in the
# driver's threads: during CSV exports of wide items the p99 of others was 157 ms with 1 ms, 113 with 0.5, 80 to 93
# with 0.2, and 70 with 0.05. Only while it works: writing to eight groups at once took 8 % more CPU with 0.5 at all
# times.
_SWITCH_SECONDS = 0.00005

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


async def in_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns, from a thread."""
    loop = asyncio.get_running_loop()
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = Turns(1)
    await turns.take()
    began = time.perf_counter()

    def leave(ended: asyncio.Future[T]) -> None:
        turns.leave()
        if not ended.cancelled():
            ended.exception()  # the caller has gone: else asyncio logs the error, with its texts

    running = loop.run_in_executor(_executor, _considerately, work)
    try:
        return await asyncio.shield(running)
    finally:
        if running.done():
            await turns.end(time.perf_counter() - began)
        else:  # a thread cannot be stopped: its place is free when it ends
            running.add_done_callback(leave)


def _considerately(work: Callable[[], T]) -> T:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        return work()
    finally:
        sys.setswitchinterval(usual)


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Return what `work` returns, from a thread if it takes more than a few milliseconds."""
    return work() if size <= OFF_LOOP_BYTES else await in_thread(work)
