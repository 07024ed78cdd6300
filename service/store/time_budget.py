"""How long the database may take over all the calls of one request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

import pymongo

from service.store.errors import StoreUnavailable

# The driver ends an operation itself when its time is over. It cannot while the operation waits
# for a thread, so the caller stops waiting this much later.
_GRACE_SECONDS = 0.25


class Budget:
    """Seconds that the database may take, for all the calls of one request together.

    The clock runs only while a call is under way: a slow client does not use it up.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = self._left = seconds
        self._calls, self._started = 0, 0.0

    def refill(self) -> None:
        """Give the next call the whole time again."""
        self._left = self.seconds

    def start(self) -> float:
        """Begin a call and return the seconds left for it."""
        if self._calls:
            left = self._left - (time.monotonic() - self._started)
        else:
            left, self._started = self._left, time.monotonic()
        self._calls += 1
        return left

    def stop(self) -> None:
        """End a call."""
        self._calls -= 1
        if not self._calls:
            self._left -= time.monotonic() - self._started


_budget: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def time_budget(seconds: float) -> Iterator[None]:
    """Let all that the store does inside take this long together."""
    token = _budget.set(Budget(seconds))
    try:
        yield
    finally:
        _budget.reset(token)


def current_budget() -> Budget | None:
    """Return the budget of the request that this runs for."""
    return _budget.get()


@asynccontextmanager
async def in_time() -> AsyncIterator[None]:
    """Wait for the database, within the budget if there is one. Raises StoreUnavailable after it."""
    budget = _budget.get()
    if budget is None:
        yield
        return
    left = budget.start()
    try:
        if left <= 0:
            raise StoreUnavailable("out of time")
        with pymongo.timeout(left):
            async with asyncio.timeout(left + _GRACE_SECONDS):
                yield
    except TimeoutError:
        raise StoreUnavailable("out of time") from None
    finally:
        budget.stop()
