"""Writers that fail or die: their batches are fenced and finished, and what comes late lands nowhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from pymongo.errors import AutoReconnect

from service.settings import Settings
from service.store import Store, StoreUnavailable
from service.store.outputs.ids import Batch, new_token
from tests.support.api import make_output
from tests.support.groups import DATABASE, Group, at, die, fail, lease_over, look_after, reap, stopped_at, version

STEPS = ["allocated", "before write", "written", "before finish"]


async def ended(store: Store, group: Group) -> None:
    """Wait until the failed rounds of a process are ended, before any lease is over."""
    await asyncio.wait_for(store.outputs.recovery.close(), 60)
    assert not await group.in_flight(store)


@pytest.fixture
async def patient(settings: Settings, mongo_url: str) -> AsyncIterator[Store]:
    """A process with a long lease."""
    store = Store.connect(Settings(mongo_database=DATABASE, lease_seconds=600), mongo_url)
    await store.ensure_indexes()
    yield store
    await store.close()


# -- a round that failed in its own process -------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
async def test_a_failed_round_is_ended_at_once(patient: Store, other: Store, group: Group, step: str) -> None:
    (kept,) = await group.write(patient, version(0))
    body = [version(1), make_output(2), make_output(3)]
    patient.outputs.ids.step = at(step, fail())
    with pytest.raises(StoreUnavailable):
        await group.write(patient, *body)
    await ended(patient, group)
    retried = await group.write(other, *body)
    items = {item["key_hash"]: item for item in await group.read(other)}
    assert items["key-1"]["data"] == {"version": 1} and items["key-1"]["output_id"] == kept["output_id"]
    assert {r["key_hash"]: r["id"] for r in retried} == {key: item["id"] for key, item in items.items()}
    await group.assert_counts_are_exact(other)


@pytest.mark.parametrize("step", STEPS)
async def test_a_cancelled_round_is_ended_at_once(patient: Store, group: Group, step: str) -> None:
    async with stopped_at(patient, step, group.write(patient, version(1), make_output(2))) as writing:
        (task,) = patient.outputs._writing._commits._tasks
        task.cancel()
        await asyncio.wait([writing])
    await ended(patient, group)
    assert writing.cancelled()


async def test_a_failed_look_up_leaves_no_batch_in_flight(patient: Store, group: Group) -> None:
    real = patient.outputs._writing._outputs

    def find(*args: Any, **options: Any) -> Any:
        raise AutoReconnect("cut")

    patient.outputs._writing._outputs = SimpleNamespace(find=find)  # type: ignore[assignment]
    with pytest.raises(StoreUnavailable):
        await group.write(patient, version(1))
    patient.outputs._writing._outputs = real
    async with asyncio.timeout(60):
        while not await group.document(patient) or await group.in_flight(patient):
            await asyncio.sleep(0.01)
    assert [r["result"] for r in await group.write(patient, version(1))] == ["created"]


async def test_a_connection_lost_in_the_middle_of_the_write_is_made_good(
    patient: Store, other: Store, group: Group
) -> None:
    real = patient.outputs._writing._outputs

    async def cut(operations: list[Any], **options: Any) -> Any:
        patient.outputs._writing._outputs = real
        await real.bulk_write(operations[::2], **options)
        raise AutoReconnect("cut")

    patient.outputs._writing._outputs = SimpleNamespace(find=real.find, bulk_write=cut)  # type: ignore[assignment]
    body = [make_output(n) for n in range(6)]
    with pytest.raises(StoreUnavailable):
        await group.write(patient, *body)
    await ended(patient, group)
    before = [item["id"] for item in await group.read(other)]
    assert len(before) == 3
    await group.assert_counts_are_exact(other)
    results = await group.write(other, *body)
    assert [r["result"] for r in results] == ["unchanged", "created"] * 3
    assert len(await group.read(other, cursor=before[-1])) == 3
    await group.assert_counts_are_exact(other)


async def test_a_batch_that_cannot_be_ended_at_once_is_tried_again(patient: Store, group: Group) -> None:
    tries = 0

    async def hook(name: str) -> None:
        nonlocal tries
        if name == "before write":
            raise StoreUnavailable("injected")
        if name == "before fence":
            tries += 1
            if tries < 2:
                raise StoreUnavailable("injected")

    patient.outputs.ids.step = hook
    with pytest.raises(StoreUnavailable):
        await group.write(patient, version(1))
    await ended(patient, group)
    assert tries == 2


# -- the reaper -----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
async def test_a_writer_that_dies_at_any_step_is_made_good(store: Store, other: Store, group: Group, step: str) -> None:
    (kept,) = await group.write(store, version(0))
    body = [version(1), make_output(2), make_output(3)]
    store.outputs.ids.step = at(step, fail())
    die(store)
    with pytest.raises(StoreUnavailable):
        await group.write(store, *body)
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


async def test_a_write_fenced_in_the_middle_is_completed(store: Store, other: Store, group: Group) -> None:
    real = store.outputs._writing._outputs

    async def in_two(operations: list[Any], **options: Any) -> Any:
        store.outputs._writing._outputs = real
        await real.bulk_write(operations[:2], **options)
        await reap(other, group)
        return await real.bulk_write(operations, **options)

    store.outputs._writing._outputs = SimpleNamespace(find=real.find, bulk_write=in_two)  # type: ignore[assignment]
    results = await group.write(store, *(make_output(n) for n in range(5)))
    items = await group.read(other)
    assert {item["key_hash"] for item in items} == {f"key-{n}" for n in range(5)}
    assert len(items) == 5 and len(await group.stored(store)) == 5 + 3
    assert {r["id"] for r in results} == {item["id"] for item in items}
    assert (await group.stats(store))["items"] == 5


async def test_ending_a_batch_twice_is_ending_it_once(store: Store, other: Store, group: Group) -> None:
    store.outputs.ids.step = at("written", fail())
    die(store)
    with pytest.raises(StoreUnavailable):
        await group.write(store, make_output(1), make_output(2))
    await lease_over(store, group)
    (batch,) = [b for b in await store.outputs.recovery._expired() if b.organization_id == group.organization]
    await asyncio.gather(store.outputs.recovery.reap(), other.outputs.recovery.reap())
    await store.outputs.recovery.fence(batch)
    await store.outputs.recovery.end(batch)
    assert [item["key_hash"] for item in await group.read(store)] == ["key-1", "key-2"]
    assert len(await group.stored(store)) == 2
    await group.assert_counts_are_exact(store)


async def test_a_batch_within_its_lease_is_left_alone(store: Store, patient: Store, group: Group) -> None:
    await patient.outputs.ids.allocate(*group.key, 3, new_token())
    await store.outputs.recovery.reap()
    assert len(await group.in_flight(store)) == 1


async def test_a_batch_that_cannot_be_ended_does_not_stop_the_others(
    store: Store, organization: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [Group(organization, name) for name in ("lamps", "chairs", "tables")]
    for group in groups:
        await store.outputs.ids.allocate(*group.key, 2, new_token())
    for group in groups:
        await lease_over(store, group)
    recovery, real = store.outputs.recovery, store.outputs.recovery.fence

    async def fence(batch: Batch) -> None:  # those of other tests are none of the three
        if (batch.organization_id, batch.group_id) == (organization, "chairs"):
            raise StoreUnavailable("injected")
        await real(batch)

    monkeypatch.setattr(recovery, "fence", fence)
    await recovery.reap()
    assert [len(await group.in_flight(store)) for group in groups] == [0, 1, 0]
    monkeypatch.setattr(recovery, "fence", real)
    await recovery.reap()
    assert sum([len(await group.in_flight(store)) for group in groups]) == 0


async def test_a_batch_that_takes_long_to_end_does_not_hold_up_the_others(
    store: Store, organization: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [Group(organization, name) for name in ("lamps", "chairs", "tables")]
    for group in groups:
        await store.outputs.ids.allocate(*group.key, 2, new_token())
        await lease_over(store, group)
    recovery, real, others_ended = store.outputs.recovery, store.outputs.recovery.fence, asyncio.Event()

    async def fence(batch: Batch) -> int:
        if (batch.organization_id, batch.group_id) == (organization, "lamps"):
            await others_ended.wait()
        return await real(batch)

    monkeypatch.setattr(recovery, "fence", fence)
    reaping = asyncio.create_task(recovery.reap())
    async with asyncio.timeout(60):
        while sum([len(await group.in_flight(store)) for group in groups[1:]]):
            await asyncio.sleep(0.02)
    assert len(await groups[0].in_flight(store)) == 1
    others_ended.set()
    await reaping
    assert not await groups[0].in_flight(store)


async def test_upkeep_that_takes_long_does_not_hold_up_the_reaper(
    store: Store, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.store.REAP_SECONDS", 0.05)
    monkeypatch.setattr(store.upkeep, "run", asyncio.Event().wait)
    store.start_upkeep()
    for _ in range(2):
        await store.outputs.ids.allocate(*group.key, 2, new_token())
        async with asyncio.timeout(60):
            while await group.in_flight(store):
                await asyncio.sleep(0.02)


# -- tombstones -----------------------------------------------------------------------------------


async def test_tombstones_are_in_no_response_and_recognisable(store: Store, group: Group) -> None:
    await group.write(store, make_output(1))
    batch = await store.outputs.ids.allocate(*group.key, 3, new_token())
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
    batch = await store.outputs.ids.allocate(*group.key, 2, new_token())
    await reap(store, group)
    old = datetime.now(UTC) - timedelta(days=7, minutes=1)
    await store.database["outputs"].update_one({**group.owner, "id": batch.first}, {"$set": {"tombstone": old}})
    assert (await group.document(store))["tombstones"] == 2
    await look_after(store, group)
    assert [t["id"] for t in await group.stored(store)] == [batch.first + 1]
    assert (await group.document(store))["tombstones"] == 1


async def test_tombstones_are_dated_by_when_they_are_placed(store: Store, group: Group) -> None:
    """A database clock that was days ahead must not let them go early, nor one behind."""
    batch = await store.outputs.ids.allocate(*group.key, 1, new_token())
    ahead = Batch(*batch[:5], date=datetime(2030, 1, 1, tzinfo=UTC))
    await store.outputs.recovery.end(ahead)
    (tombstone,) = await group.stored(store)
    assert abs(tombstone["tombstone"] - datetime.now(UTC)) < timedelta(minutes=1)
