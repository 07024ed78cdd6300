"""A round that ends takes the ids of the next one of its group in the same step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pymongo.errors import AutoReconnect

from service.settings import Settings
from service.store import Store, StoreUnavailable
from service.store.outputs import recovery, writing
from service.store.outputs.ids import Ids
from tests.support.api import make_output
from tests.support.commands import Commands
from tests.support.groups import DATABASE, Group, at, fail, stopped_at


@pytest.fixture
def settings() -> Settings:
    """One round of a group at a time, and a long lease."""
    return Settings(mongo_database=DATABASE, lease_seconds=600, write_rounds=1)


@pytest.fixture
def store(listening: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(recovery, "_PAUSES", (0.0, 0.05, 0.1))
    return listening


async def two_rounds(
    store: Store, group: Group, meanwhile: Callable[[], Any] = lambda: None
) -> tuple[Awaitable[Any], Awaitable[Any]]:
    """Write one item, and two more while the first is being written."""
    async with stopped_at(store, "before write", group.write(store, make_output(1))) as first:
        second = asyncio.ensure_future(group.write(store, make_output(2), make_output(3)))
        await asyncio.sleep(0)
        meanwhile()
    return first, second


async def ended(store: Store, group: Group) -> None:
    """Wait until the failed rounds of the process are ended, long before any lease is over."""
    await asyncio.wait_for(store.outputs.recovery.close(), 60)
    assert not await group.in_flight(store)
    await group.assert_counts_are_exact(store)


def results(written: list[dict[str, Any]]) -> list[str]:
    return [result["result"] for result in written]


async def test_two_rounds_in_a_row_change_the_group_three_times(store: Store, group: Group, commands: Commands) -> None:
    first, second = await two_rounds(store, group)
    assert results(await first) == ["created"] and results(await second) == ["created", "created"]
    changes = [command.name for command in commands.sent if command.collection == "groups"]
    assert changes == ["findAndModify", "findAndModify", "update"]
    assert [item["key_hash"] for item in await group.read(store)] == ["key-1", "key-2", "key-3"]
    await ended(store, group)


async def test_what_the_first_round_wrote_can_be_read_while_the_next_is_written(store: Store, group: Group) -> None:
    first, second = await two_rounds(store, group)
    async with stopped_at(store, "before write", group.write(store, make_output(4))) as third:
        await first
        assert {"key-1"} <= {item["key_hash"] for item in await group.read(store)} <= {"key-1", "key-2", "key-3"}
    assert results(await second) == ["created", "created"] and results(await third) == ["created"]


async def test_the_next_round_takes_ids_itself_when_the_one_before_fails(store: Store, group: Group) -> None:
    def fail_next() -> None:
        store.outputs.ids.step = at("before finish", fail())

    first, second = await two_rounds(store, group, fail_next)
    with pytest.raises(StoreUnavailable):
        await first
    assert results(await second) == ["created", "created"]
    await ended(store, group)
    assert {item["key_hash"] for item in await group.read(store)} == {"key-1", "key-2", "key-3"}


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "not landed"])
async def test_a_connection_that_is_cut_in_the_handover_leaves_no_batch_in_flight(
    store: Store, group: Group, landed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Ids._update

    async def cut(self: Ids, where: Any, update: Any, claim: Any) -> Any:
        monkeypatch.setattr(Ids, "_update", real)
        if landed:
            await real(self, where, update, claim)
        raise AutoReconnect("cut")

    first, second = await two_rounds(store, group, lambda: monkeypatch.setattr(Ids, "_update", cut))
    with pytest.raises(StoreUnavailable):
        await first
    assert results(await second) == ["created", "created"]
    await ended(store, group)
    assert {item["key_hash"] for item in await group.read(store)} == {"key-1", "key-2", "key-3"}


async def test_a_round_that_fails_with_inherited_ids_is_ended_at_once(store: Store, group: Group) -> None:
    def fail_next() -> None:
        store.outputs.ids.step = at("allocated", fail())

    first, second = await two_rounds(store, group, fail_next)
    assert results(await first) == ["created"]
    with pytest.raises(StoreUnavailable):
        await second
    await ended(store, group)
    assert results(await group.write(store, make_output(2), make_output(3))) == ["created", "created"]


async def test_a_round_that_fails_before_the_one_before_it_does_takes_no_ids(
    store: Store, group: Group, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_failed = asyncio.Event()

    async def cut(self: Any, *args: Any) -> Any:
        asyncio.get_running_loop().call_later(0.05, second_failed.set)
        raise StoreUnavailable("cut")

    async def fail_later() -> None:
        await second_failed.wait()
        raise StoreUnavailable("injected")

    def fail_both() -> None:
        store.outputs.ids.step = at("before finish", fail_later)
        monkeypatch.setattr(writing._Round, "_find", cut)

    first, second = await two_rounds(store, group, fail_both)
    for failed in (first, second):
        with pytest.raises(StoreUnavailable):
            await failed
    await ended(store, group)
    assert sum("deadline" in str(command.body.get("update")) for command in commands.sent) == 1


async def test_an_item_that_was_lost_to_another_writer_gets_an_id_beyond_the_inherited_ones(
    store: Store, other: Store, group: Group
) -> None:
    def be_slower() -> None:
        theirs = make_output(2, data={"of": "another"})
        store.outputs.ids.step = at("before write", lambda: group.write(other, theirs))

    first, second = await two_rounds(store, group, be_slower)
    await first
    again, created = await second
    assert results([again, created]) == ["updated", "created"]
    assert [item["key_hash"] for item in await group.read(store)] == ["key-1", "key-3", "key-2"]
    assert again["id"] > created["id"]
    await ended(store, group)


async def test_ids_for_writes_that_ran_out_of_time_meanwhile_are_given_back(store: Store, group: Group) -> None:
    def too_late() -> None:
        (waiting,) = store.outputs._writing._commits._groups[group.key].ready
        waiting.deadline = 0.0

    first, second = await two_rounds(store, group, too_late)
    assert results(await first) == ["created"]
    with pytest.raises(StoreUnavailable):
        await second
    await store.outputs._writing.close()
    await ended(store, group)
    assert [item["key_hash"] for item in await group.read(store)] == ["key-1"]


async def test_a_batch_that_was_reaped_hands_nothing_over(store: Store, group: Group) -> None:
    async with stopped_at(store, "before finish", group.write(store, make_output(1))) as first:
        (batch,) = await group.in_flight(store)
        second = asyncio.ensure_future(group.write(store, make_output(2)))
        await store.database["groups"].update_one(group.owner, {"$pull": {"open": {"token": batch["token"]}}})
    assert results(await first) == ["created"] and results(await second) == ["created"]
    assert not await group.in_flight(store)
