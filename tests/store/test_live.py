"""The live page of a query: read and rendered once for all who wait there; nobody misses anything or gets it twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import traceback
from contextlib import AbstractContextManager

import pytest

from service.store import Behind, Form, Page, Part, Query, Store, StoreUnavailable
from service.store.outputs.live import Reader
from tests.support.api import make_output
from tests.support.commands import Commands
from tests.support.fault_proxy import FaultProxy, cut
from tests.support.groups import Group
from tests.support.limits import Small
from tests.support.live_pages import SOON, OpenGate, until_waiting, waiting_readers
from tests.support.live_pages import reading as tail_of

rendered: list[int] = []


async def _lines(page: Page) -> bytes:
    rendered.append(len(page.documents))
    return page.lines()


LINES = Form(_lines, b"\n")
WHOLE = Form(_lines)


@pytest.fixture
def gate() -> OpenGate:
    rendered.clear()
    return OpenGate()


def reading(
    store: Store, group: Group, gate: OpenGate, cursor: int = 0, form: Form = LINES
) -> AbstractContextManager[Reader]:
    return tail_of(store, group, gate, cursor, form)


def keys(part: Part | None) -> list[str]:
    assert part is not None
    found = [json.loads(line)["key_hash"] for line in bytes(part.text).splitlines()]
    assert part.items == len(found)
    return found


async def test_fifty_readers_are_one_read_and_the_same_bytes(
    listening: Store, commands: Commands, group: Group, gate: OpenGate
) -> None:
    readers = [reading(listening, group, gate) for _ in range(50)]
    waiting = [asyncio.ensure_future(reader.__enter__().next(SOON)) for reader in readers]
    await until_waiting(listening, 50)
    await asyncio.sleep(0.2)
    commands.clear()
    await group.write(listening, make_output(1))
    parts = await asyncio.gather(*waiting)
    reads = [command for command in commands.sent if (command.name, command.collection) == ("find", "outputs")]
    lookups = 1  # of the write queue: which keys are known
    assert len(reads) <= 1 + lookups
    assert rendered == [1]
    assert keys(parts[0]) == ["key-1"]
    assert len({id(part.text.obj) for part in parts if part is not None}) == 1
    for reader in readers:
        reader.__exit__(None, None, None)
    assert gate.used == 0


async def test_a_reader_in_the_middle_of_what_was_read_gets_the_rest_of_its_bytes(
    store: Store, group: Group, gate: OpenGate
) -> None:
    """Whoever has read for itself may have come further than the others."""
    with reading(store, group, gate) as first, reading(store, group, gate) as second:
        written = await group.write(store, make_output(0), make_output(1))
        second.position = written[0]["id"]
        whole, rest = await asyncio.gather(first.next(SOON), second.next(SOON))
        assert whole is not None and rest is not None
        assert (keys(whole), keys(rest)) == (["key-0", "key-1"], ["key-1"])
        assert rest.text.obj is whole.text.obj  # 300 copies of a piece of 7 MB were 2 GB
        assert first.position == second.position >= written[-1]["id"]


async def test_a_reader_with_a_cursor_that_the_group_never_had_leaves_nobody_behind(
    store: Store, group: Group, gate: OpenGate
) -> None:
    (written,) = await group.write(store, make_output(0))
    with reading(store, group, gate, 10**15) as lost:
        waiting = asyncio.ensure_future(lost.next(SOON))
        await until_waiting(store, 1)
        await asyncio.sleep(0.2)  # the live page has looked for something new
        with reading(store, group, gate, written["id"]) as reader:
            assert await reader.next(0.2) is None, "not Behind"
            found = asyncio.ensure_future(reader.next(SOON))  # read for `lost` alone
            await until_waiting(store, 2)
            await group.write(store, make_output(1))
            assert keys(await found) == ["key-1"]
        waiting.cancel()


async def test_a_form_that_cannot_be_cut_is_read_by_the_reader_itself(
    store: Store, group: Group, gate: OpenGate
) -> None:
    with reading(store, group, gate, form=WHOLE) as first, reading(store, group, gate, form=WHOLE) as second:
        written = await group.write(store, make_output(0), make_output(1))
        second.position = written[0]["id"]
        part, behind = await asyncio.gather(first.next(SOON), second.next(SOON), return_exceptions=True)
        assert isinstance(part, Part) and isinstance(behind, Behind)
        assert second.position == written[0]["id"]


async def test_who_is_busy_finds_the_next_pieces_in_the_buffer(store: Store, group: Group, gate: OpenGate) -> None:
    with reading(store, group, gate) as quick, reading(store, group, gate) as busy:
        for n in range(3):
            await group.write(store, make_output(n))
            assert keys(await quick.next(SOON)) == [f"key-{n}"]
        assert rendered == [1, 1, 1]
        assert gate.used > 0
        assert [keys(await busy.next(SOON)) for _ in range(3)] == [["key-0"], ["key-1"], ["key-2"]]
        assert rendered == [1, 1, 1]
        assert gate.used == 0  # the last reader has passed it


async def test_a_full_buffer_leaves_the_slow_behind(store: Store, group: Group, gate: OpenGate) -> None:
    large, buffer = {"text": "x" * 1_000_000}, 4 * 2**20
    with reading(store, group, gate) as quick, reading(store, group, gate) as slow:
        for n in range(5):
            await group.write(store, make_output(n, data=large))
            await quick.next(SOON)
            assert gate.used <= buffer
        with pytest.raises(Behind) as behind:
            await slow.next(SOON)
        assert slow.position == behind.value.position == 0
        slow.position = quick.position  # it has read for itself
        waiting = [asyncio.ensure_future(reader.next(SOON)) for reader in (quick, slow)]
        await group.write(store, make_output(5))
        assert [keys(part) for part in await asyncio.gather(*waiting)] == [["key-5"]] * 2
    assert gate.used == 0


async def test_more_than_is_wanted_is_left_to_the_reader(store: Store, group: Group, gate: OpenGate) -> None:
    with reading(store, group, gate) as reader:
        await group.write(store, make_output(0), make_output(1))
        with pytest.raises(Behind) as behind:
            await reader.next(SOON, max_items=1)
        assert reader.position == behind.value.position == 0


async def test_nothing_is_read_while_nobody_waits(store: Store, group: Group, gate: OpenGate) -> None:
    with reading(store, group, gate) as reader:
        await group.write(store, make_output(0))
        await reader.next(SOON)
        for n in (1, 2):
            await group.write(store, make_output(n))
        await asyncio.sleep(0.3)
        assert rendered == [1]
        assert keys(await reader.next(SOON)) == ["key-1", "key-2"]


@pytest.mark.slow
async def test_a_failing_database_is_told_to_all_who_wait_and_then_they_go_on(
    store: Store, wired: Store, wire: FaultProxy, group: Group, gate: OpenGate, small: Small
) -> None:
    small(failover_seconds=0.0)
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(reading(wired, group, gate)) for _ in range(50)]
        waiting = [asyncio.ensure_future(reader.next(SOON)) for reader in readers]
        await until_waiting(wired, 50)
        await asyncio.sleep(0.2)
        wire.before("find", "outputs", cut, times=math.inf)
        await group.write(store, make_output(0))
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [StoreUnavailable] * 50
        assert isinstance(found[-1], StoreUnavailable)
        assert len(traceback.extract_tb(found[-1].__traceback__)) < 50, "the frames of all readers gather in the error"
        wire.clear()
        assert keys(await readers[0].next(SOON)) == ["key-0"]
    assert gate.used == 0


@pytest.mark.slow
async def test_readers_get_an_error_when_the_gate_wakes_them_and_not_all_in_one_turn(
    store: Store, wired: Store, wire: FaultProxy, group: Group, small: Small
) -> None:
    """A thousand of them took 150 ms at once."""
    small(failover_seconds=0.0)
    woken: list[asyncio.Future[None]] = []

    class ClosedGate(OpenGate):
        def wake(self, waiting: asyncio.Future[None]) -> None:
            woken.append(waiting)

    gate = ClosedGate()
    with reading(wired, group, gate) as first, reading(wired, group, gate) as second:
        waiting = [asyncio.ensure_future(reader.next(SOON)) for reader in (first, second)]
        await until_waiting(wired, 2)
        await asyncio.sleep(0.2)
        wire.before("find", "outputs", cut, times=math.inf)
        await group.write(store, make_output(0))
        async with asyncio.timeout(SOON):
            while waiting_readers(wired):
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in waiting)
        for future in woken:
            future.set_result(None)
        found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in found] == [StoreUnavailable] * 2


async def test_what_was_read_in_vain_is_not_read_again(
    listening: Store, commands: Commands, store: Store, group: Group, gate: OpenGate
) -> None:
    """A reader whose filter matches nothing waits where it is, while its live page goes on."""

    def cursors() -> list[int]:
        reads = [command.body for command in commands.sent if (command.name, command.collection) == ("find", "outputs")]
        return [body["filter"]["id"]["$gt"] for body in reads]

    query = Query(limit=0, url="https://nowhere.example/")
    listening.within(lambda: None, gate)
    with listening.outputs.live_page(group.key, query, LINES) as reader:
        waiting = asyncio.ensure_future(reader.next(SOON))
        await until_waiting(listening)
        for number in range(1, 4):
            await group.write(store, make_output(number))
            async with asyncio.timeout(SOON):
                while len(cursors()) < number:
                    await asyncio.sleep(0.005)
        await group.write(store, make_output(4, source_url="https://nowhere.example/"))
        assert keys(await waiting) == ["key-4"]
    assert cursors()[:3] == sorted(set(cursors()[:3]))
