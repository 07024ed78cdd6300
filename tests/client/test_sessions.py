"""Sessions with the client: leased for a block, renewed, saved and released by how the block ends."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest

from sds_client import AsyncClient, Client, ClientError, NoSession, SessionLost, VersionConflict
from tests.support.peer import peer
from tests.support.processes import ServiceProcess
from tests.support.sessions import make_state

POOL = "shop-de"


@pytest.fixture
def pool(client: Client) -> str:
    """A pool with one session that is ready."""
    client.put_session(POOL, "anna", storage_state=make_state("first"), user_data={"proxy": "http://p:1"})
    return POOL


def outcome(client: Client, name: str = "anna") -> tuple[str, int, float]:
    """Return what the last lease has left of a session: state, uses, errors."""
    (session,) = [each for each in client.sessions(POOL) if each["name"] == name]
    return session["state"], session["uses"], session["errors"]


def test_a_block_has_the_session_for_itself_and_ends_good(client: Client, pool: str) -> None:
    with client.session(pool, owner="worker 1") as session:
        assert (session.pool, session.name) == (pool, "anna")
        assert session.storage_state == make_state("first")
        assert session.user_data == {"proxy": "http://p:1"}
        assert 280 < session.seconds_left <= 300
        (leased,) = client.sessions(pool, "leased")
        assert leased["owner"] == "worker 1"
        with pytest.raises(NoSession) as refused, client.session(pool):
            pass
        assert 0 < refused.value.retry_after <= 300
        assert isinstance(pickle.loads(pickle.dumps(refused.value)), NoSession)  # noqa: S301
    assert outcome(client) == ("ready", 1, 0)


def test_saving_during_the_lease_is_what_the_next_holder_gets(client: Client, pool: str) -> None:
    with client.session(pool) as session:
        assert session.save(make_state("second"))
        assert session.save(user_data={"agent": "b"})
    with client.session(pool) as session:
        assert (session.storage_state, session.user_data) == (make_state("second"), {"agent": "b"})


def test_a_lease_is_renewed_for_as_long_as_it_was_asked_for(client: Client, pool: str) -> None:
    with client.session(pool, seconds=60) as session:
        session.save()
        assert session.seconds_left <= 60
    client.set_pool(pool, lease_seconds=10)
    with client.session(pool, seconds=600) as session:
        (before,) = client.sessions(pool)
        time.sleep(0.01)
        session.save()
        (after,) = client.sessions(pool)
        assert before["lease_expires"] and after["lease_expires"]
        assert after["lease_expires"] > before["lease_expires"]


def test_an_exception_ends_the_lease_as_bad(client: Client, pool: str) -> None:
    with pytest.raises(RuntimeError), client.session(pool):
        raise RuntimeError
    assert outcome(client) == ("ready", 1, 1)


def test_an_interrupt_ends_the_lease_without_an_error(client: Client, pool: str) -> None:
    with pytest.raises(KeyboardInterrupt), client.session(pool):
        raise KeyboardInterrupt
    assert outcome(client) == ("ready", 1, 0)


@pytest.mark.parametrize(
    ("say", "left"),
    [
        (lambda session: session.blocked(), ("blocked", 1, 0)),
        (lambda session: session.rest(60), ("resting", 1, 0)),
        (lambda session: session.logged_out(), ("needs_login", 1, 0)),
        (lambda session: session.bad(), ("ready", 1, 1)),
        (lambda session: session.unused(), ("ready", 0, 0)),
    ],
    ids=["blocked", "rest", "logged out", "bad", "unused"],
)
def test_a_block_says_how_the_lease_ends(
    client: Client, pool: str, say: Callable[[Any], None], left: tuple[str, int, float]
) -> None:
    with client.session(pool) as session:
        say(session)
    assert outcome(client) == left


def test_what_was_said_counts_also_after_an_exception(client: Client, pool: str) -> None:
    with pytest.raises(RuntimeError), client.session(pool) as session:
        session.logged_out()
        session.note("captcha at login")
        raise RuntimeError
    assert outcome(client)[0] == "needs_login"
    assert client.sessions(pool)[0]["note"] == "captcha at login"


def test_a_lease_that_has_ended_saves_nothing_and_says_so(client: Client, pool: str) -> None:
    with pytest.raises(SessionLost, match="anna"), client.session(pool) as session:
        client.delete_session(pool, "anna")
        client.put_session(pool, "anna", storage_state=make_state("of somebody else"))
        with pytest.raises(SessionLost):
            session.save(make_state("stale"))
        with pytest.raises(SessionLost):
            session.check()
    session_now = client.get_session(pool, "anna")
    assert session_now is not None and session_now["storage_state"] == make_state("of somebody else")


def test_a_person_wins_over_the_holder(client: Client, pool: str) -> None:
    with client.session(pool) as session:
        client.put_session(pool, "anna", storage_state=make_state("of a person"))
        assert session.save(make_state("of the worker")) is False
    session_now = client.get_session(pool, "anna")
    assert session_now is not None and session_now["storage_state"] == make_state("of a person")


def test_shared_leases_stand_side_by_side(client: Client, pool: str) -> None:
    with client.session(pool, shared=True) as first, client.session(pool, shared=True) as second:
        assert first.name == second.name == "anna"


def test_pools_and_sessions_are_managed(client: Client, pool: str) -> None:
    assert client.set_pool(pool, rest_seconds=60, max_uses=None)["rest_seconds"] == 60
    client.put_session(pool, "ben", note="second account", state="needs_login", if_version=0)
    with pytest.raises(VersionConflict):
        client.put_session(pool, "ben", note="again", if_version=0)
    (listed,) = client.pools()
    assert (listed["sessions"]["ready"], listed["sessions"]["needs_login"]) == (1, 1)
    assert [each["name"] for each in client.sessions(pool, "needs_login")] == ["ben"]
    assert client.delete_session(pool, "ben") and not client.delete_session(pool, "ben")
    assert client.get_session(pool, "ben") is None and client.get_session("none", "ben") is None
    assert client.delete_pool(pool) == 1
    assert client.pools() == []


def test_a_pool_that_does_not_exist_is_an_error_with_its_place(client: Client) -> None:
    with pytest.raises(ClientError, match=r"404: path\.pool") as refused, client.session("none"):
        pass
    assert not isinstance(refused.value, NoSession)


async def test_a_worker_waits_until_another_releases(running: ServiceProcess, token: str, pool: str) -> None:
    async with AsyncClient(running.url, token) as client:
        order = []

        async def work(name: str) -> None:
            async with client.session(pool, wait=30) as session:
                order.append((name, session.storage_state))
                await session.save(make_state(name))

        async with asyncio.TaskGroup() as tasks:
            for name in ("a", "b", "c"):
                tasks.create_task(work(name))
        assert sorted(name for name, _ in order) == ["a", "b", "c"]
        # Each got what the one before it had saved.
        assert [state for _, state in order[1:]] == [make_state(name) for name, _ in order[:-1]]


@pytest.mark.slow
async def test_a_block_is_ended_when_its_lease_is_lost(
    running: ServiceProcess, token: str, client: Client, pool: str
) -> None:
    began, reached = time.monotonic(), False
    async with AsyncClient(running.url, token) as other:
        with pytest.raises(SessionLost):
            async with other.session(pool, seconds=10):
                await asyncio.to_thread(client.delete_session, pool, "anna")
                await asyncio.sleep(30)
                reached = True
    assert not reached and time.monotonic() - began < 25


async def test_a_cancelled_block_ends_as_interrupted(
    running: ServiceProcess, token: str, client: Client, pool: str
) -> None:
    async with AsyncClient(running.url, token) as other:
        leased = asyncio.Event()

        async def work() -> None:
            async with other.session(pool):
                leased.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await leased.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await asyncio.to_thread(outcome, client) == ("ready", 1, 0)


async def test_a_lease_that_arrives_after_its_time_is_renewed_before_it_is_used() -> None:
    """Its time counts from the request, which may have waited for longer than the lease lasts."""
    session = {"pool": POOL, "name": "anna", "storage_state": None, "user_data": None}
    lease = {"lease_id": "x" * 32, "seconds": 1, "session": session}
    renewed, released = {"seconds": 300, "saved": False}, {**session, "saved": False}
    async with peer(lease, renewed, released) as service, AsyncClient(service.url, "sds_x") as client:
        async with client.session(POOL, wait=60) as leased:
            await asyncio.sleep(0)
            leased.check()
            assert leased.seconds_left > 250
        assert [request.method for request in service.requests] == ["POST", "PUT", "POST"]


@pytest.mark.slow
async def test_a_lease_is_renewed_in_the_background(running: ServiceProcess, token: str, pool: str) -> None:
    async with AsyncClient(running.url, token) as client, client.session(pool, seconds=10) as session:
        async with asyncio.timeout(20):
            left = session.seconds_left
            while session.seconds_left <= left:  # until it jumps up
                left = session.seconds_left
                await asyncio.sleep(0.05)
        assert session.seconds_left > 8
