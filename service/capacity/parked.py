"""Readers that wait: they hold a place and nothing else, and continue a few at a time."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict

from service.capacity.gate import Holder
from service.capacity.work import Gates, Work, organization

# Readers that continue in one turn of the event loop: about a millisecond.
_WOKEN_AT_ONCE = 8
_LIVE_PAGES = "live pages"  # a holder beside the tokens of an organization


class Parking:
    """Lets readers that wait continue, a few in each turn of the event loop.

    Organizations take turns. The readers of one continue in any order, so that no kind of reader is always the last.
    """

    def __init__(self, gates: Gates) -> None:
        self._gates = gates
        self._waiting: OrderedDict[int, list[asyncio.Future[None]]] = OrderedDict()

    def work(self, organization_id: int) -> Work:
        """Return work that all readers of a live page share: a reader's own would end with it."""
        return Work(self._gates, Holder(organization_id, _LIVE_PAGES), None)

    def wake(self, waiting: asyncio.Future[None]) -> None:
        """Let one reader continue, as soon as it is this organization's turn."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._wake)
        self._waiting.setdefault(organization(), []).append(waiting)

    async def turn(self) -> None:
        """Let other tasks run, and continue when it is this organization's turn."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.wake(waiting)
        await waiting

    def _wake(self) -> None:
        woken = 0
        while self._waiting and woken < _WOKEN_AT_ONCE:
            tenant, waiting = self._waiting.popitem(last=False)
            place = random.randrange(len(waiting))
            waiting[place], waiting[-1] = waiting[-1], waiting[place]
            reader = waiting.pop()
            if waiting:
                self._waiting[tenant] = waiting
            if not reader.done():  # else it was cancelled
                reader.set_result(None)
                woken += 1
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._wake)
