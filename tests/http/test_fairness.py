"""No token can keep the others out: places, bodies being received, bytes in flight, slow readers."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any
from unittest.mock import Mock

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from service.http import turns as turns_module
from service.http.keys import STAYING
from service.http.middleware.limits import LIMITS, Holder, Limits, Pool, end_with_client
from service.http.offload import in_thread
from service.http.output import responses
from service.http.output.responses import STREAM_BYTES
from service.http.output.slow_readers import unsent
from service.http.turns import OTHERS_WORK, TENANT, Slice, Turns, Waking
from service.settings import Settings
from service.store import Group, Page, Query, Store
from tests.conftest import MakeApi
from tests.support.api import Api, make_output
from tests.support.live_pages import until_waiting, waiting_readers
from tests.support.raw import Connection, connect

HEAD = "Host: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
MEGABYTE = 2**20


def test_no_token_gets_more_than_five_eighths_and_no_organization_more_than_three_quarters() -> None:
    pool, one, same, other = Pool(8), Holder(1, "a"), Holder(1, "b"), Holder(2, "c")
    assert [pool.take(one) for _ in range(8)] == [True] * 5 + [False] * 3
    assert [pool.take(same) for _ in range(3)] == [True, False, False]
    assert [pool.take(other) for _ in range(3)] == [True, True, False]
    pool.put_back(one)
    assert pool.take(other) and not pool.take(one) and not pool.take(same)


def test_returning_an_amount_frees_all_of_it() -> None:
    pool = Pool(100)
    for n in range(1000):
        assert pool.take(Holder(n, "token"), 60)
        pool.put_back(Holder(n, "token"), 60)
    assert pool.used == 0 and not pool._held


async def test_a_returned_amount_goes_to_waiters_with_organizations_in_turn() -> None:
    pool, order = Pool(8), list[str]()
    assert pool.take(Holder(1, "a"), 5) and pool.take(Holder(3, "x"), 3)

    async def take(organization_id: int, name: str) -> None:
        TENANT.set(organization_id)
        await pool.take_in_turn(Holder(organization_id, name), 3)
        order.append(name)

    tasks = [asyncio.create_task(take(1, name)) for name in ("a1", "a2", "a3")]
    tasks += [asyncio.create_task(take(2, name)) for name in ("b1", "b2")]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.sleep(0)
    assert order == []
    pool.put_back(Holder(3, "x"), 3)  # enough for one, and organization 1 has five of its six
    await asyncio.sleep(0)
    assert order == ["b1"]
    pool.put_back(Holder(1, "a"), 5)
    await asyncio.sleep(0)
    assert order == ["b1", "a2"] and pool.used == 6
    pool.put_back(Holder(2, "b1"), 3)
    await asyncio.sleep(0)
    assert order == ["b1", "a2", "b2"]
    pool.put_back(Holder(1, "a2"), 3)
    await asyncio.sleep(0)
    assert order == ["b1", "a2", "b2", "a3"] and pool.used == 6


class TestWaiting:
    """Waiters of one organization whose first token has all of its share."""

    @pytest.fixture
    async def pool(self) -> Pool:
        TENANT.set(1)
        pool = Pool(256)
        assert pool.take(Holder(1, "a"), 160) and pool.take(Holder(1, "b"), 30)
        return pool

    async def wait(self, pool: Pool, token_id: str, amount: int) -> asyncio.Task[None]:
        task = asyncio.create_task(pool.take_in_turn(Holder(1, token_id), amount))
        await asyncio.sleep(0)
        return task

    async def test_a_token_at_its_share_does_not_hold_up_another_one(self, pool: Pool) -> None:
        TENANT.set(1)
        first, second = await self.wait(pool, "a", 7), await self.wait(pool, "b", 7)
        assert not first.done() and not second.done()
        pool.put_back(Holder(1, "b"), 30)
        await asyncio.wait_for(second, 10)
        assert not first.done() and pool.used == 167
        pool.put_back(Holder(1, "a"), 160)
        await asyncio.wait_for(first, 10)
        assert pool.used == 14

    async def test_a_request_does_not_overtake_one_of_its_own_token(self, pool: Pool) -> None:
        TENANT.set(1)
        pool.put_back(Holder(1, "a"), 2)
        large, small = await self.wait(pool, "a", 7), await self.wait(pool, "a", 1)
        assert not large.done() and not small.done()
        pool.put_back(Holder(1, "a"), 5)
        await asyncio.wait_for(large, 10)
        assert not small.done()
        pool.put_back(Holder(1, "a"), 1)
        await asyncio.wait_for(small, 10)

    async def test_a_waiter_that_leaves_lets_a_smaller_one_in(self, pool: Pool) -> None:
        TENANT.set(1)
        pool.put_back(Holder(1, "a"), 2)
        large, small = await self.wait(pool, "a", 7), await self.wait(pool, "a", 1)
        large.cancel()
        await asyncio.wait_for(small, 10)
        assert not pool._waiting
        assert (await self.wait(pool, "a", 1)).done()


async def test_a_queue_lets_organizations_in_by_turns() -> None:
    turns, go = Turns(1), asyncio.Event()
    order: list[str] = []

    async def pass_through(tenant: int, name: str) -> None:
        TENANT.set(tenant)
        await turns.take()
        try:
            await go.wait()
            order.append(name)
        finally:
            turns.leave()

    tasks = [asyncio.create_task(pass_through(1, f"a{n}")) for n in range(5)]
    tasks += [asyncio.create_task(pass_through(2, "b"))]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order[0] == "a0" and order.index("b") <= 2 and sorted(order) == ["a0", "a2", "a3", "a4", "b"]
    async with asyncio.timeout(60):
        await turns.take()


class TestSlices:
    async def finished(self, lengths: list[tuple[int, str, int]]) -> list[str]:
        """Return the names of bodies in the order of their ends; each has an organization and a number of slices."""
        turns, ended = Turns(1), list[str]()

        async def decode(organization_id: int, name: str, slices: int) -> None:
            TENANT.set(organization_id)
            async with Slice(turns) as slice:
                for _ in range(slices):
                    time.sleep(0.0015)  # so much work that the next one runs in another turn of the event loop
                    await slice.pause()
            ended.append(name)

        await asyncio.gather(*(decode(*length) for length in lengths))
        return ended

    async def test_a_body_is_decoded_to_its_end_before_the_next_one_of_its_organization(self) -> None:
        assert await self.finished([(1, "first", 5), (1, "second", 3), (1, "third", 1)]) == ["first", "second", "third"]

    async def test_organizations_take_turns_slice_by_slice(self) -> None:
        assert await self.finished([(1, "long", 9), (2, "short", 2), (1, "next", 1)]) == ["short", "long", "next"]

    async def test_a_small_body_does_not_wait_for_the_end_of_a_large_one(self) -> None:
        assert await self.finished([(1, "large", 30), (1, "small", 1)]) == ["small", "large"]


async def send_slowly(api: Api, stack: AsyncExitStack, count: int) -> list[Connection]:
    """Begin requests that send one byte of their body."""
    begun = []
    for _ in range(count):
        connection = await stack.enter_async_context(connect(api))
        head = f"POST /v1/cookies HTTP/1.1\r\n{HEAD}Content-Length: 1000\r\n\r\n[".replace("{token}", api.token)
        await connection.send(head.encode())
        begun.append(connection)
    return begun


class TestReceiving:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(mongo_database="test", max_in_flight=8, max_receiving=8, receive_timeout=120)

    async def test_requests_that_send_one_byte_do_not_block_readers_and_writers(
        self, api: Api, make_api: MakeApi
    ) -> None:
        other = await make_api()
        async with AsyncExitStack() as stack:
            await send_slowly(api, stack, 20)
            async with asyncio.timeout(60):
                while api.client.app[LIMITS].receiving.used < 5:
                    await asyncio.sleep(0.01)
            for _ in range(5):
                assert await other.ok("/v1/cookies") == []
                assert (await other.post("/v1/cookies", [])).status == 200
            # The one that sends slowly has its share of places, and still reads and sends what arrives at once.
            assert api.client.app[LIMITS].receiving.used == 5
            assert await api.ok("/v1/cookies") == []
            assert (await api.post("/v1/cookies", [])).status == 200
        async with asyncio.timeout(60):
            while api.client.app[LIMITS].receiving.used:
                await asyncio.sleep(0.01)
        assert (await api.post("/v1/cookies", [])).status == 200


class TestBytes:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(mongo_database="test", max_bytes_in_flight=32 * MEGABYTE, receive_timeout=120)

    @pytest.fixture
    async def filled(self, api: Api) -> Api:
        """A caller with 12 MB of local storage."""
        for n in range(3):
            await api.ok("/v1/local-storage", [{"domain": "a", "key": str(n), "value": "x" * 4 * MEGABYTE}])
        return api

    async def readers(self, api: Api, stack: AsyncExitStack, count: int) -> AsyncIterator[Connection]:
        for _ in range(count):
            connection = await stack.enter_async_context(connect(api))
            connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
            head = f"GET /v1/local-storage HTTP/1.1\r\n{HEAD}\r\n".replace("{token}", api.token)
            await connection.send(head.encode())
            yield connection

    async def test_readers_that_take_nothing_hold_a_bounded_number_of_bytes_and_the_others_get_in(
        self, filled: Api, make_api: MakeApi
    ) -> None:
        other = await make_api()
        await other.ok("/v1/local-storage", [{"domain": "a", "key": "1", "value": "x" * MEGABYTE}])
        budget = filled.client.app[LIMITS].bytes
        async with AsyncExitStack() as stack:
            async for _ in self.readers(filled, stack, 6):
                pass
            async with asyncio.timeout(60):
                while budget.used + STREAM_BYTES <= budget.share:
                    await asyncio.sleep(0.01)
            refused = await filled.get("/v1/local-storage")
            assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
            assert len(await other.ok("/v1/local-storage")) == 1
        async with asyncio.timeout(60):
            while budget.used:
                await asyncio.sleep(0.01)
        assert len(await filled.ok("/v1/local-storage")) == 3

    async def test_bodies_count_while_they_are_received_and_worked_on(self, api: Api, make_api: MakeApi) -> None:
        other = await make_api()
        budget = api.client.app[LIMITS].bytes
        async with AsyncExitStack() as stack:
            for _ in range(6):
                connection = await stack.enter_async_context(connect(api))
                head = f"POST /v1/cookies HTTP/1.1\r\n{HEAD}Content-Length: {6 * MEGABYTE}\r\n\r\n"
                await connection.send(head.replace("{token}", api.token).encode() + b" " * 5 * MEGABYTE)
            async with asyncio.timeout(60):
                while budget.used < 15 * MEGABYTE:
                    await asyncio.sleep(0.01)
            assert budget.used <= budget.share
            assert (await other.post("/v1/cookies", [])).status == 200
        async with asyncio.timeout(60):
            while budget.used:
                await asyncio.sleep(0.01)

    async def test_followers_that_read_nothing_hold_a_bounded_number_of_bytes(
        self, api: Api, make_api: MakeApi, store: Store
    ) -> None:
        """401 of them and a write of 12 MB took 5 GB."""
        other = await make_api()
        ledger = api.client.app[LIMITS].bytes
        most = 0
        async with AsyncExitStack() as stack:
            for _ in range(12):
                connection = await stack.enter_async_context(connect(api))
                head = f"GET /v1/outputs/g/export?format=sse HTTP/1.1\r\n{HEAD}\r\n".replace("{token}", api.token)
                await connection.send(head.encode())
                assert (await connection.read_response(head_only=True)).status == 200
                connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
            async with asyncio.timeout(60):
                while waiting_readers(store) < 12:
                    await asyncio.sleep(0.01)
            assert ledger.used == 0  # whoever waits holds nothing
            items = [make_output(n, data={"text": f"{n}" * 1_000_000}) for n in range(9)]
            await api.ok("/v1/outputs/g", items)
            end = time.monotonic() + 3
            async with asyncio.timeout(60):
                while time.monotonic() < end or most < STREAM_BYTES:
                    most = max(most, ledger.used)
                    assert ledger.used <= ledger.share
                    assert await other.ok("/v1/cookies") == []
                    await asyncio.sleep(0.01)
            assert len((await other.ok("/v1/outputs/g"))["items"]) == 0
        async with asyncio.timeout(60):
            while ledger.used:
                await asyncio.sleep(0.01)

    @pytest.mark.parametrize("query", ["export?format=sse", "?wait=60"])
    async def test_the_large_head_of_a_reader_that_waits_counts_until_it_leaves(
        self, api: Api, store: Store, query: str
    ) -> None:
        """1,000 followers with heads of 64 KB, an emoji in each header, took 331 MB."""
        ledger, path = api.client.app[LIMITS].bytes, f"/v1/outputs/g{query if query[0] == '?' else '/' + query}"
        async with connect(api) as connection:
            head = f"GET {path} HTTP/1.1\r\n{HEAD}X-Large: {'x' * 15_000}\r\n\r\n".replace("{token}", api.token)
            await connection.send(head.encode())
            await until_waiting(store)
            assert 70_000 < ledger.used < 100_000
        async with asyncio.timeout(60):
            while ledger.used:
                await asyncio.sleep(0.01)


# -- slow readers ------------------------------------------------------------------------------------


class TestSlowReaders:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(mongo_database="test", receive_timeout=0.5, min_send_rate=2_000)

    @pytest.fixture
    async def filled(self, api: Api, store: Store) -> Api:
        """A caller with 40 MB of local storage: more than the kernel keeps for a connection."""
        for n in range(10):
            entry = {"domain": "a", "key": str(n), "path": "/", "value": "x" * 4 * MEGABYTE, "expires": None}
            await store.local_storage.set(api.organization_id, [entry])
        return api

    def open(self, api: Api) -> socket.socket:
        """A client with a receive buffer so small that each byte taken can be seen from the other side."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        connection.connect((api.client.host, api.client.port))
        connection.sendall(f"GET /v1/local-storage HTTP/1.1\r\n{HEAD}\r\n".replace("{token}", api.token).encode())
        connection.setblocking(False)
        return connection

    async def take(self, api: Api, connection: socket.socket, rate: int, seconds: float) -> bool:
        """Read at a rate; return whether the response still goes on after some seconds."""
        loop, end = asyncio.get_running_loop(), time.monotonic() + seconds
        budget = api.client.app[LIMITS].bytes
        with suppress(ConnectionError):
            await loop.sock_recv(connection, 1)
            while time.monotonic() < end and budget.used:
                await loop.sock_recv(connection, rate // 20)
                await asyncio.sleep(0.05)
        return bool(budget.used)

    async def test_a_steady_slow_reader_is_waited_for(self, filled: Api) -> None:
        with self.open(filled) as connection:
            # Nothing leaves the service's own buffer meanwhile: only the kernel's gets shorter.
            assert await self.take(filled, connection, 100_000, 3.5)

    async def test_a_reader_slower_than_the_minimum_is_cut(self, filled: Api) -> None:
        with self.open(filled) as connection:
            assert not await self.take(filled, connection, 200, 30)

    async def test_bytes_that_the_kernel_has_not_sent_count(self) -> None:
        done = asyncio.Event()
        transports: list[asyncio.Transport] = []

        class Sender(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                transports.append(transport)
                transport.write(b"x" * 100_000)
                done.set()

        server = await asyncio.get_running_loop().create_server(Sender, "127.0.0.1", 0)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(server.sockets[0].getsockname())
            await asyncio.wait_for(done.wait(), 60)
            assert unsent(transports[0]) > 50_000
        transports[0].abort()
        server.close()


async def test_readers_of_another_organization_do_not_wait_until_all_of_a_large_one_are_woken() -> None:
    waking, loop, done = Waking(), asyncio.get_running_loop(), []

    async def woken(organization_id: int, waiting: asyncio.Future[None]) -> None:
        await waiting
        time.sleep(0.001)
        done.append(organization_id)

    tasks = []
    for organization_id in [1] * 300 + [2]:
        waiting: asyncio.Future[None] = loop.create_future()
        tasks.append(asyncio.create_task(woken(organization_id, waiting)))
        TENANT.set(organization_id)
        waking.add(waiting)
    in_one_turn = []
    while len(done) < 301:
        before = len(done)
        await asyncio.sleep(0)
        in_one_turn.append(len(done) - before)
    assert done.index(2) < 20
    assert max(in_one_turn) <= 10  # of a millisecond each


async def test_readers_that_came_first_are_not_woken_before_all_others() -> None:
    waking, loop, order = Waking(), asyncio.get_running_loop(), []
    for kind in ["following"] * 500 + ["waiting"] * 500:
        woken: asyncio.Future[None] = loop.create_future()
        woken.add_done_callback(lambda _, kind=kind: order.append(kind))  # type: ignore[misc]
        waking.add(woken)
    async with asyncio.timeout(30):
        while len(order) < 1000:
            await asyncio.sleep(0)
    assert 150 < order[:500].count("following") < 350


async def test_readers_that_leave_at_once_are_ended_a_few_per_turn_of_the_loop() -> None:
    app, ended, in_one_turn = web.Application(), [], [0]
    app[LIMITS] = Limits(Settings())
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
async def test_a_waiter_that_comes_at_any_moment_after_the_last_one_is_woken(steps: int) -> None:
    waking = Waking()
    await waking.turn()
    for _ in range(steps):
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await waking.turn()


async def test_long_work_of_one_organization_lets_others_in_and_runs_one_slice_per_turn_of_the_loop() -> None:
    turns, done, slices, in_one_turn = Turns(1), [], [0], []

    async def work(organization_id: int, count: int) -> None:
        TENANT.set(organization_id)
        async with Slice(turns) as slice:
            for _ in range(count):
                slices[0] += 1
                time.sleep(0.006)
                assert slice.is_over
                await slice.pause()
        done.append(organization_id)

    long = [asyncio.create_task(work(1, 100)) for _ in range(20)]
    short = asyncio.create_task(work(2, 1))
    while not short.done():
        before = slices[0]
        await asyncio.sleep(0)
        in_one_turn.append(slices[0] - before)
    assert (done, max(in_one_turn)) == ([2], 1)
    for task in long:
        task.cancel()
    await asyncio.gather(*long, return_exceptions=True)
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await turns.take()  # it is free again


class TestRests:
    async def test_an_organization_that_has_worked_lets_others_in_before_its_own_waiters(self) -> None:
        turns, taken = Turns(1), list[str]()

        async def take(organization_id: int, name: str) -> None:
            TENANT.set(organization_id)
            await turns.take()
            taken.append(name)
            turns.leave()

        async def work() -> None:
            TENANT.set(1)
            OTHERS_WORK.set(lambda: True)
            await turns.take()
            await asyncio.sleep(0)
            await turns.end(0.02)
            taken.append("rested")

        async with asyncio.timeout(60):
            await asyncio.gather(work(), take(1, "own"), take(2, "other"))
        assert taken == ["other", "rested", "own"]

    async def test_the_thread_lets_others_in_before_the_waiters_of_its_organization(self) -> None:
        taken: list[str] = []

        def long_work(name: str) -> None:
            taken.append(name)
            time.sleep(0.01)

        async def work(organization_id: int, name: str) -> None:
            TENANT.set(organization_id)
            OTHERS_WORK.set(lambda: True)
            await in_thread(lambda: long_work(name))

        async with asyncio.timeout(60):
            await asyncio.gather(work(1, "first"), work(1, "own"), work(2, "other"))
        assert taken == ["first", "other", "own"]

    async def test_a_body_that_has_rested_goes_on_before_the_next_one_of_its_organization(self) -> None:
        turns, slices = Turns(1), list[str]()

        async def decode(name: str) -> None:
            OTHERS_WORK.set(lambda: True)
            async with Slice(turns) as slice:
                for _ in range(5):
                    time.sleep(0.002)
                    slices.append(name)
                    await slice.pause()

        async with asyncio.timeout(60):
            await asyncio.gather(decode("a"), decode("b"))
        assert "".join(slices) == "aaaaabbbbb"

    async def test_it_does_not_rest_alone_nor_after_little_work(self) -> None:
        turns = Turns(1)
        for others, seconds in ((False, 3600.0), (True, 0.0005)):
            OTHERS_WORK.set(lambda others=others: others)  # type: ignore[misc]
            await turns.take()
            with pytest.raises(StopIteration):
                turns.end(seconds).send(None)  # it ends without waiting
            await asyncio.sleep(0)

    async def test_a_rest_is_short_and_ends_with_its_request(self) -> None:
        turns = Turns(1)
        TENANT.set(1)
        OTHERS_WORK.set(lambda: True)
        async with asyncio.timeout(60):
            await turns.take()
            await turns.end(3600.0)
            await turns.take()
        resting = asyncio.create_task(turns.end(3600.0))
        await asyncio.sleep(0)
        resting.cancel()
        await asyncio.gather(resting, return_exceptions=True)
        assert not turns._resting
        async with asyncio.timeout(60):
            await turns.take()

    @pytest.mark.usefixtures("endless")
    @pytest.mark.parametrize("length", [100, 100_000], ids=["on the event loop", "in a thread"])
    async def test_long_work_rests_while_a_request_of_another_organization_is_at_work(
        self, api: Api, stranger: Api, monkeypatch: pytest.MonkeyPatch, length: int
    ) -> None:
        monkeypatch.setattr(turns_module, "_SHORT_SECONDS", 0.0)
        rests: list[bool] = []
        rested: set[Turns] = set()
        end = Turns.end

        async def recorded(turns: Turns, seconds: float) -> None:
            rests.append(OTHERS_WORK.get()())
            rested.add(turns)
            await end(turns, seconds)

        monkeypatch.setattr(Turns, "end", recorded)
        items = [make_output(1, data={"text": "x" * length})]
        await api.ok("/v1/outputs/shop", items)
        assert len(rested) == (1 if length == 100 else 2)
        assert rests and not any(rests)
        headers = {"Authorization": f"Bearer {stranger.token}"}
        monkeypatch.setattr(responses, "_WHOLE_SECONDS", 0.0)
        async with stranger.client.get("/v1/outputs/shop/export", headers=headers) as export:
            assert export.status == 200
            rests.clear()
            await api.ok("/v1/outputs/shop", items)
            assert rests and all(rests)

    async def test_nobody_rests_for_a_response_that_waits_for_its_client(self, api: Api, stranger: Api) -> None:
        for n in range(20):
            items = [make_output(10 * n + i, data={"text": "x" * 100_000}) for i in range(10)]
            await stranger.ok("/v1/outputs/shop", items)
        limits = api.client.app[LIMITS]
        async with asyncio.timeout(60), connect(api) as connection:
            connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
            head = f"GET /v1/outputs/shop/export HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {stranger.token}"
            await connection.send(f"{head}\r\n\r\n".encode())
            while not limits.sending.used:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            assert (limits.working.used, limits.sending.used) == (1, 1)
            assert not limits.others_work(api.organization_id)
        async with asyncio.timeout(60):
            while limits.working.used:
                await asyncio.sleep(0.01)
        assert limits.sending.used == 0


async def test_work_in_a_thread_keeps_nobody_from_the_event_loop() -> None:
    turns, thread = Turns(1), asyncio.Event()

    async def large() -> None:
        async with Slice(turns) as slice:
            await slice.outside(thread.wait)

    async def small() -> None:
        async with Slice(turns):
            pass

    waiting = asyncio.create_task(large())
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await small()
    thread.set()
    await waiting
    async with asyncio.timeout(60):
        await turns.take()  # it is free again


@pytest.fixture
def endless(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let every export be a search that finds nothing, and ends with the test."""
    over = asyncio.Event()

    async def pages(*_: Any) -> AsyncIterator[Page]:
        while not over.is_set():
            await asyncio.sleep(0.001)
            yield Page([], 0, 1, 1)

    monkeypatch.setattr(store.outputs, "pages", pages)
    yield
    over.set()


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
@pytest.mark.parametrize("format", ["ndjson", "json", "csv"])
async def test_a_search_that_finds_nothing_holds_up_no_list_and_ends_with_its_client(
    api: Api, monkeypatch: pytest.MonkeyPatch, format: str, encoding: str
) -> None:
    monkeypatch.setattr(responses, "_WHOLE_SECONDS", 0.0)
    working = api.client.app[LIMITS].working
    headers = {"Authorization": f"Bearer {api.token}", "Accept-Encoding": encoding}
    async with asyncio.timeout(30):
        async with AsyncExitStack() as stack:
            for _ in range(6):  # more than the places that one token has
                export = api.client.get(f"/v1/outputs/shop/export?format={format}", headers=headers)
                assert (await stack.enter_async_context(export)).status == 200
            assert await api.ok("/v1/cookies") == []
            assert working.used == 6
        while working.used:
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("endless")
async def test_searches_of_one_organization_leave_others_a_place_to_begin(
    api: Api, stranger: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "_WHOLE_SECONDS", 3600.0)
    limits = api.client.app[LIMITS]
    exports = [asyncio.create_task(api.get("/v1/outputs/shop/export")) for _ in range(9)]
    async with asyncio.timeout(30):
        while limits.working.used < len(exports):
            await asyncio.sleep(0.01)
        assert await stranger.ok("/v1/cookies") == []
    for export in exports:
        export.cancel()
    await asyncio.gather(*exports, return_exceptions=True)


async def test_large_pages_are_read_a_few_at_a_time_and_small_ones_do_not_wait_for_them(
    api: Api, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.ok("/v1/outputs/shop", [make_output(n, data={"text": "x" * 1000}) for n in range(1000)])
    assert len((await api.ok("/v1/outputs/shop?limit=1000"))["items"]) == 1000  # its size is known now
    page, over, reading = store.outputs.page, asyncio.Event(), []

    async def slow(group: Group, query: Query) -> Page:
        if query.limit > 10:
            reading.append(query)
            await over.wait()
        return await page(group, query)

    monkeypatch.setattr(store.outputs, "page", slow)
    large = [asyncio.create_task(api.get("/v1/outputs/shop?limit=1000")) for _ in range(12)]
    async with asyncio.timeout(60):
        while api.client.app[LIMITS].working.used < len(large):
            await asyncio.sleep(0.01)
        assert len((await api.ok("/v1/outputs/shop?limit=10"))["items"]) == 10
        assert 0 < len(reading) < 8
        over.set()
        await asyncio.gather(*large)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("filters", ["where=x.y:1", "missing=x", "rejected=true", "url=u&job_id=j"])
async def test_searches_run_a_few_at_a_time_and_nothing_else_waits_for_them(
    api: Api, app: web.Application, store: Store, monkeypatch: pytest.MonkeyPatch, method: str, filters: str
) -> None:
    """150 searches with limit=1 kept all threads of the driver at work: others waited 1.5 s for each page."""
    await api.ok("/v1/outputs/shop", [make_output(1)])
    (item,) = (await api.ok("/v1/outputs/shop?limit=1"))["items"]  # its size is known now
    page, over, searching = store.outputs.page, asyncio.Event(), []

    async def search(group: Group, query: Query) -> tuple[list[tuple[str, int]], int | None]:
        searching.append(query)
        await over.wait()
        return [], None

    async def slow(group: Group, query: Query) -> Page:
        if query.limit == 2:
            await search(group, query)
        return await page(group, query)

    monkeypatch.setattr(store.outputs, "page", slow)
    monkeypatch.setattr(store.outputs, "selected", search)
    path = f"/v1/outputs/shop?{filters}" + ("&limit=2" if method == "GET" else "")
    searches = [asyncio.create_task(api.request(method, path)) for _ in range(12)]
    async with asyncio.timeout(60):
        while app[LIMITS].working.used < len(searches):
            await asyncio.sleep(0.01)
        assert (await api.ok("/v1/outputs/shop?limit=1"))["items"] == [item]
        assert await api.ok(f"/v1/outputs/shop/{item['output_id']}") == item
        waiting = len(searching)
        over.set()
        assert {response.status for response in await asyncio.gather(*searches)} == {200}
        assert 0 < waiting < 8


async def test_deletions_that_have_found_their_items_do_not_keep_others_from_searching(
    api: Api, app: web.Application, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion works for 2 s and pauses: 16 of one token, in 16 groups, kept each other waiting until 8 got 503."""
    for n in range(8):
        await api.ok(f"/v1/outputs/shop-{n}", [make_output(1)])
    apply, over, deleting = store.outputs.lanes.apply, asyncio.Event(), []

    async def slow(group: Group, changes: Any) -> Any:
        deleting.append(group)
        await over.wait()
        return await apply(group, changes)

    monkeypatch.setattr(store.outputs.lanes, "apply", slow)
    deletions = [asyncio.create_task(api.request("DELETE", f"/v1/outputs/shop-{n}?missing=nothing")) for n in range(8)]
    async with asyncio.timeout(60):
        while len(deleting) < len(deletions):
            await asyncio.sleep(0.01)
        assert (await api.ok("/v1/outputs/shop-0?missing=nothing&limit=1"))["items"]
        over.set()
        assert [response.json["deleted"] for response in await asyncio.gather(*deletions)] == [1] * 8


async def test_single_outputs_are_read_a_few_at_a_time_and_counted(
    api: Api, app: web.Application, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """150 requests for one item of 520,000 zeros, 6 MB in the database, took 900 MB."""
    await api.ok("/v1/outputs/shop", [make_output(1, data={"text": "x" * 500_000})])
    (item,) = (await api.ok("/v1/outputs/shop"))["items"]
    one, array, over, reading, held = store.outputs.one, Page.array, asyncio.Event(), [], []

    async def slow(group: Group, output_id: str) -> Page | None:
        reading.append(output_id)
        await over.wait()
        return await one(group, output_id)

    def render(page: Page) -> bytes:
        held.append(app[LIMITS].bytes.used)
        return array(page)

    monkeypatch.setattr(store.outputs, "one", slow)
    monkeypatch.setattr(Page, "array", render)
    requests = [asyncio.create_task(api.get(f"/v1/outputs/shop/{item['output_id']}")) for _ in range(12)]
    async with asyncio.timeout(60):
        while app[LIMITS].working.used < len(requests):
            await asyncio.sleep(0.01)
        at_once = len(reading)
        over.set()
        assert {response.status for response in await asyncio.gather(*requests)} == {200}
        assert 0 < at_once < 8
        assert min(held) > 1_500_000
        while app[LIMITS].bytes.used:
            await asyncio.sleep(0.01)
