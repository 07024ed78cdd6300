"""A fair queue: the oldest of each organization in turn."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextvars import ContextVar

# The organization that the present request belongs to.
TENANT: ContextVar[int] = ContextVar("tenant", default=-1)


class Turns:
    """Lets some in at a time; the others wait, the oldest of each organization in turn."""

    def __init__(self, places: int) -> None:
        self._free = self._places = places
        self._waiting: OrderedDict[int, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def taken(self) -> int:
        return self._places - self._free

    async def take(self) -> None:
        """Take a place, as soon as it is this organization's turn."""
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(TENANT.get(), deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came at the same moment
                self.leave()
            raise

    def leave(self) -> None:
        """Leave the place to whoever is next."""
        while self._waiting:
            tenant, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns
            if not turn.done():  # whoever waited may have given up
                turn.set_result(None)
                return
        self._free += 1

    async def __aenter__(self) -> None:
        await self.take()

    async def __aexit__(self, *_: object) -> None:
        self.leave()
