"""Writers that fail or die: their batches are fenced and finished, and what comes late lands nowhere."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from service.settings import Settings
from service.store import Store, StoreUnavailable, time_budget
from tests.support.api import make_output
from tests.support.fault_proxy import Body, FaultProxy, cut, refuse
from tests.support.groups import (
    DATABASE,
    Group,
    at,
    fail,
    killed_at,
    lease_over,
    look_after,
    open_batch,
    reap,
    stopped_at,
    version,
)
from tests.support.limits import Small

STEPS = ["allocated", "before write", "written", "before finish"]


@pytest.fixture
async def patient(settings: Settings, mongo_url: str) -> AsyncIterator[Store]:
    """A process with a long lease."""
    store = Store.connect(Settings(mongo_database=DATABASE, lease_seconds=600), mongo_url)
    await store.ensure_indexes()
    yield store
    await store.close()


# -- a round that failed in its own process -------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
async def test_a_failed_round_is_tried_again_at_once(patient: Store, other: Store, group: Group, step: str) -> None:
    (kept,) = await group.write(patient, version(0))
    patient.outputs.ids.step = at(step, fail())
    results = await group.write(patient, version(1), make_output(2), make_output(3))
    assert [r["result"] for r in results] == ["updated", "created", "created"]
    items = {item["key_hash"]: item for item in await group.read(other)}
    assert items["key-1"]["data"] == {"version": 1} and items["key-1"]["output_id"] == kept["output_id"]
    assert {r["key_hash"]: r["id"] for r in results} == {key: item["id"] for key, item in items.items()}
    assert not await group.in_flight(other)
    await look_after(other, group)
    await group.assert_counts_are_exact(other)


async def test_a_failed_look_up_leaves_no_batch_in_flight(wired: Store, wire: FaultProxy, group: Group) -> None:
    lost = wire.before("find", "outputs", cut)
    assert [r["result"] for r in await group.write(wired, version(1))] == ["created"]
    assert lost.reached.is_set()
    assert not await group.in_flight(wired)


@pytest.mark.parametrize("known", [False, True], ids=["insert", "update"])
async def test_a_connection_lost_after_the_write_is_made_good(
    wired: Store, wire: FaultProxy, other: Store, group: Group, known: bool
) -> None:
    """What had landed has the result that it would have had; it is neither written nor counted again."""
    if known:
        await group.write(wired, *(make_output(n, data={"version": 0}) for n in range(6)))
    lost = wire.after("update" if known else "insert", "outputs", cut)
    results = await group.write(wired, *(make_output(n) for n in range(6)))
    assert lost.reached.is_set()
    assert {r["result"] for r in results} == {"updated" if known else "created"}
    assert [item["id"] for item in await group.read(other)] == [r["id"] for r in results]
    await look_after(other, group)
    await group.assert_counts_are_exact(other)
    assert (await group.jobs(other))["job-1"]["created"] == 6


@pytest.mark.parametrize("finished", [False, True], ids=["before", "after"])
async def test_a_turn_whose_reply_is_lost_is_taken_again(
    wired: Store, wire: FaultProxy, other: Store, group: Group, finished: bool
) -> None:
    """Whether it has finished one batch and begun another cannot be told: neither is counted or left twice."""
    async with stopped_at(wired, "written", group.write(wired, make_output(1))) as first:
        second = asyncio.ensure_future(group.write(wired, make_output(2)))
        await asyncio.sleep(0)
        lost = (wire.after if finished else wire.before)("findAndModify", "groups", cut)
    assert [r["result"] for r in [*await first, *await second]] == ["created", "created"]
    assert len(lost.bodies[0]["update"]) == 2  # it ends one batch and begins another
    assert not await group.in_flight(wired)
    await look_after(other, group)
    await group.assert_counts_are_exact(other)
    assert (await group.jobs(other))["job-1"]["created"] == 2


async def test_a_batch_that_cannot_be_ended_at_once_is_tried_again(patient: Store, group: Group) -> None:
    steps: list[str] = []

    async def hook(name: str) -> None:
        steps.append(name)
        if steps.count(name) == 1 and name in ("before write", "before fence"):
            raise StoreUnavailable("injected")

    patient.outputs.ids.step = hook
    await group.write(patient, version(1))
    assert steps.count("before fence") == 2
    assert not await group.in_flight(patient)


@pytest.mark.slow
async def test_a_write_whose_client_has_its_503_does_not_come_back(
    settings: Settings, mongo_url: str, other: Store, group: Group
) -> None:
    """It lost to another process, which has acknowledged a later write of the same item since."""
    store = Store.connect(dataclasses.replace(settings, mongo_timeout=30.0), mongo_url)
    await store.ensure_indexes()
    with time_budget(4.0):
        late = asyncio.ensure_future(group.write(store, version(1), make_output(2)))
    async with stopped_at(store, "before write", late):
        await group.write(other, version(2))
        with pytest.raises(StoreUnavailable):
            await late
        await group.write(other, version(3))
    await store.outputs.write_queues.close()
    items = {item["key_hash"]: item["data"] for item in await group.read(other)}
    assert items["key-1"] == {"version": 3}
    await look_after(other, group)
    await group.assert_counts_are_exact(other)
    await store.close()


# -- the reaper -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
async def test_a_writer_that_dies_at_any_step_is_made_good(store: Store, other: Store, group: Group, step: str) -> None:
    (kept,) = await group.write(store, version(0))
    body = [version(1), make_output(2), make_output(3)]
    await killed_at(store, step, group.write(store, *body))
    assert await group.in_flight(store)
    (after,) = await group.write(other, make_output(4))
    # The group is held up where the dead batch begins, and nothing is lost meanwhile.
    assert all(item["id"] <= kept["id"] for item in await group.read(other))
    retried = await group.write(other, *body)
    await reap(other, group)
    assert not await group.in_flight(store)
    items = {item["key_hash"]: item for item in await group.read(other)}
    assert len(items) == 4
    assert items["key-1"]["data"] == {"version": 1} and items["key-1"]["output_id"] == kept["output_id"]
    assert {r["key_hash"]: r["id"] for r in [*retried, after]} == {key: item["id"] for key, item in items.items()}
    await look_after(other, group)
    await group.assert_counts_are_exact(other)


@pytest.mark.parametrize("known", [False, True], ids=["new", "changed"])
async def test_a_late_write_lands_nowhere_and_is_done_again(
    store: Store, other: Store, group: Group, known: bool
) -> None:
    if known:
        await group.write(store, version(0))
    async with stopped_at(store, "before write", group.write(store, version(1), make_output(2))) as late:
        (batch,) = await group.in_flight(other)
        await reap(other, group)
        (after,) = await group.write(other, make_output(3))
        seen = await group.read(other)
        assert seen[-1]["id"] == after["id"]
    results = late.result()
    fenced = range(batch["first"], batch["first"] + batch["n"])
    assert [r["result"] for r in results] == ["updated" if known else "created", "created"]
    assert all(r["id"] > after["id"] for r in results)
    assert [item["id"] for item in await group.read(other, cursor=after["id"])] == [r["id"] for r in results]
    assert [d["id"] for d in await group.stored(store) if "tombstone" in d] == list(fenced)
    assert (await group.stats(store))["items"] == 3


async def test_a_write_fenced_in_the_middle_is_completed(
    wired: Store, wire: FaultProxy, store: Store, other: Store, group: Group
) -> None:
    async def write_two() -> None:
        await other.database["outputs"].insert_many(insert.bodies[0]["documents"][:2])
        await reap(other, group)

    insert = wire.before("insert", "outputs", write_two)
    results = await group.write(wired, *(make_output(n) for n in range(5)))
    items = await group.read(other)
    assert {item["key_hash"] for item in items} == {f"key-{n}" for n in range(5)}
    assert len(items) == 5 and len(await group.stored(store)) == 5 + 3
    assert {r["id"] for r in results} == {item["id"] for item in items}
    assert (await group.stats(store))["items"] == 5


async def test_ending_a_batch_twice_is_ending_it_once(store: Store, other: Store, group: Group) -> None:
    await killed_at(store, "written", group.write(store, make_output(1), make_output(2)))
    await lease_over(store, group)
    batch = await group.batch_in_flight(store)
    await asyncio.gather(store.outputs.recovery.reap(), other.outputs.recovery.reap())
    await store.outputs.recovery.fence(batch)
    await store.outputs.recovery.end(batch.group, batch.token)
    assert [item["key_hash"] for item in await group.read(store)] == ["key-1", "key-2"]
    assert len(await group.stored(store)) == 2
    await group.assert_counts_are_exact(store)


async def test_a_batch_within_its_lease_is_left_alone(store: Store, patient: Store, group: Group) -> None:
    await open_batch(patient, group, 3)
    await store.outputs.recovery.reap()
    assert len(await group.in_flight(store)) == 1


async def dead_batches(store: Store, organization: int, *names: str) -> list[Group]:
    """Return groups in each of which a writer has died."""
    groups = [Group(organization, name) for name in names]
    for group in groups:
        await open_batch(store, group, 2)
    for group in groups:
        await lease_over(store, group)
    return groups


def fence_of(organization: int, group_id: str) -> Callable[[Body], bool]:
    """Tell the insert of tombstones into a group; the batches of other tests may end beside it."""

    def is_it(body: Body) -> bool:
        first = body["documents"][0]
        return (first["organization_id"], first["group_id"]) == (organization, group_id)

    return is_it


async def test_a_batch_that_cannot_be_ended_does_not_stop_the_others(
    wired: Store, wire: FaultProxy, organization: int
) -> None:
    groups = await dead_batches(wired, organization, "lamps", "chairs", "tables")
    wire.before("insert", "outputs", refuse(), times=math.inf, where=fence_of(organization, "chairs"))
    await wired.outputs.recovery.reap()
    assert [len(await group.in_flight(wired)) for group in groups] == [0, 1, 0]
    wire.clear()
    await wired.outputs.recovery.reap()
    assert sum([len(await group.in_flight(wired)) for group in groups]) == 0


async def test_a_batch_that_takes_long_to_end_does_not_hold_up_the_others(
    wired: Store, wire: FaultProxy, organization: int
) -> None:
    groups = await dead_batches(wired, organization, "lamps", "chairs", "tables")
    slow = fence_of(organization, "lamps")
    async with wire.stopped("before", "insert", "outputs", wired.outputs.recovery.reap(), slow), asyncio.timeout(60):
        while sum([len(await group.in_flight(wired)) for group in groups[1:]]):
            await asyncio.sleep(0.02)
        assert len(await groups[0].in_flight(wired)) == 1
    assert not await groups[0].in_flight(wired)


async def test_a_defect_in_ending_one_batch_does_not_stop_the_others(store: Store, organization: int) -> None:
    groups = await dead_batches(store, organization, "lamps", "chairs")
    await store.database["groups"].update_one(groups[0].owner, {"$unset": {"open.0.first": ""}})
    await store.outputs.recovery.reap()
    assert [len(await group.in_flight(store)) for group in groups] == [1, 0]
    await groups[0].set(store, open=[])


async def test_a_batch_of_no_ids_is_ended(store: Store, group: Group) -> None:
    batch = await open_batch(store, group, 1)
    await store.database["groups"].update_one(group.owner, {"$set": {"open.0.n": 0}})
    await reap(store, group)
    assert not await group.in_flight(store)
    await group.write(store, make_output(1))
    assert [item["id"] for item in await group.read(store)] == [batch.first + 1]


async def test_no_batch_is_ended_without_the_unique_index(store: Store, group: Group) -> None:
    """Without it a fence keeps nothing off, and every try would leave more tombstones."""
    await open_batch(store, group, 2)
    await lease_over(store, group)
    store.indexes.forget()
    await store.outputs.recovery.reap()
    assert len(await group.in_flight(store)) == 1
    assert not await group.stored(store)


@pytest.mark.usefixtures("upkeep")
async def test_upkeep_that_takes_long_does_not_hold_up_the_reaper(
    wired: Store, wire: FaultProxy, group: Group, small: Small
) -> None:
    small(reap_seconds=0.05)
    hangs = wire.before("find", "groups", asyncio.Event().wait, where=lambda body: body.get("hint") == "due")
    wired.start_upkeep()
    async with asyncio.timeout(60):
        await hangs.reached.wait()
        await open_batch(wired, group, 2)
        while await group.in_flight(wired):
            await asyncio.sleep(0.02)


# -- tombstones -----------------------------------------------------------------------------------


async def test_tombstones_are_in_no_response_and_recognisable(store: Store, group: Group) -> None:
    await group.write(store, make_output(1))
    batch = await open_batch(store, group, 3)
    await reap(store, group)
    await group.write(store, make_output(2))
    filters: list[dict[str, Any]] = [
        {},
        {"job_id": "job-1"},
        {"country": "Germany"},
        {"region": "DE-BE"},
        {"country": "Germany", "region": "DE-BE"},
        {"is_approved": False},
        {"created_after": datetime(2020, 1, 1, tzinfo=UTC)},
        {"deleted": True},
    ]
    for query in filters:
        assert [item["key_hash"] for item in await group.read(store, **query)] == ["key-1", "key-2"]
    assert [len(await group.read(store, limit=1, cursor=c)) for c in (0, 1, 2, 5)] == [1, 1, 1, 0]
    tombstones = [document for document in await group.stored(store) if "tombstone" in document]
    assert [t["id"] for t in tombstones] == [batch.first + n for n in range(3)]
    assert all(set(t) == {"_id", "organization_id", "group_id", "id", "tombstone"} for t in tombstones)


async def test_old_tombstones_are_removed_and_new_ones_stay(store: Store, group: Group) -> None:
    batch = await open_batch(store, group, 2)
    await reap(store, group)
    old = datetime.now(UTC) - timedelta(days=7, minutes=1)
    await store.database["outputs"].update_one({**group.owner, "id": batch.first}, {"$set": {"tombstone": old}})
    assert (await group.document(store))["tombstones"] == 2
    await look_after(store, group)
    assert [t["id"] for t in await group.stored(store)] == [batch.first + 1]
    assert (await group.document(store))["tombstones"] == 1


async def test_tombstones_are_dated_by_when_they_are_placed(store: Store, group: Group) -> None:
    """Not by the date of their batch: a database clock that was behind must not let them go early."""
    batch = await open_batch(store, group, 1)
    await store.outputs.recovery.fence(batch._replace(date=datetime(2020, 1, 1)))
    (tombstone,) = await group.stored(store)
    assert abs(tombstone["tombstone"] - datetime.now(UTC)) < timedelta(minutes=1)
