"""Failovers: primaries killed, frozen, stepped down and cut off from the others, in turn."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator

from scripts.replica_set import Member, ReplicaSet, ReplicaSetError

KINDS = ("kill -9", "freeze", "step down", "cut off")
# How long the old primary stays away once there is a new one, which takes writes meanwhile.
HOLD_SECONDS = 2.0
# Until a new primary takes writes, and until all members are back; much longer than it takes.
_MAX_SECONDS = 180.0
_LOOK_SECONDS = 0.2


class Failovers:
    """Makes one failover after another; `look` is called all the time and returns at once, nearly."""

    def __init__(self, replica_set: ReplicaSet, every: float) -> None:
        self._set, self._every = replica_set, every
        self.counts = Counter[str]()
        self.longest_without_primary = self.longest_until_healthy = 0.0
        self._failed: tuple[str, Member] | None = None
        self._next_look = 0.0
        self._steps = self._run()

    def look(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        if now >= self._next_look:
            next(self._steps)
            self._next_look = time.monotonic() + _LOOK_SECONDS

    def finish(self) -> None:
        """Undo what is under way and wait until all members are back."""
        self._undo()
        self._set.wait_until_healthy(_MAX_SECONDS)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def _run(self) -> Iterator[None]:
        for kind in itertools.cycle(random.sample(KINDS, len(KINDS))):
            started = time.monotonic()
            while time.monotonic() < started + random.uniform(0.2, 0.5) * self._every:
                yield
            yield from self._fail_over(kind)
            while time.monotonic() < started + self._every:
                yield

    def _fail_over(self, kind: str) -> Iterator[None]:
        old = self._set.wait_for_primary()
        started = time.monotonic()
        self._failed = kind, old
        if kind == "kill -9":
            self._set.kill(old)
        elif kind == "freeze":
            self._set.freeze(old)
        elif kind == "step down":
            self._set.step_down(old)
        else:
            self._set.cut_off(old)
        new = self._set.primary()
        while new is None or new is old:
            if time.monotonic() > started + _MAX_SECONDS:
                raise ReplicaSetError(f"no new primary {_MAX_SECONDS:.0f} s after: {kind}")
            yield
            new = self._set.primary()
        elected = time.monotonic()
        self.longest_without_primary = max(self.longest_without_primary, elected - started)
        self.counts[kind] += 1
        while kind != "step down" and time.monotonic() < elected + HOLD_SECONDS:
            yield
        self._undo()
        while not self._set.is_healthy():
            if time.monotonic() > elected + HOLD_SECONDS + _MAX_SECONDS:
                raise ReplicaSetError(f"not all members are back {_MAX_SECONDS:.0f} s after: {kind}")
            yield
        self.longest_until_healthy = max(self.longest_until_healthy, time.monotonic() - elected)

    def _undo(self) -> None:
        if self._failed is None:
            return
        kind, member = self._failed
        self._failed = None
        if kind == "kill -9":
            self._set.restart(member)
        elif kind == "freeze":
            self._set.thaw(member)
        elif kind == "cut off":
            self._set.rejoin(member)
