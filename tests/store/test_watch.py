"""Waking readers that wait: those of the group that changed, and no others."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from typing import Any

import pymongo
import pytest
from pymongo.errors import PyMongoError

from service.store import Store
from service.store import watch as watching
from service.store.connection import opened as open_stream
from tests.support.api import make_output
from tests.support.commands import Commands
from tests.support.groups import Group, stopped_at
from tests.support.live_pages import SOON, reading, until_waiting, waiting_readers


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
    woken = []
    real = store.watch._wake
    store.watch._wake = lambda key: (woken.append(key), real(key))  # type: ignore[assignment, func-returns-value]
    await group.write(other, make_output(1))
    await asyncio.gather(*ours)
    assert not theirs.done() and elsewhere.key not in woken
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
    store: Store, other: Store, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await wait(store, group, 0, 0.2) >= 0.2
    while store.watch._waiting:
        await asyncio.sleep(0)
    store.watch._stop()  # as the timer does when nobody has waited for a while
    waiting = asyncio.ensure_future(wait(store, group, 0))
    await until_waiting(store)
    await group.write(other, make_output(1))
    assert await waiting < SOON


async def test_a_stream_that_breaks_is_opened_again(
    store: Store, other: Store, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_RETRY_SECONDS", 0.01)
    breaks = 0
    real = store.watch._group_of

    async def group_of(event: dict[str, Any]) -> Any:
        nonlocal breaks
        if not breaks:
            breaks += 1
            raise PyMongoError("injected")
        return await real(event)

    monkeypatch.setattr(store.watch, "_group_of", group_of)
    async with stopped_at(other, "written", group.write(other, make_output(1))):
        waiting = asyncio.ensure_future(wait(store, group, 0))
        await until_waiting(store)
        await group.write(store, make_output(2))
    assert await waiting < SOON
    assert breaks == 1


class BrokenStream:
    """A change stream that returns nothing, and breaks when it is told to."""

    def __init__(self) -> None:
        self.is_open, self.breaks = asyncio.Event(), asyncio.Event()

    async def __aenter__(self) -> BrokenStream:
        self.is_open.set()
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def __aiter__(self) -> BrokenStream:
        return self

    async def __anext__(self) -> dict[str, Any]:
        await self.breaks.wait()
        raise PyMongoError("injected")


async def test_what_changes_after_a_stream_has_broken_wakes_its_readers(
    store: Store, other: Store, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = BrokenStream()
    streams = [first]

    async def opened(made: Any) -> Any:
        return streams.pop() if streams else await open_stream(made)

    monkeypatch.setattr(watching, "opened", opened)
    with store.watch.waiting(group.key) as changed:
        await first.is_open.wait()
        changed.clear()
        await group.write(other, make_output(1))  # the broken stream does not return it
        await Group(group.organization, "chairs").write(other, make_output(1))  # the next one begins here
        first.breaks.set()
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


async def test_without_change_streams_the_groups_are_polled(
    store: Store, other: Store, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    polled = asyncio.Event()
    real = store.watch._poll

    async def changes() -> Any:
        polled.set()
        await real()
        yield  # a generator

    monkeypatch.setattr(store.watch, "_changes", changes)
    waiting = asyncio.ensure_future(wait(store, group, 0))
    await polled.wait()
    await group.write(other, make_output(1))
    assert await waiting < SOON
