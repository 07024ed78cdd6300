"""A gate: shares, waiting in turn, and reservations that only shrink."""

from __future__ import annotations

import asyncio

import pytest

from service.capacity.gate import Full, Gate, Holder, Reservation, Shares


@pytest.fixture
def gate() -> Gate:
    return Gate("bytes", 256)


def hold(gate: Gate, organization_id: int, token_id: str, amount: int) -> Reservation:
    """Hold an amount, however large."""
    assert gate.take(Holder(organization_id, token_id), amount)
    return Reservation(gate, Holder(organization_id, token_id), amount)


async def reserve(gate: Gate, organization_id: int, token_id: str, amount: int) -> asyncio.Task[Reservation]:
    """Begin to reserve, and return when it has been let in or waits."""
    task = asyncio.create_task(gate.reserve(Holder(organization_id, token_id), amount, 30))
    await asyncio.sleep(0)
    return task


def test_no_token_gets_more_than_five_eighths_and_no_organization_more_than_three_quarters() -> None:
    shares, one, same, other = Shares("", 8), Holder(1, "a"), Holder(1, "b"), Holder(2, "c")
    assert [shares.take(one) for _ in range(8)] == [True] * 5 + [False] * 3
    assert [shares.take(same) for _ in range(3)] == [True, False, False]
    assert [shares.take(other) for _ in range(3)] == [True, True, False]
    shares.put_back(one)
    assert shares.take(other) and not shares.take(one) and not shares.take(same)


def test_an_amount_that_is_put_back_is_free_for_everybody() -> None:
    shares = Shares("", 100)
    for n in range(1000):
        assert shares.take(Holder(n, "token"), 60)
        shares.put_back(Holder(n, "token"), 60)
    assert shares.used == 0 and shares.held_by_others(1) == 0


async def test_more_than_a_quarter_counts_as_a_quarter_which_no_other_organization_can_hold(gate: Gate) -> None:
    assert gate.take(Holder(1, "a"), 160) and gate.take(Holder(1, "b"), 32)
    with await gate.reserve(Holder(2, "a"), 10_000, 0) as reservation:
        assert reservation.amount == 64 and gate.used == 256
    assert gate.used == 192


async def test_a_reservation_shrinks_and_lets_others_in(gate: Gate) -> None:
    first = hold(gate, 1, "a", 160)
    second = await reserve(gate, 1, "a", 60)
    first.shrink(110)
    await asyncio.sleep(0)
    assert not second.done() and gate.used == 110
    first.shrink(100)
    assert (await second).amount == 60 and gate.used == 160
    first.shrink(1000)
    assert first.amount == 100


async def test_organizations_take_turns(gate: Gate) -> None:
    first, other = hold(gate, 1, "x", 160), hold(gate, 3, "x", 96)
    order: list[str] = []
    tasks = {name: await reserve(gate, int(name[0]), name, 64) for name in ("1a", "1b", "1c", "2a", "2b")}
    for name, task in tasks.items():
        task.add_done_callback(lambda _, name=name: order.append(name))  # type: ignore[misc]
    tasks["1a"].cancel()
    await asyncio.gather(tasks["1a"], return_exceptions=True)
    other.shrink(32)  # enough for one, and the first organization has nearly all that it may have
    second = await tasks["2a"]
    first.shrink(96)
    third = await tasks["1b"]
    second.close()
    (await tasks["2b"]).close()
    third.close()
    (await tasks["1c"]).close()
    assert order == ["1a", "2a", "1b", "2b", "1c"]


async def test_a_token_at_its_share_does_not_hold_up_another_one(gate: Gate) -> None:
    full, small = hold(gate, 1, "a", 160), hold(gate, 1, "b", 30)
    first, second = await reserve(gate, 1, "a", 7), await reserve(gate, 1, "b", 7)
    assert not first.done() and not second.done()
    small.close()
    await second
    assert not first.done()
    full.close()
    await first


async def test_a_request_does_not_overtake_one_of_its_own_token(gate: Gate) -> None:
    held = hold(gate, 1, "a", 158)
    large, small = await reserve(gate, 1, "a", 7), await reserve(gate, 1, "a", 1)
    assert not large.done() and not small.done()
    held.shrink(153)
    await large
    assert not small.done()
    held.shrink(152)
    await small


async def test_a_waiter_that_leaves_lets_a_smaller_one_in(gate: Gate) -> None:
    held = hold(gate, 1, "a", 158)
    large, small = await reserve(gate, 1, "a", 7), await reserve(gate, 1, "a", 1)
    large.cancel()
    assert (await small).amount == 1
    held.close()


async def test_a_wait_ends_after_its_time_and_leaves_nothing(gate: Gate) -> None:
    with hold(gate, 1, "a", 160):
        with pytest.raises(Full, match="bytes"):
            await gate.reserve(Holder(1, "a"), 1, 0.01)
        assert gate.used == 160
    assert gate.used == 0


async def test_no_more_than_some_wait_for_a_limited_time_and_other_organizations_still_can(gate: Gate) -> None:
    with hold(gate, 1, "a", 160), hold(gate, 2, "a", 96):
        waiting = [await reserve(gate, 1, "a", 1) for _ in range(500)]
        refused = [task for task in waiting if task.done()]
        assert len(refused) == 500 - 160
        for task in refused:
            with pytest.raises(Full):
                await task
        other = await reserve(gate, 2, "a", 1)
        assert not other.done()
    await asyncio.gather(other, *(task for task in waiting if task not in refused))


async def test_any_number_may_wait_without_a_limit_of_time(gate: Gate) -> None:
    with hold(gate, 1, "a", 160):
        waiting = [asyncio.create_task(gate.reserve(Holder(1, "a"), 1, None)) for _ in range(500)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
    for task in waiting:
        (await task).close()


async def test_a_waiter_that_is_cancelled_when_it_is_let_in_gives_its_amount_back(gate: Gate) -> None:
    held = hold(gate, 1, "a", 160)
    waiting = await reserve(gate, 1, "a", 50)
    held.close()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert gate.used == 0
