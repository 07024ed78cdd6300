"""CPU time in fair turns: long work runs in one thread, a few milliseconds for each organization in turn."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary

from service.capacity.work import WORK, organization

T = TypeVar("T")

# Work on more bytes goes to the thread.
SMALL_BYTES = 64 * 1024
# A turn on the event loop, and in the thread; after shorter work the next one may run in the same turn of the loop.
_LOOP_SECONDS, _THREAD_SECONDS, _SHORT_SECONDS = 0.005, 0.01, 0.001
# Turns that one body gets before the next one of its organization: otherwise all were ready at the same time.
_TURNS_IN_A_ROW = 10
# The longest cooldown. The organization that worked pauses for as long as it worked, if others are at work.
_MAX_COOLDOWN_SECONDS = 0.05
# Seconds after which the thread lets the event loop run; only while it works, because switching costs CPU time.
_SWITCH_SECONDS = 0.00005

# One: more would share one interpreter lock.
_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cpu")


class _Turns:
    """Who waits for the event loop or the thread, by organization."""

    def __init__(self) -> None:
        self._busy = False
        self._lines: OrderedDict[int, deque[asyncio.Future[None]]] = OrderedDict()
        self._cooling: Counter[int] = Counter()

    async def enter(self, first: bool) -> None:
        """Wait for a turn; with `first`, before the other waiters of this organization."""
        tenant = organization()
        if not self._busy and not self._lines and not self._cooling[tenant]:
            self._busy = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line = self._lines.setdefault(tenant, deque())
        (line.appendleft if first else line.append)(turn)
        self._next()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Let the next one have its turn."""
        self._busy = False
        self._next()

    async def end(self, seconds: float) -> None:
        """End a turn that took so long; others have the interpreter for as long as this organization had it."""
        if seconds < _SHORT_SECONDS:
            return self.release()
        loop, tenant, work = asyncio.get_running_loop(), organization(), WORK.get()
        loop.call_soon(self.release)  # not to one that runs in the same turn of the event loop
        if work is None or work.is_alone:
            return None
        self._cooling[tenant] += 1
        try:
            await asyncio.sleep(min(seconds, _MAX_COOLDOWN_SECONDS))
        finally:
            self._cooling[tenant] -= 1
            if not self._cooling[tenant]:
                del self._cooling[tenant]
            loop.call_soon(self._next)  # after this request, whose next turn may come first

    def _next(self) -> None:
        if self._busy:
            return
        for tenant, line in list(self._lines.items()):
            while line and line[0].cancelled():
                line.popleft()
            if line and not self._cooling[tenant]:
                self._busy = True
                self._lines.move_to_end(tenant)
                line.popleft().set_result(None)
            if not line:
                del self._lines[tenant]
            if self._busy:
                return


class _Cpu:
    def __init__(self) -> None:
        self.loop, self.thread = _Turns(), _Turns()


_cpus: WeakKeyDictionary[asyncio.AbstractEventLoop, _Cpu] = WeakKeyDictionary()


def _cpu() -> _Cpu:
    loop = asyncio.get_running_loop()
    if (cpu := _cpus.get(loop)) is None:
        cpu = _cpus[loop] = _Cpu()
    return cpu


async def run(size: int, work: Callable[[], T]) -> T:
    """Return what `work` on so many bytes returns, from the thread if it takes more than a few milliseconds."""
    return work() if size <= SMALL_BYTES else await _in_thread(work)


async def drain(steps: Iterator[bool]) -> None:
    """Run all steps in turns of a few milliseconds: heavy ones in the thread, the others on the event loop.

    A step yields whether the next one is heavy.
    """
    turns, heavy = 0, next(steps, None)
    while heavy is not None:
        first = turns % _TURNS_IN_A_ROW != 0
        turns += 1
        if heavy:
            heavy = await _in_thread(partial(_advance, steps, _THREAD_SECONDS, False), first)
        else:
            heavy = await _on_loop(steps, first)


async def _on_loop(steps: Iterator[bool], first: bool) -> bool | None:
    turns = _cpu().loop
    await turns.enter(first)
    began = time.perf_counter()
    try:
        return _advance(steps, _LOOP_SECONDS, True)
    finally:
        await turns.end(time.perf_counter() - began)


async def _in_thread(work: Callable[[], T], first: bool = False) -> T:
    """Return what `work` returns, from the thread, when it is this organization's turn."""
    loop, turns = asyncio.get_running_loop(), _cpu().thread
    await turns.enter(first)
    began = time.perf_counter()
    running = loop.run_in_executor(_thread, _with_short_switches, work)

    def release(ended: asyncio.Future[T]) -> None:
        turns.release()
        if not ended.cancelled():
            ended.exception()  # the caller has gone: otherwise asyncio logs the error, with its texts

    try:
        return await asyncio.shield(running)
    finally:
        if running.done():
            await turns.end(time.perf_counter() - began)
        else:  # a thread cannot be stopped: its place is free when it ends
            running.add_done_callback(release)


def _advance(steps: Iterator[bool], seconds: float, stops: bool) -> bool | None:
    """Run steps for a while, or up to a heavy one; return whether the next one is heavy, None after the last one."""
    end = time.perf_counter() + seconds
    for heavy in steps:
        if (heavy and stops) or time.perf_counter() > end:
            return heavy
    return None


def _with_short_switches(work: Callable[[], T]) -> T:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        return work()
    finally:
        sys.setswitchinterval(interval)
