"""What leases cost the database: one indexed look each, however many sessions rest and however many workers wait."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from service.store import LeaseLost, Release, SessionPool, Store, wanted
from tests.support.commands import Commands, explained
from tests.support.sessions import lapse

RESTING, READY = 300, 5
OURS = ("sessions", "session_secrets", "released_leases", "pools")
# The settling of what has ended, a look before and after, and the keys where a range of the index ends.
MAX_EXAMINED = 3
STATE = {"storage_state": "{}"}


@pytest.fixture
async def pool(listening: Store, commands: Commands, organization: int) -> SessionPool:
    """A pool in which nearly all sessions rest."""
    records, pools = listening.sessions.records, listening.sessions.pools
    await pools.set(organization, "shop", {"rest_seconds": 0})
    for number in range(READY):
        await records.put(organization, "shop", f"ready-{number}", dict(STATE), None)
    pool = await pools.find(organization, "shop")
    assert pool is not None
    sessions = listening.database["sessions"]
    one: Any = await sessions.find_one(pool.owner)
    later = datetime.now(UTC) + timedelta(days=1)
    names = [f"resting-{number}" for number in range(RESTING)]
    await sessions.insert_many(
        [{**one, "_id": f"{pool.id}/{name}", "name": name, "state": "resting", "due": later} for name in names]
    )
    commands.clear()
    return pool


async def check(store: Store, commands: Commands, what: str) -> None:
    """Check by explain() that each command of an operation is one look into an index."""
    sent = [command for command in commands.sent if command.collection in OURS and command.name != "insert"]
    assert sent, what
    for command in sent:
        for one in _single(command.body, command.name):
            command.body = one
            cost = await explained(store, command)
            text = f"{what}: {command.name} of {command.collection}: {cost.stages}, {cost.documents} documents"
            assert "COLLSCAN" not in cost.stages, text
            assert max(cost.documents, cost.keys) <= MAX_EXAMINED, text
    commands.clear()


def _single(body: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return a command as explain() takes it: with one update or deletion."""
    many = {"update": "updates", "delete": "deletes"}.get(name)
    return [body] if many is None else [{**body, many: [one]} for one in body[many]]


@pytest.mark.slow
async def test_taking_renewing_and_releasing_are_looks_into_an_index(
    listening: Store, commands: Commands, pool: SessionPool, organization: int
) -> None:
    sessions = listening.sessions

    async def take(what: str, **options: Any) -> str:
        request = wanted(**options)
        lease = await sessions.queue.take(pool, request)
        assert lease is not None, what
        await sessions.secrets.read(organization, lease.session)
        await check(listening, commands, what)
        return request.lease_id

    own = await take("take", lease_id="own-lease-id-0123456789")
    assert await take("take again", lease_id=own) == own
    named = await take("take by name", name="ready-4")
    reader = await take("take shared", name="ready-3", shared=True)
    await take("join", name="ready-3", shared=True)
    for lease_id, secrets in ((own, {}), (named, STATE), (reader, {})):
        await sessions.leases.renew(organization, lease_id, 600, secrets)
        await check(listening, commands, "renew")
        release = Release("good", secrets, None, None)
        await sessions.leases.release(organization, lease_id, release)
        await check(listening, commands, "release")
        await sessions.leases.release(organization, lease_id, release)
        await check(listening, commands, "release again")
    with pytest.raises(LeaseLost):
        await sessions.leases.renew(organization, "x" * 24, None, {})
    await check(listening, commands, "renew a lease that never was")
    while await sessions.queue.take(pool, wanted()) is not None:
        commands.clear()
    await sessions.pools.seconds_until_due(pool)
    await check(listening, commands, "no session")
    await lapse(listening, organization, "ready-0")
    commands.clear()
    await take("take what has ended")


@pytest.mark.slow
async def test_workers_that_wait_cost_no_more_commands_than_one_worker(
    listening: Store, commands: Commands, organization: int
) -> None:
    """A look now and then for all pools, none for each pool or worker: those who wait for a name included."""
    pools = []
    for number in range(30):
        await listening.sessions.records.put(organization, f"shop-{number}", "anna", {}, None)
        pool = await listening.sessions.pools.find(organization, f"shop-{number}")
        assert pool is not None and await listening.sessions.queue.take(pool, wanted()) is not None
        pools.append(pool)

    async def counted(workers: int) -> int:
        requests = [(number, wanted(name="anna" if number % 2 else None)) for number in range(workers)]
        queue = listening.sessions.queue
        waiting = [asyncio.create_task(queue.wait(pools[number // 4], each, 60)) for number, each in requests]
        await asyncio.sleep(2)  # they have come, and the stream of changes begins
        commands.clear()
        await asyncio.sleep(6)
        count = len([command for command in commands.sent if command.collection in OURS])
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return count

    one, many = await counted(1), await counted(100)
    assert 0 < many <= 2 * one, (one, many)
