"""Limits: requests at once, bodies being received, bytes in memory, and requests per second."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, NamedTuple, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler

from service.bounded import Bounded
from service.http.errors import http_error, unavailable
from service.http.keys import HEAD_BYTES, SETTINGS, STAYING, TOKEN
from service.http.middleware.auth import while_valid
from service.http.turns import OTHERS_WORK, Turns, Waiting, Waking
from service.settings import Settings
from service.store import in_time, time_budget

T = TypeVar("T")

_MAX_BUCKETS = 10_000
# A first piece takes 5 to 20 ms and up to 3 MB; a search that finds little, about a second.
_MAX_BEGINNING, _MAX_SEARCHING = 5, 5
# Larger heads count while their requests wait or follow, and their connections end with the response. A head is kept as
# bytes and as text: one emoji makes four bytes of each character of a header.
SMALL_HEAD, _HEAD_COPIES = 8 * 1024, 5
# The default limit of connections, and how many of them are reserved for requests without a token.
_CONNECTIONS, _KEPT = 10_000, 16


class Holder(NamedTuple):
    """The owner of something that was taken: a token of an organization."""

    organization_id: int
    token_id: str


# Incomplete heads have no owner yet.
HEADS = Holder(-1, "")


class Pool:
    """A bounded amount of something: no organization holds more than 3/4 of it, and no token more than 5/8."""

    def __init__(self, total: int, name: str = "") -> None:
        self.name = name  # as in the metrics
        self.total, self.share = total, total - total * 3 // 8
        self._organization_share = total - total // 4
        self.used = 0
        self._held: dict[Holder | int, int] = {}
        self._waiting = Waiting[tuple[Holder, int]]()

    def take(self, holder: Holder, amount: int = 1, share: int | None = None) -> bool:
        """Take an amount; return False if the pool, or the owner's share, does not have enough."""
        held, of_organization = self._held.get(holder, 0), self._held.get(holder.organization_id, 0)
        if (
            self.used + amount > self.total
            or held + amount > (self.share if share is None else share)
            or of_organization + amount > self._organization_share
        ):
            return False
        self._count(holder, amount)
        return True

    def held_by_others(self, organization_id: int) -> int:
        """Return how much other organizations hold."""
        return self.used - self._held.get(organization_id, 0)

    async def take_in_turn(self, holder: Holder, amount: int = 1) -> None:
        """Take an amount as soon as there is enough; organizations take turns, and a holder's own keep their order."""
        if self._waiting.has(holder) or not self.take(holder, amount):
            try:
                await self._waiting.wait((holder, amount), lambda wanted: self.put_back(*wanted), holder)
            except asyncio.CancelledError:
                self._let_in()  # the next one of this holder may want less
                raise

    def put_back(self, holder: Holder, amount: int = 1) -> None:
        """Return an amount that was taken."""
        self._count(holder, -amount)
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._waiting.let_in(lambda wanted: self.take(*wanted)):
            pass

    def _count(self, holder: Holder, amount: int) -> None:
        self.used += amount
        for key in (holder, holder.organization_id):
            held = self._held.get(key, 0) + amount
            if held:
                self._held[key] = held
            else:
                self._held.pop(key, None)


