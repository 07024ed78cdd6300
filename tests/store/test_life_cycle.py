"""What happens to the data of a group between two steps of a process: it dies, is late, or another one is faster."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from service.settings import Settings
from service.store import Store, StoreUnavailable
from tests.store.test_crawls import begin, finish
from tests.support.api import make_output
from tests.support.fault_proxy import FaultProxy, cut, refuse
from tests.support.groups import Group, at, look_after, look_after_once, open_batch, reap
from tests.support.limits import MachineClock


async def delete_all(store: Store, group: Group) -> None:
    await group.delete_matching(store)


async def test_a_group_that_never_had_an_item_is_not_recounted_after_its_deletion(store: Store, group: Group) -> None:
    await store.groups.set(group.key, {"rules": [{"min_items": 5}]})
    await store.groups.remove(group.key, 0)
    document = await group.document(store)
    assert "recount" not in document and "due" not in document
    await begin(store, group, "job")
    assert (await finish(store, group, "job"))["state"] == "finished"


async def test_a_recount_does_not_need_a_batch_that_was_ever_in_flight(store: Store, group: Group) -> None:
    await store.groups.set(group.key, {"rules": []})
    await group.set(store, recount=1, due=datetime.now(UTC))
    await look_after(store, group)
    assert "recount" not in await group.document(store)


async def test_a_job_with_the_id_of_a_deleted_one_is_recounted_without_its_deletions(
    store: Store, group: Group
) -> None:
    await group.write(store, *(make_output(n, root_job_id="today") for n in range(20)))
    await delete_all(store, group)
    await store.groups.remove(group.key, 20)
    await group.write(store, *(make_output(n, root_job_id="today") for n in range(100, 110)))
    await look_after(store, group)
    job = (await group.jobs(store))["today"]
    assert (job["items"], job["created"], job["changed"]) == (10, 10, 0)


async def test_a_recount_counts_what_a_running_job_created_and_somebody_deleted(store: Store, group: Group) -> None:
    written = await group.write(store, *(make_output(n, root_job_id="job") for n in range(10)))
    for one in written[:4]:
        await group.delete(store, one)
    await store.jobs.collect(group.key)  # until then there is no document to be wrong
    wrong = await store.database["jobs"].update_one(group.owner | {"job_id": "job"}, {"$inc": {"created": -3}})
    assert wrong.modified_count == 1
    await group.set(store, recount=1, due=datetime.now(UTC))
    await look_after(store, group)
    assert (await group.jobs(store))["job"]["created"] == 10


async def test_what_a_running_job_writes_during_the_deletion_of_missing_items_stays(
    store: Store, other: Store, group: Group
) -> None:
    await group.write(store, make_output(1, root_job_id="old"), make_output(4, root_job_id="old"))
    await group.write(store, make_output(5, root_job_id="running"))
    await group.write(store, make_output(2, root_job_id="ended"))
    await finish(store, group, "ended")

    async def write() -> None:
        found = await group.write(other, make_output(3, root_job_id="running"), make_output(4, root_job_id="running"))
        assert [one["result"] for one in found] == ["created", "unchanged"]

    store.outputs.ids.step = at("before write", write)
    await store.missing.delete(group.key, "ended")
    assert {item["key_hash"] for item in await group.read(store)} == {"key-2", "key-3", "key-4"}


async def test_a_job_finishes_by_the_clock_of_the_database(
    store: Store, group: Group, machine_clock: MachineClock
) -> None:
    await group.write(store, make_output(1, root_job_id="job"))
    machine_clock(timedelta(hours=1))
    assert (await finish(store, group, "job"))["finish_date"] < datetime.now(UTC) + timedelta(minutes=1)


async def test_a_failed_round_does_not_shorten_the_history(
    store: Store, wired: Store, wire: FaultProxy, group: Group
) -> None:
    await store.groups.set(group.key, {"history_days": 30})
    await group.write(store, make_output(1, data={"v": 1}))
    died = wire.before("update", "outputs", cut, times=math.inf)
    writing = asyncio.create_task(group.write(wired, make_output(1, data={"v": 2})))
    await died.reached.wait()
    writing.cancel()
    while wired.outputs.write_queues.busy:
        await asyncio.sleep(0.01)
    long_ago = datetime.now(UTC) - timedelta(days=29)
    versions = store.database["versions"]
    assert (await versions.update_many(group.owner, {"$set": {"replaced_date": long_ago}})).modified_count == 1
    await group.write(store, make_output(1, data={"v": 3}))
    [version] = await versions.find(group.owner).to_list(None)
    assert version["data"] == {"v": 1} and version["replaced_date"] > long_ago + timedelta(days=28)


async def test_a_deletion_that_ends_half_way_leaves_the_group_to_be_recounted(
    store: Store, other: Store, wired: Store, wire: FaultProxy, group: Group
) -> None:
    await group.write(store, make_output(1, root_job_id="a"))
    await delete_all(store, group)
    await group.write(other, make_output(2, root_job_id="b"))
    wire.before("delete", "versions", cut)
    with pytest.raises(StoreUnavailable):
        await wired.groups.remove(group.key, 1)
    await look_after(store, group)
    assert {name: job["items"] for name, job in (await group.jobs(store)).items()} == {"b": 1}


async def test_a_group_whose_jobs_are_deleted_shows_no_verdict_of_them(
    store: Store, other: Store, group: Group
) -> None:
    await group.write(store, make_output(1, root_job_id="a"))
    await store.crawls.notify(group.key, await finish(store, group, "a"))
    assert "verdict" in await group.document(store)
    await delete_all(store, group)
    await group.write(other, make_output(2, root_job_id="b"))
    await store.groups.remove(group.key, 1)
    assert "verdict" not in await group.document(store)


async def test_removed_deletion_records_are_subtracted_once(
    store: Store, other: Store, wired: Store, wire: FaultProxy, group: Group
) -> None:
    await group.write(store, *(make_output(n) for n in range(5)))
    await delete_all(store, group)
    old = datetime.now(UTC) - timedelta(days=60)
    await store.database["outputs"].update_many(group.owner, {"$set": {"update_date": old}})
    await group.set(store, recount=1)
    wire.after("delete", "outputs", lambda: look_after_once(other, group))  # the claim of the first is over
    await look_after_once(wired, group)
    assert (await group.document(store))["deleted"] == len(await group.stored(store)) == 1


async def test_a_process_whose_clock_is_behind_places_tombstones_that_stay(
    store: Store, other: Store, group: Group, machine_clock: MachineClock
) -> None:
    await group.write(store, make_output(1))
    await open_batch(store, group, 1)
    machine_clock(-timedelta(days=8))
    await reap(other, group)
    machine_clock(timedelta())
    await look_after(store, group)
    assert sum("tombstone" in document for document in await group.stored(store)) == 1


@pytest.mark.slow
async def test_dead_batches_are_ended_while_an_index_of_another_collection_cannot_be_made(
    settings: Settings, mongo_url: str, organization: int
) -> None:
    own = replace(settings, mongo_database=f"{settings.mongo_database}_indexes", lease_seconds=5.5)
    store, group = Store.connect(own, mongo_url), Group(organization)
    try:
        like_ours = [("organization_id", 1), ("group_id", 1), ("job_id", 1), ("review_date", -1), ("order", -1)]
        await store.database["reviews"].create_index(like_ours, name="of-an-operator")
        store.start_upkeep()
        async with asyncio.timeout(60):
            while not store.indexes.have("outputs", "groups"):
                await asyncio.sleep(0.05)
            await open_batch(store, group, 1)
            while await group.in_flight(store):
                await asyncio.sleep(0.1)
        assert not store.indexes.are_ready
    finally:
        await store.client.drop_database(own.mongo_database)
        await store.close()


async def test_a_stop_does_not_wait_for_an_upkeep_that_fails(settings: Settings, wire: FaultProxy) -> None:
    store = Store.connect(settings, wire.url)
    await store.ensure_indexes()
    wire.before("find", "groups", refuse(), times=math.inf)
    hangs = wire.before("find", "meta", asyncio.Event().wait)
    store.start_upkeep()
    async with asyncio.timeout(60):
        await hangs.reached.wait()
        await store.close()
