"""The store's contract for ids: races, fences, dead writers and group commit, on the real engine."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from pymongo.errors import AutoReconnect

from schemas.outputs import OutputInput
from service.settings import Settings
from service.store import Store, StoreError, StoreUnavailable
from service.store.documents import decode
from service.store.groups import Change
from service.store.items import prepare
from service.store.outputs import Query
from service.store.sequences import GroupCommit
from tests.support.api import make_output

LEASE = 0.1


@pytest.fixture
def settings() -> Settings:
    # Nothing reaps here unless a test does, so a short lease ends nobody's batch by chance.
    return Settings(mongo_database="sequences", lease_seconds=LEASE)


@pytest.fixture
async def other(settings: Settings, mongo_url: str) -> AsyncIterator[Store]:
    """The store of a second process."""
    other = Store.connect(settings, mongo_url)
    yield other
    await other.close()


class Group:
    """A group of the test's organization, written and read through any store."""

    def __init__(self, organization: int, group_id: str) -> None:
        self.organization, self.group_id = organization, group_id

    async def write(self, store: Store, *items: dict[str, Any]) -> list[dict[str, Any]]:
        loaded = prepare(OutputInput(many=True).load(list(items)), 1 << 20)
        return await store.outputs.write(self.organization, self.group_id, loaded)

    async def read(self, store: Store, **query: Any) -> list[dict[str, Any]]:
        page = await store.outputs.page(self.organization, self.group_id, Query(**{"limit": 1000, **query}))
        return [decode(document) for document in page.documents]

    async def stored(self, store: Store) -> list[dict[str, Any]]:
        where = {"organization_id": self.organization, "group_id": self.group_id}
        return await store.database["outputs"].find(where).sort("id").to_list(None)

    async def items(self, store: Store) -> int:
        found = await store.database["groups"].find_one(
            {"organization_id": self.organization, "group_id": self.group_id}
        )
        return int(found["items"]) if found else 0

    async def in_flight(self, store: Store) -> list[dict[str, Any]]:
        found = await store.database["sequences"].find_one({"_id": self.organization})
        return [batch for batch in (found or {}).get("open", []) if batch["group_id"] == self.group_id]


@pytest.fixture
def group(organization: int) -> Group:
    return Group(organization, "lamps")


def version(number: int, **changes: Any) -> dict[str, Any]:
    return make_output(1, data={"version": number}, **changes)


def at(step: str, action: Callable[[], Awaitable[Any]], times: int = 1) -> Callable[[str], Awaitable[None]]:
    """Return a hook that does something the first times that a step comes."""
    left = times

    async def hook(name: str) -> None:
        nonlocal left
        if name == step and left:
            left -= 1
            await action()

    return hook


def fail(kind: type[Exception] = StoreUnavailable) -> Callable[[], Awaitable[None]]:
    async def action() -> None:
        raise kind("injected")

    return action


