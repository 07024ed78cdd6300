"""A new primary may serve majority reads from before the failover, until its snapshot advances.

Fail points hold the steps of a failover apart that are otherwise milliseconds apart. Every test ends
with what a user can rely on: what was acknowledged is read, in order, and nothing is passed over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from pymongo.errors import OperationFailure

from scripts.replica_set import ReplicaSet
from service.settings import Settings
from service.store import Store
from tests.support.api import Api, make_output

# Three databases at once: beside nothing else of the kind.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("replica-set")]
# The driver finds the new primary and the election takes its time.
RETRY_SECONDS = 30.0


@pytest.fixture(scope="module")
def replica_set() -> Iterator[ReplicaSet]:
    with ReplicaSet(3) as members:
        yield members


@pytest.fixture(scope="module")
def mongo_url(replica_set: ReplicaSet) -> str:
    return replica_set.url


@pytest.fixture
def settings() -> Settings:
    """Committer of one process overlap, and a batch stays in flight while its write is held up."""
    return Settings(mongo_database="test", lease_seconds=60, mongo_timeout=5, token_cache_seconds=0.1)


class Failover:
    """Makes one chosen member the next primary, with its majority snapshot held where it is."""

    def __init__(self, replica_set: ReplicaSet) -> None:
        self.set = replica_set
        self.old = replica_set.wait_until_healthy()
        self.new, self.third = (member for member in replica_set.members if member is not self.old)

    def hold_snapshot(self) -> None:
        """Let the next primary replicate, but serve majority reads from what is committed there now."""
        self.new.fail_point("disableSnapshotting")

    def release_snapshot(self) -> None:
        self.new.fail_point("disableSnapshotting", mode="off")
        self.new.command("appendOplogNote", data={"note": "the snapshot advances with the next write"})

    def hold_one_insert(self, seconds: float) -> None:
        """Hold up the next insert on the present primary."""
        self._entered = self.old.fail_point(
            "failCommand",
            mode={"times": 1},
            failCommands=["insert"],
            blockConnection=True,
            blockTimeMS=int(seconds * 1000),
        )

    def wait_until_held(self) -> None:
        self.old.command("waitForFailPoint", "failCommand", timesEntered=self._entered + 1, maxTimeMS=30_000)

    def wait_until_something_waits(self) -> None:
        """Wait until a command of the service waits on the next primary, for its snapshot or its write concern."""
        active = {"active": True, "command.$db": "test", "command.getMore": {"$exists": False}}
        earlier, deadline = set[int](), time.monotonic() + RETRY_SECONDS
        while True:  # the time for which a command has run leaves out its write concern
            present = {operation["opid"] for operation in self.new.command("currentOp", **active)["inprog"]}
            if present & earlier:
                return
            assert time.monotonic() < deadline, "nothing waits"
            earlier = present
            time.sleep(0.3)

    def fail_over(self) -> None:
        self.set.never_primary(self.third)
        self.set.step_down(self.old, seconds=60)
        assert self.set.wait_for_primary(other_than=self.old) is self.new

    def end(self) -> None:
        for member in self.set.members:
            member.fail_point("disableSnapshotting", mode="off")
            member.fail_point("failCommand", mode="off")
            with suppress(OperationFailure):  # the primary refuses it
                member.command("replSetFreeze", 0)


@pytest.fixture
async def failover(replica_set: ReplicaSet) -> AsyncIterator[Failover]:
    failover = await asyncio.to_thread(Failover, replica_set)
    yield failover
    await asyncio.to_thread(failover.end)


def outputs(first: int, count: int, **changes: Any) -> list[dict[str, Any]]:
    return [make_output(number, **changes) for number in range(first, first + count)]


async def until_available(api: Api, path: str, value: Any = None) -> Any:
    """Return the JSON of the first response that is not 503."""
    async with asyncio.timeout(RETRY_SECONDS):
        while True:
            response = await (api.get(path) if value is None else api.post(path, value))
            assert response.status in (200, 503), response.body
            if response.status == 200:
                return response.json
            await asyncio.sleep(0.1)


async def sync(api: Api, path: str, seen: list[str], cursor: int = 0) -> int:
    """Read on from the cursor to the end, or to a 503, as a consumer does; return the new cursor."""
    more = True
    while more:
        response = await api.get(f"{path}?limit=5&cursor={cursor}")
        if response.status == 503:
            return cursor
        assert response.status == 200, response.body
        seen += [item["key_hash"] for item in response.json["items"]]
        cursor = response.json["items"][-1]["id"] if response.json["items"] else cursor
        more = response.json["metadata"]["next_cursor"] is not None
    return cursor


async def test_no_item_is_passed_over_when_the_new_primary_serves_an_older_snapshot(
    api: Api, failover: Failover
) -> None:
    path = "/v1/outputs/lamps"
    first = await api.ok(path, outputs(0, 1))

    await asyncio.to_thread(failover.hold_one_insert, 2)
    low = asyncio.create_task(api.ok(path, outputs(100, 10)))  # takes its ids first, is written last
    await asyncio.to_thread(failover.wait_until_held)
    high = await api.ok(path, outputs(200, 10))
    await asyncio.to_thread(failover.hold_snapshot)
    acknowledged = [*(await low)["items"], *high["items"]]
    assert max(item["id"] for item in acknowledged[:10]) < min(item["id"] for item in acknowledged[10:])
    await until_available(api, f"{path}?limit=1000")  # remembers how far readers may go

    await asyncio.to_thread(failover.fail_over)
    seen: list[str] = []
    cursor = await sync(api, path, seen)
    await asyncio.to_thread(failover.release_snapshot)
    last = await until_available(api, path, outputs(300, 1))
    await until_available(api, path)
    await sync(api, path, seen, cursor)
    assert sorted(seen) == sorted(item["key_hash"] for item in [*first["items"], *acknowledged, *last["items"]])


async def test_an_item_is_not_called_unchanged_against_a_version_older_than_the_last_acknowledged(
    api: Api, failover: Failover
) -> None:
    path = "/v1/outputs/chairs"
    old, new = outputs(1, 1, data={"price": 1}), outputs(1, 1, data={"price": 2})
    await api.ok(path, old)
    await asyncio.to_thread(failover.hold_snapshot)
    changed = await api.ok(path, new)
    assert changed["updated"] == 1

    await asyncio.to_thread(failover.fail_over)
    held = asyncio.create_task(asyncio.to_thread(failover.wait_until_something_waits))
    again, attempts = asyncio.create_task(api.post(path, old)), 1
    while not held.done():
        await asyncio.wait([again, held], return_when=asyncio.FIRST_COMPLETED)
        if again.done() and not held.done():
            assert again.result().status == 503  # before the driver has found the new primary
            again, attempts = asyncio.create_task(api.post(path, old)), attempts + 1
    await held
    await asyncio.to_thread(failover.release_snapshot)
    response = await again
    # One that got a 503 may be stored: then the next one changes nothing.
    assert response.status == 503 or attempts > 1 or response.json["updated"] == 1, response.body
    await until_available(api, path, old)
    # The request that got the 503 holds the group up until its batch is ended.
    page = await until_available(api, f"{path}?wait=20")
    assert [item["data"] for item in page["items"]] == [{"price": 1}]
    assert page["items"][0]["id"] > changed["items"][0]["id"]


async def test_a_revoked_token_stays_revoked_when_the_new_primary_serves_an_older_snapshot(
    api: Api, store: Store, failover: Failover
) -> None:
    await api.ok("/v1/groups")
    await asyncio.to_thread(failover.hold_snapshot)
    assert await store.tokens.revoke(api.token)

    await asyncio.to_thread(failover.fail_over)
    async with asyncio.timeout(RETRY_SECONDS):
        while (response := await api.get("/v1/groups")).status == 503:
            await asyncio.sleep(0.1)
    assert response.status == 401
