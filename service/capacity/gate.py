"""A weighted fair gate: a bounded amount of something, shared by organizations and their tokens.

A request reserves the most that it can need, before it begins, and waits for that in turn. A reservation only shrinks:
nothing that has begun waits for more, so nothing is refused half-way and no two wait for each other.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

# Waiters of one gate for a limited time: each is a request with its head, and up to 256 KB of its body.
_MAX_WAITING = 256


class Holder(NamedTuple):
    """The owner of a reservation: a token of an organization."""

    organization_id: int
    token_id: str


class Full(Exception):
    """Too many wait already, or the wait took too long; has the name of the gate."""


class Shares:
    """An amount of which no organization holds more than 3/4, and no token more than 5/8."""

    def __init__(self, name: str, total: int) -> None:
        self.name = name  # as in the metrics
        self.used = 0
        self._held: dict[Hashable, int] = {}
        self.resize(total)

    def resize(self, total: int) -> None:
        """Set the amount."""
        self.total, self.share, self._organization_share = total, total - total * 3 // 8, total - total // 4

    def take(self, holder: Holder, amount: int = 1, share: int | None = None) -> bool:
        """Take an amount; return False if there is not enough, or the owner's share does not allow it."""
        held, of_organization = self._held.get(holder, 0), self._held.get(holder.organization_id, 0)
        allowed = (
            self.used + amount <= self.total
            and held + amount <= (self.share if share is None else share)
            and of_organization + amount <= self._organization_share
        )
        if allowed:
            self._count(holder, amount)
        return allowed

    def hold(self, holder: Holder, amount: int = 1) -> Reservation:
        """Take an amount for a block. Raises Full."""
        if not self.take(holder, amount):
            raise Full(self.name)
        return Reservation(self, holder, amount)

    def put_back(self, holder: Holder, amount: int = 1) -> None:
        """Return an amount that was taken."""
        self._count(holder, -amount)

    def held_by_others(self, organization_id: int) -> int:
        """Return how much other organizations hold."""
        return self.used - self._held.get(organization_id, 0)

    def _count(self, holder: Holder, amount: int) -> None:
        self.used += amount
        for key in (holder, holder.organization_id):
            held = self._held.get(key, 0) + amount
            if held:
                self._held[key] = held
            else:
                self._held.pop(key, None)


class Gate(Shares):
    """An amount for which requests wait; organizations take turns, and so do the tokens of one."""

    def __init__(self, name: str, total: int) -> None:
        super().__init__(name, total)
        self.largest = total - self._organization_share
        # The waiters of each holder, first the holder whose turn it is.
        self._lines: OrderedDict[Holder, OrderedDict[asyncio.Future[None], int]] = OrderedDict()
        self._waiting = Shares(name, _MAX_WAITING)

    async def reserve(self, holder: Holder, amount: int, seconds: float | None) -> Reservation:
        """Reserve an amount in turn. Raises Full if that takes longer than some seconds, or too many wait.

        More than a quarter counts as a quarter: what one organization holds must not keep another one out.
        Without a limit of time, the waiter must hold nothing but its connection: any number of them may wait.
        """
        amount = min(amount, self.largest)
        if holder in self._lines or not self.take(holder, amount):
            if seconds is None:
                await self._wait(holder, amount)
            else:
                with self._waiting.hold(holder):
                    try:
                        async with asyncio.timeout(seconds):
                            await self._wait(holder, amount)
                    except TimeoutError:
                        raise Full(self.name) from None
        return Reservation(self, holder, amount)

    def put_back(self, holder: Holder, amount: int = 1) -> None:
        """Return an amount, and let in who waits for it."""
        super().put_back(holder, amount)
        if self._lines:
            self._let_in()

    async def _wait(self, holder: Holder, amount: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(holder, OrderedDict())[turn] = amount
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._lines.get(holder, ()):
                self._remove(holder, turn)
                self._let_in()  # the next one of this holder may want less
            else:  # it was let in at the same moment
                self.put_back(holder, amount)
            raise

    def _let_in(self) -> None:
        """Let in the first waiter of each holder, one after the other, for as long as one of them has room."""
        while (holder := next(filter(self._take_first, self._lines), None)) is not None:
            turn = next(iter(self._lines[holder]))
            self._remove(holder, turn)
            for other in [other for other in self._lines if other.organization_id == holder.organization_id]:
                self._lines.move_to_end(other)
            if holder in self._lines:
                self._lines.move_to_end(holder)
            if not turn.done():  # else it is cancelled, and returns the amount
                turn.set_result(None)

    def _take_first(self, holder: Holder) -> bool:
        """Take what the first waiter of a holder wants."""
        return self.take(holder, next(iter(self._lines[holder].values())))

    def _remove(self, holder: Holder, turn: asyncio.Future[None]) -> None:
        del self._lines[holder][turn]
        if not self._lines[holder]:
            del self._lines[holder]


class Reservation:
    """What a request holds: shrinks, and ends with the block."""

    __slots__ = ("_holder", "_shares", "amount")

    def __init__(self, shares: Shares, holder: Holder, amount: int) -> None:
        self._shares, self._holder, self.amount = shares, holder, amount

    def shrink(self, amount: int) -> None:
        """Keep no more than an amount."""
        if amount < self.amount:
            freed, self.amount = self.amount - amount, amount
            self._shares.put_back(self._holder, freed)

    def close(self) -> None:
        """Keep nothing."""
        self.shrink(0)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.shrink(0)
