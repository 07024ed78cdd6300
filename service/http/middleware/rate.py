"""How many requests per second a token may send."""

from __future__ import annotations

import math
import time

from aiohttp import web

from service.bounded import Bounded
from service.http.errors import http_error
from service.http.keys import TOKEN

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


def check_rate(request: web.Request) -> None:
    """Refuse more requests per second than a token may send."""
    if seconds := request.app[RATE].take(request[TOKEN].id):
        raise http_error(429, {"Retry-After": str(math.ceil(seconds))})
