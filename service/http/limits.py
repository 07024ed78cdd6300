"""How much is taken on: requests, bodies being received, bytes in flight, and requests per second."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from service.bounded import Bounded
from service.http.errors import ApiError, http_error
from service.http.keys import SETTINGS, TOKEN
from service.http.routing import scopes_of
from service.http.turns import Turns
from service.settings import Settings
from service.store import time_budget

_MAX_BUCKETS = 10_000
# A first piece takes 5 to 20 ms and up to 3 MB.
_MAX_BEGINNING = 8
_WITH_BODY = ("POST", "PUT", "PATCH")


def overloaded() -> ApiError:
    """Return the response to a request that finds no room."""
    return http_error(503, {"Retry-After": "1"})


class Pool:
    """A bounded amount of something, of which no token holds more than three quarters."""

    def __init__(self, total: int) -> None:
        self.total, self.share = total, total - total // 4
        self.used = 0
        self._by_token: dict[str, int] = {}

    def take(self, token_id: str, amount: int = 1) -> bool:
        """Take an amount for a token; return False if there is not enough left, for all or for it."""
        held = self._by_token.get(token_id, 0)
        if self.used + amount > self.total or held + amount > self.share:
            return False
        self.add(token_id, amount)
        return True

    def add(self, token_id: str, amount: int = 1) -> None:
        """Count an amount for a token, whether or not there is enough left."""
        self.used += amount
        self._by_token[token_id] = self._by_token.get(token_id, 0) + amount

    def put_back(self, token_id: str, amount: int = 1) -> None:
        """Return an amount that was taken."""
        self.used -= amount
        held = self._by_token[token_id] - amount
        if held:
            self._by_token[token_id] = held
        else:
            del self._by_token[token_id]


class Limits:
    """What a process takes on at once, and a bucket of requests for each token."""

    def __init__(self, settings: Settings) -> None:
        self.working = Pool(settings.max_in_flight)
        self.receiving = Pool(settings.max_receiving)
        self.bytes = Pool(settings.max_bytes_in_flight)
        # Streams that read their first piece: until then nobody knows how much they will hold.
        self.beginning = Turns(_MAX_BEGINNING)
        self.rate = settings.rate_limit
        self._buckets: Bounded[str, tuple[float, float]] = Bounded(_MAX_BUCKETS)

    def wait_for(self, token_id: str) -> float:
        """Take one request from a token's bucket; return the seconds to wait if it is empty.

        A bucket holds one second's worth of requests, at least one.
        """
        now, full = time.monotonic(), max(1.0, self.rate)
        level, filled = self._buckets.get(token_id, (full, now))
        level = min(full, level + (now - filled) * self.rate)
        if level < 1:
            return (1 - level) / self.rate
        self._buckets[token_id] = (level - 1, now)
        return 0.0


LIMITS = web.AppKey("limits", Limits)


class Admission:
    """What one request holds of the limits. Taking more raises 503 if there is no room."""

    def __init__(self, limits: Limits, token_id: str) -> None:
        self._limits, self._token_id = limits, token_id
        self._place: Pool | None = None
        self._bytes = 0

    def receive(self) -> None:
        """Begin to receive a body."""
        self._move_to(self._limits.receiving)

    def work(self) -> None:
        """Begin to work: the body is in, or there is none."""
        self._move_to(self._limits.working)

    def hold(self, size: int) -> None:
        """Count bytes that the request keeps in memory, until `release` or its end."""
        if not self._limits.bytes.take(self._token_id, size):
            raise overloaded()
        self._bytes += size

    def release(self, size: int) -> None:
        """Stop counting bytes that are no longer in memory."""
        self._limits.bytes.put_back(self._token_id, size)
        self._bytes -= size

    def leave(self) -> None:
        """Leave the place to others, while the request only waits."""
        if self._place is not None:
            self._place.put_back(self._token_id)
            self._place = None

    def come_back(self) -> None:
        """Take a place again, over the limit if need be: half a response cannot be refused."""
        self._place = self._limits.working
        self._place.add(self._token_id)

    def close(self) -> None:
        """Return everything."""
        self.leave()
        if self._bytes:
            self.release(self._bytes)

    def _move_to(self, place: Pool) -> None:
        if self._place is not place:
            self.leave()
            if not place.take(self._token_id):
                raise overloaded()
            self._place = place


ADMISSION = web.RequestKey("admission", Admission)


@contextmanager
def without_slot(request: web.Request) -> Iterator[None]:
    """Wait for something without holding a place among the requests that are worked on."""
    admission = request[ADMISSION]
    admission.leave()
    try:
        yield
    finally:
        admission.come_back()


@web.middleware
async def admit(request: web.Request, handler: Any) -> web.StreamResponse:
    """Refuse at once what would only wait: health checks and metrics always pass."""
    if not scopes_of(request):
        return await handler(request)  # type: ignore[no-any-return]
    admission = request[ADMISSION] = Admission(request.app[LIMITS], request[TOKEN].id)
    try:
        if request.method in _WITH_BODY:
            admission.receive()  # `read_body` goes on to `work`: a slow sender holds no place of those who work
        else:
            admission.work()
        return await handler(request)  # type: ignore[no-any-return]
    finally:
        admission.close()


@web.middleware
async def rate_limit(request: web.Request, handler: Any) -> web.StreamResponse:
    """Refuse more requests per second than a token may send."""
    limits = request.app[LIMITS]
    if limits.rate > 0 and TOKEN in request:
        seconds = limits.wait_for(request[TOKEN].id)
        if seconds:
            raise http_error(429, {"Retry-After": str(math.ceil(seconds))})
    return await handler(request)  # type: ignore[no-any-return]


@web.middleware
async def time_limit(request: web.Request, handler: Any) -> web.StreamResponse:
    """Give the database `mongo_timeout` for all that one request asks of it; a 503 follows."""
    with time_budget(request.app[SETTINGS].mongo_timeout):
        return await handler(request)  # type: ignore[no-any-return]
