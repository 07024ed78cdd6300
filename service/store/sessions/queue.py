"""Those who wait for a session: in one process strictly in order, across processes by how long they have waited.

One task per pool serves the waiters of this process. It is woken by a release here, by the change stream for a release
elsewhere, and by a timer for the first lease or rest that ends. One more task looks after all pools every few seconds,
with a few commands for each organization: pools that wait cost no more than one. Who has waited for some seconds is
published in the document of the pool, which is read for every lease anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import time
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

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
# How often waiters are published again, and looked after if nothing wakes their task.
_BEAT_SECONDS = 2.0
# Pools of one organization that are served at once: others need the database too.
_SERVED_AT_ONCE = 4
_RETRY_SECONDS = 0.5
# A lease or rest that ends less than this before what is known wakes nobody.
_EARLIER_SECONDS = 0.1
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
    turn: asyncio.Semaphore
    due: float = math.inf  # when the first lease or rest of the pool ends, as far as is known
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
        self._turns: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()
        self._keeper: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()  # the keeper
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
            turn = self._turns.setdefault(pool.organization_id, asyncio.Semaphore(_SERVED_AT_ONCE))
            line = self._lines[pool.id] = _Line(pool, turn)
        waiter = _Waiter(wanted, time.monotonic(), asyncio.get_running_loop().create_future())
        line.waiters[waiter] = None
        if line.task is None:
            # In a context of its own: it must not have the time limit of the request that started it.
            line.task = asyncio.create_task(self._serve(line), context=contextvars.Context())
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep(), context=contextvars.Context())
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
        if pool_id is None:
            self._woken.set()
        elif pool_id in self._lines:
            self._lines[pool_id].woken.set()

    def stop(self) -> None:
        """Send every waiter away, now and later: the service stops."""
        self._stopped = True
        for line in self._lines.values():
            self._fail(line, StoreUnavailable("the service stops"))

    async def close(self) -> None:
        """End the tasks, after the leases that nobody got are taken back."""
        self.stop()
        self._woken.set()
        tasks = [task for task in (self._keeper, *(line.task for line in self._lines.values())) if task is not None]
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
            try:
                async with line.turn:
                    with time_budget(_BUDGET_SECONDS):
                        if not await self._serve_once(line):
                            break
            except StoreError as error:
                log.warning("leases for waiting workers were interrupted", extra={"error": str(error)})
                await asyncio.sleep(_RETRY_SECONDS)
            except Exception as error:
                # The waiters time out by themselves; others must be served.
                log.error("serving waiting workers failed", extra={"error": type(error).__name__})
                await asyncio.sleep(_RETRY_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if line.due == math.inf else line.due - time.monotonic()):
                    await line.woken.wait()
        del self._lines[line.pool.id]  # before anything is awaited: a new waiter makes a new line
        if line.published:
            with contextlib.suppress(StoreError), time_budget(_BUDGET_SECONDS):
                await self._withdraw(line)

    async def _serve_once(self, line: _Line) -> bool:
        """Give leases as far as sessions are ready; return False if the pool was deleted."""
        pool = await self._pools.by_id(line.pool.organization_id, line.pool.id)
        if pool is None:
            self._fail(line, PoolDeleted())
            return False
        await self._give(line, pool)
        # At once where shared leases are in use: they never end while others join them.
        if line.published or (line.waiters and await self._pools.has_shared(pool)):
            await self._publish([line])
        seconds = await self._pools.seconds_until_due(pool)
        line.due = math.inf if seconds is None else time.monotonic() + seconds
        return True

    async def _keep(self) -> None:
        """Look after all pools now and then, until nobody waits in this process."""
        while self._lines and not self._stopped:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_BEAT_SECONDS):
                    await self._woken.wait()
            self._woken.clear()
            by_organization: dict[int, list[_Line]] = {}
            for line in self._lines.values():
                by_organization.setdefault(line.pool.organization_id, []).append(line)
            for organization_id, lines in by_organization.items():
                try:
                    with time_budget(_BUDGET_SECONDS):
                        await self._look_after(organization_id, lines)
                except StoreError as error:
                    log.warning("leases for waiting workers were interrupted", extra={"error": str(error)})
                except Exception as error:  # others must be looked after
                    log.error("serving waiting workers failed", extra={"error": type(error).__name__})

    async def _look_after(self, organization_id: int, lines: list[_Line]) -> None:
        """Publish who waits long, and wake the pools where something has happened that nobody has told."""
        await self._publish([line for line in lines if line.published or _longest(line) >= _PUBLISH_AFTER_SECONDS])
        ready = await self._pools.seconds_until_ready(organization_id, [line.pool.id for line in lines])
        for line in lines:
            seconds = ready.get(line.pool.id, 0.0)  # 0 for a pool that was deleted
            is_due = seconds is not None and time.monotonic() + seconds < line.due - _EARLIER_SECONDS
            # Who waits elsewhere for an exclusive lease may have gone: no session shows that.
            if is_due or any(waiter.wanted.shared for waiter in line.waiters):
                line.woken.set()

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

    async def _publish(self, lines: list[_Line]) -> None:
        """Publish who has waited longest in some pools of an organization, for any session and for each name."""
        if lines:
            waiting = {line.pool.id: self._first(line) for line in lines}
            await self._pools.publish(lines[0].pool.organization_id, self._process, waiting)
            for line in lines:
                line.published = bool(waiting[line.pool.id])

    def _first(self, line: _Line) -> list[Waiting]:
        moment, first = time.monotonic(), dict[str | None, Waiting]()
        for waiter in line.waiters:
            name, exclusive = waiter.wanted.name, not waiter.wanted.shared
            known = first.get(name)
            if known is None:
                first[name] = Waiting(self._process, name, moment - waiter.since, exclusive)
            elif exclusive:
                first[name] = known._replace(exclusive=True)
        return sorted(first.values(), key=lambda entry: -entry.seconds)[:_MAX_PUBLISHED]

    async def _withdraw(self, line: _Line) -> None:
        if line.pool.id not in self._lines:
            await self._pools.publish(line.pool.organization_id, self._process, {line.pool.id: []})

    def _fail(self, line: _Line, error: StoreError) -> None:
        for waiter in line.waiters:
            _end(waiter, error)
        line.woken.set()


def _longest(line: _Line) -> float:
    """Return how long the first waiter of a pool has waited."""
    return max((time.monotonic() - waiter.since for waiter in line.waiters), default=0.0)


def _end(waiter: _Waiter, error: StoreError) -> None:
    if not waiter.result.done():
        waiter.result.set_exception(error)
