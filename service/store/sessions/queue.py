"""Those who wait for a session: in one process strictly in order, across processes by how long they have waited.

One task per pool serves the waiters of this process. It is woken by a release here, by the change stream for a release
elsewhere, and by a timer for the first lease or rest that ends. Who has waited for some seconds is published in the
document of the pool, which is read for every lease anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import time
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from service.store.errors import StoreError, StoreUnavailable
from service.store.sessions.leases import Leases, SessionLease, Wanted
from service.store.sessions.pools import Pool, Pools, Waiting
from service.store.sessions.watch import SessionWatch
from service.store.time_budget import time_budget

log = logging.getLogger("service.store")

# Nobody is passed over by who has waited this much less.
_FAIR_SECONDS = 5.0
# Shorter waits are not published.
_PUBLISH_AFTER_SECONDS = 2.0
# How often waiters are published again, and looked at if nothing wakes their task.
_BEAT_SECONDS = 2.0
_RETRY_SECONDS = 0.5
# Names that one process publishes for a pool.
_MAX_PUBLISHED = 100
_BUDGET_SECONDS = 5.0


class PoolDeleted(StoreError):
    """The pool was deleted while somebody waited for one of its sessions."""


@dataclass(eq=False)
class _Waiter:
    wanted: Wanted
    since: float
    result: asyncio.Future[SessionLease]


@dataclass(eq=False)
class _Line:
    """The waiters of one pool in this process, in the order of their arrival."""

    pool: Pool
    waiters: dict[_Waiter, None] = field(default_factory=dict)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    published: bool = False
    task: asyncio.Task[None] | None = None

    def holds_up(self, wanted: Wanted) -> bool:
        """Return whether somebody who came earlier waits for what a new request wants."""
        return any(waiter.wanted.name in (None, wanted.name) for waiter in self.waiters)

    def names(self) -> set[str]:
        """Return the names that somebody waits for."""
        return {waiter.wanted.name for waiter in self.waiters if waiter.wanted.name is not None}


class Queue:
    """Gives leases: at once where a session is ready and nobody waits for it, else in order."""

    def __init__(self, pools: Pools, leases: Leases, watch: SessionWatch) -> None:
        self._pools, self._leases, self._watch = pools, leases, watch
        self._process = uuid.uuid4().hex
        self._lines: dict[str, _Line] = {}
        self._stopped = False
        self._undoing: set[asyncio.Task[Any]] = set()
        watch.wake = self.wake

    async def take(self, pool: Pool, wanted: Wanted) -> SessionLease | None:
        """Return a lease if a session is ready that nobody waits for; a lease that the request has already comes back.

        Raises as `Leases.take`.
        """
        line = self._lines.get(pool.id)
        if line is not None and line.holds_up(wanted):
            return await self._leases.again(pool, wanted)
        return await self._attempt(pool, wanted, 0.0, set() if line is None else line.names())

    async def wait(self, pool: Pool, wanted: Wanted, seconds: float) -> SessionLease | None:
        """Return a lease as soon as it is the request's turn; None after some seconds.

        A caller that is cancelled has no lease. Raises PoolDeleted, and as `Leases.take`.
        """
        if self._stopped:
            raise StoreUnavailable("the service stops")
        line = self._lines.get(pool.id)
        if line is None:
            line = self._lines[pool.id] = _Line(pool)
        waiter = _Waiter(wanted, time.monotonic(), asyncio.get_running_loop().create_future())
        line.waiters[waiter] = None
        if line.task is None:
            # In a context of its own: it must not have the time limit of the request that started it.
            line.task = asyncio.create_task(self._serve(line), context=contextvars.Context())
        line.woken.set()
        try:
            with contextlib.suppress(TimeoutError), self._watch.waiting():
                async with asyncio.timeout(seconds):
                    return await asyncio.shield(waiter.result)
            return waiter.result.result() if waiter.result.done() else None
        except asyncio.CancelledError:
            if waiter.result.done() and waiter.result.exception() is None:
                self.undo(pool, wanted)
            raise
        finally:
            line.waiters.pop(waiter, None)
            waiter.result.cancel()
            line.woken.set()  # the turn passes on

    def undo(self, pool: Pool, wanted: Wanted, *, last: bool = False) -> None:
        """Take a lease back that could not be delivered, in the background; `last` as for `Leases.undo`."""

        async def undo() -> None:
            with contextlib.suppress(StoreError):  # then it ends by itself
                if await self._leases.undo(pool, wanted, last=last):
                    self.wake(pool.id)

        self._run(undo())

    def wake(self, pool_id: str | None) -> None:
        """Look after the waiters of a pool, or of all."""
        for id in list(self._lines) if pool_id is None else [pool_id]:
            if id in self._lines:
                self._lines[id].woken.set()

    def stop(self) -> None:
        """Send every waiter away, now and later: the service stops."""
        self._stopped = True
        for line in self._lines.values():
            self._fail(line, StoreUnavailable("the service stops"))

    async def close(self) -> None:
        """End the tasks, after the leases that nobody got are taken back."""
        self.stop()
        tasks = [line.task for line in self._lines.values() if line.task is not None]
        await asyncio.gather(*tasks, *self._undoing, return_exceptions=True)
        await self._watch.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)

    async def _serve(self, line: _Line) -> None:
        """Give leases to the waiters of a pool until there are none."""
        while line.waiters:
            line.woken.clear()
            pause = _BEAT_SECONDS
            try:
                with time_budget(_BUDGET_SECONDS):
                    pool = await self._pools.by_id(line.pool.organization_id, line.pool.id)
                    if pool is None:
                        self._fail(line, PoolDeleted())
                        break
                    await self._give(line, pool)
                    await self._publish(line, pool)
                    due = await self._pools.seconds_until_due(pool)
                    pause = _BEAT_SECONDS if due is None else min(_BEAT_SECONDS, due)
            except StoreError as error:
                log.warning("leases for waiting workers were interrupted", extra={"error": str(error)})
                await asyncio.sleep(_RETRY_SECONDS)
            except Exception as error:
                # The waiters time out by themselves; others must be served.
                log.error("serving waiting workers failed", extra={"error": type(error).__name__})
                await asyncio.sleep(_RETRY_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await line.woken.wait()
        del self._lines[line.pool.id]  # before anything is awaited: a new waiter makes a new line
        if line.published:
            with contextlib.suppress(StoreError), time_budget(_BUDGET_SECONDS):
                await self._withdraw(line)

    async def _give(self, line: _Line, pool: Pool) -> None:
        """Give leases in the order of arrival, as far as sessions are ready."""
        not_ready: set[str] = set()
        if len(names := line.names()) > 1:  # one look for all names instead of one attempt each
            await self._pools.settle(pool)
            not_ready = names - await self._pools.ready_of(pool, sorted(names))
        passed: set[str] = set()  # names that somebody earlier waits for
        for waiter in list(line.waiters):
            name = waiter.wanted.name
            if waiter.result.done():
                continue
            if name is not None and name in passed | not_ready:
                passed.add(name)
                continue
            try:
                waited = time.monotonic() - waiter.since
                lease = await self._attempt(pool, waiter.wanted, waited, passed, line)
            except StoreUnavailable:
                raise
            except StoreError as error:
                _end(waiter, error)
                continue
            if lease is None:
                if name is None:
                    return
                passed.add(name)
            elif waiter.result.done():  # its client has left meanwhile
                self.undo(pool, waiter.wanted)
            else:
                line.waiters.pop(waiter, None)
                waiter.result.set_result(lease)

    async def _attempt(
        self, pool: Pool, wanted: Wanted, waited: float, passed: set[str], line: _Line | None = None
    ) -> SessionLease | None:
        """Take a session for who has waited some seconds, unless somebody elsewhere has waited much longer for it."""
        longer = [
            entry
            for entry in pool.waiting
            if entry.process != self._process and entry.seconds >= waited + _FAIR_SECONDS
        ]
        if any(entry.name in (None, wanted.name) for entry in longer):
            return await self._leases.again(pool, wanted)
        besides = passed | {entry.name for entry in longer if entry.name is not None}
        own = [] if line is None else list(line.waiters)
        exclusive = [entry.name for entry in pool.waiting if entry.exclusive and entry.process != self._process]
        exclusive += [waiter.wanted.name for waiter in own if not waiter.wanted.shared]
        if wanted.shared:
            besides |= {name for name in exclusive if name is not None}
        may_join = not any(name in (None, wanted.name) for name in exclusive)
        return await self._leases.take(pool, wanted, sorted(besides), may_join=may_join)

    async def _publish(self, line: _Line, pool: Pool) -> None:
        """Publish who has waited longest, for any session and for each name; at once where shared leases are in use."""
        moment, first = time.monotonic(), dict[str | None, Waiting]()
        for waiter in line.waiters:
            name, exclusive = waiter.wanted.name, not waiter.wanted.shared
            known = first.get(name)
            if known is None:
                first[name] = Waiting(self._process, name, moment - waiter.since, exclusive)
            elif exclusive:
                first[name] = known._replace(exclusive=True)
        waiting = sorted(first.values(), key=lambda entry: -entry.seconds)[:_MAX_PUBLISHED]
        is_long = bool(waiting) and waiting[0].seconds >= _PUBLISH_AFTER_SECONDS
        if is_long or line.published or (waiting and await self._pools.has_shared(pool)):
            await self._pools.publish(pool, self._process, waiting)
            line.published = bool(waiting)

    async def _withdraw(self, line: _Line) -> None:
        if line.pool.id not in self._lines:
            await self._pools.publish(line.pool, self._process, [])

    def _fail(self, line: _Line, error: StoreError) -> None:
        for waiter in line.waiters:
            _end(waiter, error)
        line.woken.set()


def _end(waiter: _Waiter, error: StoreError) -> None:
    if not waiter.result.done():
        waiter.result.set_exception(error)
