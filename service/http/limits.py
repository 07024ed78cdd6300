"""How much is taken on: requests in flight, and requests a second for each token."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from service.http.errors import http_error
from service.http.keys import SETTINGS, TOKEN
from service.http.routing import scope_of
from service.store import time_budget

_MOST_BUCKETS = 10_000


class Limits:
    """Counts what is in flight, and keeps a bucket of requests for each token."""

    def __init__(self, max_in_flight: int, rate: float) -> None:
        self.max_in_flight, self.rate = max_in_flight, rate
        self.in_flight = 0
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait_for(self, token_id: str) -> float:
        """Take one request from a token's bucket; return the seconds to wait if it is empty.

        A bucket holds one second's worth of requests, at least one.
        """
        now, full = time.monotonic(), max(1.0, self.rate)
        level, filled = self._buckets.get(token_id, (full, now))
        level = min(full, level + (now - filled) * self.rate)
        if level < 1:
            return (1 - level) / self.rate
        if len(self._buckets) >= _MOST_BUCKETS and token_id not in self._buckets:
            self._buckets.pop(next(iter(self._buckets)))
        self._buckets[token_id] = (level - 1, now)
        return 0.0


LIMITS = web.AppKey("limits", Limits)


@web.middleware
async def admit(request: web.Request, handler: Any) -> web.StreamResponse:
    """Refuse at once what would only wait: health checks and metrics always pass."""
    if scope_of(request) is None:
        return await handler(request)  # type: ignore[no-any-return]
    limits = request.app[LIMITS]
    if limits.in_flight >= request.app[SETTINGS].max_in_flight:
        raise http_error(503, {"Retry-After": "1"})
    limits.in_flight += 1
    try:
        return await handler(request)  # type: ignore[no-any-return]
    finally:
        limits.in_flight -= 1


@contextmanager
def without_slot(request: web.Request) -> Iterator[None]:
    """Wait for something without holding a place among the requests in flight."""
    limits = request.app[LIMITS]
    limits.in_flight -= 1
    try:
        yield
    finally:
        limits.in_flight += 1


@web.middleware
async def rate_limit(request: web.Request, handler: Any) -> web.StreamResponse:
    """Refuse more requests a second than a token may send."""
    limits = request.app[LIMITS]
    if limits.rate > 0 and TOKEN in request:
        seconds = limits.wait_for(request[TOKEN].id)
        if seconds:
            raise http_error(429, {"Retry-After": str(int(seconds) + 1)})
    return await handler(request)  # type: ignore[no-any-return]


@web.middleware
async def time_limit(request: web.Request, handler: Any) -> web.StreamResponse:
    """Give the database `mongo_timeout` for all that one request asks of it; a 503 follows."""
    with time_budget(request.app[SETTINGS].mongo_timeout):
        return await handler(request)  # type: ignore[no-any-return]
