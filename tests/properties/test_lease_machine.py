"""Leases in two processes against a model: one holder, no save without a live lease, each use counted once."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import seed as hypothesis_seed
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from service.settings import Settings
from service.store import LeaseLost, Release, SessionLease, SessionPool, Store, Wanted, served_session, wanted
from tests.support.connections import make_indexes_once
from tests.support.sessions import lapse

pytestmark = pytest.mark.slow

_organizations = itertools.count(1_700_000_000 + os.getpid() * 1000)

# Leases, rests and blocks last thousands of seconds, and no sum of the times that pass comes within 100 s of one.
LEASE_SECONDS, MAX_LEASE_SECONDS, REST_SECONDS, BLOCKED_SECONDS = 1000, 5000, 2000, 4000
PASSING = (700, 1700)
TOLERANCE = 90.0
MAX_ERRORS = 2
OUTCOMES = ("good", "bad", "blocked", "logged_out", "interrupted", "unused")
MARKS = ("ready", "needs_login", "blocked", "retired")

names = st.sampled_from(["a", "b", "c", "d"])
processes = st.integers(0, 1)
seconds = st.sampled_from([None, 3000])
secrets = st.dictionaries(st.sampled_from(["user_data", "storage_state"]), st.integers(0, 10**6).map(str), max_size=2)
releases = st.builds(
    Release,
    st.sampled_from(OUTCOMES),
    secrets,
    st.sampled_from([None, 0, REST_SECONDS]),
    st.sampled_from([None, "a note"]),
)


@dataclass
class Held:
    since: int
    until: int


@dataclass
class Session:
    state: str = "ready"
    uses: int = 0
    errors: float = 0.0
    version: int = 0
    note: str = ""
    secrets: dict[str, str] = field(default_factory=dict)
    leases: dict[str, Held] = field(default_factory=dict)
    due: int | None = None
    last_used: int = 0
    mark: str | None = None
    overridden: bool = False
    # In the order of uses; None where the database may end a lease later than time has passed for it.
    turn: int | None = 0
    surely_ready: bool = True

    @property
    def served(self) -> str:
        return "leased" if self.leases else self.state


class Model:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings, self.now, self.turns = settings, 0, 0
        self.sessions: dict[str, Session] = {}

    def holder(self, lease_id: str) -> tuple[str, Session] | None:
        return next(((name, each) for name, each in self.sessions.items() if lease_id in each.leases), None)

    def candidates(self, name: str | None, shared: bool) -> set[str]:
        chosen = {each: self.sessions[each] for each in self.sessions if name in (None, each)}
        ready = {each for each, session in chosen.items() if session.served == "ready"}
        return ready or {
            each
            for each, session in chosen.items()
            if shared and session.state == "shared" and session.mark in (None, "ready")
        }

    def take(self, name: str, lease_id: str, seconds: int | None, shared: bool) -> None:
        session = self.sessions[name]
        until = self.now + min(seconds or LEASE_SECONDS, MAX_LEASE_SECONDS)
        session.leases[lease_id] = Held(self.now, until)
        session.state = "shared" if shared else "leased"
        session.due = min(held.until for held in session.leases.values())

    def renew(self, lease_id: str, seconds: int | None, secrets: dict[str, str]) -> bool:
        _, session = self.holder(lease_id) or (None, Session())
        held = session.leases[lease_id]
        held.until = max(held.until, min(self.now + (seconds or LEASE_SECONDS), held.since + MAX_LEASE_SECONDS))
        session.due = min(held.until for held in session.leases.values())
        return self.save(session, secrets)

    def save(self, session: Session, secrets: dict[str, str]) -> bool:
        saves = bool(secrets) and session.state != "shared" and not session.overridden
        if saves:
            session.version += 1
            session.secrets |= secrets
        return saves

    def release(self, lease_id: str, release: Release) -> bool:
        _, session = self.holder(lease_id) or (None, Session())
        shared, outcome = session.state == "shared", release.outcome
        saved = outcome in ("good", "bad") and self.save(session, release.secrets)
        if release.note is not None and not shared and not session.overridden:
            session.note = release.note
        del session.leases[lease_id]
        errors, state = session.errors, None
        if not shared:
            errors += {"good": -0.5, "bad": 1}.get(outcome, 0)
            state = {"blocked": self.blocked, "logged_out": "needs_login"}.get(outcome)
        uses = int(outcome != "unused")
        rest = self.settings["rest_seconds"] if release.rest_seconds is None else release.rest_seconds
        blocked = BLOCKED_SECONDS if release.rest_seconds is None or outcome != "blocked" else release.rest_seconds
        self.end(session, 1, self.now, uses, max(0.0, errors), rest if uses else 0, state, blocked)
        self.lapse(0, settled=False)  # blocked for no time
        return saved

    def undo(self, lease_id: str) -> None:
        _, session = self.holder(lease_id) or (None, Session())
        del session.leases[lease_id]
        session.due = min((held.until for held in session.leases.values()), default=None)
        if not session.leases:
            session.state = "ready"

    def put(self, name: str, given: dict[str, Any]) -> None:
        session = self.sessions.setdefault(name, Session())
        session.version += 1
        session.note = given.get("note", session.note)
        is_new_state = "storage_state" in given
        mark = given.get("state", "ready" if is_new_state else None)
        mark = self.blocked if mark == "blocked" else mark
        session.uses = 0 if is_new_state else session.uses
        session.errors = 0.0 if is_new_state or mark == "ready" else session.errors
        session.secrets |= {kind: text for kind, text in given.items() if kind in ("storage_state", "user_data")}
        if session.leases:
            session.overridden |= bool({"storage_state", "user_data", "state"} & given.keys())
            session.mark = mark or session.mark
        elif mark is not None:
            session.state, session.surely_ready = mark, True
            session.due = self.now + BLOCKED_SECONDS if mark == "blocked" else None

    def lapse(self, seconds: int, settled: bool) -> None:
        """Let time pass. What ends by it may be settled at once, or when somebody needs it."""
        self.now += seconds
        for session in self.sessions.values():
            while session.due is not None and session.due <= self.now:
                over = [id for id, held in session.leases.items() if held.until <= self.now]
                at = max(session.due, session.last_used, *(session.leases.pop(id).until for id in over))
                rest = self.settings["rest_seconds"]
                self.end(session, len(over), at, len(over), session.errors + len(over), rest, None)
                session.surely_ready = settled
                if over and not settled:
                    session.turn = None
        if settled:
            for session in self.sessions.values():
                session.surely_ready = True

    def end(
        self,
        session: Session,
        ended: int,
        at: int,
        uses: int,
        errors: float,
        rest: int,
        state: str | None,
        blocked: int = BLOCKED_SECONDS,
    ) -> None:
        if not session.overridden:
            session.uses += uses
            session.errors = errors
        session.last_used = at if uses else session.last_used
        if ended:
            self.turns += 1
            session.turn, session.surely_ready = self.turns, True
        if session.leases:
            session.due = min(held.until for held in session.leases.values())
            return
        session.state = self.state_after(session, ended, rest, state)
        dues = {"resting": at + rest, "blocked": at + blocked}
        session.due, session.mark, session.overridden = dues.get(session.state), None, False

    def state_after(self, session: Session, ended: int, rest: int, state: str | None) -> str:
        if not ended:
            session.errors = 0.0 if session.state == "blocked" else session.errors
            return "ready"
        if session.mark is not None:
            return session.mark
        state = None if session.overridden else state
        max_uses = self.settings["max_uses"]
        worn = "retired" if max_uses is not None and session.uses >= max_uses else None
        chosen = state or worn if state == "needs_login" else worn or state
        if chosen is not None:
            return chosen
        if session.errors >= MAX_ERRORS:
            return self.blocked
        return "resting" if rest else "ready"

    @property
    def blocked(self) -> str:
        return "retired" if self.settings["blocked_rest_seconds"] is None else "blocked"


class Leasing(RuleBasedStateMachine):
    """Two stores on one database, as two processes have them."""

    loop: asyncio.AbstractEventLoop
    stores: tuple[Store, Store]

    @initialize(
        rest=st.sampled_from([0, REST_SECONDS]),
        max_uses=st.sampled_from([None, 3]),
        blocked=st.sampled_from([None, BLOCKED_SECONDS]),
    )
    def start(self, rest: int, max_uses: int | None, blocked: int | None) -> None:
        self.organization = next(_organizations)
        settings: dict[str, Any] = {
            "lease_seconds": LEASE_SECONDS,
            "max_lease_seconds": MAX_LEASE_SECONDS,
            "max_errors": MAX_ERRORS,
        }
        settings |= {"rest_seconds": rest, "max_uses": max_uses, "blocked_rest_seconds": blocked}
        self.run(self.stores[0].sessions.pools.set(self.organization, "shop", settings))
        self.model = Model(settings)
        self.requests, self.granted = 0, set[str]()
        self.wanted: dict[str, Wanted] = {}
        self.released: dict[str, tuple[Release, dict[str, Any]]] = {}
        for name in ("a", "b"):
            self.put(name, {}, 0)

    def run(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(work)

    def pool(self, process: int) -> SessionPool:
        pool: SessionPool | None = self.run(self.stores[process].sessions.pools.find(self.organization, "shop"))
        assert pool is not None
        return pool

    def put(self, name: str, given: dict[str, Any], process: int) -> None:
        served = self.run(self.stores[process].sessions.records.put(self.organization, "shop", name, given, None))
        self.model.put(name, given)
        assert served["version"] == self.model.sessions[name].version

    def wants(
        self, name: str | None = None, seconds: int | None = None, shared: bool = False, own: bool = False
    ) -> Wanted:
        """Return a request whose lease id is the same when the steps are repeated."""
        self.requests += 1
        request = wanted(f"lease-{self.requests:020}", "somebody", seconds, name, shared)
        return request._replace(is_own_id=own)

    async def _take(self, wanted: Wanted, pool: SessionPool, process: int) -> SessionLease | None:
        return await self.stores[process].sessions.queue.take(pool, wanted)

    # -- what workers do ----------------------------------------------------------------------

    @rule(name=st.none() | names, seconds=seconds, shared=st.booleans(), own=st.booleans(), process=processes)
    def take(self, name: str | None, seconds: int | None, shared: bool, own: bool, process: int) -> None:
        request = self.wants(name, seconds, shared, own)
        self.note_taken(request, self.run(self._take(request, self.pool(process), process)))

    def note_taken(self, request: Wanted, lease: SessionLease | None) -> None:
        # Also without a lease: what can be drawn must not depend on who of several was first.
        self.wanted[request.lease_id] = request
        candidates = self.model.candidates(request.name, request.shared)
        assert (lease is not None) == bool(candidates), (request, candidates)
        if lease is None:
            return
        taken = lease.session["name"]
        assert taken in candidates, (taken, candidates)
        turn = self.model.sessions[taken].turn
        if turn is not None:
            sure = [self.model.sessions[each] for each in candidates if self.model.sessions[each].surely_ready]
            assert turn <= min([turn, *(each.turn for each in sure if each.turn is not None)])
        self.granted.add(request.lease_id)
        self.model.take(taken, request.lease_id, request.seconds, request.shared)
        assert lease.seconds == min(request.seconds or LEASE_SECONDS, MAX_LEASE_SECONDS)

    @rule(count=st.integers(2, 4))
    def take_at_once(self, count: int) -> None:
        requests = [self.wants() for _ in range(count)]
        pools = [self.pool(process) for process in (0, 1)]

        async def all_of_them() -> list[SessionLease | None]:
            takes = (self._take(each, pools[number % 2], number % 2) for number, each in enumerate(requests))
            return await asyncio.gather(*takes)

        leases: list[SessionLease | None] = self.run(all_of_them())
        taken = [lease.session["name"] for lease in leases if lease is not None]
        assert len(set(taken)) == len(taken) == min(count, len(self.model.candidates(None, False)))
        for request, lease in zip(requests, leases, strict=True):
            self.wanted[request.lease_id] = request
            if lease is not None:
                self.granted.add(request.lease_id)
                self.model.take(lease.session["name"], request.lease_id, None, False)

    @precondition(lambda self: any(each.is_own_id for each in self.wanted.values()))
    @rule(data=st.data(), process=processes)
    def take_again(self, data: st.DataObject, process: int) -> None:
        """The same request once more: the same lease while it is live, and never a second session."""
        request = data.draw(st.sampled_from([each for each in self.wanted.values() if each.is_own_id]))
        pool = self.pool(process)
        holder = self.model.holder(request.lease_id)
        if request.lease_id not in self.granted:
            self.note_taken(request, self.run(self._take(request, pool, process)))
        elif holder is None:
            with pytest.raises(LeaseLost):
                self.run(self._take(request, pool, process))
        else:
            lease: SessionLease | None = self.run(self._take(request, pool, process))
            assert lease is not None and lease.session["name"] == holder[0]

    @rule(process=processes, name=st.none() | names)
    def take_and_leave(self, process: int, name: str | None) -> None:
        """A client that has left before it got its lease has none."""
        pool, request = self.pool(process), self.wants(name)
        lease = self.run(self._take(request, pool, process))
        self.note_taken(request, lease)
        if lease is not None:
            assert self.run(self.stores[process].sessions.leases.undo(pool, request))
            self.model.undo(request.lease_id)

    @precondition(lambda self: self.wanted)
    @rule(data=st.data(), seconds=seconds, secrets=secrets, process=processes)
    def renew(self, data: st.DataObject, seconds: int | None, secrets: dict[str, str], process: int) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.wanted)))
        work = self.stores[process].sessions.leases.renew(self.organization, lease_id, seconds, secrets)
        if self.model.holder(lease_id) is None:
            with pytest.raises(LeaseLost):
                self.run(work)
            return
        _, saved = self.run(work)
        assert saved == self.model.renew(lease_id, seconds, secrets)

    @precondition(lambda self: self.wanted)
    @rule(data=st.data(), release=releases, process=processes)
    def release(self, data: st.DataObject, release: Release, process: int) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.wanted)))
        work = self.stores[process].sessions.leases.release(self.organization, lease_id, release)
        if self.model.holder(lease_id) is not None:
            self.released[lease_id] = release, self.run(work)
            assert self.released[lease_id][1]["saved"] == self.model.release(lease_id, release)
        elif self.released.get(lease_id, (None,))[0] == release:
            assert self.run(work) == self.released[lease_id][1]
        else:
            with pytest.raises(LeaseLost):
                self.run(work)

    @precondition(lambda self: self.wanted)
    @rule(data=st.data(), process=processes)
    def release_again(self, data: st.DataObject, process: int) -> None:
        """Word for word: the same answer, and nothing changes."""
        lease_id = data.draw(st.sampled_from(sorted(self.wanted)))
        if lease_id not in self.released:
            return
        release, answer = self.released[lease_id]
        again = self.run(self.stores[process].sessions.leases.release(self.organization, lease_id, release))
        assert again == answer

    # -- what people and time do --------------------------------------------------------------

    @rule(
        name=names,
        secrets=secrets,
        mark=st.none() | st.sampled_from(MARKS),
        note=st.none() | st.just("by a person"),
        process=processes,
    )
    def put_one(self, name: str, secrets: dict[str, str], mark: str | None, note: str | None, process: int) -> None:
        given = {**secrets, **({} if mark is None else {"state": mark}), **({} if note is None else {"note": note})}
        self.put(name, given, process)

    @rule(name=names, process=processes)
    def delete(self, name: str, process: int) -> None:
        pool = self.pool(process)
        assert self.run(self.stores[process].sessions.records.delete(pool, name)) == (name in self.model.sessions)
        self.model.sessions.pop(name, None)

    @rule(seconds=st.sampled_from(PASSING), settled=st.booleans())
    def time_passes(self, seconds: int, settled: bool) -> None:
        self.run(lapse(self.stores[0], self.organization, seconds=seconds))
        if settled:
            self.run(self.stores[0].sessions.pools.settle(self.pool(0)))
        self.model.lapse(seconds, settled)

    @rule(process=processes)
    def compare(self, process: int) -> None:
        store, pool = self.stores[process].sessions, self.pool(process)
        for name, expected in self.model.sessions.items():
            session = self.run(store.records.find(pool, name))
            served = served_session(pool, session)
            found = {field: served[field] for field in ("state", "uses", "errors", "version", "note")}
            wants = {field: getattr(expected, field) for field in ("uses", "errors", "version", "note")}
            assert found == {**wants, "state": expected.served}, (name, expected)
            assert {lease["id"] for lease in session.get("leases", ())} == expected.leases.keys()
            assert self.run(store.secrets.read(self.organization, session)) == expected.secrets
            assert (session.get("due") is None) == (expected.due is None), (name, session, expected)
            if expected.due is not None:
                left = (session["due"] - datetime.now(UTC)).total_seconds()
                assert abs(left - (expected.due - self.model.now)) < TOLERANCE, (name, session, expected)
        listed = self.run(store.pools.list(self.organization, "shop"))
        assert sum(listed[0]["sessions"].values()) == len(self.model.sessions)

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.compare(0)


@pytest.fixture
def machine(mongo_url: str) -> Iterator[type[Leasing]]:
    Leasing.loop = asyncio.new_event_loop()

    async def opened() -> tuple[Store, Store]:
        stores = []
        for _ in range(2):
            stores.append(Store.connect(Settings(mongo_database="lease_machine"), mongo_url))
            await make_indexes_once(stores[-1], mongo_url)
        return stores[0], stores[1]

    Leasing.stores = Leasing.loop.run_until_complete(opened())
    yield Leasing
    for store in Leasing.stores:
        Leasing.loop.run_until_complete(store.close())
    Leasing.loop.close()


def test_leases_are_what_the_model_says(machine: type[Leasing]) -> None:
    seed = int(os.environ.get("SEED") or random.randrange(2**32))
    print(f"seed {seed}: repeat with SEED={seed}")
    run_state_machine_as_test(
        hypothesis_seed(seed)(machine),
        settings=hypothesis_settings(
            max_examples=int(os.environ.get("WALKS", "100")),
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
