"""Writes to one group that arrive together share a round; rounds of one group run side by side.

A round takes three round trips and three journal flushes, whether it writes one item or a thousand; one less where the
next round begins as it ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, KeysView
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from service.store.errors import StoreUnavailable

GroupKey = tuple[int, str]

# The least share of its rounds and keys that a process is left with, and what it gets back per round.
_MIN_SHARE = 1 / 16
_SHARE_STEP = 1 / 16


class Joinable(Protocol):
    """A write of some bytes that can share a round with others, as long as no key is in both."""

    @property
    def keys(self) -> KeysView[str]: ...

    @property
    def size(self) -> int: ...

    done: asyncio.Future[Any]


W = TypeVar("W", bound=Joinable)


@dataclass(eq=False)
class _Waiting(Generic[W]):
    """A write, and for how many of its keys an earlier one is not done."""

    write: W
    behind: int = 0


@dataclass(eq=False)
class Turn(Generic[W]):
    """One round: its writes, and what passes between it, the round before and the next one of its group."""

    writes: list[W]
    # What the round before leaves this one, and when: nothing where none was about to end, or where it failed.
    claim: Any = None
    left: asyncio.Future[Any] | None = None
    next: Turn[W] | None = None


def _begin_none() -> None:
    """Begin no round."""


class _Group(Generic[W]):
    """The writes of one group: those of each key in the order in which they came, and those that may begin."""

    def __init__(self) -> None:
        self.ready: deque[W] = deque()
        self.rounds = 0
        self._by_key: dict[str, list[_Waiting[W]]] = {}

    def add(self, write: W) -> None:
        """Let a write begin once those before it that share a key with it are done."""
        waiting = _Waiting(write)
        for key in write.keys:
            of_key = self._by_key.setdefault(key, [])
            waiting.behind += bool(of_key)
            of_key.append(waiting)
        if not waiting.behind:
            self.ready.append(write)

    def remove(self, write: W) -> None:
        """Take out a write that is done; whoever waited for it alone may begin."""
        for key in write.keys:
            of_key = self._by_key[key]
            del of_key[0]
            if not of_key:
                del self._by_key[key]
                continue
            of_key[0].behind -= 1
            if not of_key[0].behind:
                self.ready.append(of_key[0].write)


@dataclass
class GroupCommit(Generic[W]):
    """Joins waiting writes into rounds and runs several rounds of one group at once.

    Rounds in flight share no key. A write that shares a key with one in flight waits; those behind
    it do not, unless they share a key with it.
    """

    # With what begins the next round and returns it, None where none waits: for a round that is about to end.
    commit: Callable[[GroupKey, Turn[W], Callable[[], Turn[W] | None]], Awaitable[None]]
    join: bool = True
    max_rounds: int = 4
    # A larger round gains nothing, and takes long enough to outlive its lease.
    max_keys: int = 1000
    max_bytes: int = 16 * 1024 * 1024
    # Rounds that take longer than this are made fewer and smaller, until the database keeps up again.
    slow_seconds: float = math.inf

    def __post_init__(self) -> None:
        self.begun = 0  # rounds so far
        self._share = 1.0  # of the rounds and keys that are allowed at most
        self._groups: dict[GroupKey, _Group[W]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, key: GroupKey, write: W) -> Any:
        """Return the write's result once its round is durable; go on if the caller is cancelled."""
        if self.join:
            self._groups.setdefault(key, _Group()).add(write)
            self._start_rounds(key)
        else:
            self._start(self._run(key, Turn([write])))
        return await asyncio.shield(write.done)

    async def close(self) -> None:
        """Wait until every write under way is done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def in_flight(self) -> int:
        return len(self._tasks)

    def _start(self, work: Any) -> None:
        self.begun += 1
        # In a context of its own: a round must not end with the time of the request that began it.
        task = asyncio.create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _start_rounds(self, key: GroupKey) -> None:
        group = self._groups[key]
        while group.ready and group.rounds < self._most_rounds:
            group.rounds += 1
            self._start(self._round(key, group, Turn(self._next_round(group.ready))))
        if not group.rounds:
            del self._groups[key]

    @property
    def _most_rounds(self) -> float:
        return max(1, self.max_rounds * self._share)

    def _begin_next(self, key: GroupKey, group: _Group[W], turn: Turn[W]) -> Turn[W] | None:
        """Begin the next round in the place of one that is about to end."""
        if turn.next is None and group.ready and group.rounds <= self._most_rounds:
            turn.next = Turn(self._next_round(group.ready), left=asyncio.get_running_loop().create_future())
            self._start(self._round(key, group, turn.next))
            return turn.next
        return None

    def _next_round(self, ready: deque[W]) -> list[W]:
        """Take the writes of one round out of those that may begin."""
        chosen: list[W] = []
        keys = size = 0
        while ready:
            keys, size = keys + len(ready[0].keys), size + ready[0].size
            if chosen and (keys > self.max_keys * self._share or size > self.max_bytes):
                break
            chosen.append(ready.popleft())
        return chosen

    async def _round(self, key: GroupKey, group: _Group[W], turn: Turn[W]) -> None:
        started = time.monotonic()
        try:
            await self._run(key, turn, lambda: self._begin_next(key, group, turn))
        finally:
            self._adapt(time.monotonic() - started)
            for write in turn.writes:
                group.remove(write)
            if turn.next is None:
                group.rounds -= 1
            elif turn.next.left is not None and not turn.next.left.done():
                turn.next.left.set_result(None)
            self._start_rounds(key)

    def _adapt(self, seconds: float) -> None:
        """Take on less after a slow round, a little more after each other one.

        Without this, all rounds that an overloaded database works on at once run out of time
        together, are sent again by their clients, and none is ever done.
        """
        if seconds > self.slow_seconds:
            self._share = max(_MIN_SHARE, self._share / 2)
        else:
            self._share = min(1.0, self._share + _SHARE_STEP)

    async def _run(self, key: GroupKey, turn: Turn[W], begin_next: Callable[[], Turn[W] | None] = _begin_none) -> None:
        try:
            await self.commit(key, turn, begin_next)
        except Exception as error:
            left = [write for write in turn.writes if not write.done.done()]
            if len(left) < 2 or isinstance(error, StoreUnavailable):
                for write in left:
                    fail(write.done, error)
                return
            # One of them may be to blame, and only its own client is to have the error.
            for write in left:
                await self._run(key, Turn([write]))
        finally:
            for write in turn.writes:
                write.done.cancel()  # no effect on what is done


def fail(done: asyncio.Future[Any], error: Exception) -> None:
    """Let the caller of a write have an error, unless it has its result."""
    if not done.done():
        done.set_exception(error)
        done.exception()  # the caller may be gone: no "never retrieved" noise
