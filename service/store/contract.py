"""The contract of every public method of the store: it raises only the store's errors, within the time budget."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import ParamSpec, TypeVar

import pymongo

from service.store.errors import DRIVER_ERRORS, StoreUnavailable, store_error
from service.store.time_budget import current_budget, in_time, refill_budget

_A_DAY = 86_400.0
# How long a response that has begun waits for a failover: after that it can only be cut off.
_FAILOVER_SECONDS = 30.0
_RETRY_SECONDS = 0.5

P = ParamSpec("P")
T = TypeVar("T")


def stored(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Let a store method raise the store's errors only, and end within the budget."""

    @functools.wraps(method)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            async with in_time():
                return await method(*args, **kwargs)
        except DRIVER_ERRORS as error:
            raise store_error(error) from None

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
    """Run a method of the upkeep without a time limit: the driver's default is the limit of a request."""

    @functools.wraps(method)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        with pymongo.timeout(_A_DAY):
            return await method(*args, **kwargs)

    return wrapper


def streamed(method: Callable[P, AsyncIterator[T]]) -> Callable[P, AsyncIterator[T]]:
    """Let an async generator raise only the store's errors, and limit the time per value.

    The first value counts against the budget of the request, which ends with a 503. Each later
    value has a full budget of its own, however slowly the client reads.
    """

    @functools.wraps(method)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        values = method(*args, **kwargs)
        while True:
            try:
                async with in_time():
                    first = [await anext(values)]
            except StopAsyncIteration:
                return
            except DRIVER_ERRORS as error:
                raise store_error(error) from None
            yield first.pop()  # no reference is kept while the client reads it
            refill_budget()

    return wrapper
