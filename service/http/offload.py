"""Work that would hold the event loop goes to a thread, in turns between organizations."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from service.http.turns import Turns

T = TypeVar("T")

# Work on more than this goes to a thread: 64 KB of items take about 2 ms to check and hash.
OFF_LOOP_BYTES = 64 * 1024

# More threads would not be faster, they share one interpreter lock, but would keep the event loop waiting for it.
_THREADS = 2
# While they work, the event loop asks for the lock several times per request, each time behind them: it gets it after
# 1 ms. At other times that would only cost: 30 % more processor time for a page of 10 items.
_SWITCH_SECONDS, _BUSY_SWITCH_SECONDS = sys.getswitchinterval(), 0.001
_executor = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="off-loop")

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


async def in_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns, from a thread."""
    loop = asyncio.get_running_loop()
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = Turns(_THREADS)
    await turns.take()
    sys.setswitchinterval(_BUSY_SWITCH_SECONDS)

    def end(ended: asyncio.Future[Any]) -> None:
        turns.leave()
        if not turns.taken:
            sys.setswitchinterval(_SWITCH_SECONDS)
        if not ended.cancelled():
            ended.exception()  # whoever asked may have gone

    running = loop.run_in_executor(_executor, work)
    running.add_done_callback(end)
    return await asyncio.shield(running)  # a thread cannot be stopped: its place is free when it ends


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Return what `work` returns, from a thread if it is work for more than a few milliseconds."""
    return work() if size <= OFF_LOOP_BYTES else await in_thread(work)
