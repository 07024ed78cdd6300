"""WriteQueues: writes to one group that come together share a round, and one round follows another."""

from __future__ import annotations

import asyncio
import gc
import itertools
import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from schemas.outputs import OutputInput
from service.http.errors import place
from service.settings import Settings
from service.store import Group as StoredGroup
from service.store import ItemTooLarge, Patch, Store, StoreError, StoreUnavailable
from service.store.outputs.commit import Write
from service.store.outputs.comparing import ComparingCache
from service.store.outputs.encode import Encoder, Put
from service.store.time_budget import time_budget
from tests.support.api import make_cookie, make_entry, make_file, make_output, make_review
from tests.support.commands import Commands
from tests.support.fault_proxy import FaultProxy, cut, refuse
from tests.support.groups import DATABASE, Group, at, fail, stopped_at, version
from tests.support.stall import without_stall

Results = list[dict[str, Any]]


async def joined(store: Store, group: Group, *bodies: list[Any]) -> list[Any]:
    """Write several bodies of encoded items in one round, each for a client of its own; return results or errors."""
    async with stopped_at(store, "before write", group.write(store, make_output(0))):
        writes = [asyncio.ensure_future(store.outputs.write(group.key, items)) for items in bodies]
        await asyncio.sleep(0)
    return await asyncio.gather(*writes, return_exceptions=True)


# -- rounds ---------------------------------------------------------------------------------------


async def test_patches_of_one_request_share_a_round_however_they_name_their_items(store: Store, group: Group) -> None:
    """With a slow database a round takes seconds: four of them, one after the other, would never end in time."""
    written = await group.write(store, *(make_output(n) for n in range(4)))
    before = store.outputs.write_queues.rounds
    done = await group.patch(
        store,
        Patch("output_id", written[0]["output_id"], is_approved=True),
        Patch("output_id", written[1]["output_id"], tags={"note": "a"}),
        Patch("key_hash", "key-2", is_approved=True),
        Patch("key_hash", "key-3", tags={"note": "b"}),
    )
    assert [each["result"] for each in done] == ["updated"] * 4
    assert store.outputs.write_queues.rounds == before + 1


async def test_writes_that_come_together_share_rounds(store: Store, group: Group) -> None:
    await group.write(store, make_output(64))  # now the settings of the group are known
    before = store.outputs.write_queues.rounds
    results = await asyncio.gather(*(group.write(store, make_output(n)) for n in range(64)))
    assert store.outputs.write_queues.rounds <= before + 2
    assert [r["result"] for (r,) in results] == ["created"] * 64
    assert [r["key_hash"] for (r,) in results] == [f"key-{n}" for n in range(64)]
    assert {item["id"] for item in await group.read(store, cursor=1)} == {r["id"] for (r,) in results}
    await group.assert_counts_are_exact(store)


async def test_a_round_finishes_the_one_before_it_and_takes_its_ids_in_one_command(
    listening: Store, group: Group, commands: Commands
) -> None:
    async with stopped_at(listening, "before write", group.write(listening, make_output(1))):
        waiting = asyncio.ensure_future(group.write(listening, make_output(2)))
        await asyncio.sleep(0)
    await waiting
    assert [command.name for command in commands.sent if command.name != "find"] == [
        *("findAndModify", "insert"),
        *("findAndModify", "insert"),
        "findAndModify",
    ]


async def test_every_write_waits_for_the_journals_of_a_majority(
    listening: Store, group: Group, commands: Commands
) -> None:
    (written,) = await group.write(listening, make_output(1))
    await group.write(listening, make_output(1))
    await group.write(listening, version(2))
    await group.patch(listening, Patch("key_hash", "key-1", is_approved=True))
    await group.delete(listening, written)
    await listening.cookies.set(group.organization, [make_cookie(expires=None)])
    await listening.local_storage.set(group.organization, [make_entry(expires=None)])
    await listening.reviews.add(group.key, [make_review(review_date=None)])
    writes = [command for command in commands.sent if command.name in ("insert", "update", "findAndModify")]
    stored = {"outputs", "groups", "cookies", "local_storage", "reviews", "sequences"}
    assert {command.collection for command in writes} == stored
    for command in writes:
        assert command.body.get("writeConcern") == {"w": "majority", "j": True}, (command.name, command.collection)