class Limits:
    """The pools of a process, and a bucket of requests for each token."""

    def __init__(self, settings: Settings) -> None:
        self.set_connections(_CONNECTIONS)
        self.working = Pool(settings.max_in_flight, "requests")
        self.sending = Pool(settings.max_in_flight)  # those of them that wait for their clients
        self.receiving = Pool(settings.max_receiving, "bodies")
        self.bytes = Pool(settings.max_bytes_in_flight, "bytes")
        # Streams and large pages that read their first piece. Until then it is unknown how much memory a stream needs;
        # and the driver's threads that decode many replies at once keep the event loop waiting, up to 100 ms.
        self.beginning = Pool(_MAX_BEGINNING)
        # A search keeps one of the driver's threads at work for up to a second.
        self.searching = Pool(_MAX_SEARCHING)
        # Bodies are decoded in slices, one slice at a time: the first one of 16 MiB takes 60 ms.
        self.decoding = Turns(1)
        # Readers that have waited and continue.
        self.waking = Waking()
        self.rate = settings.rate_limit
        self._buckets: Bounded[str, tuple[float, float]] = Bounded(_MAX_BUCKETS)

    def set_connections(self, count: int) -> None:
        """Set the limit of connections; some are reserved for health checks and clients without a token yet."""
        self.requests = Pool(max(1, count - max(min(_KEPT, count // 4), count // 8)), "connections")
        self.waiting = Pool(max(1, self.requests.total * 3 // 4), "readers")  # that wait or follow

    def others_work(self, organization_id: int) -> bool:
        """Return whether requests of other organizations are at work, and not only waiting for their clients."""
        return self.working.held_by_others(organization_id) > self.sending.held_by_others(organization_id)

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

    def __init__(self, limits: Limits, holder: Holder) -> None:
        self._limits, self._holder = limits, holder
        self._held: list[Pool] = []  # one place in each
        self._place: Pool | None = None
        self._bytes = self._head = 0
        self._enter(limits.requests)

    def receive(self) -> None:
        """Begin to receive a body."""
        self._move_to(self._limits.receiving)

    def work(self) -> None:
        """Begin to work: the body is complete, or there is none."""
        self._move_to(self._limits.working)

    def stay(self, request: web.BaseRequest) -> None:
        """Take a place among the readers that wait or follow, until the end of the request; count a large head."""
        if self._limits.waiting in self._held:
            return
        self._enter(self._limits.waiting)
        if (size := request.get(HEAD_BYTES, 0)) > SMALL_HEAD:
            self._take(_HEAD_COPIES * size)
            self._head = _HEAD_COPIES * size  # `pause` does not release it

    def hold(self, size: int) -> None:
        """Count bytes that the request keeps in memory, until `release` or its end."""
        self._take(size)
        self._bytes += size

    def release(self, size: int) -> None:
        """Stop counting bytes that are no longer in memory."""
        self._bytes -= size
        self._limits.bytes.put_back(self._holder, size)

    def pause(self) -> int:
        """Release the place and all bytes; return the number of bytes."""
        held = self._bytes
        self._leave()
        if held:
            self.release(held)
        return held

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Count the request as one that waits for its client."""
        counts = self._place is self._limits.working and self._limits.sending.take(self._holder)
        try:
            yield
        finally:
            if counts:
                self._limits.sending.put_back(self._holder)

    async def hold_in_turn(self, size: int) -> None:
        """Count bytes as `hold` does, but wait for room instead of raising 503: the response has begun already."""
        await self._limits.bytes.take_in_turn(self._holder, size)
        self._bytes += size

    async def resume(self, size: int) -> None:
        """Take a place and bytes again, when it is this organization's turn."""
        await self.hold_in_turn(size)
        await self._limits.working.take_in_turn(self._holder)
        self._place = self._limits.working

    async def follow(self, request: web.BaseRequest, size: int) -> None:
        """Begin a response that stays open: take a place among such responses, then wait for its turn."""
        self.stay(request)
        self.pause()
        await self.resume(size)

    def beginning(self) -> AbstractAsyncContextManager[None]:
        """Hold a place among those that read their first piece."""
        return self._in_turn(self._limits.beginning)

    def searching(self) -> AbstractAsyncContextManager[None]:
        """Hold a place among those that look for few documents in many."""
        return self._in_turn(self._limits.searching)

    @asynccontextmanager
    async def _in_turn(self, pool: Pool) -> AsyncIterator[None]:
        """Hold a place when it is this organization's turn.

        The wait counts against the time that the request has for the database, and ends with it.
        """
        async with in_time():
            await pool.take_in_turn(self._holder)
        try:
            yield
        finally:
            pool.put_back(self._holder)

    def close(self) -> None:
        """Return everything."""
        self.pause()
        self._limits.bytes.put_back(self._holder, self._head)
        self._head = 0
        for pool in self._held:
            pool.put_back(self._holder)
        self._held.clear()

    def _take(self, size: int) -> None:
        if not self._limits.bytes.take(self._holder, size):
            raise unavailable(self._limits.bytes.name)

    def _enter(self, pool: Pool) -> None:
        if not pool.take(self._holder):
            raise unavailable(pool.name)
        self._held.append(pool)

    def _leave(self) -> None:
        if self._place is not None:
            place, self._place = self._place, None
            place.put_back(self._holder)

    def _move_to(self, place: Pool) -> None:
        if self._place is not place:
            self._leave()
            if not place.take(self._holder):
                raise unavailable(place.name)
            self._place = place


ADMISSION = web.RequestKey("admission", Admission)


class TailGate:
    """The limits of the tails of an organization, shared by all their readers."""

    def __init__(self, limits: Limits, organization_id: int) -> None:
        self._limits, self._holder = limits, Holder(organization_id, "tails")

    async def take(self, size: int) -> None:
        await self._limits.bytes.take_in_turn(self._holder, size)

    def put_back(self, size: int) -> None:
        self._limits.bytes.put_back(self._holder, size)

    def wake(self, waiting: asyncio.Future[None]) -> None:
        self._limits.waking.add(waiting)


def end_with_client(request: web.Request) -> None:
    """Cancel a request that waits or follows when its client leaves; of many that leave at once, a few at a time.

    Raises ConnectionResetError if the client has left already.
    """
    if request.transport is None or getattr(request.protocol, "half_closed", False):
        raise ConnectionResetError
    task, left = asyncio.current_task(), asyncio.get_running_loop().create_future()
    assert task is not None
    left.add_done_callback(lambda _: task.cancel())
    request[STAYING] = functools.partial(request.app[LIMITS].waking.add, left)


@asynccontextmanager
async def idle(request: web.Request) -> AsyncIterator[None]:
    """Release the place and the bytes while the request waits; take both again afterwards."""
    admission = request[ADMISSION]
    admission.stay(request)
    held = admission.pause()
    yield
    await admission.resume(held)
    if request.transport is None:  # the client has gone meanwhile
        raise ConnectionResetError


async def parked(request: web.Request, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns, which waits for long: without a place or bytes, while client and token stay."""
    try:
        async with while_valid(request), idle(request):
            end_with_client(request)
            return await work
    finally:
        work.close()


@web.middleware
async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse requests over the limits at once; health checks and metrics always pass."""
    if TOKEN not in request:
        return await handler(request)
    token, limits = request[TOKEN], request.app[LIMITS]
    OTHERS_WORK.set(functools.partial(limits.others_work, token.organization_id))
    admission = request[ADMISSION] = Admission(limits, Holder(token.organization_id, token.id))
    try:
        if request.content.is_eof():
            admission.work()
        else:  # `read_body` calls `work` later: a slow sender takes no place from requests at work
            admission.receive()
        return await handler(request)
    finally:
        admission.close()


@web.middleware
async def rate_limit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse more requests per second than a token may send."""
    limits = request.app[LIMITS]
    if limits.rate > 0 and TOKEN in request:
        seconds = limits.wait_for(request[TOKEN].id)
        if seconds:
            raise http_error(429, {"Retry-After": str(math.ceil(seconds))})
    return await handler(request)


@web.middleware
async def time_limit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Limit the database time of one request to `mongo_timeout`; after that the response is 503."""
    with time_budget(request.app[SETTINGS].mongo_timeout):
        return await handler(request)
