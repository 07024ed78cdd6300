"""The time limit for all database calls of one request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType

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
        self.begun = False  # whether the response has begun
        self._calls, self._started = 0, 0.0

    def refill(self) -> None:
        """Give the next call the full time again."""
        self._left = self.seconds

    def start(self) -> float:
        """Begin a call and return the seconds that remain for it."""
        if self._calls:
            seconds = self._left - (time.monotonic() - self._started)
        else:
            seconds, self._started = self._left, time.monotonic()
        self._calls += 1
        return seconds

    def stop(self) -> None:
        """End a call."""
        self._calls -= 1
        if not self._calls:
            self._left -= time.monotonic() - self._started


_budget: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def time_budget(seconds: float) -> Iterator[None]:
    """Limit the total time of all store calls inside the block."""
    token = _budget.set(Budget(seconds))
    try:
        yield
    finally:
        _budget.reset(token)


def current_budget() -> Budget | None:
    """Return the budget of the current request."""
    return _budget.get()


def refill_budget() -> None:
    """Give the next call of the current request the full time again."""
    budget = _budget.get()
    if budget is not None:
        budget.refill()


def response_has_begun() -> None:
    """Let reads of the current request wait for a failover: it is too late for a 503."""
    budget = _budget.get()
    if budget is not None:
        budget.begun = True


class in_time:
    """Wait for the database, within the budget if there is one. Raises StoreUnavailable after it.

    A class, for speed, although a generator would be shorter: every call of the driver passes here.
    """

    __slots__ = ("_budget", "_driver", "_waiting")

    async def __aenter__(self) -> None:
        self._budget = _budget.get()
        if self._budget is None:
            return
        seconds = self._budget.start()
        if seconds <= 0:
            self._budget.stop()
            raise StoreUnavailable("out of time")
        self._driver = pymongo.timeout(seconds)
        self._driver.__enter__()
        self._waiting = asyncio.timeout(seconds + _GRACE_SECONDS)
        await self._waiting.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._budget is None:
            return
        try:
            await self._waiting.__aexit__(kind, error, traceback)
            if isinstance(error, TimeoutError):
                raise error
        except TimeoutError:
            raise StoreUnavailable("out of time") from None
        finally:
            self._driver.__exit__(kind, error, traceback)
            self._budget.stop()
