"""Readers that wait: they hold a place and nothing else, and continue a few at a time."""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict

from service.capacity.gate import Holder
from service.capacity.work import WORK, Gates, Work, organization

# Seconds of work on the event loop before other tasks run, and how many readers continue in one turn of it.
_TURN_SECONDS, _MAX_WOKEN = 0.005, 64
_LIVE_PAGES = "live pages"  # a holder beside the tokens of an organization


class Parking:
    """Lets readers that wait continue: in each turn of the event loop, as many as fit into a few milliseconds.

    Organizations take turns. The readers of one continue in any order, so that no kind of reader is always the last.
    """

    def __init__(self, gates: Gates) -> None:
        self._gates = gates
        self._waiting: OrderedDict[int, list[asyncio.Future[None]]] = OrderedDict()
        self._runs = False
        self._count, self._woken, self._began = 1, 0, 0.0

    def work(self, organization_id: int) -> Work:
        """Begin work that all readers of a live page share: a reader's own would end with it."""
        work = Work(self._gates, Holder(organization_id, _LIVE_PAGES), None)
        WORK.set(work)
        return work

    def wake(self, waiting: asyncio.Future[None]) -> None:
        """Let one reader continue, as soon as it is this organization's turn."""
        self._waiting.setdefault(organization(), []).append(waiting)
        if not self._runs:
            self._runs = True
            asyncio.get_running_loop().call_soon(self._wake)

    async def turn(self) -> None:
        """Let other tasks run, and continue when it is this organization's turn."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.wake(waiting)
        await waiting

    def _wake(self) -> None:
        loop, self._woken = asyncio.get_running_loop(), 0
        loop.call_soon(self._begin)
        while self._woken < self._count and self._waiting:
            waiting = self._take()
            if not waiting.done():  # else it was cancelled
                waiting.set_result(None)
                self._woken += 1
        loop.call_soon(self._end)  # after all of them: the loop runs callbacks in order

    def _take(self) -> asyncio.Future[None]:
        """Remove any reader of the next organization."""
        tenant, waiting = self._waiting.popitem(last=False)
        place = random.randrange(len(waiting))
        waiting[place], waiting[-1] = waiting[-1], waiting[place]
        reader = waiting.pop()
        if waiting:
            self._waiting[tenant] = waiting
        return reader

    def _begin(self) -> None:
        self._began = time.perf_counter()

    def _end(self) -> None:
        if self._woken:
            seconds = (time.perf_counter() - self._began) / self._woken
            self._count = max(1, min(2 * self._count, _MAX_WOKEN, int(_TURN_SECONDS / seconds)))
        elif not self._waiting:  # nobody has come since `_wake` ran
            self._runs = False
            return
        self._wake()