async def test_writes_of_one_key_that_come_together_are_all_done_in_order(store: Store, group: Group) -> None:
    bodies = [await group.encoded(store, version(n), make_output(n + 10)) for n in range(4)]
    results = await asyncio.gather(*(store.outputs.write(group.key, body) for body in bodies))
    assert [r[0]["result"] for r in results] == ["created", "updated", "updated", "updated"]
    items = {item["key_hash"]: item for item in await group.read(store)}
    assert items["key-1"]["data"] == {"version": 3} and items["key-1"]["id"] == results[3][0]["id"]
    assert len(items) == 5


async def test_a_write_that_shares_a_key_with_one_that_waits_does_not_overtake_it(store: Store, group: Group) -> None:
    async with stopped_at(store, "before write", group.write(store, make_output(0))):
        bodies = ([version(1)], [version(2), make_output(3)], [make_output(3, data={"later": True})], [make_output(4)])
        writes = [asyncio.ensure_future(group.write(store, *body)) for body in bodies]
        await asyncio.sleep(0)
    results = [[r["result"] for r in done] for done in await asyncio.gather(*writes)]
    assert results == [["created"], ["updated", "created"], ["updated"], ["created"]]
    items = {item["key_hash"]: item["data"] for item in await group.read(store)}
    assert (items["key-1"], items["key-3"]) == ({"version": 2}, {"later": True})
    await group.assert_counts_are_exact(store)


async def test_the_last_of_one_key_in_one_write_wins(store: Store, group: Group) -> None:
    results = await group.write(store, version(1), make_output(2), version(3))
    assert results[0] == results[2]
    assert {i["key_hash"]: i["data"] for i in await group.read(store)}["key-1"] == {"version": 3}


@pytest.mark.slow
@pytest.mark.parametrize("together", [True, False], ids=["joined", "one"])
async def test_much_more_than_a_part_of_a_message_is_sent_in_parts(
    listening: Store, commands: Commands, group: Group, together: bool
) -> None:
    """A message holds 48 MB; a part is a third of that, 16 of these items."""
    text = "x" * 1_000_000
    items = [make_output(n, data={"text": text}) for n in range(38)]
    bodies = [[item] for item in items] if together else [items]
    results = await asyncio.gather(*(group.write(listening, *body) for body in bodies))
    assert [r["result"] for body in results for r in body] == ["created"] * 38
    assert (await group.stats(listening))["items"] == 38
    parts = [len(command.body["documents"]) for command in commands.sent if command.name == "insert"]
    assert parts and max(parts) <= 16
    assert listening.outputs.write_queues.rounds >= (3 if together else 1)


@pytest.mark.slow
async def test_a_round_takes_no_more_than_a_thousand_keys(store: Store, group: Group) -> None:
    numbers = itertools.count(1)
    bodies = [await group.encoded(store, *(make_output(next(numbers)) for _ in range(n))) for n in (600, 400, 900, 1)]
    before = store.outputs.write_queues.rounds
    await joined(store, group, *bodies)
    assert store.outputs.write_queues.rounds == before + 1 + 2  # the one that they wait for, 1000 keys, and 901


def looked_up(commands: Commands) -> list[int]:
    """Return how many items each command has read with their tags."""
    finds = [command.body for command in commands.sent if (command.name, command.collection) == ("find", "outputs")]
    return [len(body["filter"]["_id"]["$in"]) for body in finds if "tags" in body["projection"]]


async def test_patches_of_tags_of_many_clients_are_not_all_looked_up_at_once(
    listening: Store, commands: Commands, group: Group
) -> None:
    """The tags that they are merged with may be a megabyte each."""
    items = await group.write(listening, *(make_output(n) for n in range(1, 121)))
    async with stopped_at(listening, "before write", group.write(listening, make_output(0))):
        commands.clear()
        patches = [Patch("output_id", item["output_id"], tags={"seen": True}) for item in items]
        clients = [
            asyncio.ensure_future(group.patch(listening, *patches[start : start + 10])) for start in range(0, 120, 10)
        ]
        await asyncio.sleep(0)
    results = await asyncio.gather(*clients)
    assert {r["result"] for done in results for r in done} == {"updated"}
    assert sum(looked_up(commands)) == 120 and max(looked_up(commands)) <= 50


