"""Rounds: writes that come together share one, several of one group run side by side."""

from __future__ import annotations

import asyncio
import copy
import gc
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.outputs import OutputInput
from service.settings import Settings
from service.store import ItemTooLarge, Patch, Store, StoreError, StoreUnavailable
from service.store.group_commit import GroupCommit, Turn
from service.store.outputs import writing
from tests.support.api import make_output
from tests.support.groups import DATABASE, Group, at, fail, stopped_at, version

BeginNext = Callable[[], Turn[Any] | None]


@pytest.mark.parametrize(("join", "rounds"), [(True, range(1, 6)), (False, range(64, 65))], ids=["on", "off"])
async def test_writes_that_come_together_share_rounds(
    mongo_url: str, organization: int, join: bool, rounds: range
) -> None:
    store = Store.connect(Settings(mongo_database=DATABASE, group_commit=join), mongo_url)
    await store.ensure_indexes()
    allocations = 0

    async def count(name: str) -> None:
        nonlocal allocations
        allocations += name == "allocated"

    store.outputs.ids.step = count
    group = Group(organization, "lamps")
    results = await asyncio.gather(*(group.write(store, make_output(n)) for n in range(64)))
    assert allocations in rounds
    assert [r["result"] for (r,) in results] == ["created"] * 64
    assert [r["key_hash"] for (r,) in results] == [f"key-{n}" for n in range(64)]
    assert {item["id"] for item in await group.read(store)} == {r["id"] for (r,) in results}
    await group.assert_counts_are_exact(store)
    await store.close()


async def test_a_write_does_not_wait_for_the_round_before_it(store: Store, group: Group) -> None:
    async with stopped_at(store, "before write", group.write(store, make_output(1))) as slow:
        (fast,) = await group.write(store, make_output(2))
        assert fast["result"] == "created" and not slow.done()
        assert len(await group.in_flight(store)) == 1
    assert slow.result()[0]["result"] == "created"
    await group.assert_counts_are_exact(store)


async def test_a_write_that_shares_a_key_waits_but_those_behind_it_do_not(store: Store, group: Group) -> None:
    async with stopped_at(store, "before write", group.write(store, version(1))) as first:
        same = asyncio.ensure_future(group.write(store, version(2), make_output(3)))
        await asyncio.sleep(0)
        like_same = asyncio.ensure_future(group.write(store, make_output(3, data={"later": True})))
        (behind,) = await group.write(store, make_output(2))
        assert behind["result"] == "created"
        assert not (first.done() or same.done() or like_same.done())
    assert [r["result"] for r in await same] == ["updated", "created"]
    assert [r["result"] for r in await like_same] == ["updated"]
    items = {item["key_hash"]: item["data"] for item in await group.read(store)}
    assert (items["key-1"], items["key-3"]) == ({"version": 2}, {"later": True})


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
    assert (await group.stats(store))["items"] == 38


async def test_a_write_goes_on_without_its_caller_under_way_or_waiting(store: Store, group: Group) -> None:
    async with stopped_at(store, "before write", group.write(store, version(1))) as caller:
        waiting = asyncio.ensure_future(group.write(store, version(2), make_output(2)))
        await asyncio.sleep(0)
        for task in (caller, waiting):
            task.cancel()
        await asyncio.wait([caller, waiting])
        assert caller.cancelled() and waiting.cancelled()
    await store.outputs.close()
    items = {item["key_hash"]: item["data"] for item in await group.read(store)}
    assert set(items) == {"key-1", "key-2"} and items["key-1"] == {"version": 2}
    assert not await group.in_flight(store)


async def test_closing_waits_for_the_writes_under_way(store: Store, other: Store, group: Group) -> None:
    async with stopped_at(store, "before write", group.write(store, version(1))) as write:
        closing = asyncio.ensure_future(store.close())
        await asyncio.wait([closing], timeout=0.05)
        assert not closing.done()
    await closing
    assert write.result()[0]["result"] == "created"
    assert len(await group.read(other)) == 1


