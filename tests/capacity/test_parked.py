"""Readers that wait continue a few at a time, organizations in turn."""

from __future__ import annotations

import asyncio
import time
from unittest.mock import Mock

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from service.capacity.parked import Parking
from service.capacity.work import Gates
from service.http.keys import PARKING, STAYING
from service.http.reply import end_with_client
from tests.support.capacity import TOTAL, request_of


@pytest.fixture
def parking() -> Parking:
    return Parking(Gates(TOTAL))


async def test_readers_of_another_organization_do_not_wait_until_all_of_a_large_one_are_woken(parking: Parking) -> None:
    loop, done = asyncio.get_running_loop(), list[int]()

    async def woken(organization_id: int, waiting: asyncio.Future[None]) -> None:
        await waiting
        time.sleep(0.001)
        done.append(organization_id)

    tasks = []
    for organization_id in [1] * 300 + [2]:
        waiting: asyncio.Future[None] = loop.create_future()
        tasks.append(asyncio.create_task(woken(organization_id, waiting)))
        with request_of(organization_id):
            parking.wake(waiting)
    in_one_turn = []
    while len(done) < 301:
        before = len(done)
        await asyncio.sleep(0)
        in_one_turn.append(len(done) - before)
    assert done.index(2) < 20
    assert max(in_one_turn) <= 10  # of a millisecond each


async def test_readers_that_came_first_are_not_woken_before_all_others(parking: Parking) -> None:
    loop, order = asyncio.get_running_loop(), list[str]()
    for kind in ["following"] * 500 + ["waiting"] * 500:
        woken: asyncio.Future[None] = loop.create_future()
        woken.add_done_callback(lambda _, kind=kind: order.append(kind))  # type: ignore[misc]
        parking.wake(woken)
    async with asyncio.timeout(30):
        while len(order) < 1000:
            await asyncio.sleep(0)
    assert 150 < order[:500].count("following") < 350


async def test_readers_that_leave_at_once_are_ended_a_few_per_turn_of_the_loop(parking: Parking) -> None:
    app, ended, in_one_turn = web.Application(), [], [0]
    app[PARKING] = parking
    requests = [make_mocked_request("GET", "/", app=app, protocol=Mock(half_closed=False)) for _ in range(300)]

    async def follow(request: web.Request) -> None:
        end_with_client(request)
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(request)

    tasks = [asyncio.create_task(follow(request)) for request in requests]
    await asyncio.sleep(0)
    for request in requests:
        request[STAYING]()
    async with asyncio.timeout(30):
        while len(ended) < len(requests):
            before = len(ended)
            await asyncio.sleep(0)
            in_one_turn.append(len(ended) - before)
    assert max(in_one_turn) <= 100
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("steps", range(6))
async def test_a_waiter_that_comes_at_any_moment_after_the_last_one_is_woken(parking: Parking, steps: int) -> None:
    await parking.turn()
    for _ in range(steps):
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await parking.turn()