@pytest.mark.alone
async def test_large_tags_are_patched_in_rounds_of_few_bytes(
    listening: Store, commands: Commands, group: Group
) -> None:
    tags: dict[str, Any] = {"many": [[]] * 300_000}  # 4 MB of BSON, and 20 MB of Python objects
    for n in range(12):
        await group.write(listening, make_output(n, tags=tags))
    commands.clear()
    done = await group.patch(listening, *(Patch("key_hash", f"key-{n}", tags={"checked": True}) for n in range(12)))
    assert [each["result"] for each in done] == ["updated"] * 12
    assert sum(looked_up(commands)) == 12 and max(looked_up(commands)) * 4_000_000 <= 16 * 2**20
    (item,) = await group.read(listening, limit=1)
    assert item["tags"] == {**tags, "checked": True}


@pytest.mark.slow  # a hundred megabytes
async def test_the_data_of_patched_items_are_not_held_together(store: Store, group: Group) -> None:
    for n in range(16):
        await group.write(store, make_output(n, data={"a": [0] * 500_000}))  # 6 MB of BSON
    tracemalloc.start()
    try:
        done = await group.patch(store, *(Patch("key_hash", f"key-{n}", tags={"checked": True}) for n in range(16)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [each["result"] for each in done] == ["updated"] * 16
    assert peak < 220 * 2**20  # 320 MB if all are read before the first is measured


# -- callers that go, write queues that end --------------------------------------------------------------


async def test_a_write_whose_caller_is_gone_before_it_begins_is_dropped(store: Store, group: Group) -> None:
    async with stopped_at(store, "before write", group.write(store, version(1))) as under_way:
        waiting = asyncio.ensure_future(group.write(store, version(2), make_output(2)))
        await asyncio.sleep(0)
        for caller in (under_way, waiting):
            caller.cancel()
        await asyncio.wait([under_way, waiting])
    await store.outputs.write_queues.close()
    assert [item["data"] for item in await group.read(store)] == [{"version": 1}]
    assert not await group.in_flight(store)


async def test_closing_waits_for_the_writes_under_way(store: Store, other: Store, group: Group) -> None:
    async with stopped_at(store, "before write", group.write(store, version(1))) as write:
        closing = asyncio.ensure_future(store.close())
        await asyncio.wait([closing], timeout=0.05)
        assert not closing.done()
    await closing
    assert write.result()[0]["result"] == "created"
    assert len(await group.read(other)) == 1


async def test_a_cancelled_lane_leaves_nobody_waiting(store: Store, group: Group) -> None:
    before = asyncio.all_tasks()
    async with stopped_at(store, "before write", group.write(store, version(1))) as first:
        second = asyncio.ensure_future(group.write(store, version(2)))
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - before - {first, second}:  # what the writes have begun
            task.cancel()
        await asyncio.wait([first, second], timeout=60)
        assert first.cancelled() and second.cancelled()
    assert not store.outputs.write_queues.busy
    assert [r["result"] for r in await group.write(store, make_output(3))] == ["created"]


@pytest.fixture
def without_collections() -> Iterator[None]:
    """Without the garbage collector: the items of a write are megabytes, and must not wait for it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def kept_items() -> int:
    """Return how many encoded items this process holds."""
    return sum(type(each) is Write for each in gc.get_objects())


@pytest.mark.usefixtures("without_collections")
async def test_nothing_is_kept_of_a_write_that_is_done(store: Store, group: Group) -> None:
    for turn in range(3):
        await asyncio.gather(*(group.write(store, make_output(10 * turn + n)) for n in range(5)))
    await store.outputs.write_queues.close()
    await asyncio.sleep(0)
    assert kept_items() == 0


@pytest.mark.slow
@pytest.mark.usefixtures("without_collections")
@pytest.mark.parametrize("code", [112, 13], ids=["tried again", "refused"])
@pytest.mark.parametrize("command", ["findAndModify", "find", "insert"])
async def test_nothing_is_kept_of_a_write_that_failed(store: Store, group: Group, command: str, code: int) -> None:
    await group.write(store, make_output(0))  # now the settings of the group are known
    admin, data = store.client.admin, {"failCommands": [command], "errorCode": code}
    mode = "alwaysOn" if code == 112 else {"times": 1}  # a refused one is not tried again
    await admin.command("configureFailPoint", "failCommand", mode=mode, data=data)
    try:
        with pytest.raises(StoreError), time_budget(0.4):
            await group.write(store, make_output(1))
    finally:
        await admin.command("configureFailPoint", "failCommand", mode="off")
    await store.outputs.write_queues.close()
    await asyncio.sleep(0)
    assert kept_items() == 0


@pytest.mark.usefixtures("without_collections")
@pytest.mark.parametrize("tags", [42, {"text": "\ud800"}], ids=["defect", "driver"])
async def test_nothing_is_kept_of_a_write_that_failed_here_but_the_place(store: Store, group: Group, tags: Any) -> None:
    await group.write(store, make_output(0))
    found = ""
    try:
        await group.patch(store, Patch("key_hash", "key-0", tags=tags))
    except Exception as failure:
        found = place(failure.__context__ or failure)
        failure.with_traceback(None)
    await store.outputs.write_queues.close()
    await asyncio.sleep(0)
    assert ":" in found, "the function and its line"
    assert kept_items() == 0


# -- errors that reach their own client only ------------------------------------------------------


@pytest.mark.slow
async def test_an_item_that_the_database_refuses_fails_the_write_it_came_with_only(
    mongo_url: str, group: Group
) -> None:
    store = Store.connect(Settings(mongo_database=f"{DATABASE}_refusing"), mongo_url)
    await store.database.create_collection("outputs", validator={"data.refused": {"$ne": True}})
    await store.ensure_indexes()
    bodies = ([make_output(1)], [make_output(2), make_output(3, data={"refused": True})], [make_output(4)])
    first, bad, last = await joined(store, group, *[await group.encoded(store, *body) for body in bodies])
    assert isinstance(bad, StoreError) and not isinstance(bad, StoreUnavailable)
    assert [r["result"] for done in (first, last) for r in done] == ["created", "created"]
    # What came with it is there: it was written before the refusal was known.
    assert [item["key_hash"] for item in await group.read(store)] == ["key-0", "key-1", "key-2", "key-4"]
    assert not await group.in_flight(store)
    await group.assert_counts_are_exact(store)
    await store.close()


@pytest.mark.slow
@pytest.mark.parametrize("job", ["job-1", "job-2"], ids=["same job", "next job"])
async def test_an_unchanged_item_that_the_database_refuses_is_not_called_unchanged(
    mongo_url: str, group: Group, job: str
) -> None:
    store = Store.connect(Settings(mongo_database=f"{DATABASE}_refusing_{job}"), mongo_url)
    await store.ensure_indexes()
    await group.write(store, make_output(1, root_job_id="job-1"))
    await store.database.command("collMod", "outputs", validator={"data.title": {"$ne": "Lamp 1"}})
    with pytest.raises(StoreError) as refused:
        await group.write(store, make_output(1, root_job_id=job))
    assert not isinstance(refused.value, StoreUnavailable)
    await store.client.drop_database(store.database.name)
    await store.close()


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True], ids=["insert", "update"])
async def test_an_item_that_no_message_can_hold_fails_the_write_it_came_with_only(
    store: Store, group: Group, known: bool
) -> None:
    """The limits of the service keep it out, so that nothing but the write queue itself is in the way here."""
    if known:
        await group.write(store, *(make_output(n, data={"version": 1}) for n in (1, 2, 3, 4, 5)))
    too_deep = await group.encoded(store, make_output(3), make_output(4, data=nested(185)))
    first, failed, last = await joined(
        store,
        group,
        await group.encoded(store, make_output(1), make_output(2)),
        too_deep,
        await group.encoded(store, make_output(5)),
    )
    assert isinstance(failed, StoreError) and not isinstance(failed, StoreUnavailable)
    assert [r["result"] for r in [*first, *last]] == ["updated" if known else "created"] * 3
    there = {item["key_hash"]: item["data"] for item in await group.read(store)}
    assert set(there) == {"key-0", "key-1", "key-2", "key-3", "key-5"} | ({"key-4"} if known else set())
    assert all(data != {"version": 1} for key, data in there.items() if key != "key-4")
    assert not await group.in_flight(store)
    await group.assert_counts_are_exact(store)


async def test_an_error_that_nobody_foresaw_reaches_its_own_client_only(store: Store, group: Group) -> None:
    await group.write(store, make_output(2))
    one, three = [await group.encoded(store, make_output(n)) for n in (1, 3)]
    broken: Any = 42  # tags are an object
    async with stopped_at(store, "before write", group.write(store, make_output(0))):
        writes = [
            asyncio.ensure_future(work)
            for work in (
                store.outputs.write(group.key, one),
                group.patch(store, Patch("key_hash", "key-2", tags=broken)),
                store.outputs.write(group.key, three),
            )
        ]
        await asyncio.sleep(0)
    first, failed, last = await asyncio.gather(*writes, return_exceptions=True)
    assert isinstance(failed, Exception) and not isinstance(failed, StoreUnavailable)
    assert not isinstance(first, BaseException) and not isinstance(last, BaseException)
    assert [r["result"] for r in [*first, *last]] == ["created"] * 2
    await store.outputs.write_queues.close()
    assert {item["key_hash"] for item in await group.read(store)} == {f"key-{n}" for n in range(4)}
    assert not await group.in_flight(store)


@pytest.mark.slow
async def test_a_round_whose_look_up_fails_after_its_turn_leaves_no_batch_in_flight(
    wired: Store, wire: FaultProxy, other: Store, group: Group
) -> None:
    """Although the first attempt to end the batch fails, too."""

    async def fail_after_the_turn() -> None:
        while not await group.in_flight(other):
            await asyncio.sleep(0.01)
        await cut()

    wire.before("find", "outputs", fail_after_the_turn)
    not_ended = wire.before("find", "groups", refuse(), where=lambda body: "open.token" in body["filter"])
    await group.write(wired, make_output(1))
    assert not_ended.reached.is_set()
    assert not await group.in_flight(other)


# -- what an item becomes -------------------------------------------------------------------------


def encode(item: dict[str, Any], max_item_bytes: int = 2**20) -> Put:
    return Encoder(Group(1).key, max_item_bytes)(OutputInput().load(item))


def test_an_item_that_would_be_too_large_in_the_database_is_refused_before() -> None:
    with pytest.raises(ItemTooLarge):
        encode(make_output(2, data={"numbers": [0] * 1_300_000}), 2**25)
    encode(make_output(3, data={"text": "x" * 13_000_000}), 2**25)


async def test_the_identity_of_an_item_is_its_key_for_ever(store: Store, group: Group) -> None:
    (first,) = await group.write(store, version(1))
    await group.delete(store, first)
    await store.database["outputs"].delete_many(group.owner)  # the record of the deletion has aged out
    (again,) = await group.write(store, version(2))
    assert again["output_id"] == first["output_id"] and again["result"] == "created"
    (elsewhere,) = await Group(group.organization, "chairs").write(store, version(1))
    (another,) = await Group(group.organization + 1_000_000).write(store, version(1))
    assert len({first["output_id"], elsewhere["output_id"], another["output_id"]}) == 3


async def test_files_with_one_id_keep_the_dates_of_their_own_item(store: Store, group: Group) -> None:
    async def dates() -> list[list[Any]]:
        return [[file["create_date"] for file in item["files"]] for item in await group.read(store)]

    files = [make_file(id="same"), make_file(id="same", field="data.other")]
    await group.write(store, make_output(1, files=files))
    await asyncio.sleep(0.005)
    await group.write(store, make_output(2, files=files))
    before = await dates()
    assert before[0] != before[1]
    await group.write(store, make_output(1, data={"new": 1}, files=files), make_output(2, data={"new": 1}, files=files))
    assert await dates() == before
    dated = make_file(id="same", create_date="2020-02-02T00:00:00Z")
    await group.write(store, make_output(1, data={"new": 2}, files=[dated, files[1]]))
    ((_, first), (second, third)) = await dates()
    assert (first, second.year, third) == (before[1][1], 2020, before[0][1])


async def test_a_file_keeps_its_date_although_the_settings_of_its_group_change_before_its_round(
    store: Store, other: Store, group: Group
) -> None:
    """The item is the same by the settings that it was encoded with, and another one by those of its round."""
    await store.groups.set(group.key, {"ignore": ["scraped_at"]})
    await group.write(store, make_output(1, data={"scraped_at": 1}, files=[make_file()]))
    (before,) = await group.read(store)
    await asyncio.sleep(0.005)
    items = await group.encoded(store, make_output(1, data={"scraped_at": 2}, files=[make_file()]))
    await other.groups.set(group.key, {"ignore": []})
    (done,) = await store.outputs.write(group.key, items)
    (after,) = await group.read(store)
    assert (done["result"], after["data"]) == ("updated", {"scraped_at": 2})
    assert after["files"] == before["files"]


@pytest.mark.slow
async def test_a_rejection_survives_a_write_that_was_encoded_with_other_settings(
    store: Store, other: Store, group: Group
) -> None:
    data = {"title": "Lamp", "scraped_at": 1}
    await group.write(store, make_output(1, data=data, files=[]))
    items = await group.encoded(store, make_output(1, data=data, files=[], tags={"country": "France"}))
    await other.groups.set(group.key, {"ignore": ["scraped_at"]})
    await group.write(other, make_output(1, data=data, files=[], tags={"rejected": "blurred"}))
    (done,) = await store.outputs.write(group.key, items)
    (after,) = await group.read(store)
    assert (done["result"], after["tags"]) == ("updated", {"country": "France", "rejected": "blurred"})


async def test_a_tag_that_is_too_long_to_filter_by_is_not_copied(store: Store, group: Group) -> None:
    """A round looks up the copies of 1000 items."""
    tags = {"country": "x" * 1024, "region": "x" * 1025}
    await group.write(store, make_output(1, tags=tags))
    (stored,) = await group.stored(store)
    assert (stored["tags"], stored["country"], "region" in stored) == (tags, tags["country"], False)


@pytest.mark.parametrize(("before", "after"), [(1, True), (True, 1), (0, False), (1.0, 1)])
async def test_a_patch_of_tags_tells_numbers_and_truth_values_apart(
    store: Store, group: Group, before: Any, after: Any
) -> None:
    await group.write(store, make_output(1, tags={"value": before}))
    (result,) = await group.patch(store, Patch("key_hash", "key-1", tags={"value": after}))
    assert result["result"] == "updated"
    (item,) = await group.read(store)
    assert type(item["tags"]["value"]) is type(after)


def test_only_bytes_wait_for_the_database() -> None:
    """The garbage collector has nothing to look at, however many items wait."""
    put = encode(make_output(1))
    held = {name: type(value) for name, value in msgspec.structs.asdict(put).items()}
    assert not set(held.values()) & {dict, list}
    assert not gc.is_tracked(put)


@pytest.mark.slow
@pytest.mark.parametrize(("paths", "names"), [(50, 65), (7, 65)])
async def test_settings_of_many_groups_take_little_memory(store: Store, group: Group, paths: int, names: int) -> None:
    """50 paths of 65 names are 7 KB of text, and 0.6 MB as a tree."""
    ignore = [".".join([str(n), *["a"] * (names - 1)]) for n in range(paths)]
    cache = ComparingCache(store.database, 30)
    tracemalloc.start()
    try:
        for n in range(100):
            cache.refresh(StoredGroup(1, f"group-{n}"), {"ignore": list(ignore)})
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2**18
    await store.groups.set(group.key, {"ignore": [*ignore, "scraped_at"]})
    results = [await group.write(store, make_output(1, data={"scraped_at": n})) for n in range(3)]
    assert [result["result"] for (result,) in results] == ["created", "unchanged", "unchanged"]


@pytest.mark.alone
async def test_hashing_many_items_again_lets_others_run(store: Store, other: Store, group: Group) -> None:
    await store.groups.set(group.key, {"ignore": ["scraped_at"]})
    rows = [{"name": f"row {n}", "price": n * 1.5, "in_stock": True} for n in range(300)]
    items = [make_output(n, data={"scraped_at": n, "rows": rows}) for n in range(600)]
    encoded = await group.encoded(store, *items)
    others = iter(("rank", "place", "score"))

    async def write() -> None:
        await other.groups.set(group.key, {"ignore": ["scraped_at", next(others)]})
        await store.outputs.write(group.key, encoded)

    await without_stall(write)


@pytest.mark.alone
async def test_many_files_of_one_id_let_others_run(store: Store, group: Group) -> None:
    files = [{"id": "picture"} for _ in range(1000)]
    versions = iter([await group.encoded(store, make_output(1, data={"n": n}, files=files)) for n in range(4)])
    await store.outputs.write(group.key, next(versions))
    await without_stall(lambda: store.outputs.write(group.key, next(versions)))
    (item,) = await group.read(store)
    assert item["data"] != {"n": 0} and [file["id"] for file in item["files"]] == ["picture"] * 1000


@pytest.mark.alone
async def test_hashing_a_large_item_again_lets_others_run(store: Store, other: Store, group: Group) -> None:
    encoded = await group.encoded(store, make_output(1, data={"a": [0] * 520_000}))
    await store.outputs.write(group.key, encoded)
    settings = iter(range(9))

    async def write() -> list[dict[str, Any]]:
        await other.groups.set(group.key, {"ignore": ["a.b", f"c{next(settings)}"]})
        return await store.outputs.write(group.key, encoded)

    (done,) = await without_stall(write)
    assert done["result"] == "unchanged"


async def test_versions_that_a_failover_may_take_back_are_copied_again(store: Store, group: Group) -> None:
    """A primary that steps down replies `ok` to the copy, with an error beside it that the driver ignores."""
    await group.write(store, make_output(1))
    await group.set(store, history_days=30)
    versions, attempts = store.database["versions"], 0

    async def attempt(name: str) -> None:
        nonlocal attempts
        if name == "before write":
            attempts += 1
            await versions.delete_many(group.owner)  # taken back

    store.outputs.ids.step = attempt
    await store.client.admin.command(
        "configureFailPoint",
        "failCommand",
        mode={"times": 1},
        data={"failCommands": ["aggregate"], "writeConcernError": {"code": 91, "errmsg": "stopping"}},
    )
    await group.write(store, version(1))
    assert (attempts, await versions.count_documents(group.owner)) == (2, 1)


# -- what was lost, forgotten or given the wrong id -----------------------------------------------


@pytest.mark.slow
async def test_an_item_that_changed_after_a_round_took_its_ids_gets_a_higher_id_all_the_same(
    wired: Store, wire: FaultProxy, other: Store, group: Group
) -> None:
    """The look-up runs beside the turn that takes the ids: it may see what a later batch has written."""
    await group.write(other, version(1))
    allocated, fast = asyncio.Event(), list[dict[str, Any]]()

    async def note(step: str) -> None:
        if step == "allocated":
            allocated.set()

    async def write_beside() -> None:
        await allocated.wait()
        fast.extend(await group.write(other, version(3)))

    wired.outputs.ids.step = note
    wire.before("find", "outputs", write_beside)
    (last,) = await group.write(wired, version(2))
    assert last["id"] > fast[0]["id"]
    (item,) = await group.read(other)
    assert (item["id"], item["data"]) == (last["id"], {"version": 2})
    await group.assert_counts_are_exact(other)


@pytest.mark.slow
async def test_what_the_first_of_two_failed_rounds_wrote_is_not_forgotten(store: Store, group: Group) -> None:
    (item,) = await group.write(store, version(1))
    store.outputs.ids.step = at("written", fail(), times=2)
    assert await group.delete(store, item) == ["updated"]


@pytest.mark.slow
async def test_a_write_that_ran_out_of_time_is_not_kept_in_memory(store: Store, group: Group) -> None:
    async with stopped_at(store, "before write", group.write(store, make_output(1))):
        items = await group.encoded(store, make_output(2))
        with time_budget(0.01), pytest.raises(StoreUnavailable):
            await store.outputs.write(group.key, items)
        assert kept_items() == 1  # the one under way


@pytest.mark.slow
async def test_tags_of_more_bytes_than_one_reply_of_the_database_holds_are_all_patched(
    store: Store, group: Group
) -> None:
    for first in range(0, 20, 10):
        await group.write(store, *(make_output(n, tags={"note": "x" * 900_000}) for n in range(first, first + 10)))
    done = await group.patch(store, *(Patch("key_hash", f"key-{n}", tags={"checked": True}) for n in range(20)))
    assert [each["result"] for each in done] == ["updated"] * 20