async def test_a_failed_round_fails_its_own_writes_only(store: Store, group: Group) -> None:
    store.outputs.ids.step = at("before write", fail())
    writes = (group.write(store, make_output(n)) for n in range(3))
    results = await asyncio.gather(*writes, return_exceptions=True)
    failed = [isinstance(result, StoreUnavailable) for result in results]
    assert sum(failed) == 1
    await store.outputs.close()
    there = {item["key_hash"] for item in await group.read(store)}
    assert there == {f"key-{n}" for n in range(3) if not failed[n]}


async def test_an_item_that_the_database_refuses_fails_the_write_it_came_with_only(
    mongo_url: str, group: Group
) -> None:
    store = Store.connect(Settings(mongo_database=f"{DATABASE}_refusing"), mongo_url)
    await store.database.create_collection("outputs", validator={"data.refused": {"$ne": True}})
    await store.ensure_indexes()
    async with stopped_at(store, "before write", group.write(store, make_output(0))):
        # These three wait for the rounds that are full, and share one.
        store.outputs._writing._commits.max_rounds = 1
        refused = [make_output(2), make_output(3, data={"refused": True})]
        writes = [
            asyncio.ensure_future(group.write(store, *items)) for items in ([make_output(1)], refused, [make_output(4)])
        ]
        await asyncio.sleep(0)
    first, bad, last = await asyncio.gather(*writes, return_exceptions=True)
    assert isinstance(bad, StoreError) and not isinstance(bad, StoreUnavailable)
    assert [r["result"] for done in (first, last) for r in done] == ["created", "created"]  # type: ignore[union-attr]
    # What came with it is there: it was written before the refusal was known.
    assert [item["key_hash"] for item in await group.read(store)] == ["key-0", "key-1", "key-2", "key-4"]
    assert not await group.in_flight(store)
    await group.assert_counts_are_exact(store)
    await store.close()


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


# What the schemas and the limits of the service keep out, so that nothing but the round itself is in the way.
BAD = {
    "too deep for a message": nested(250),
    "too deep for a document": nested(185),
    "too large": {"numbers": [0] * 2_000_000},
    "a number of more than 64 bits": {"number": 2**63},
    "half a character": {"text": "\ud800"},
    "a name with a zero byte": {"a\0b": 1},
}


async def joined(store: Store, group: Group, *bodies: list[dict[str, Any]]) -> list[Any]:
    """Write several bodies in one round, each for a client of its own; return their results or errors."""

    async def write(items: list[dict[str, Any]]) -> Any:
        return await store.outputs.write(group.organization, group.group_id, items)

    async with stopped_at(store, "before write", group.write(store, make_output(0))):
        store.outputs._writing._commits.max_rounds = 1  # these wait for it, and share the next
        writes = [asyncio.ensure_future(write(items)) for items in bodies]
        await asyncio.sleep(0)
    return await asyncio.gather(*writes, return_exceptions=True)


def prepared(store: Store, *items: dict[str, Any], **last: Any) -> list[dict[str, Any]]:
    """Return items as a handler hands them on, the last one with something that no handler lets through."""
    loaded = store.outputs.prepare(OutputInput(many=True).load(copy.deepcopy(list(items))))
    loaded[-1] |= last
    return loaded


@pytest.mark.parametrize("known", [False, True], ids=["insert", "update"])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_an_item_that_no_message_can_hold_fails_the_write_it_came_with_only(
    store: Store, group: Group, bad: dict[str, Any], known: bool
) -> None:
    if known:
        await group.write(store, *(make_output(n, data={"version": 1}) for n in (1, 2, 3, 4, 5)))
    first, failed, last = await joined(
        store,
        group,
        prepared(store, make_output(1), make_output(2)),
        prepared(store, make_output(3), make_output(4), data=bad),
        prepared(store, make_output(5)),
    )
    assert isinstance(failed, StoreError) and not isinstance(failed, StoreUnavailable)
    result = "updated" if known else "created"
    assert [r["result"] for r in [*first, *last]] == [result] * 3
    there = {item["key_hash"]: item["data"] for item in await group.read(store)}
    assert set(there) == {"key-0", "key-1", "key-2", "key-3", "key-5"} | ({"key-4"} if known else set())
    assert all(data != {"version": 1} for key, data in there.items() if key != "key-4")
    assert not await group.in_flight(store)
    await group.assert_counts_are_exact(store)


