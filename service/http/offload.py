"""Work that would hold the event loop goes to a thread, in turns between organizations."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

# Work on more than this goes to a thread: 64 KB of items take about 2 ms to check and hash.
OFF_LOOP_BYTES = 64 * 1024

# More threads would not be faster, they share one interpreter lock, but would keep the event loop waiting for it.
_THREADS = 2
# While they work, the event loop asks for the lock several times per request, each time behind them: it gets it after
# 1 ms. At other times that would only cost: 30 % more processor time for a page of 10 items.
_SWITCH_SECONDS, _BUSY_SWITCH_SECONDS = sys.getswitchinterval(), 0.001
_executor = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="off-loop")

# The organization that the present request belongs to.
TENANT: ContextVar[int] = ContextVar("tenant", default=-1)


class _Queue:
    """Work that waits for a thread: the oldest of each organization in turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running = 0
        self._waiting: OrderedDict[int, deque[tuple[Callable[[], Any], asyncio.Future[Any]]]] = OrderedDict()

    def put(self, tenant: int, work: Callable[[], T]) -> asyncio.Future[T]:
        """Return the future result of work."""
        done: asyncio.Future[T] = self._loop.create_future()
        self._waiting.setdefault(tenant, deque()).append((work, done))
        self._start()
        return done

    def _start(self) -> None:
        while self._running < _THREADS and self._waiting:
            tenant, queue = self._waiting.popitem(last=False)
            work, done = queue.popleft()
            if queue:
                self._waiting[tenant] = queue
            if not done.done():  # whoever waited may have given up
                if not self._running:
                    sys.setswitchinterval(_BUSY_SWITCH_SECONDS)
                self._running += 1
                self._loop.run_in_executor(_executor, work).add_done_callback(lambda ended, d=done: self._end(ended, d))  # type: ignore[misc]

    def _end(self, ended: asyncio.Future[Any], done: asyncio.Future[Any]) -> None:
        self._running -= 1
        error = None if ended.cancelled() else ended.exception()
        if not done.done():
            if ended.cancelled():
                done.cancel()
            elif error is not None:
                done.set_exception(error)
            else:
                done.set_result(ended.result())
        self._start()
        if not self._running:
            sys.setswitchinterval(_SWITCH_SECONDS)


_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue] = WeakKeyDictionary()


async def in_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns, from a thread."""
    loop = asyncio.get_running_loop()
    queue = _queues.get(loop)
    if queue is None:
        queue = _queues[loop] = _Queue(loop)
    return await queue.put(TENANT.get(), work)


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Return what `work` returns, from a thread if it is work for more than a few milliseconds."""
    return work() if size <= OFF_LOOP_BYTES else await in_thread(work)
