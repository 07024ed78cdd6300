"""Ids: what two writers of one key leave, and how far a reader may go while others write."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from service.settings import Settings
from service.store import Store, StoreUnavailable
from tests.support.api import make_output
from tests.support.groups import DATABASE, Group, at, open_batch, race, stopped_at, version
from tests.support.limits import MachineClock

# -- races ----------------------------------------------------------------------------------------


async def test_two_writers_of_one_new_key_make_one_item(store: Store, other: Store, group: Group) -> None:
    results = await race(group, [store, other], [version(1), version(2)])
    assert sorted(r["result"] for r in results) == ["created", "updated"]
    assert results[0]["output_id"] == results[1]["output_id"]
    (item,) = await group.read(store)
    assert item["id"] == max(r["id"] for r in results)
    last = 1 if results[0]["result"] == "updated" else 2
    assert item["data"] == {"version": last}
    await group.assert_counts_are_exact(store)


async def test_a_turn_that_may_be_lost_is_taken_again_and_leaves_no_batch_in_flight(
    store: Store, other: Store, group: Group
) -> None:
    async with stopped_at(other, "before write", group.write(other, make_output(1))) as first:
        for number in range(2, 5):
            await store.client.admin.command(
                {
                    "configureFailPoint": "failCommand",
                    "mode": {"times": 1},
                    "data": {
                        "failCommands": ["findAndModify"],
                        "appName": "scraping-data-service",
                        "writeConcernError": {"code": 91, "errmsg": "stopping"},
                    },
                }
            )
            (written,) = await group.write(store, make_output(number))
            assert written["result"] == "created"
    assert first.result()[0]["id"] == 1
    assert written["id"] > 4  # the ids of a lost turn are never used
    document = await store.database["groups"].find_one(group.key.owner)
    assert document is not None and document["open"] == []
    assert [item["key_hash"] for item in await group.read(store)] == [f"key-{number}" for number in range(1, 5)]
    await group.assert_counts_are_exact(store)


async def test_two_writers_of_one_new_key_with_the_same_content_agree(store: Store, other: Store, group: Group) -> None:
    results = await race(group, [store, other], [version(1), version(1)])
    assert sorted(r["result"] for r in results) == ["created", "unchanged"]
    assert results[0]["id"] == results[1]["id"]
    await group.assert_counts_are_exact(store)


async def test_two_writers_of_one_changed_key_both_update_it(store: Store, other: Store, group: Group) -> None:
    (created,) = await group.write(store, version(0))
    results = await race(group, [store, other], [version(1), version(2)])
    assert [r["result"] for r in results] == ["updated", "updated"]
    assert len({created["id"], *(r["id"] for r in results)}) == 3
    (item,) = await group.read(store)
    last = max(results, key=lambda r: r["id"])
    assert item["id"] == last["id"]
    assert item["data"] == {"version": 1 + results.index(last)}
    assert item["output_id"] == created["output_id"]


async def test_a_batch_that_loses_some_keys_keeps_the_others(store: Store, other: Store, group: Group) -> None:
    await group.write(store, *(make_output(n) for n in range(20)))

    async def change_half() -> None:
        await group.write(other, *(make_output(n, data={"by": "other"}) for n in range(10)))

    store.outputs.ids.step = at("before write", change_half)
    results = await group.write(store, *(make_output(n, data={"by": "us"}) for n in range(25)))
    assert [r["result"] for r in results] == ["updated"] * 20 + ["created"] * 5
    items = {item["key_hash"]: item for item in await group.read(store)}
    assert {key: item["id"] for key, item in items.items()} == {r["key_hash"]: r["id"] for r in results}
    assert all(item["data"] == {"by": "us"} for item in items.values())
    await group.assert_counts_are_exact(store)


async def test_nothing_is_written_or_read_before_the_indexes_are_there(mongo_url: str, group: Group) -> None:
    store = Store.connect(Settings(mongo_database=f"{DATABASE}_empty"), mongo_url)
    with pytest.raises(StoreUnavailable):
        await group.write(store, version(1))
    with pytest.raises(StoreUnavailable):
        await group.read(store)
    await store.ensure_indexes()
    assert [r["result"] for r in await group.write(store, version(1))] == ["created"]
    await store.close()


# -- what readers may see -------------------------------------------------------------------------


async def test_ids_count_from_one_in_every_group(store: Store, group: Group) -> None:
    for each in (group, Group(group.organization, "chairs")):
        assert [r["id"] for r in await each.write(store, make_output(1), make_output(2))] == [1, 2]


@pytest.mark.slow
async def test_a_reader_does_not_pass_a_batch_in_flight(store: Store, other: Store, group: Group) -> None:
    async with stopped_at(store, "before write", group.write(store, version(1))) as slow:
        (fast,) = await group.write(other, make_output(2))
        assert await group.read(other) == []
    (late,) = slow.result()
    assert late["id"] < fast["id"]
    assert [item["id"] for item in await group.read(other)] == [late["id"], fast["id"]]


@pytest.mark.slow
async def test_a_batch_in_flight_holds_up_its_own_group_only(store: Store, other: Store, group: Group) -> None:
    elsewhere = Group(group.organization, "chairs")
    async with stopped_at(store, "written", group.write(store, version(1))):
        await elsewhere.write(other, make_output(2), make_output(3))
        assert len(await elsewhere.read(other)) == 2
        assert await group.read(other) == []
    assert len(await group.read(other)) == 1


@pytest.mark.slow
async def test_a_remembered_watermark_holds_when_a_crash_takes_back_ids(
    store: Store, other: Store, group: Group
) -> None:
    await group.write(store, version(1))
    before = await group.document(store)
    # Ids that were taken and not used, a reader who looks, and a server that forgets what was not in its journal.
    await group.write(other, version(1))
    await group.read(store)
    await store.database["groups"].replace_one(group.owner, before)
    async with stopped_at(other, "before write", group.write(other, make_output(2))) as slow:
        (fast,) = await group.write(store, make_output(3))
        assert fast["id"] not in [item["id"] for item in await group.read(store, cursor=1)]
    assert [item["id"] for item in await group.read(store, cursor=1)] == [slow.result()[0]["id"], fast["id"]]


async def test_dates_never_decrease_along_ids(store: Store, other: Store, group: Group) -> None:
    await asyncio.gather(
        *(
            group.write([store, other][n % 2], make_output(n % 7, data={"n": n}), make_output(100 + n))
            for n in range(40)
        )
    )
    items = await group.stored(store)
    dates = [item["update_date"] for item in sorted(items, key=lambda item: item["id"])]
    assert len(dates) == 40 + 7 and dates == sorted(dates)
    await group.assert_counts_are_exact(store)


async def test_dates_do_not_follow_a_clock_that_goes_back(store: Store, group: Group) -> None:
    await group.write(store, make_output(1))
    ahead = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    await group.set(store, now=ahead)
    (second,) = await group.write(store, make_output(2))
    (found,) = await group.read(store, created_after=ahead)
    assert found["id"] == second["id"]
    assert found["update_date"].replace(tzinfo=UTC) == ahead


@pytest.mark.slow
async def test_created_after_does_not_pass_a_batch_in_flight(store: Store, other: Store, group: Group) -> None:
    async with stopped_at(store, "before write", group.write(store, version(1))) as slow:
        await group.write(other, make_output(2))
        (batch, *_) = await group.in_flight(other)
        assert await group.read(other, created_after=batch["date"]) == []
    found = await group.read(other, created_after=batch["date"])
    assert [item["id"] for item in found] == [slow.result()[0]["id"], slow.result()[0]["id"] + 1]


async def test_after_a_restored_backup_new_ids_are_above_all_that_were_seen(store: Store, group: Group) -> None:
    await group.write(store, *(make_output(n) for n in range(3)))
    backup = await group.document(store)
    (seen,) = await group.write(store, make_output(9))
    await store.database["outputs"].delete_one({**group.owner, "id": seen["id"]})
    await store.database["groups"].replace_one(group.owner, backup)
    assert await store.outputs.skip_ids() >= 1
    (new,) = await group.write(store, make_output(9, data={"after": "restore"}))
    assert new["id"] > seen["id"]
    assert [item["id"] for item in await group.read(store, cursor=seen["id"])] == [new["id"]]


async def test_dates_are_brought_back_in_order_while_others_write_without_pause(store: Store, group: Group) -> None:
    await group.write(store, make_output(99_999))
    await group.set(store, now=datetime.now(UTC) + timedelta(hours=2))
    stop = asyncio.Event()

    async def write(number: int) -> None:
        await asyncio.sleep(number / 100)  # so that there is always one that waits while another is written
        for n in range(10_000):
            if stop.is_set():
                break
            await group.write(store, make_output(number * 10_000 + n))

    store.outputs.ids.step = at("before write", lambda: asyncio.sleep(0.05), times=10**6)
    writers = [asyncio.create_task(write(number)) for number in range(4)]
    try:
        await asyncio.sleep(0.3)
        async with asyncio.timeout(60):  # it looks at every group of this database
            assert await store.outputs.set_clocks_back() >= 1
        await asyncio.sleep(0.3)
    finally:
        stop.set()
        await asyncio.gather(*writers)
    dates = [item["update_date"] for item in await group.read(store)]
    assert dates == sorted(dates) and dates[0] < dates[-1]
    assert dates[-1].replace(tzinfo=UTC) < datetime.now(UTC) + timedelta(minutes=1)


async def test_dates_are_brought_back_also_if_a_writer_died_while_the_clock_was_ahead(
    store: Store, group: Group
) -> None:
    await group.write(store, make_output(1))
    ahead = datetime.now(UTC) + timedelta(hours=10)
    batch = await open_batch(store, group, 1)
    entry = {"token": batch.token, "first": batch.first, "n": 1, "date": ahead, "deadline": ahead}
    await group.set(store, now=ahead, open=[entry])
    async with asyncio.timeout(60):
        assert await store.outputs.set_clocks_back() >= 1
    await group.write(store, make_output(2))
    assert len(await group.read(store)) == 2


async def test_dates_are_brought_back_also_after_an_attempt_that_was_interrupted(store: Store, group: Group) -> None:
    await group.write(store, make_output(1))
    late = datetime.now(UTC) + timedelta(hours=2)
    await store.database["outputs"].update_one(group.key.owner, {"$set": {"update_date": late}})
    await group.write(store, make_output(2))
    assert await store.outputs.set_clocks_back() >= 1
    dates = [item["update_date"].replace(tzinfo=UTC) for item in await group.read(store)]
    assert dates == sorted(dates) and dates[-1] < late - timedelta(hours=1)


async def test_ids_are_refused_while_the_database_clock_is_a_day_ahead(
    store: Store, group: Group, machine_clock: MachineClock
) -> None:
    await group.write(store, make_output(1))
    before = await group.document(store)
    machine_clock(-timedelta(days=1, minutes=1))
    with pytest.raises(StoreUnavailable):
        await group.write(store, make_output(2))
    after = await group.document(store)
    assert (after["next"], after["now"], after["open"]) == (before["next"], before["now"], [])
