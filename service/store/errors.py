"""What the store raises, how the driver's errors become it, and how long the database may take."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import pymongo
from bson.errors import BSONError
from pymongo.errors import (
    BulkWriteError,
    ConnectionFailure,
    ExecutionTimeout,
    PyMongoError,
    WTimeoutError,
)

P = ParamSpec("P")
T = TypeVar("T")

# Server codes of a primary that is leaving or gone, a write concern not met in time, and
# operations that a shutdown or a time limit ended.
_PASSING_CODES = {50, 64, 91, 100, 189, 262, 10107, 11600, 11602, 13435, 13436}

# The driver ends an operation itself when its time is over. It cannot while the operation waits
# for a thread, so the caller stops waiting this much later.
_GRACE_SECONDS = 0.25
# How often it is looked whose time is over.
_WATCH_SECONDS = 0.1


class StoreError(Exception):
    """The database refused an operation. Carries no document: driver messages do."""


class StoreUnavailable(StoreError):
    """The database did not answer, or not in time; the same request may work later."""


@contextmanager
def driver_errors() -> Iterator[None]:
    """Turn the driver's errors into the store's, without their text, which holds documents."""
    try:
        yield
    except (ConnectionFailure, ExecutionTimeout, WTimeoutError) as error:
        raise StoreUnavailable(type(error).__name__) from None
    except PyMongoError as error:
        code = getattr(error, "code", None)
        if error.timeout or code in _PASSING_CODES or _passing_bulk(error):
            raise StoreUnavailable(type(error).__name__) from None
        raise StoreError(f"{type(error).__name__} {code}") from None
    except BSONError as error:
        raise StoreError(type(error).__name__) from None


def _passing_bulk(error: PyMongoError) -> bool:
    return isinstance(error, BulkWriteError) and bool(error.details.get("writeConcernErrors"))


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


class _Watch:
    """Ends the calls of one event loop that outlive their time.

    One timer for all of them: with `asyncio.timeout` each, a call took 10 instead of 5 µs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.calls: set[_Spending] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: _Spending) -> None:
        self.calls.add(call)
        if self._timer is None:
            self._timer = self._loop.call_later(_WATCH_SECONDS, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        for call in [call for call in self.calls if call.deadline < now]:
            self.calls.remove(call)
            call.end()
        self._timer = self._loop.call_later(_WATCH_SECONDS, self._look) if self.calls else None


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, _Watch] = WeakKeyDictionary()


def _watch() -> _Watch:
    loop = asyncio.get_running_loop()
    watch = _watches.get(loop)
    if watch is None:
        watch = _watches[loop] = _Watch(loop)
    return watch


class _Spending:
    """One call on a budget's time; raises StoreUnavailable in what is inside once it is over.

    A class because every call goes through it: two generators take longer.
    """

    __slots__ = ("_budget", "_cancelling", "_driver", "_ended", "_task", "_watch", "deadline")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._ended = False

    async def __aenter__(self) -> None:
        left = self._budget.start()
        task = asyncio.current_task()
        if left <= 0 or task is None:
            self._budget.stop()
            raise StoreUnavailable("out of time")
        self._task, self._cancelling = task, task.cancelling()
        self.deadline = time.monotonic() + left + _GRACE_SECONDS
        self._watch = _watch()
        self._watch.add(self)
        self._driver = pymongo.timeout(left)
        self._driver.__enter__()

    def end(self) -> None:
        """Stop waiting: the time is over."""
        self._ended = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.calls.discard(self)
        self._budget.stop()
        self._driver.__exit__(kind, error, trace)
        # Somebody else may have cancelled the task as well: then it stays cancelled.
        if self._ended and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise StoreUnavailable("out of time") from None


_budget: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def time_budget(seconds: float) -> Iterator[None]:
    """Let all that the store does inside take this long together."""
    token = _budget.set(Budget(seconds))
    try:
        yield
    finally:
        _budget.reset(token)


def in_time() -> _Spending | contextlib.nullcontext[None]:
    """Wait for the database, within the budget if there is one."""
    budget = _budget.get()
    return contextlib.nullcontext() if budget is None else _Spending(budget)


def stored(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Let a store method raise the store's errors only, and end within the budget."""

    @functools.wraps(method)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        with driver_errors():
            async with in_time():
                return await method(*args, **kwargs)

    return wrapper


def streamed(method: Callable[P, AsyncIterator[T]]) -> Callable[P, AsyncIterator[T]]:
    """Let a store's async generator raise the store's errors only, and keep time by the value.

    The first value counts to the budget of the request, which ends as a 503; each later one has
    the whole time for itself, however long the client took over those before it.
    """

    @functools.wraps(method)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        values = method(*args, **kwargs)
        while True:
            with driver_errors():
                async with in_time():
                    try:
                        value = await anext(values)
                    except StopAsyncIteration:
                        return
            yield value
            budget = _budget.get()
            if budget is not None:
                budget.refill()

    return wrapper
