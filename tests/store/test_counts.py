"""Counts of groups, jobs and days: exact whatever fails, and cheap to read."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from service.store import Patch, Store
from service.store.connection import opened
from service.store.errors import SNAPSHOT_TOO_OLD
from service.store.outputs.counts import MAX_REPLY
from tests.support.api import make_output
from tests.support.commands import Commands
from tests.support.fault_proxy import Act, FaultProxy, refuse
from tests.support.groups import (
    Group,
    groups_of,
    killed_at,
    lease_over,
    look_after,
    look_after_once,
    open_batch,
    reap,
    stopped_at,
    version,
)

pytestmark = pytest.mark.usefixtures("one_day")


async def test_items_approvals_and_jobs_follow_every_change(store: Store, group: Group) -> None:
    items = [make_output(n, root_job_id=f"job-{n % 3}", is_approved=n % 2 == 0) for n in range(12)]
    written = await group.write(store, *items)
    await group.assert_counts_are_exact(store)
    await group.write(store, *(dict(item, root_job_id="job-9") for item in items[:6]))  # touched: another job
    await group.assert_counts_are_exact(store)
    await group.write(store, make_output(7, data={"new": 1}, root_job_id="job-9"), make_output(99))
    await group.patch(
        store, Patch("key_hash", "key-1", is_approved=True), Patch("key_hash", "key-2", is_approved=False)
    )
    await group.assert_counts_are_exact(store)
    await group.delete(store, *written[3:6])
    await group.assert_counts_are_exact(store)
    await group.write(store, items[4])
    await group.assert_counts_are_exact(store)
    stats = await group.stats(store)
    assert (stats["items"], stats["jobs"]) == (11, 4)


async def test_a_job_says_what_it_created_changed_and_left(store: Store, group: Group) -> None:
    await group.write(store, *(make_output(n, root_job_id="mon.1$%") for n in range(4)))
    await group.write(
        store,
        make_output(0, root_job_id="tue", data={"new": 1}),
        make_output(1, root_job_id="tue"),
        make_output(2, root_job_id="tue"),
        make_output(9, root_job_id="tue"),
    )
    jobs = await group.jobs(store)
    assert {id: [job[kind] for kind in ("items", "created", "changed", "unchanged")] for id, job in jobs.items()} == {
        "mon.1$%": [1, 4, 0, 0],
        "tue": [4, 1, 1, 2],
    }
    assert list(jobs) == ["tue", "mon.1$%"]
    assert all(job["first_write"] <= job["last_write"] for job in jobs.values())


@pytest.mark.slow
async def test_a_batch_whose_writer_died_before_it_was_finished_is_counted_once(
    store: Store, other: Store, group: Group
) -> None:
    await killed_at(store, "before finish", group.write(store, make_output(1), make_output(2, root_job_id="job-2")))
    for number in range(3, 53):
        await group.write(other, make_output(number))
    await reap(other, group)
    stats = await group.stats(other)
    assert (stats["items"], stats["jobs"]) == (52, 2)
    await group.assert_counts_are_exact(other)


async def test_an_item_of_a_dead_writer_that_was_changed_since_is_counted_once(
    store: Store, other: Store, group: Group
) -> None:
    await killed_at(store, "written", group.write(store, version(1), make_output(2)))
    assert [r["result"] for r in await group.write(other, version(2))] == ["updated"]
    await reap(other, group)
    await group.assert_counts_are_exact(other)


async def test_an_item_that_is_changed_while_the_reaper_counts_is_counted_once(
    wired: Store, wire: FaultProxy, other: Store, group: Group
) -> None:
    """It is read again where it is now: of more items than one reply of the database holds."""
    await killed_at(wired, "written", group.write(wired, *(make_output(n) for n in range(1, 151))))
    changed = wire.before("getMore", "outputs", lambda: group.write(other, version(2)))
    await reap(wired, group)
    assert changed.reached.is_set() and (await group.stats(other))["items"] == 150


async def test_a_slow_writer_and_a_slow_reaper_count_a_batch_once(store: Store, other: Store, group: Group) -> None:
    async with stopped_at(store, "before finish", group.write(store, make_output(1))):
        await lease_over(other, group)
        batch = await group.batch_in_flight(other)
    await group.write(store, make_output(2))
    await group.write(store, make_output(3))
    await other.outputs.recovery.fence(batch)
    await other.outputs.recovery.end(batch.group, batch.token)
    await group.assert_counts_are_exact(store)


async def test_finishing_a_batch_twice_counts_it_once(store: Store, other: Store, group: Group) -> None:
    async with stopped_at(store, "before finish", group.write(store, make_output(1))):
        await reap(other, group)
    await group.assert_counts_are_exact(store)


# -- recount --------------------------------------------------------------------------------------


async def test_a_group_is_recounted_where_a_dead_writers_counts_are_uncertain(
    store: Store, other: Store, group: Group
) -> None:
    """The items that it had touched, revived and deleted cannot be told from the stored documents."""
    items = [make_output(n, is_approved=True) for n in range(6)]
    written = await group.write(store, *items)
    await group.delete(store, written[0])
    await killed_at(
        store,
        "written",
        group.write(
            store,
            items[0],  # revived
            *(dict(item, root_job_id="job-2") for item in items[1:3]),  # touched
            make_output(3, data={"changed": 1}, root_job_id="job-2"),
        ),
    )
    await reap(other, group)
    await look_after(other, group)
    await group.assert_counts_are_exact(other)
    assert "recount" not in await group.document(other)


async def test_what_a_recovered_round_did_is_told_apart(store: Store, other: Store, group: Group) -> None:
    """A patch is nothing that a job did, and an item that came back was created."""
    written = await group.write(store, *(make_output(n) for n in range(4)))
    await group.delete(store, written[0])
    patched = Patch("key_hash", "key-1", is_approved=True)
    changes = {"deleted": make_output(0), "changed": make_output(2, data={"new": 1})}
    for work in (group.patch(store, patched), group.write(store, *changes.values())):
        await killed_at(store, "written", work)
        await reap(other, group)
    job = (await group.jobs(other))["job-1"]
    assert [job[kind] for kind in ("items", "created", "changed")] == [4, 4, 0]
    await look_after(other, group)
    await group.assert_counts_are_exact(other)


async def test_a_group_that_is_written_without_a_pause_is_recounted(store: Store, other: Store, group: Group) -> None:
    numbers, stop = itertools.count(100), False
    await group.write(store, *(make_output(n, is_approved=True) for n in range(20)))

    async def write(each: Store) -> None:
        while not stop:
            await group.write(each, make_output(next(numbers)), make_output(next(numbers), is_approved=True))

    writing = [asyncio.ensure_future(write(each)) for each in (store, other) * 2]
    try:
        await asyncio.sleep(0.2)
        wrong = {"items": 77, "approved": -5, "deleted": 3, "tombstones": 1, "recount": 1}
        await store.database["groups"].update_one(group.owner, {"$inc": wrong})
        for _ in range(50):
            await look_after_once(other, group)
            if "recount" not in await group.document(other):
                break
    finally:
        stop = True
        await asyncio.gather(*writing)
    assert "recount" not in await group.document(other)
    assert (await group.document(other))["tombstones"] == 0
    await group.assert_counts_are_exact(store)


@pytest.mark.slow
async def test_a_batch_that_stays_in_flight_puts_a_recount_off_and_holds_up_no_writer(
    store: Store, other: Store, group: Group
) -> None:
    await group.write(store, make_output(1))
    await group.set(store, recount=1, items=77)
    async with stopped_at(store, "written", group.write(store, make_output(2))):
        await look_after_once(other, group)
        assert (await group.document(other))["recount"] == 1
        assert [r["result"] for r in await group.write(other, make_output(3))] == ["created"]
    await look_after(other, group)
    await group.assert_counts_are_exact(other)
    assert "recount" not in await group.document(other)


async def test_a_recount_does_not_pause_writers_while_a_dead_batch_is_in_flight(
    listening: Store, commands: Commands, group: Group
) -> None:
    """It would fail each time, and every client that ends a job asks for the next attempt."""

    def waits() -> int:
        return sum("open.0" in command.body.get("filter", {}) for command in commands.sent)

    await group.write(listening, make_output(1))
    batch = await open_batch(listening, group, 1)
    begun = datetime.now(UTC) - timedelta(seconds=3)
    entry = {"token": batch.token, "first": batch.first, "n": 1, "date": begun, "deadline": begun}
    await group.set(listening, recount=1, items=77, open=[entry])
    commands.clear()
    await look_after_once(listening, group)
    assert (await group.document(listening))["recount"] == 1 and not waits()
    await reap(listening, group)
    await look_after_once(listening, group)
    assert waits()


async def test_a_recount_knows_jobs_by_their_items_their_documents_and_what_waits(store: Store, group: Group) -> None:
    await group.write(store, *(make_output(n, root_job_id=f"job-{n}") for n in range(7)))
    await store.jobs.collect(group.key)
    jobs = store.database["jobs"]
    await jobs.delete_many({**group.owner, "job_id": {"$in": ["job-0", "job-3", "job-6"]}})
    await jobs.update_one({**group.owner, "job_id": "job-4"}, {"$set": {"items": 9}})
    await jobs.insert_one({**group.owner, "job_id": "job-35", "items": 5, "first_move": 1, "move": 1})
    await group.write(store, *(make_output(n, root_job_id="later") for n in (1, 2)))
    gone = {"date": datetime.now(UTC), "created": 0, "changed": 0, "jobs": [{"job_id": "nowhere", "items": 3}]}
    await store.database["groups"].update_one(group.owner, {"$push": {"pending": gone}})
    await group.set(store, recount=1)
    await look_after(store, group)
    found = {job_id: job["items"] for job_id, job in (await group.jobs(store)).items()}
    held = {"later": 2, "job-0": 1, "job-3": 1, "job-4": 1, "job-5": 1, "job-6": 1}
    assert found == {**held, "job-1": 0, "job-2": 0, "job-35": 0, "nowhere": 0}


async def test_a_group_too_large_for_a_snapshot_is_not_recounted_for_ever(
    wired: Store, wire: FaultProxy, group: Group
) -> None:
    await group.write(wired, make_output(1))
    await group.set(wired, recount=1)
    wire.after("aggregate", "outputs", refuse(SNAPSHOT_TOO_OLD))
    await look_after_once(wired, group)
    assert not {"recount", "paused"} & set(await group.document(wired))


class TestLargest:
    """The bytes that no item of a group exceeds, which pages reserve."""

    async def largest(self, store: Store, group: Group) -> int:
        return (await store.outputs.watermark(group.key)).largest

    async def write_as_older_version(self, store: Store, group: Group, *has_largest: bool) -> None:
        """Write an item as before `largest` was kept; `has_largest` is what an upkeep has said of it since."""
        await group.write(store, make_output(1, data={"text": "x" * 5000}))
        await look_after(store, group)
        await store.database["groups"].update_one(group.owner, {"$unset": {"largest": "", "has_largest": ""}})
        for value in has_largest:
            await group.set(store, has_largest=value)

    async def test_a_group_keeps_the_bytes_of_its_largest_item(self, store: Store, group: Group) -> None:
        assert await self.largest(store, group) == 0
        for length in (100, 5000, 10):
            await group.write(store, make_output(1, data={"text": "x" * length}))
        assert 5000 < await self.largest(store, group) < 10_000

    async def test_a_group_of_an_older_version_is_recounted_once(self, store: Store, group: Group) -> None:
        await self.write_as_older_version(store, group)
        assert await self.largest(store, group) == MAX_REPLY
        await group.write(store, make_output(2))
        assert await self.largest(store, group) == MAX_REPLY, "what was written before may be larger"
        await look_after(store, group)
        assert 5000 < await self.largest(store, group) < 10_000
        await group.assert_counts_are_exact(store)
        recounts = (await group.document(store))["recounts"]
        await group.write(store, make_output(3))
        await look_after(store, group)
        assert (await group.document(store))["recounts"] == recounts

    async def test_a_recount_that_did_not_end_is_not_begun_again(self, store: Store, group: Group) -> None:
        """Of a group that is too large for it: the next one would be as vain."""
        await self.write_as_older_version(store, group, False)
        await group.write(store, make_output(2))
        await look_after(store, group)
        assert "recounts" not in await group.document(store)
        assert await self.largest(store, group) == MAX_REPLY

    async def test_what_is_written_while_a_group_is_recounted_counts_too(
        self, store: Store, other: Store, group: Group
    ) -> None:
        await self.write_as_older_version(store, group)
        sizes, stop = itertools.count(6000, 100), False

        async def write() -> None:
            while not stop:
                await group.write(store, make_output(2, data={"text": "x" * next(sizes)}))

        writing = asyncio.ensure_future(write())
        try:
            for _ in range(50):
                await look_after_once(other, group)
                if await self.largest(other, group) < MAX_REPLY:
                    break
        finally:
            stop = True
            await writing
        assert next(sizes) - 100 < await self.largest(other, group) < MAX_REPLY


async def test_a_writer_that_dies_during_a_recount_is_recounted_too(
    store: Store, wired: Store, wire: FaultProxy, group: Group
) -> None:
    await group.write(store, make_output(1))
    await group.set(store, recount=1)
    wire.before("aggregate", "outputs", lambda: group.set(store, recount=2))
    await look_after_once(wired, group)
    assert (await group.document(store))["recount"] == 2


# -- moving counts to the jobs --------------------------------------------------------------------


async def test_counts_are_gathered_once_by_however_many(store: Store, other: Store, group: Group) -> None:
    for number in range(5):
        await group.write(store, make_output(number, root_job_id=f"job-{number % 2}"))
    await asyncio.gather(*(each.jobs.collect(group.key) for each in (store, other, store, other)))
    await group.assert_counts_are_exact(store)
    assert (await group.stats(store))["jobs"] == 2


async def test_a_move_that_broke_off_is_done_again_and_counts_once(
    wired: Store, wire: FaultProxy, other: Store, group: Group
) -> None:
    await group.write(other, make_output(1), make_output(2, root_job_id="job-2"))
    async with wire.stopped("before", "update", "days", wired.jobs.collect(group.key)):  # the jobs have their counts
        await group.write(other, make_output(3))
        await group.assert_counts_are_exact(other)
    await group.assert_counts_are_exact(other)  # it came back late
    assert (await days(group, other))[0][1] == 3


async def test_a_move_that_comes_late_leaves_no_job_of_a_deleted_group(
    wired: Store, wire: FaultProxy, other: Store, group: Group
) -> None:
    await group.write(other, make_output(1), make_output(2, root_job_id="job-2"))
    async with wire.stopped("before", "update", "jobs", wired.jobs.collect(group.key)):
        await group.remove(other)
    assert await group.jobs(other) == {}
    stats = await group.stats(other)
    assert (stats["jobs"], stats["days"]) == (0, [])
    await group.write(other, make_output(1))
    assert {id: job["created"] for id, job in (await group.jobs(other)).items()} == {"job-1": 1}
    assert (await group.stats(other))["jobs"] == 1


async def test_the_counts_of_jobs_are_gathered_while_others_write_without_a_pause(
    store: Store, other: Store, group: Group
) -> None:
    numbers, stop = itertools.count(), False

    async def write(each: Store) -> None:
        while not stop:
            await group.write(each, make_output(next(numbers), root_job_id="busy"))

    writing = [asyncio.ensure_future(write(each)) for each in (store, other) * 4]
    try:
        async with asyncio.timeout(60):
            while not (await group.document(store)).get("items"):
                await asyncio.sleep(0.005)
        for _ in range(5):
            acknowledged = (await group.document(store))["items"]
            jobs = await asyncio.wait_for(group.jobs(store), 60)
            assert jobs["busy"]["items"] >= acknowledged > 0
    finally:
        stop = True
        await asyncio.gather(*writing)
    await group.assert_counts_are_exact(store)


@pytest.mark.slow
async def test_thousands_of_new_jobs_do_not_make_the_document_of_the_group_grow(
    store: Store, other: Store, group: Group
) -> None:
    largest, stop = 0, asyncio.Event()

    async def watch() -> None:
        nonlocal largest
        pipeline: list[dict[str, Any]] = [{"$match": group.owner}, {"$project": {"size": {"$bsonSize": "$$ROOT"}}}]
        while not stop.is_set():
            for found in await (await opened(store.database["groups"].aggregate(pipeline))).to_list(1):
                largest = max(largest, found["size"])

    watching = asyncio.ensure_future(watch())
    # Names of the largest size that there is, 768 bytes each as a field; 100 jobs per round, two processes.
    names = [f"{n:06}{'$' * 250}" for n in range(3000)]
    outputs = [make_output(n, root_job_id=name) for n, name in enumerate(names)]
    rounds = [outputs[start : start + 100] for start in range(0, len(outputs), 100)]
    for start in range(0, len(rounds), 2):
        some = rounds[start : start + 2]
        await asyncio.gather(*(group.write(each, *items) for each, items in zip((store, other), some, strict=True)))
    stop.set()
    await watching
    # What waits, what one round of joined writes adds to it, and both once more while they are moved.
    assert 64 * 1024 < largest < 2 * (64 * 1024 + 1000 * 900)
    assert (await group.stats(store))["jobs"] == len(names)
    assert (await group.stats(store))["items"] == len(names)
    assert {job["items"] for job in (await group.jobs(store)).values()} == {1}


@pytest.mark.slow
async def test_a_batch_ends_even_when_the_counts_of_jobs_cannot_be_moved(
    wired: Store, wire: FaultProxy, group: Group
) -> None:
    refused = wire.before("update", "jobs", refuse(), times=math.inf)
    for start in range(0, 600, 200):
        jobs = [f"job-{n}-{'x' * 240}" for n in range(start, start + 200)]
        await group.write(wired, *(make_output(n, root_job_id=job) for n, job in enumerate(jobs, start)))
    wire.clear()
    assert refused.reached.is_set()
    assert not await group.in_flight(wired)
    assert (await group.stats(wired))["jobs"] == 600


async def test_a_recount_corrects_every_job(store: Store, group: Group) -> None:
    await group.write(store, *(make_output(n, root_job_id=f"job-{n}") for n in range(8)))
    await store.jobs.collect(group.key)
    await store.database["jobs"].update_many(group.owner, {"$set": {"items": 7}})
    await store.database["days"].update_many(group.owner, {"$set": {"net": 8 * 7}})  # days and jobs count the same
    await group.set(store, recount=1)
    await look_after(store, group)
    await group.assert_counts_are_exact(store)
    assert (await group.stats(store))["jobs"] == 8


# -- days -----------------------------------------------------------------------------------------


async def days(group: Group, store: Store) -> list[tuple[str, int, int]]:
    return [(day["date"], day["created"], day["changed"]) for day in (await group.stats(store))["days"]]


async def test_a_batch_counts_for_the_day_of_its_date(store: Store, other: Store, group: Group) -> None:
    """Not for that on which it is finished: this one is ended after midnight, by another process."""
    store.outputs.ids.clock = datetime(2020, 2, 2, 23, 59, 59, tzinfo=UTC)
    await killed_at(store, "written", group.write(store, make_output(1), make_output(2)))
    await reap(other, group)
    store.outputs.ids.clock = None
    await group.write(store, version(1), make_output(3))
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    assert await days(group, store) == [("2020-02-02", 2, 0), (today, 1, 1)]


async def test_a_listed_group_has_its_days_since_a_date(store: Store, group: Group) -> None:
    store.outputs.ids.clock = datetime(2020, 2, 2, tzinfo=UTC)
    await group.write(store, make_output(1))
    store.outputs.ids.clock = None
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    other = Group(group.organization, "chairs")
    await other.write(store, make_output(1))
    listed = await groups_of(store, group.organization, "2020-02-03")
    found = [(each["group_id"], [day["date"] for day in each["days"]]) for each in listed]
    assert found == [("chairs", [today]), ("lamps", [])]


@pytest.mark.slow
async def test_a_recount_in_the_middle_of_a_move_counts_nothing_twice(
    store: Store, wired: Store, wire: FaultProxy, other: Store, group: Group
) -> None:
    await group.write(store, make_output(0, root_job_id="a"))
    await group.set(store, recount=1)
    go_on, moving = asyncio.Event(), list[asyncio.Task[None]]()

    async def move() -> None:
        await wired.jobs.collect(group.key)

    async def move_half() -> None:
        await group.write(store, *(make_output(n, root_job_id="a") for n in range(1, 15)))
        half = wire.before("update", "days", go_on.wait)  # the jobs have the counts, and the group has them too
        moving.append(asyncio.create_task(move()))
        await half.reached.wait()

    wire.before("find", "groups", move_half, where=lambda body: body.get("readConcern", {}).get("level") == "snapshot")
    await look_after_once(wired, group)
    assert "recount" not in await group.document(store)  # it was made, and not put off
    go_on.set()
    await asyncio.gather(*moving)
    assert (await group.jobs(store))["a"]["items"] == 15


async def test_two_recounts_at_once_add_their_difference_once(
    wired: Store, wire: FaultProxy, other: Store, group: Group
) -> None:
    await group.write(other, *(make_output(n) for n in range(10)))
    await other.jobs.collect(group.key)
    await group.set(other, recount=1, items=7)
    async with wire.stopped("after", "aggregate", "outputs", look_after_once(wired, group)):  # longer than its claim
        await look_after_once(other, group)
    document = await group.document(other)
    assert document["items"] == 10
    assert "recount" not in document


@pytest.mark.parametrize("moved", [False, True], ids=["after its counts are moved", "before"])
async def test_a_write_while_the_group_is_removed_keeps_its_job(
    wired: Store, wire: FaultProxy, other: Store, group: Group, moved: bool
) -> None:
    await group.write(other, make_output(1, root_job_id="a"))
    await group.delete_matching(other)

    async def write() -> None:
        await group.write(other, make_output(2, root_job_id="b"))

    if moved:
        written = wire.before("find", "groups", write)
    else:
        written = wire.before("update", "groups", write, where=lambda body: "'jobs': 0" in str(body["updates"]))
    await wired.groups.remove(group.key, 1)
    assert written.reached.is_set()
    assert {job: counts["items"] for job, counts in (await group.jobs(other)).items()} == {"b": 1}
    assert (await group.stats(other))["jobs"] == 1


async def test_upkeep_is_due_soon_although_the_dates_of_a_group_are_ahead(store: Store, group: Group) -> None:
    await group.write(store, make_output(1))
    await group.set(store, now=datetime.now(UTC) + timedelta(hours=5))
    await store.database["groups"].update_one(group.owner, {"$unset": {"due": ""}})
    await group.write(store, make_output(2))
    assert (await group.document(store))["due"] < datetime.now(UTC) + timedelta(minutes=1)


async def test_a_batch_that_is_finished_during_a_long_look_keeps_its_group_due(
    store: Store, wired: Store, wire: FaultProxy, group: Group
) -> None:
    await group.write(store, make_output(1))

    async def write() -> None:
        claim = (await group.document(store))["due"]
        await group.write(store, make_output(2))
        await group.set(store, due=claim)  # as if the claim were almost over

    wire.before("update", "groups", write, where=lambda body: "rounds" in body["updates"][0]["q"])
    await look_after_once(wired, group)
    assert "due" in await group.document(store)


def claims(wire: FaultProxy, action: Callable[[], Awaitable[Any]]) -> Act:
    """Do something each time that the upkeep has taken a group."""
    return wire.after("findAndModify", "groups", action, times=math.inf, where=lambda body: "due" in body["query"])


@pytest.mark.usefixtures("nothing_due")
async def test_a_group_that_becomes_urgent_while_another_is_looked_at_is_the_next(
    store: Store, wired: Store, wire: FaultProxy, organization: int
) -> None:
    first, second, urgent = (Group(organization, name) for name in ("first", "second", "urgent"))
    for year, group in ((2001, first), (2002, second), (2999, urgent)):
        await group.write(store, make_output(1))
        await group.set(store, due=datetime(year, 1, 1, tzinfo=UTC))
    three = asyncio.Event()

    async def note() -> None:
        if len(looked.bodies) == 1:
            await urgent.set(store, due=datetime(2001, 6, 1, tzinfo=UTC))
        if len(looked.bodies) == 3:
            three.set()

    looked = claims(wire, note)
    running = asyncio.create_task(wired.upkeep.run())
    await asyncio.wait_for(three.wait(), 60)
    running.cancel()
    assert [body["query"]["group_id"] for body in looked.bodies[:3]] == ["first", "urgent", "second"]


@pytest.mark.usefixtures("nothing_due")
async def test_a_group_that_is_due_again_at_once_waits_for_the_next_pass(
    store: Store, wired: Store, wire: FaultProxy, group: Group
) -> None:
    await group.write(store, make_output(1))
    await group.set(store, due=datetime(2001, 1, 1, tzinfo=UTC))
    looked = claims(wire, lambda: group.set(store, due=datetime(2001, 1, 1, tzinfo=UTC)))
    await wired.upkeep.run()
    assert len(looked.bodies) == 1
    await group.set(store, due=datetime(2999, 1, 1, tzinfo=UTC))


async def test_a_recount_that_the_removal_of_its_group_overtakes_adds_nothing(
    store: Store, wired: Store, wire: FaultProxy, group: Group
) -> None:
    await group.write(store, make_output())
    await group.delete_matching(store)
    await store.database["jobs"].insert_one({**group.owner, "job_id": "ghost", "items": -100, "first_move": 1})
    await group.set(store, recount=1)
    wire.after("aggregate", "outputs", lambda: store.groups.remove(group.key, 1))
    await look_after(wired, group)
    assert await store.crawls.one(group.key, "ghost") is None
