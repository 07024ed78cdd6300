"""Long work in turns: on the event loop and in the thread, with a cooldown while others are at work."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from service.capacity import cpu
from service.capacity.gate import Holder
from service.capacity.work import Gates
from tests.support.capacity import TOTAL, request_of

LARGE = cpu.SMALL_BYTES + 1


@pytest.fixture
def gates() -> Gates:
    return Gates(TOTAL)


@pytest.fixture
async def others(gates: Gates) -> AsyncIterator[None]:
    """A third organization that has a request at work."""
    with await gates.working.reserve(Holder(3, "x"), 1, None):
        yield


async def in_thread(gates: Gates, organization_id: int, work: Callable[[], object]) -> None:
    with request_of(organization_id, gates):
        await cpu.run(LARGE, work)


async def drain(gates: Gates, organization_id: int, steps: Iterator[bool]) -> None:
    with request_of(organization_id, gates):
        await cpu.drain(steps)


def light_steps(count: int, names: list[str], name: str, seconds: float = 0.006) -> Iterator[bool]:
    """Do steps, each of which is a turn of the event loop; the name is added at the end."""
    for _ in range(count):
        yield False
        time.sleep(seconds)
    names.append(name)


async def ended(gates: Gates, *lengths: tuple[int, str, int]) -> list[str]:
    """Return the names of bodies in the order of their ends; each has an organization and a number of turns."""
    names: list[str] = []
    async with asyncio.timeout(60):
        await asyncio.gather(*(drain(gates, id, light_steps(turns, names, name)) for id, name, turns in lengths))
    return names


async def test_small_work_is_done_at_once() -> None:
    assert await cpu.run(cpu.SMALL_BYTES, threading.get_ident) == threading.get_ident()


async def test_large_work_is_done_in_the_thread() -> None:
    assert await cpu.run(LARGE, threading.get_ident) != threading.get_ident()


async def test_heavy_steps_are_done_in_the_thread_and_light_ones_on_the_event_loop() -> None:
    threads: list[bool] = []

    def steps() -> Iterator[bool]:
        for heavy in (False, True, True, False, True):
            yield heavy
            threads.append(threading.current_thread() is not threading.main_thread())

    await cpu.drain(steps())
    assert [threads[place] for place in (0, 1, 2, 4)] == [False, True, True, True]


async def test_a_body_is_worked_on_to_its_end_before_the_next_one_of_its_organization(gates: Gates) -> None:
    assert await ended(gates, (1, "first", 5), (1, "second", 3), (1, "third", 1)) == ["first", "second", "third"]


async def test_organizations_take_turns(gates: Gates) -> None:
    assert await ended(gates, (1, "long", 9), (2, "short", 2), (1, "next", 1)) == ["short", "long", "next"]


async def test_a_small_body_does_not_wait_for_the_end_of_a_large_one(gates: Gates) -> None:
    assert await ended(gates, (1, "large", 30), (1, "small", 1)) == ["small", "large"]


@pytest.mark.usefixtures("others")
async def test_a_body_that_has_cooled_down_goes_on_before_the_next_one_of_its_organization(gates: Gates) -> None:
    assert await ended(gates, (1, "a", 5), (1, "b", 1)) == ["a", "b"]


async def test_long_work_lets_other_organizations_in_and_is_one_step_per_turn_of_the_loop(gates: Gates) -> None:
    done, steps, in_one_turn = list[str](), [0], []

    def counted(count: int, name: str) -> Iterator[bool]:
        for heavy in light_steps(count, done, name):
            steps[0] += 1
            yield heavy

    long = [asyncio.create_task(drain(gates, 1, counted(100, "long"))) for _ in range(20)]
    short = asyncio.create_task(drain(gates, 2, counted(2, "short")))
    while not short.done():
        before = steps[0]
        await asyncio.sleep(0)
        in_one_turn.append(steps[0] - before)
    assert done == ["short"] and max(in_one_turn[1:]) <= 2  # the end of one turn is the beginning of the next
    for task in long:
        task.cancel()
    await asyncio.gather(*long, return_exceptions=True)
    assert await ended(gates, (1, "free again", 1)) == ["free again"]


async def test_work_of_one_organization_waits_behind_its_own_and_not_behind_anothers(gates: Gates) -> None:
    gate, order = threading.Event(), list[str]()

    def work(name: str) -> None:
        gate.wait(60)
        order.append(name)

    many = [asyncio.create_task(in_thread(gates, 1, lambda n=n: work(f"a{n}"))) for n in range(20)]  # type: ignore[misc]
    await asyncio.sleep(0)
    few = [asyncio.create_task(in_thread(gates, 2, lambda n=n: work(f"b{n}"))) for n in range(3)]  # type: ignore[misc]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*many, *few)
    assert max(order.index(f"b{n}") for n in range(3)) < 10


@pytest.mark.usefixtures("others")
async def test_an_organization_that_has_worked_lets_others_in_before_its_own_waiters(gates: Gates) -> None:
    order: list[str] = []

    def work(name: str) -> None:
        order.append(name)
        time.sleep(0.01)

    async with asyncio.timeout(60):
        await asyncio.gather(
            in_thread(gates, 1, lambda: work("first")),
            in_thread(gates, 1, lambda: work("own")),
            in_thread(gates, 2, lambda: work("other")),
        )
    assert order == ["first", "other", "own"]


async def cooldown_of(gates: Gates, seconds: float) -> float:
    """Return how long a request goes on after work that took so long."""
    ends: list[float] = []

    def work() -> None:
        time.sleep(seconds)
        ends.append(time.perf_counter())

    await in_thread(gates, 1, work)
    return time.perf_counter() - ends[0]


async def test_nobody_cools_down_alone(gates: Gates) -> None:
    assert min([await cooldown_of(gates, 0.1) for _ in range(5)]) < 0.04


@pytest.mark.usefixtures("others")
async def test_a_cooldown_is_as_long_as_the_work_but_short(gates: Gates) -> None:
    assert await cooldown_of(gates, 0.03) >= 0.03
    assert 0.05 <= min([await cooldown_of(gates, 0.2) for _ in range(3)]) < 0.15


@pytest.mark.usefixtures("others")
async def test_a_cooldown_ends_with_its_request(gates: Gates) -> None:
    cooling = asyncio.create_task(in_thread(gates, 1, lambda: time.sleep(0.05)))
    await asyncio.sleep(0.06)
    cooling.cancel()
    await asyncio.gather(cooling, return_exceptions=True)
    async with asyncio.timeout(30):
        await in_thread(gates, 1, lambda: None)


async def test_work_in_the_thread_keeps_nobody_from_the_event_loop(gates: Gates) -> None:
    gate = threading.Event()
    large = asyncio.create_task(in_thread(gates, 1, lambda: gate.wait(60)))
    await asyncio.sleep(0)
    assert await ended(gates, (1, "small", 1)) == ["small"]
    gate.set()
    await large


async def test_work_whose_caller_has_left_is_not_begun(gates: Gates) -> None:
    gate, done = threading.Event(), list[int]()
    running = asyncio.create_task(in_thread(gates, 1, lambda: gate.wait(60)))
    await asyncio.sleep(0.01)
    left = asyncio.create_task(in_thread(gates, 1, lambda: done.append(1)))
    await asyncio.sleep(0.01)
    left.cancel()
    gate.set()
    await running
    await in_thread(gates, 1, lambda: None)
    assert done == []


async def test_work_that_fails_when_its_caller_has_left_logs_nothing(
    gates: Gates, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio logged the error, with a text that may hold what was sent."""
    gc.collect()  # what earlier tests left
    caplog.clear()
    gate = threading.Event()

    def fail() -> None:
        gate.wait(60)
        raise ValueError("a secret")

    left = asyncio.create_task(in_thread(gates, 1, fail))
    await asyncio.sleep(0.01)
    left.cancel()
    await asyncio.wait([left])
    del left
    gate.set()
    await in_thread(gates, 1, lambda: None)
    gc.collect()
    assert caplog.records == []


async def test_an_exception_in_the_thread_reaches_the_caller() -> None:
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await cpu.run(LARGE, fail)
