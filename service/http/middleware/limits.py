"""Limits of requests: their number per second, the time of the database, and the reservations of each."""

from __future__ import annotations

import math
import time

from aiohttp import web
from aiohttp.typedefs import Handler

from service.bounded import Bounded
from service.capacity.gate import Full, Holder
from service.capacity.work import WORK, Work
from service.http.errors import http_error
from service.http.keys import GATES, SETTINGS, TOKEN
from service.http.reply import send
from service.store import time_budget

_MAX_BUCKETS = 10_000


class Rate:
    """A bucket of requests for each token."""

    def __init__(self, per_second: float) -> None:
        self._per_second, self.clock = per_second, time.monotonic
        self._buckets: Bounded[str, tuple[float, float]] = Bounded(_MAX_BUCKETS)

    def take(self, token_id: str) -> float:
        """Take one request from a token's bucket; return the seconds to wait if it is empty.

        A bucket holds one second's worth of requests, at least one.
        """
        if self._per_second <= 0:
            return 0.0
        now, full = self.clock(), max(1.0, self._per_second)
        level, filled = self._buckets.get(token_id, (full, now))
        level = min(full, level + (now - filled) * self._per_second)
        if level < 1:
            return (1 - level) / self._per_second
        self._buckets[token_id] = (level - 1, now)
        return 0.0


RATE = web.AppKey("rate", Rate)


@web.middleware
async def rate_limit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse more requests per second than a token may send."""
    if TOKEN in request and (seconds := request.app[RATE].take(request[TOKEN].id)):
        raise http_error(429, {"Retry-After": str(math.ceil(seconds))})
    return await handler(request)


@web.middleware
async def time_limit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Limit the database time of one request to `mongo_timeout`; after that the response is 503."""
    with time_budget(request.app[SETTINGS].mongo_timeout):
        return await handler(request)


@web.middleware
async def govern(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Reserve what a request needs, and send what its handler returns; health checks and metrics always pass."""
    if TOKEN not in request:
        return await send(request, await handler(request), None)
    token, gates = request[TOKEN], request.app[GATES]
    holder = Holder(token.organization_id, token.id)
    if not gates.connections.take(holder):
        raise Full(gates.connections.name)
    work = Work(gates, holder, request.app[SETTINGS].mongo_timeout)
    previous = WORK.set(work)
    try:
        if not request.body_exists:  # otherwise `read_body` begins the work
            await work.begin()
        return await send(request, await handler(request), work)
    finally:
        work.close()
        WORK.reset(previous)
        gates.connections.put_back(holder)
