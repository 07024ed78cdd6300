"""A fair queue: the oldest of each organization in turn."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")

# Work on the event loop, before others run.
_SLICE_SECONDS = 0.005

# Waiters that go on in one turn of the event loop: each takes from 20 µs, for a few bytes, to a millisecond.
_MAX_WOKEN = 64

# The organization that the present request belongs to.
TENANT: ContextVar[int] = ContextVar("tenant", default=-1)


class Waiting(Generic[T]):
    """Those who wait for something, by organization."""

    def __init__(self) -> None:
        self._queues: OrderedDict[int, deque[tuple[asyncio.Future[None], T]]] = OrderedDict()

    async def wait(self, wanted: T, give_back: Callable[[T], None]) -> None:
        """Wait until `let_in` chooses this one; `give_back` what it got if it was cancelled at that moment."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.add(turn, wanted)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                give_back(wanted)
            raise

    def add(self, turn: asyncio.Future[None], wanted: T) -> None:
        """Let `turn` wait until `let_in` chooses it."""
        self._queues.setdefault(TENANT.get(), deque()).append((turn, wanted))

    def let_in(self, may: Callable[[T], bool]) -> bool:
        """Let in the next one that may, the oldest of an organization only; return whether there was one."""
        for tenant in list(self._queues):
            queue = self._queues[tenant]
            while queue and queue[0][0].done():  # whoever waited may have given up
                queue.popleft()
            if queue and may(queue[0][1]):
                queue.popleft()[0].set_result(None)
                self._queues.move_to_end(tenant)
                if not queue:
                    del self._queues[tenant]
                return True
            if not queue:
                del self._queues[tenant]
        return False


class Turns:
    """Lets some in at a time; the others wait."""

    def __init__(self, places: int) -> None:
        self._free = self._places = places
        self._waiting = Waiting[None]()

    @property
    def taken(self) -> int:
        return self._places - self._free

    async def take(self) -> None:
        """Take a place, as soon as it is this organization's turn."""
        if self._free:
            self._free -= 1
        else:
            await self._waiting.wait(None, lambda _: self.leave())

    def leave(self) -> None:
        """Leave the place to whoever is next."""
        if not self._waiting.let_in(lambda _: True):
            self._free += 1

    async def __aenter__(self) -> None:
        await self.take()

    async def __aexit__(self, *_: object) -> None:
        self.leave()


class Waking:
    """Lets those who are woken go on, as many in each turn of the event loop as take a slice of time together."""

    def __init__(self) -> None:
        self._waiting = Waiting[None]()
        self._runs = False
        self._count, self._woken, self._began = 1, 0, 0.0

    def add(self, waiting: asyncio.Future[None]) -> None:
        """Let one go on, as soon as it is this organization's turn."""
        self._waiting.add(waiting, None)
        if not self._runs:
            self._runs = True
            asyncio.get_running_loop().call_soon(self._wake)

    async def turn(self) -> None:
        """Let others run, and go on when it is this organization's turn."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.add(waiting)
        await waiting

    def _wake(self) -> None:
        loop, self._woken = asyncio.get_running_loop(), 0
        loop.call_soon(self._begin)
        while self._woken < self._count and self._waiting.let_in(lambda _: True):
            self._woken += 1
        # After all of them: the loop calls in order.
        loop.call_soon(self._end)

    def _begin(self) -> None:
        self._began = time.perf_counter()

    def _end(self) -> None:
        if not self._woken:
            self._runs = False
            return
        each = (time.perf_counter() - self._began) / self._woken
        self._count = max(1, min(_MAX_WOKEN, int(_SLICE_SECONDS / each)))
        self._wake()


class Slice:
    """Tells work on the event loop when to let others run."""

    __slots__ = ("_end",)

    def __init__(self) -> None:
        self._end = time.perf_counter() + _SLICE_SECONDS

    @property
    def is_over(self) -> bool:
        return time.perf_counter() > self._end

    async def pause(self) -> None:
        """Let others run, and begin another slice."""
        await asyncio.sleep(0)
        self._end = time.perf_counter() + _SLICE_SECONDS