async def test_patches_of_tags_of_many_clients_are_not_all_looked_up_at_once(
    store: Store, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tags that they are merged with may be a megabyte each."""
    items = await group.write(store, *(make_output(n) for n in range(1, 121)))
    sizes: list[int] = []
    find = writing._Round._find

    async def counted(self: Any, by: str, extra: tuple[str, ...], values: list[str]) -> Any:
        sizes.append(len(values))
        return await find(self, by, extra, values)

    async with stopped_at(store, "before write", group.write(store, make_output(0))):
        store.outputs._writing._commits.max_rounds = 1
        monkeypatch.setattr(writing._Round, "_find", counted)
        patches = [Patch("output_id", item["output_id"], tags={"seen": True}) for item in items]
        clients = [
            asyncio.ensure_future(group.patch(store, *patches[start : start + 10])) for start in range(0, 120, 10)
        ]
        await asyncio.sleep(0)
    results = await asyncio.gather(*clients)
    assert {r["result"] for done in results for r in done} == {"updated"}
    assert sum(sizes) == 120 and max(sizes) <= 50


async def test_an_error_that_nobody_foresaw_reaches_its_own_client_only(store: Store, group: Group) -> None:
    first, failed, last = await joined(
        store,
        group,
        prepared(store, make_output(1)),
        prepared(store, make_output(2), tags=None),  # no schema lets this through
        prepared(store, make_output(3)),
    )
    assert isinstance(failed, AttributeError)
    assert [r["result"] for r in [*first, *last]] == ["created"] * 2
    await store.outputs.close()
    assert [item["key_hash"] for item in await group.read(store)] == ["key-0", "key-1", "key-3"]
    assert not await group.in_flight(store)


async def test_an_item_that_would_be_too_large_in_the_database_is_refused_before(mongo_url: str) -> None:
    store = Store.connect(Settings(max_item_bytes=32 * 1024 * 1024), mongo_url)
    small, large = make_output(1), make_output(2, data={"numbers": [0] * 1_300_000})
    with pytest.raises(ItemTooLarge) as refused:
        prepared(store, small, large)
    assert refused.value.index == 1
    prepared(store, make_output(3, data={"text": "x" * 13_000_000}))
    await store.close()


async def test_a_cancelled_round_leaves_nobody_waiting() -> None:
    async def never(group: tuple[int, str], turn: Turn[Any], begin_next: BeginNext) -> None:
        await asyncio.Event().wait()

    def write(key: str) -> Any:
        done = asyncio.get_running_loop().create_future()
        return SimpleNamespace(keys={key: 1}.keys(), size=1, done=done)

    commits: GroupCommit[Any] = GroupCommit(never)
    callers = [asyncio.ensure_future(commits.submit((1, "g"), write(str(n)))) for n in range(3)]
    await asyncio.sleep(0.01)
    for task in list(commits._tasks):
        task.cancel()
    await asyncio.wait(callers, timeout=60)
    assert all(caller.cancelled() for caller in callers)

    async def at_once(group: tuple[int, str], turn: Turn[Any], begin_next: BeginNext) -> None:
        for each in turn.writes:
            each.done.set_result("done")

    commits.commit = at_once
    assert await asyncio.wait_for(commits.submit((1, "g"), write("again")), 60) == "done"


async def test_a_round_takes_no_more_than_it_may() -> None:
    sizes: list[int] = []
    full = asyncio.Event()

    async def commit(group: tuple[int, str], turn: Turn[Any], begin_next: BeginNext) -> None:
        sizes.append(len(turn.writes))
        await full.wait()
        for each in turn.writes:
            each.done.set_result(None)

    def write(size: int, *keys: str) -> Any:
        done = asyncio.get_running_loop().create_future()
        return SimpleNamespace(keys=dict.fromkeys(keys).keys(), size=size, done=done)

    commits: GroupCommit[Any] = GroupCommit(commit, max_rounds=1, max_keys=3, max_bytes=10)
    waiting = [
        write(1, "0"),
        write(1, "a"),
        write(1, "b", "c"),
        write(1, "d"),
        write(9, "e"),
        write(9, "f"),
        write(1, "f"),
    ]
    callers = [asyncio.ensure_future(commits.submit((1, "g"), each)) for each in waiting]
    await asyncio.sleep(0.01)
    assert sizes == [1]
    full.set()
    await asyncio.gather(*callers)
    # Those that wait for a key stay behind those that do not.
    assert sizes == [1, 2, 2, 1, 1]


async def test_however_many_writes_wait_for_one_key_those_behind_them_do_not() -> None:
    done: list[str] = []
    go_on = asyncio.Event()

    async def commit(group: tuple[int, str], turn: Turn[Any], begin_next: BeginNext) -> None:
        if not done:
            done.append("first")
            await go_on.wait()
        for each in turn.writes:
            done.append(each.name)
            each.done.set_result(None)

    def submit(name: str, key: str) -> asyncio.Future[Any]:
        write = SimpleNamespace(keys={key: 1}.keys(), size=1, done=asyncio.get_running_loop().create_future())
        write.name = name
        return asyncio.ensure_future(commits.submit((1, "g"), write))

    commits: GroupCommit[Any] = GroupCommit(commit)
    same = [submit(f"same {n}", "key") for n in range(1000)]
    await asyncio.wait_for(submit("behind", "another key"), 60)
    assert done == ["first", "behind"]
    go_on.set()
    await asyncio.gather(*same)
    assert done[2:] == [f"same {n}" for n in range(1000)]
    assert not commits._groups


class OverloadedDatabase:
    """Works on all rounds at once, 1000 keys a second together; a round fails after a quarter of a second."""

    def __init__(self) -> None:
        self.left: dict[int, float] = {}

    async def work(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            now = time.monotonic()
            for number in self.left:
                self.left[number] -= 1000 * (now - last) / len(self.left)
            last = now

    async def commit(self, group: Any, turn: Turn[Any], begin_next: BeginNext) -> None:
        number, started = id(turn), time.monotonic()
        self.left[number] = sum(len(write.keys) for write in turn.writes)
        try:
            while self.left[number] > 0:
                if time.monotonic() > started + 0.25:
                    raise StoreUnavailable("out of time")
                await asyncio.sleep(0.005)
            for write in turn.writes:
                write.done.set_result(None)
        finally:
            del self.left[number]


async def test_a_database_that_is_too_slow_for_all_rounds_at_once_still_gets_some_of_them_done() -> None:
    database = OverloadedDatabase()
    commits: GroupCommit[Any] = GroupCommit(database.commit, max_keys=100, slow_seconds=0.12)

    async def client(number: int) -> None:
        while True:
            keys = {f"{number}-{n}": None for n in range(100)}
            write = SimpleNamespace(keys=keys.keys(), size=100, done=asyncio.get_running_loop().create_future())
            try:
                await commits.submit((1, "lamps"), write)
                return
            except StoreUnavailable:
                await asyncio.sleep(0)  # and again, as clients do

    working = asyncio.create_task(database.work())
    async with asyncio.timeout(30):
        await asyncio.gather(*map(client, range(12)))
    working.cancel()


async def test_nothing_is_kept_of_a_write_that_is_done() -> None:
    """Not even until the next garbage collection: the items of a write are megabytes."""

    async def commit(group: tuple[int, str], turn: Turn[Any], begin_next: BeginNext) -> None:
        await asyncio.sleep(0)
        following = begin_next()
        if following is not None and following.left is not None:
            following.left.set_result("ids")
        for each in turn.writes:
            each.done.set_result(None)

    class OneWrite(SimpleNamespace):
        """An object that can be referred to weakly."""

    commits: GroupCommit[Any] = GroupCommit(commit, max_rounds=1)
    written: list[weakref.ref[OneWrite]] = []

    async def submit(key: str) -> None:
        write = OneWrite(keys={key: 1}.keys(), size=1, done=asyncio.get_running_loop().create_future())
        written.append(weakref.ref(write))
        await commits.submit((1, "g"), write)

    gc.disable()
    try:
        for turn in range(3):
            await asyncio.gather(*(submit(f"{turn}-{n}") for n in range(5)))
        await commits.close()
        await asyncio.sleep(0)
        assert commits.begun > 3
        assert [each() for each in written] == [None] * 15
    finally:
        gc.enable()
