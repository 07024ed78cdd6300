"""Waiting for a session: in order, fair, without polling, and ended by a client that leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestClient
from pytest_aiohttp.plugin import AiohttpClient

from service.app import create_app
from service.capacity.gate import Holder
from service.http.keys import GATES
from service.settings import Settings
from service.store import Release, Store
from service.store.sessions.pools import Waiting
from tests.conftest import MakeApi, Server
from tests.support.api import Api
from tests.support.capacity import at_work, bytes_held
from tests.support.sessions import lapse, lease, put, release

SOON = 30.0  # seconds: on a busy machine


def waiting(api: Api, pool: str = "shop", **body: Any) -> asyncio.Task[Any]:
    """Ask for a lease in the background; its result is the response."""
    return asyncio.create_task(api.post(f"/v1/sessions/{pool}/lease", {"wait": 60, **body}))


async def until_waiting(api: Api, count: int) -> None:
    """Return when some requests wait at the service of a caller."""
    async with asyncio.timeout(SOON):
        while api.client.app[GATES].readers.used != count:
            await asyncio.sleep(0.005)


async def until(look: Callable[[], Awaitable[Any]]) -> None:
    """Return when a look finds something."""
    async with asyncio.timeout(SOON):
        while not await look():
            await asyncio.sleep(0.005)


async def in_order(api: Api, *bodies: dict[str, Any]) -> list[asyncio.Task[Any]]:
    """Let requests wait, each after the one before."""
    tasks = []
    for number, body in enumerate(bodies, 1):
        tasks.append(waiting(api, **body))
        await until_waiting(api, number)
    return tasks


async def soon(response: Awaitable[Any]) -> Any:
    async with asyncio.timeout(SOON):
        found = await response
    assert found.status == 200, found.body
    return found.json


@pytest.fixture
async def other(settings: Settings, mongo_url: str, api: Api, aiohttp_client: AiohttpClient) -> AsyncIterator[Api]:
    """The same caller at another process of the service."""
    store = Store.connect(settings, mongo_url)
    await store.ensure_indexes()
    client: TestClient[Any, Any] = await aiohttp_client(Server(create_app(settings, store)))
    yield Api(client, api.token, api.organization_id)


async def test_a_waiting_request_gets_the_session_as_soon_as_it_is_released(api: Api) -> None:
    await put(api, "/v1/sessions/shop/anna", {})
    held = await lease(api, "shop")
    (waiter,) = await in_order(api, {"owner": "next"})
    await release(api, held["lease_id"])
    assert (await soon(waiter))["session"]["owner"] == "next"


@pytest.mark.slow
async def test_a_wait_without_success_ends_with_no_session(api: Api) -> None:
    await put(api, "/v1/sessions/shop/anna", {})
    await lease(api, "shop", seconds=100)
    began = time.monotonic()
    response = await waiting(api, wait=1)
    assert (response.status, response.problems()) == (409, [(["path", "pool"], "no_session")])
    assert time.monotonic() - began >= 1 and 90 <= int(response.headers["Retry-After"]) <= 100


async def test_waiting_requests_are_served_in_their_order(api: Api) -> None:
    for name in ("a", "b"):
        await put(api, f"/v1/sessions/shop/{name}", {})
    held = [await lease(api, "shop") for _ in range(2)]
    waiters = await in_order(api, *({"owner": str(n)} for n in range(6)))
    served = []
    for _ in range(6):
        await release(api, held.pop(0)["lease_id"])
        done, _ = await asyncio.wait(waiters, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
        (first,) = done
        waiters.remove(first)
        held.append((await first).json)
        served.append(held[-1]["session"]["owner"])
    assert served == [str(n) for n in range(6)]


async def test_who_waits_for_a_name_holds_up_only_this_name(api: Api) -> None:
    for name in ("a", "b"):
        await put(api, f"/v1/sessions/shop/{name}", {})
    held = {name: await lease(api, "shop", name=name) for name in ("a", "b")}
    first_a, second_a, anyone = await in_order(api, {"name": "a"}, {"name": "a"}, {})
    await release(api, held["b"]["lease_id"])
    assert (await soon(anyone))["session"]["name"] == "b"
    await release(api, held["a"]["lease_id"])
    taken = await soon(first_a)
    assert not second_a.done()
    await release(api, taken["lease_id"])
    assert (await soon(second_a))["session"]["name"] == "a"


async def test_a_new_request_does_not_overtake_those_who_wait(api: Api) -> None:
    await put(api, "/v1/sessions/shop/anna", {})
    held = await lease(api, "shop")
    (waiter,) = await in_order(api, {})
    release_, newcomer = await asyncio.gather(
        api.post(f"/v1/leases/{held['lease_id']}/release", {"outcome": "good"}), api.post("/v1/sessions/shop/lease", {})
    )
    assert (release_.status, newcomer.status) == (200, 409)
    await soon(waiter)


async def test_who_leaves_passes_the_turn_on_and_gets_nothing(api: Api) -> None:
    await put(api, "/v1/sessions/shop/anna", {})
    held = await lease(api, "shop")
    first, second = await in_order(api, {}, {"owner": "second"})
    first.cancel()
    await until_waiting(api, 1)
    await release(api, held["lease_id"])
    assert (await soon(second))["session"]["uses"] == 1


async def test_who_leaves_when_the_lease_is_taken_and_not_yet_sent_has_none(api: Api, store: Store) -> None:
    await put(api, "/v1/sessions/shop/anna", {})
    held = await lease(api, "shop")
    (waiter,) = await in_order(api, {"owner": "gone"})
    gate = api.client.app[GATES].working
    full = [await gate.reserve(Holder(-organization, ""), gate.total // 4, SOON) for organization in range(2, 6)]
    await store.sessions.leases.release(api.organization_id, held["lease_id"], Release("good", {}, None, None))
    sessions = store.database["sessions"]
    await until(lambda: sessions.find_one({"organization_id": api.organization_id, "leases.owner": "gone"}))
    waiter.cancel()
    async with asyncio.timeout(SOON):
        while at_work(api.client.app):
            await asyncio.sleep(0.005)
    for reservation in full:
        reservation.close()
    await until(lambda: sessions.find_one({"organization_id": api.organization_id, "state": "ready"}))


@pytest.mark.slow
async def test_a_session_that_is_deleted_meanwhile_is_not_found(api: Api) -> None:
    await put(api, "/v1/sessions/shop/anna", {})
    await lease(api, "shop")
    waiter = waiting(api, wait=1, name="anna")
    await until_waiting(api, 1)
    await api.delete("/v1/sessions/shop/anna")
    response = await waiter
    assert (response.status, response.problems()) == (404, [(["body", "name"], "not_found")])


@pytest.mark.slow
async def test_a_release_in_another_process_wakes_within_a_second(api: Api, other: Api) -> None:
    await put(api, "/v1/sessions/shop/anna", {})
    held = await lease(api, "shop")
    waiter = waiting(other)
    await until_waiting(other, 1)
    await asyncio.sleep(1)  # the change stream begins
    await release(api, held["lease_id"])
    released = time.monotonic()
    await soon(waiter)
    assert time.monotonic() - released < 1


@pytest.mark.slow
async def test_the_end_of_a_rest_wakes(api: Api) -> None:
    await put(api, "/v1/sessions/shop", {"rest_seconds": 1})
    await put(api, "/v1/sessions/shop/anna", {})
    await release(api, (await lease(api, "shop"))["lease_id"])
    assert (await soon(waiting(api)))["session"]["uses"] == 1


async def test_a_lease_that_ends_by_itself_wakes(api: Api, store: Store) -> None:
    await put(api, "/v1/sessions/shop/anna", {})
    await lease(api, "shop", seconds=10)
    (waiter,) = await in_order(api, {})
    await lapse(store, api.organization_id, seconds=11)
    assert (await soon(waiter))["session"]["errors"] == 1


@pytest.mark.parametrize("change", [{"storage_state": {}}, {"state": "ready"}])
async def test_a_session_that_is_put_wakes(api: Api, change: dict[str, Any]) -> None:
    await put(api, "/v1/sessions/shop/anna", {"state": "needs_login"})
    (waiter,) = await in_order(api, {})
    await put(api, "/v1/sessions/shop/anna", change)
    await soon(waiter)


@pytest.mark.slow
async def test_a_deleted_pool_sends_everybody_away(api: Api) -> None:
    await put(api, "/v1/sessions/shop", {})
    (waiter,) = await in_order(api, {})
    await api.delete("/v1/sessions/shop")
    async with asyncio.timeout(SOON):
        response = await waiter
    assert (response.status, response.problems()) == (404, [(["path", "pool"], "not_found")])


async def test_copies_of_a_waiting_request_get_one_session(api: Api) -> None:
    for name in ("a", "b"):
        await put(api, f"/v1/sessions/shop/{name}", {})
    held = [await lease(api, "shop") for _ in range(2)]
    waiters = await in_order(api, *[{"lease_id": "own-lease-id-0123456789"}] * 3)
    for taken in held:
        await release(api, taken["lease_id"])
    names = {(await soon(waiter))["session"]["name"] for waiter in waiters}
    assert len(names) == 1
    assert (await api.ok("/v1/sessions"))[0]["sessions"]["leased"] == 1


async def test_waiting_requests_hold_no_place_of_those_at_work(api: Api) -> None:
    await put(api, "/v1/sessions/shop", {})
    waiters = await in_order(api, *[{}] * 20)
    assert bytes_held(api.client.app) == 0
    for waiter in waiters:
        waiter.cancel()
    await until_waiting(api, 0)
    assert at_work(api.client.app) == 0


async def test_workers_that_wait_for_one_pool_keep_no_other_organization_out(
    api: Api, stranger: Api, make_api: MakeApi
) -> None:
    api.client.app[GATES].set_connections(64)
    held = {}
    for caller in (api, stranger):
        await put(caller, "/v1/sessions/shop/anna", {})
        held[caller] = await lease(caller, "shop")
    second = await make_api(api.organization_id)
    crowd = [waiting(caller) for caller in (api, second) for _ in range(30)]
    readers = api.client.app[GATES].readers
    async with asyncio.timeout(SOON):
        while readers.used + sum(task.done() for task in crowd) < len(crowd):
            await asyncio.sleep(0.005)
    refused = [task.result() for task in crowd if task.done()]
    assert {response.status for response in refused} == {503}
    waiter = waiting(stranger, owner="next")
    await release(stranger, held[stranger]["lease_id"])
    assert (await soon(waiter))["session"]["owner"] == "next"
    await release(api, held[api]["lease_id"])
    done, pending = await asyncio.wait(
        set(crowd) - {task for task in crowd if task.done()}, timeout=SOON, return_when=asyncio.FIRST_COMPLETED
    )
    assert len(done) == 1 and (await done.pop()).status == 200
    for task in pending:
        task.cancel()


# -- shared leases ---------------------------------------------------------------------------


async def test_no_new_shared_lease_while_somebody_waits_for_an_exclusive_one(api: Api, other: Api) -> None:
    await put(api, "/v1/sessions/shop/anna", {})
    held = await lease(api, "shop", shared=True)
    (waiter,) = await in_order(api, {"owner": "exclusive"})
    for caller in (api, other):
        async with asyncio.timeout(SOON):
            while (response := await caller.post("/v1/sessions/shop/lease", {"shared": True})).status == 200:
                assert caller is other, "the waiter is in this process"
                await release(other, response.json["lease_id"])  # the other process does not know of the waiter yet
    reader = waiting(api, shared=True)
    await until_waiting(api, 2)
    await release(api, held["lease_id"])
    taken = await soon(waiter)
    assert taken["session"]["owner"] == "exclusive" and not reader.done()
    await release(api, taken["lease_id"])
    await soon(reader)


async def test_readers_that_wait_for_an_exclusive_lease_all_get_in_after_it(api: Api) -> None:
    await put(api, "/v1/sessions/shop/anna", {})
    held = await lease(api, "shop")
    readers = await in_order(api, *[{"shared": True}] * 5)
    await release(api, held["lease_id"])
    for reader in readers:
        assert (await soon(reader))["session"]["name"] == "anna"


# -- fairness --------------------------------------------------------------------------------


@pytest.mark.slow
async def test_who_has_waited_five_seconds_longer_elsewhere_is_not_passed_over(api: Api, other: Api) -> None:
    anna: dict[str, Any] = {"name": "anna"}
    wishes = {"anybody": ({}, {}), "one": (anna, anna), "any": (anna, {}), "named": ({}, anna)}
    held, first = {}, {}
    for number, (pool, (wish, _)) in enumerate(wishes.items(), 1):
        await put(api, f"/v1/sessions/{pool}/anna", {})
        held[pool] = await lease(api, pool)
        first[pool] = waiting(other, pool, owner="first", **wish)
        await until_waiting(other, number)
    await asyncio.sleep(7)
    for pool, (_, wish) in wishes.items():
        await release(api, held[pool]["lease_id"])
        newcomer = await api.post(f"/v1/sessions/{pool}/lease", wish)
        assert newcomer.status == 409, pool
        assert (await soon(first[pool]))["session"]["owner"] == "first"


@pytest.mark.slow
async def test_a_dead_process_holds_nobody_up_for_long(api: Api, store: Store) -> None:
    await put(api, "/v1/sessions/shop/anna", {})
    pool = await store.sessions.pools.find(api.organization_id, "shop")
    assert pool
    await store.sessions.pools.publish(api.organization_id, "dead", {pool.id: [Waiting("dead", None, 30.0, True)]})
    assert (await api.post("/v1/sessions/shop/lease", {})).status == 409
    await soon(waiting(api))
