"""What every public method of the store keeps to: the store's errors only, and within the time budget."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import ParamSpec, TypeVar

import pymongo

from service.store.errors import driver_errors
from service.store.time_budget import current_budget, in_time

_A_DAY = 86_400.0

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
            budget = current_budget()
            if budget is not None:
                budget.refill()

    return wrapper
