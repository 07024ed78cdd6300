"""CPU time in fair turns: long work runs in one thread, a few milliseconds for each organization in turn."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

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
    """Whose turn it is, on the event loop or in the thread.

    Of each organization, one request waits for its turn, and the others wait for that one: so organizations take turns.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self._organizations: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    @property
    def of_organization(self) -> asyncio.Lock:
        """What a request of the current organization holds while it has turns."""
        return self._organizations.setdefault(organization(), asyncio.Lock())

    async def end(self, seconds: float) -> None:
        """End a turn that took so long; others have the interpreter for as long as this organization had it."""
        if seconds < _SHORT_SECONDS:
            return self.turn.release()
        asyncio.get_running_loop().call_soon(self.turn.release)  # not to one that runs in the same turn of the loop
        work = WORK.get()
        if work is not None and not work.is_alone:
            await asyncio.sleep(min(seconds, _MAX_COOLDOWN_SECONDS))


# On each event loop: the turns on the loop, and in the thread.
_all_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[_Turns, _Turns]] = WeakKeyDictionary()


def _turns(in_thread: bool) -> _Turns:
    loop = asyncio.get_running_loop()
    if (both := _all_turns.get(loop)) is None:
        both = _all_turns[loop] = _Turns(), _Turns()
    return both[in_thread]


async def run(size: int, work: Callable[[], T]) -> T:
    """Return what `work` on so many bytes returns, from the thread if it takes more than a few milliseconds."""
    if size <= SMALL_BYTES:
        return work()
    async with _turns(in_thread=True).of_organization:
        return await _in_thread(work)


async def drain(steps: Iterator[bool]) -> None:
    """Run all steps in turns of a few milliseconds: heavy ones in the thread, the others on the event loop.

    A step yields whether the next one is heavy.
    """
    heavy = next(steps, None)
    while heavy is not None:
        in_thread, turns = heavy, _turns(heavy)
        async with turns.of_organization:
            for _ in range(_TURNS_IN_A_ROW):
                if heavy is in_thread:
                    heavy = await (_in_thread(partial(_advance, steps, _THREAD_SECONDS)) if heavy else _on_loop(steps))


async def _on_loop(steps: Iterator[bool]) -> bool | None:
    turns = _turns(in_thread=False)
    await turns.turn.acquire()
    began = time.perf_counter()
    try:
        return _advance(steps, _LOOP_SECONDS, light_only=True)
    finally:
        await turns.end(time.perf_counter() - began)


async def _in_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns, from the thread, when it is this organization's turn."""
    loop, turns = asyncio.get_running_loop(), _turns(in_thread=True)
    await turns.turn.acquire()
    began = time.perf_counter()
    running = loop.run_in_executor(_thread, _with_short_switches, work)

    def release(ended: asyncio.Future[T]) -> None:
        turns.turn.release()
        if not ended.cancelled():
            ended.exception()  # the caller has gone: otherwise asyncio logs the error, with its texts

    try:
        return await asyncio.shield(running)
    finally:
        if running.done():
            await turns.end(time.perf_counter() - began)
        else:  # a thread cannot be stopped: its turn ends with its work
            running.add_done_callback(release)


def _advance(steps: Iterator[bool], seconds: float, light_only: bool = False) -> bool | None:
    """Run steps for a while, or up to a heavy one; return whether the next one is heavy, None after the last one."""
    end = time.perf_counter() + seconds
    for heavy in steps:
        if (heavy and light_only) or time.perf_counter() > end:
            return heavy
    return None


def _with_short_switches(work: Callable[[], T]) -> T:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        return work()
    finally:
        sys.setswitchinterval(interval)
