"""A fair queue: organizations take turns, and so do the tokens of one, each with its first waiter."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")

# Seconds of work on the event loop before other tasks run.
_SLICE_SECONDS = 0.005
# Slices that one body gets before the next one of its organization. Bodies that took turns slice by slice would all be
# ready at the same time: then the database waits for them, and they for it.
_SLICES_IN_A_ROW = 10
# After shorter work, the next one may run in the same turn of the event loop.
_SHORT_SECONDS = 0.001
# The longest rest after work.
_MAX_REST_SECONDS = 0.05

# Waiters that continue in one turn of the event loop: each takes from 20 µs, for a few bytes, to a millisecond.
_MAX_WOKEN = 64

# The organization of the current request.
TENANT: ContextVar[int] = ContextVar("tenant", default=-1)
# Whether requests of other organizations are at work, and not only waiting for their clients.
OTHERS_WORK: ContextVar[Callable[[], bool]] = ContextVar("others_work", default=lambda: False)


class Waiting(Generic[T]):
    """Waiters for something, by organization and holder."""

    def __init__(self) -> None:
        self._lines: OrderedDict[int, OrderedDict[Hashable, OrderedDict[asyncio.Future[None], T]]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def has(self, holder: Hashable) -> bool:
        """Return whether the holder has a waiter."""
        return holder in self._lines.get(TENANT.get(), ())

    async def wait(
        self, wanted: T, give_back: Callable[[T], None], holder: Hashable = None, first: bool = False
    ) -> None:
        """Wait until `let_in` chooses this waiter; call `give_back` if it is cancelled at that moment.

        With `first`, it is the next one of its holder.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tenant = TENANT.get()
        line = self._lines.setdefault(tenant, OrderedDict()).setdefault(holder, OrderedDict())
        line[turn] = wanted
        if first:
            line.move_to_end(turn, last=False)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                give_back(wanted)
            elif turn in line:
                del line[turn]
                if not line:
                    self._remove(tenant, holder)
            raise

    def let_in(self, may: Callable[[T], bool]) -> bool:
        """Let in the next waiter that may enter, the first of its holder; return whether there was one."""
        for tenant, lines in list(self._lines.items()):
            for holder, line in list(lines.items()):
                while line and (turn := next(iter(line))).done():  # it was cancelled
                    del line[turn]
                entered = bool(line) and may(line[turn])
                if entered:
                    del line[turn]
                    turn.set_result(None)
                    lines.move_to_end(holder)
                    self._lines.move_to_end(tenant)
                if not line:
                    self._remove(tenant, holder)
                if entered:
                    return True
        return False

    def _remove(self, tenant: int, holder: Hashable) -> None:
        lines = self._lines[tenant]
        del lines[holder]
        if not lines:
            del self._lines[tenant]


class Turns:
    """Lets a number of waiters in at a time; the others wait.

    A request that has worked waits for as long as that took, if other organizations have requests at work, and so do
    the others of its organization: meanwhile the event loop and the interpreter's lock are free for them.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting = Waiting[int]()  # organizations
        self._resting: Counter[int] = Counter()

    async def take(self, first: bool = False) -> None:
        """Take a place, as soon as it is this organization's turn; with `first`, before its other waiters."""
        tenant = TENANT.get()
        if self._free and tenant not in self._resting and (first or not self._waiting.has(None)):
            self._free -= 1
        else:
            await self._waiting.wait(tenant, lambda _: self.leave(), first=first)

    def leave(self) -> None:
        """Release the place to the next waiter."""
        self._free += 1
        self._let_in()

    async def end(self, seconds: float) -> None:
        """Release the place after work that took so long, and rest if others are at work."""
        if seconds < _SHORT_SECONDS:
            return self.leave()
        loop, tenant = asyncio.get_running_loop(), TENANT.get()
        loop.call_soon(self.leave)  # not to one that runs in the same turn of the event loop
        if not OTHERS_WORK.get()():
            return None
        self._resting[tenant] += 1
        try:
            await asyncio.sleep(min(seconds, _MAX_REST_SECONDS))
        finally:
            self._resting[tenant] -= 1
            if not self._resting[tenant]:
                del self._resting[tenant]
            loop.call_soon(self._let_in)  # after this request, whose next slice may come first

    def _let_in(self) -> None:
        while self._free and self._waiting and self._waiting.let_in(lambda tenant: tenant not in self._resting):
            self._free -= 1


class Waking:
    """Lets woken waiters continue: in each turn of the event loop, as many as fit into a slice of time.

    Organizations take turns. The waiters of one continue in any order, so that no kind of reader is always the last.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, list[asyncio.Future[None]]] = OrderedDict()
        self._runs = False
        self._count, self._woken, self._began = 1, 0, 0.0

    def add(self, waiting: asyncio.Future[None]) -> None:
        """Let one waiter continue, as soon as it is this organization's turn."""
        self._waiting.setdefault(TENANT.get(), []).append(waiting)
        if not self._runs:
            self._runs = True
            asyncio.get_running_loop().call_soon(self._wake)

    async def turn(self) -> None:
        """Let other tasks run, and continue when it is this organization's turn."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.add(waiting)
        await waiting

    def _wake(self) -> None:
        loop, self._woken = asyncio.get_running_loop(), 0
        loop.call_soon(self._begin)
        while self._woken < self._count and self._waiting:
            waiting = self._take()
            if not waiting.done():  # else it was cancelled
                waiting.set_result(None)
                self._woken += 1
        # After all of them: the loop runs callbacks in order.
        loop.call_soon(self._end)

    def _take(self) -> asyncio.Future[None]:
        """Remove any waiter of the next organization."""
        tenant, waiting = self._waiting.popitem(last=False)
        place = random.randrange(len(waiting))
        waiting[place], waiting[-1] = waiting[-1], waiting[place]
        taken = waiting.pop()
        if waiting:
            self._waiting[tenant] = waiting
        return taken

    def _begin(self) -> None:
        self._began = time.perf_counter()

    def _end(self) -> None:
        if self._woken:
            each = (time.perf_counter() - self._began) / self._woken
            self._count = max(1, min(2 * self._count, _MAX_WOKEN, int(_SLICE_SECONDS / each)))
        elif not self._waiting:  # nobody has come since `_wake` found nobody
            self._runs = False
            return
        self._wake()


class Slice:
    """A place for long work on the event loop, given back every few milliseconds: organizations take turns."""

    __slots__ = ("_began", "_holds", "_slices", "_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns, self._holds, self._began, self._slices = turns, False, 0.0, 0

    async def __aenter__(self) -> Slice:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    @property
    def is_over(self) -> bool:
        return time.perf_counter() > self._began + _SLICE_SECONDS

    async def pause(self) -> None:
        """Let others run, and begin another slice."""
        self._slices += 1
        await self._end()
        await self._begin(first=self._slices % _SLICES_IN_A_ROW != 0)

    async def outside(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do work that is not done on the event loop, without the place."""
        await self._end()
        await work()
        await self._begin()

    async def _begin(self, first: bool = False) -> None:
        await self._turns.take(first)
        self._holds, self._began = True, time.perf_counter()

    async def _end(self) -> None:
        if not self._holds:
            return
        self._holds = False
        await self._turns.end(time.perf_counter() - self._began)
