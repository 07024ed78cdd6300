"""Waking readers that wait: those of the group that changed, and no others."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack

import pymongo
import pytest

from service.store import Store
from tests.support.api import make_output
from tests.support.commands import Commands
from tests.support.fault_proxy import FaultProxy, refuse
from tests.support.groups import Group, stopped_at
from tests.support.limits import Small
from tests.support.live_pages import SOON, reading, until_waiting, waiting_readers

CHANGE_STREAM_FATAL = 280  # the driver does not resume after it


async def wait(store: Store, group: Group, cursor: int, seconds: float = 2 * SOON) -> float:
    """Wait for something after a cursor; return how long it took."""
    started = time.monotonic()
    with reading(store, group, cursor=cursor) as reader:
        await reader.next(seconds)
    return time.monotonic() - started


@pytest.mark.parametrize("known", [False, True], ids=["new group", "known group"])
async def test_a_waiting_reader_is_woken_by_another_process(
    store: Store, other: Store, group: Group, known: bool
) -> None:
    cursor = (await group.write(store, make_output(0)))[0]["id"] if known else 0
    waiting = asyncio.ensure_future(wait(store, group, cursor))
    await until_waiting(store)
    await group.write(other, make_output(1))
    assert await waiting < SOON
    assert len(await group.read(store, cursor=cursor)) == 1


@pytest.mark.slow
async def test_the_stream_outlives_the_time_limit_of_the_reader_that_opened_it(
    store: Store, other: Store, group: Group
) -> None:
    with ExitStack() as stack:
        with pymongo.timeout(0.5):
            changed = stack.enter_context(store.watch.waiting(group.key))
        await asyncio.sleep(1)
        changed.clear()
        await group.write(other, make_output(1))
        await asyncio.wait_for(changed.wait(), 2 * SOON)


async def test_one_write_wakes_the_readers_of_its_group_only(store: Store, other: Store, group: Group) -> None:
    elsewhere, probe = Group(group.organization, "chairs"), Group(group.organization, "probe")
    opening = asyncio.ensure_future(wait(store, probe, 0))
    await until_waiting(store)
    await probe.write(other, make_output(1))
    await opening  # when a stream is opened, everybody is woken
    theirs = asyncio.ensure_future(wait(store, elsewhere, 0))
    ours = [asyncio.ensure_future(wait(store, group, 0)) for _ in range(20)]
    await until_waiting(store, 21)
    with store.watch.waiting(elsewhere.key) as changed:
        await group.write(other, make_output(1))
        await asyncio.gather(*ours)
        assert not theirs.done() and not changed.is_set()
    theirs.cancel()
    await asyncio.wait([theirs])


async def test_a_reader_who_comes_late_does_not_wait(store: Store, group: Group) -> None:
    await group.write(store, make_output(1))
    assert await wait(store, group, 0) < SOON


async def test_waiting_ends_after_its_time(store: Store, group: Group) -> None:
    assert 0.2 <= await wait(store, group, 0, 0.2) < SOON
    assert waiting_readers(store) == 0


async def test_a_wake_up_is_only_a_hint(store: Store, other: Store, group: Group) -> None:
    async with stopped_at(other, "written", group.write(other, make_output(1))):
        waiting = asyncio.ensure_future(wait(store, group, 0))
        await until_waiting(store)
        await group.write(store, make_output(2))  # behind a batch in flight: not readable
        await asyncio.wait([waiting], timeout=0.2)
        assert not waiting.done()
    assert await waiting < SOON


async def test_a_reader_who_comes_while_the_stream_is_given_up_is_woken(
    store: Store, other: Store, group: Group, small: Small
) -> None:
    small(stream_idle_seconds=0.0)
    assert await wait(store, group, 0, 0.2) >= 0.2
    async with asyncio.timeout(SOON):
        while waiting_readers(store):
            await asyncio.sleep(0)
    await asyncio.sleep(0)  # nobody has waited for a while
    waiting = asyncio.ensure_future(wait(store, group, 0))
    await until_waiting(store)
    await group.write(other, make_output(1))
    assert await waiting < SOON


async def test_what_changes_while_a_stream_breaks_wakes_its_readers_and_so_does_the_next_one(
    wired: Store, wire: FaultProxy, other: Store, group: Group, small: Small
) -> None:
    small(stream_retry_seconds=0.01)
    written = asyncio.Event()

    async def break_off() -> None:
        await written.wait()
        await refuse(CHANGE_STREAM_FATAL)()

    broken = wire.before("getMore", "groups", break_off)
    with wired.watch.waiting(group.key) as changed:
        await asyncio.wait_for(broken.reached.wait(), SOON)
        changed.clear()
        await group.write(other, make_output(1))  # the broken stream does not return it
        await Group(group.organization, "chairs").write(other, make_output(1))  # the next one begins here
        written.set()
        await asyncio.wait_for(changed.wait(), 2 * SOON)
        await asyncio.sleep(0.1)
        changed.clear()
        await group.write(other, make_output(2))
        await asyncio.wait_for(changed.wait(), 2 * SOON)


async def test_the_stream_begins_where_readers_read(listening: Store, group: Group, commands: Commands) -> None:
    with listening.watch.waiting(group.key):
        async with asyncio.timeout(2 * SOON):
            while not any(command.name == "aggregate" for command in commands.sent):
                await asyncio.sleep(0.01)
    names = [command.name for command in commands.sent]
    before = commands.sent[names.index("aggregate") - 1]
    assert (before.name, before.body["readConcern"]["level"]) == ("find", "majority")
    (stream,) = [command.body["pipeline"][0] for command in commands.sent if command.name == "aggregate"]
    assert "startAtOperationTime" in stream["$changeStream"]