@asynccontextmanager
async def stopped_at(store: Store, step: str, work: Awaitable[Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """Run `work` up to a step; it goes on when the block is left."""
    there, go_on = asyncio.Event(), asyncio.Event()

    async def stop() -> None:
        there.set()
        await go_on.wait()

    store.sequences.step = at(step, stop)
    task = asyncio.ensure_future(work)
    await asyncio.wait_for(there.wait(), 5)
    try:
        yield task
    finally:
        go_on.set()
        await asyncio.wait([task], timeout=5)


async def reap(store: Store) -> None:
    """Let every lease end, then end the batches."""
    await asyncio.sleep(LEASE + 0.02)
    await store.outputs.reap()


async def race(group: Group, stores: list[Store], items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write one item through each store, all having looked up the key before any writes."""
    start = asyncio.Barrier(len(stores))
    for store in stores:
        store.sequences.step = at("before write", start.wait)
    pairs = zip(stores, items, strict=True)
    results = await asyncio.gather(*(group.write(store, item) for store, item in pairs))
    return [result[0] for result in results]


# -- races ----------------------------------------------------------------------------------------


async def test_two_writers_of_one_new_key_make_one_item(store: Store, other: Store, group: Group) -> None:
    results = await race(group, [store, other], [version(1), version(2)])
    assert sorted(r["result"] for r in results) == ["created", "updated"]
    assert results[0]["output_id"] == results[1]["output_id"]
    (item,) = await group.read(store)
    assert item["id"] == max(r["id"] for r in results)
    last = 1 if results[0]["result"] == "updated" else 2
    assert item["data"] == {"version": last}
    assert await group.items(store) == 1


async def test_two_writers_of_one_new_key_with_the_same_content_agree(store: Store, other: Store, group: Group) -> None:
    results = await race(group, [store, other], [version(1), version(1)])
    assert sorted(r["result"] for r in results) == ["created", "unchanged"]
    assert results[0]["id"] == results[1]["id"]
    assert await group.items(store) == 1


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
    many = [make_output(n) for n in range(20)]
    await group.write(store, *many)

    async def change_half() -> None:
        await group.write(other, *(make_output(n, data={"by": "other"}) for n in range(10)))

    store.sequences.step = at("before write", change_half)
    results = await group.write(store, *(make_output(n, data={"by": "us"}) for n in range(25)))
    assert [r["result"] for r in results] == ["updated"] * 20 + ["created"] * 5
    items = {item["key_hash"]: item for item in await group.read(store)}
    assert {key: item["id"] for key, item in items.items()} == {r["key_hash"]: r["id"] for r in results}
    assert all(item["data"] == {"by": "us"} for item in items.values())
    assert await group.items(store) == 25


async def test_a_write_on_an_empty_database_waits_for_the_indexes(mongo_url: str, group: Group) -> None:
    settings = Settings(mongo_database=f"empty-{group.organization}")
    stores = [Store.connect(settings, mongo_url) for _ in range(2)]
    results = await race(group, stores, [version(1), version(1)])
    assert sorted(r["result"] for r in results) == ["created", "unchanged"]
    for store in stores:
        await store.close()


# -- what readers may see -------------------------------------------------------------------------


async def test_a_reader_does_not_pass_a_batch_in_flight(store: Store, other: Store, group: Group) -> None:
    async with stopped_at(store, "before write", group.write(store, version(1))) as slow:
        (fast,) = await group.write(other, make_output(2))
        assert await group.read(other) == []
    (late,) = slow.result()
    assert late["id"] < fast["id"]
    assert [item["id"] for item in await group.read(other)] == [late["id"], fast["id"]]


async def test_a_batch_in_flight_holds_up_its_own_group_only(store: Store, other: Store, group: Group) -> None:
    elsewhere = Group(group.organization, "chairs")
    async with stopped_at(store, "written", group.write(store, version(1))):
        await elsewhere.write(other, make_output(2), make_output(3))
        assert len(await elsewhere.read(other)) == 2
        assert await group.read(other) == []
    assert len(await group.read(other)) == 1


async def test_a_mark_is_not_moved_by_what_other_groups_write(store: Store, group: Group) -> None:
    await group.write(store, version(1))
    before = await store.sequences.mark(group.organization, group.group_id)
    await Group(group.organization, "chairs").write(store, make_output(2))
    assert await store.sequences.mark(group.organization, group.group_id) == before


async def test_a_remembered_mark_holds_when_a_crash_takes_back_ids(store: Store, other: Store, group: Group) -> None:
    await group.write(store, version(1))
    sequences = store.database["sequences"]
    before = await sequences.find_one({"_id": group.organization})
    # Ids that another group took, a reader who looks, and a server that forgets what was not in its journal.
    await other.sequences.allocate(group.organization, "chairs", 10)
    await group.read(store)
    await sequences.replace_one({"_id": group.organization}, before)
    async with stopped_at(other, "before write", group.write(other, make_output(2))) as slow:
        (fast,) = await group.write(store, make_output(3))
        assert fast["id"] not in [item["id"] for item in await group.read(store, cursor=1)]
    assert [item["id"] for item in await group.read(store, cursor=1)] == [slow.result()[0]["id"], fast["id"]]


async def test_dates_never_decrease_along_ids(store: Store, other: Store, group: Group) -> None:
    groups = [group, Group(group.organization, "chairs")]
    await asyncio.gather(
        *(
            groups[n % 2].write([store, other][n // 2 % 2], make_output(n % 7, data={"n": n}), make_output(100 + n))
            for n in range(40)
        )
    )
    items = [item for each in groups for item in await each.stored(store)]
    dates = [item["update_date"] for item in sorted(items, key=lambda item: item["id"])]
    assert len(dates) == 40 + 7 * 2 and dates == sorted(dates)


async def test_dates_do_not_follow_a_clock_that_goes_back(store: Store, group: Group) -> None:
    await group.write(store, make_output(1))
    ahead = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    await store.database["sequences"].update_one({"_id": group.organization}, {"$set": {"now": ahead}})
    (second,) = await group.write(store, make_output(2))
    (found,) = await group.read(store, created_after=ahead)
    assert found["id"] == second["id"]
    assert found["update_date"].replace(tzinfo=UTC) == ahead


async def test_created_after_does_not_pass_a_batch_in_flight(store: Store, other: Store, group: Group) -> None:
    async with stopped_at(store, "before write", group.write(store, version(1))) as slow:
        await group.write(other, make_output(2))
        (batch, *_) = await group.in_flight(other)
        assert await group.read(other, created_after=batch["date"]) == []
    found = await group.read(other, created_after=batch["date"])
    assert [item["id"] for item in found] == [slow.result()[0]["id"], slow.result()[0]["id"] + 1]


# -- dead and late writers ------------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True], ids=["new", "changed"])
async def test_a_late_write_lands_nowhere_and_is_done_again(
    store: Store, other: Store, group: Group, known: bool
) -> None:
    if known:
        await group.write(store, version(0))
    async with stopped_at(store, "before write", group.write(store, version(1), make_output(2))) as late:
        (batch,) = await group.in_flight(other)
        await reap(other)
        (after,) = await group.write(other, make_output(3))
        seen = await group.read(other)
        assert seen[-1]["id"] == after["id"]
    results = late.result()
    fenced = range(batch["from"], batch["from"] + batch["n"])
    assert [r["result"] for r in results] == ["updated" if known else "created", "created"]
    assert all(r["id"] > after["id"] for r in results)
    assert [item["id"] for item in await group.read(other, cursor=after["id"])] == [r["id"] for r in results]
    assert [d["id"] for d in await group.stored(store) if "tombstone" in d] == list(fenced)
    assert await group.items(store) == 3


async def test_a_write_fenced_in_the_middle_is_completed(store: Store, other: Store, group: Group) -> None:
    bulk_write = store.outputs._outputs.bulk_write

    async def in_two(operations: list[Any], **options: Any) -> Any:
        store.outputs._outputs = real
        await bulk_write(operations[:2], **options)
        await reap(other)
        return await bulk_write(operations, **options)

    real = store.outputs._outputs
    store.outputs._outputs = SimpleNamespace(find=real.find, bulk_write=in_two)  # type: ignore[assignment]
    results = await group.write(store, *(make_output(n) for n in range(5)))
    items = await group.read(other)
    assert {item["key_hash"] for item in items} == {f"key-{n}" for n in range(5)}
    assert len(items) == 5 and len(await group.stored(store)) == 5 + 3
    assert {r["id"] for r in results} == {item["id"] for item in items}
    assert await group.items(store) == 5


@pytest.mark.parametrize("step", ["allocated", "before write", "written", "before release"])
async def test_a_writer_that_fails_at_any_step_is_made_good(
    store: Store, other: Store, group: Group, step: str
) -> None:
    (kept,) = await group.write(store, version(0))
    body = [version(1), make_output(2), make_output(3)]
    store.sequences.step = at(step, fail())
    with pytest.raises(StoreUnavailable):
        await group.write(store, *body)
    assert await group.in_flight(store)
    (after,) = await group.write(other, make_output(4))
    # The group is held up where the dead batch begins, and nothing is lost meanwhile.
    assert all(item["id"] <= kept["id"] for item in await group.read(other))
    retried = await group.write(other, *body)
    await reap(other)
    assert not await group.in_flight(store)
    items = {item["key_hash"]: item for item in await group.read(other)}
    assert len(items) == 4
    assert items["key-1"]["data"] == {"version": 1} and items["key-1"]["output_id"] == kept["output_id"]
    assert {r["key_hash"]: r["id"] for r in [*retried, after]} == {key: item["id"] for key, item in items.items()}
    assert await group.items(store) == 4


async def test_a_connection_lost_in_the_middle_of_the_write_is_made_good(
    store: Store, other: Store, group: Group
) -> None:
    real = store.outputs._outputs

    async def cut(operations: list[Any], **options: Any) -> Any:
        store.outputs._outputs = real
        await real.bulk_write(operations[::2], **options)
        raise AutoReconnect("cut")

    store.outputs._outputs = SimpleNamespace(find=real.find, bulk_write=cut)  # type: ignore[assignment]
    body = [make_output(n) for n in range(6)]
    with pytest.raises(StoreUnavailable):
        await group.write(store, *body)
    assert await group.read(other) == []
    await reap(other)
    before = [item["id"] for item in await group.read(other)]
    assert len(before) == 3 and await group.items(other) == 3
    results = await group.write(other, *body)
    assert [r["result"] for r in results] == ["unchanged", "created"] * 3
    assert len(await group.read(other, cursor=before[-1])) == 3
    assert await group.items(other) == 6


async def test_what_landed_of_a_refused_write_is_seen(mongo_url: str, group: Group) -> None:
    store = Store.connect(Settings(mongo_database=f"refusing-{group.organization}"), mongo_url)
    await store.database.create_collection("outputs", validator={"data.refused": {"$ne": True}})
    await store.ensure_indexes()
    await group.write(store, make_output(1))
    seen = await store.outputs.version(group.organization, group.group_id)
    with pytest.raises(StoreError) as raised:
        await group.write(store, make_output(2), make_output(3, data={"refused": True}), make_output(4))
    assert not isinstance(raised.value, StoreUnavailable)
    assert [item["key_hash"] for item in await group.read(store)] == ["key-1", "key-2", "key-4"]
    assert await store.outputs.version(group.organization, group.group_id) > seen
    assert await group.items(store) == 3
    assert not await group.in_flight(store)
    await store.close()


async def test_ending_a_batch_twice_is_ending_it_once(store: Store, other: Store, group: Group) -> None:
    store.sequences.step = at("written", fail())
    with pytest.raises(StoreUnavailable):
        await group.write(store, make_output(1), make_output(2))
    await asyncio.sleep(LEASE + 0.02)
    (batch,) = [b for b in await store.sequences.expired() if b.organization_id == group.organization]
    await asyncio.gather(store.outputs.reap(), other.outputs.reap())
    await store.sequences.fence(batch)
    await store.outputs._end(batch)
    assert [item["key_hash"] for item in await group.read(store)] == ["key-1", "key-2"]
    assert len(await group.stored(store)) == 2
    assert await group.items(store) == 2


async def test_a_batch_within_its_lease_is_left_alone(store: Store, group: Group, mongo_url: str) -> None:
    patient = Store.connect(Settings(mongo_database="sequences", lease_seconds=60), mongo_url)
    await patient.sequences.allocate(group.organization, group.group_id, 3)
    await reap(store)
    assert len(await group.in_flight(store)) == 1
    await patient.close()


# -- counts ---------------------------------------------------------------------------------------


async def test_a_batch_whose_writer_died_before_release_is_counted_once(
    store: Store, other: Store, group: Group
) -> None:
    store.sequences.step = at("before release", fail())
    with pytest.raises(StoreUnavailable):
        await group.write(store, make_output(1), make_output(2, root_job_id="job-2"))
    for number in range(3, 213):
        await group.write(other, make_output(number))
    await reap(other)
    stats = await other.groups.one(group.organization, group.group_id)
    assert (stats["items"], stats["jobs"]) == (212, 2)


async def test_an_item_of_a_dead_writer_that_was_changed_since_is_counted_once(
    store: Store, other: Store, group: Group
) -> None:
    store.sequences.step = at("written", fail())
    with pytest.raises(StoreUnavailable):
        await group.write(store, version(1), make_output(2))
    assert [r["result"] for r in await group.write(other, version(2))] == ["updated"]
    await reap(other)
    assert await group.items(other) == 2


async def test_an_item_that_is_changed_while_the_reaper_counts_is_counted_once(
    store: Store, other: Store, group: Group
) -> None:
    store.sequences.step = at("written", fail())
    with pytest.raises(StoreUnavailable):
        await group.write(store, version(1), *(make_output(n) for n in range(2, 8)))
    real = store.outputs._outputs

    async def find(*args: Any, **options: Any) -> AsyncIterator[Any]:
        store.outputs._outputs = real
        changed = False
        async for document in real.find(*args, **options, batch_size=2):
            yield document
            if not changed:
                changed = True
                await group.write(other, version(2))

    store.outputs._outputs = SimpleNamespace(find=find)  # type: ignore[assignment]
    await reap(store)
    assert await group.items(other) == 7


async def test_a_slow_writer_and_a_slow_reaper_count_a_batch_once(store: Store, other: Store, group: Group) -> None:
    async with stopped_at(store, "before release", group.write(store, make_output(1))):
        await asyncio.sleep(LEASE + 0.02)
        (batch,) = [b for b in await other.sequences.expired() if b.organization_id == group.organization]
    await group.write(store, make_output(2))
    await group.write(store, make_output(3))
    await other.sequences.fence(batch)
    await other.outputs._end(batch)
    assert await group.items(store) == 3


async def test_a_job_is_counted_when_the_count_itself_is_tried_again(store: Store, other: Store, group: Group) -> None:
    # The job is entered, then its writer dies before the group is counted.
    batch = await store.sequences.allocate(group.organization, group.group_id, 1)
    change = Change(batch)
    change.add({"id": batch.first, "root_job_id": "job-9", "is_approved": False}, True, False)
    where = {"organization_id": group.organization, "group_id": group.group_id}
    assert await store.groups._new_jobs(where, change) == 1
    await other.groups.apply(change)
    await other.groups.apply(change)
    assert (await other.groups.one(group.organization, group.group_id))["jobs"] == 1


async def test_counted_batches_do_not_pile_up_in_a_group(mongo_url: str, other: Store, group: Group) -> None:
    store = Store.connect(Settings(mongo_database="sequences", lease_seconds=60), mongo_url)
    groups = store.database["groups"]
    for number in range(5):
        await group.write(store, make_output(number))
    where = {"organization_id": group.organization}
    assert len((await groups.find_one(where))["counted"]) == 1
    await groups.update_one(where, {"$set": {"counted.old": datetime(2020, 1, 1, tzinfo=UTC)}})
    await group.write(other, make_output(9))
    counted = (await groups.find_one(where))["counted"]
    assert len(counted) == 2 and "old" not in counted
    await store.close()


# -- tombstones -----------------------------------------------------------------------------------


async def test_tombstones_are_in_no_answer_and_recognisable(store: Store, group: Group) -> None:
    await group.write(store, make_output(1))
    batch = await store.sequences.allocate(group.organization, group.group_id, 3)
    await reap(store)
    await group.write(store, make_output(2))
    filters: list[dict[str, Any]] = [
        {},
        {"job_id": "job-1"},
        {"country": "Germany"},
        {"region": "DE-BE"},
        {"country": "Germany", "region": "DE-BE"},
        {"created_after": datetime(2020, 1, 1, tzinfo=UTC)},
    ]
    for query in filters:
        assert [item["key_hash"] for item in await group.read(store, **query)] == ["key-1", "key-2"]
    assert [len(await group.read(store, limit=1, cursor=c)) for c in (0, 1, 2, 5)] == [1, 1, 1, 0]
    tombstones = await store.database["outputs"].find({"tombstone": {"$exists": True}}).to_list(None)
    ours = [t for t in tombstones if t["organization_id"] == group.organization]
    assert [(t["id"], t["tombstone"]) for t in ours] == [(batch.first + n, batch.date) for n in range(3)]


async def test_old_tombstones_are_removed_and_new_ones_stay(store: Store, group: Group) -> None:
    batch = await store.sequences.allocate(group.organization, group.group_id, 2)
    await store.sequences.fence(batch)
    old = batch.date - timedelta(days=7, minutes=1)
    await store.database["outputs"].update_one(
        {"organization_id": group.organization, "id": batch.first}, {"$set": {"tombstone": old}}
    )
    await store.sequences.sweep()
    assert [t["id"] for t in await group.stored(store)] == [batch.first + 1]


# -- group commit ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("join", "rounds"), [(True, range(1, 6)), (False, range(64, 65))], ids=["on", "off"])
async def test_writes_that_come_together_share_rounds(
    mongo_url: str, organization: int, join: bool, rounds: range
) -> None:
    store = Store.connect(Settings(mongo_database="sequences", group_commit=join), mongo_url)
    allocations = 0

    async def count(name: str) -> None:
        nonlocal allocations
        allocations += name == "allocated"

    store.sequences.step = count
    group = Group(organization, "lamps")
    results = await asyncio.gather(*(group.write(store, make_output(n)) for n in range(64)))
    assert allocations in rounds
    assert [r["result"] for (r,) in results] == ["created"] * 64
    assert [r["key_hash"] for (r,) in results] == [f"key-{n}" for n in range(64)]
    assert {item["id"] for item in await group.read(store)} == {r["id"] for (r,) in results}
    await store.close()


async def test_writes_of_one_key_that_come_together_are_all_done_in_order(store: Store, group: Group) -> None:
    results = await asyncio.gather(*(group.write(store, version(n), make_output(n + 10)) for n in range(4)))
    assert [r[0]["result"] for r in results] == ["created", "updated", "updated", "updated"]
    items = {item["key_hash"]: item for item in await group.read(store)}
    assert items["key-1"]["data"] == {"version": 3} and items["key-1"]["id"] == results[3][0]["id"]
    assert len(items) == 5


async def test_the_last_of_one_key_in_one_write_wins(store: Store, group: Group) -> None:
    results = await group.write(store, version(1), make_output(2), version(3))
    assert results[0] == results[2]
    assert {i["key_hash"]: i["data"] for i in await group.read(store)}["key-1"] == {"version": 3}


@pytest.mark.parametrize("together", [True, False], ids=["joined", "one"])
async def test_more_than_one_message_holds_arrives(store: Store, group: Group, together: bool) -> None:
    text = "x" * 1_000_000
    items = [make_output(n, data={"text": text}) for n in range(38)]
    bodies = [[item] for item in items] if together else [items]
    results = await asyncio.gather(*(group.write(store, *body) for body in bodies))
    assert [r["result"] for body in results for r in body] == ["created"] * 38
    assert await group.items(store) == 38


async def test_a_write_goes_on_without_its_caller_under_way_or_waiting(store: Store, group: Group) -> None:
    async with stopped_at(store, "before write", group.write(store, version(1))) as caller:
        waiting = asyncio.ensure_future(group.write(store, make_output(2)))
        await asyncio.sleep(0)
        for task in (caller, waiting):
            task.cancel()
        await asyncio.wait([caller, waiting])
        assert caller.cancelled() and waiting.cancelled()
    await store.outputs.close()
    assert [item["key_hash"] for item in await group.read(store)] == ["key-1", "key-2"]
    assert not await group.in_flight(store)


async def test_closing_waits_for_the_writes_under_way(store: Store, other: Store, group: Group) -> None:
    async with stopped_at(store, "before write", group.write(store, version(1))) as write:
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
    await closing
    assert write.result()[0]["result"] == "created"
    assert len(await group.read(other)) == 1


async def test_a_failed_round_fails_its_own_writes_only(store: Store, group: Group) -> None:
    store.sequences.step = at("before write", fail())
    first = asyncio.ensure_future(group.write(store, make_output(1)))
    await asyncio.sleep(0)
    second, third = await asyncio.gather(group.write(store, make_output(2)), group.write(store, make_output(3)))
    with pytest.raises(StoreUnavailable):
        await first
    assert second[0]["result"] == third[0]["result"] == "created"


async def test_a_cancelled_round_leaves_nobody_waiting() -> None:
    async def never(group: tuple[int, str], writes: list[Any]) -> None:
        await asyncio.Event().wait()

    def write(key: str) -> Any:
        done = asyncio.get_running_loop().create_future()
        return SimpleNamespace(keys={key: 1}.keys(), size=1, done=done)

    commits: GroupCommit[Any] = GroupCommit(never)
    callers = [asyncio.ensure_future(commits.submit((1, "g"), write(str(n)))) for n in range(3)]
    await asyncio.sleep(0.01)
    for task in list(commits._tasks):
        task.cancel()
    await asyncio.wait(callers, timeout=2)
    assert all(caller.cancelled() for caller in callers)

    async def at_once(group: tuple[int, str], writes: list[Any]) -> None:
        for each in writes:
            each.done.set_result("done")

    commits.commit = at_once
    assert await asyncio.wait_for(commits.submit((1, "g"), write("again")), 2) == "done"


def test_a_round_takes_no_more_than_it_may() -> None:
    def write(size: int, *keys: str) -> Any:
        return SimpleNamespace(keys=dict.fromkeys(keys).keys(), size=size)

    commits: GroupCommit[Any] = GroupCommit(lambda group, writes: None, most_keys=3, most_bytes=10)  # type: ignore
    waiting = deque([write(1, "a"), write(1, "b", "c"), write(1, "d"), write(9, "e"), write(9, "f"), write(1, "f")])
    sizes = []
    while waiting:
        sizes.append(len(commits._next_round(waiting)))
    assert sizes == [2, 2, 1, 1]
