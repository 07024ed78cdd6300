"""What every public method of the store keeps to: the store's errors only, and within the time budget."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import ParamSpec, TypeVar

import pymongo

from service.store.errors import StoreUnavailable, driver_errors
from service.store.time_budget import current_budget, in_time, refill_budget

_A_DAY = 86_400.0
# A response that has begun can only be cut off: it waits so long for a database that fails over.
_FAILOVER_SECONDS = 30.0
_RETRY_SECONDS = 0.5

P = ParamSpec("P")
T = TypeVar("T")


def stored(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Let a store method raise the store's errors only, and end within the budget."""

    @functools.wraps(method)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        with driver_errors():
            async with in_time():
                return await method(*args, **kwargs)

    return wrapper


def patient(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Let a read for a response that has begun try again until the database responds."""

    @functools.wraps(method)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        deadline = time.monotonic() + _FAILOVER_SECONDS
        while True:
            try:
                return await method(*args, **kwargs)
            except StoreUnavailable:
                budget = current_budget()
                if budget is None or not budget.begun or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
                budget.refill()

    return wrapper


def without_time_limit(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Let a method of the upkeep take as long as it takes: the driver's own limit is that of a request."""

    @functools.wraps(method)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        with pymongo.timeout(_A_DAY):
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
                        taken = [await anext(values)]
                    except StopAsyncIteration:
                        return
            yield taken.pop()  # nothing is kept of it while the client takes its time
            refill_budget()

    return wrapper
