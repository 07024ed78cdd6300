"""No token can keep the others out: places, bodies being received, bytes in flight, slow readers."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from contextlib import AsyncExitStack, suppress

import pytest

from service.http.keys import GATES
from service.http.output.slow_readers import unsent
from service.settings import Settings
from service.store import Store
from tests.conftest import MakeApi
from tests.support.api import Api, make_output, make_outputs
from tests.support.capacity import at_work, bytes_held
from tests.support.fault_proxy import FaultProxy
from tests.support.limits import Small
from tests.support.live_pages import until_waiting, waiting_readers
from tests.support.raw import Connection, RawResponse, connect

HEAD = "Host: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
MEGABYTE = 2**20


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
        return Settings(mongo_database="test", max_bytes_in_flight=8 * MEGABYTE, receive_timeout=120)

    async def test_requests_that_send_one_byte_do_not_block_readers_and_writers(
        self, api: Api, make_api: MakeApi
    ) -> None:
        other, receiving = await make_api(), api.client.app[GATES].receiving
        async with AsyncExitStack() as stack:
            await send_slowly(api, stack, 20)
            async with asyncio.timeout(60):
                while receiving.used < MEGABYTE:  # room for four of them
                    await asyncio.sleep(0.01)
            for _ in range(5):
                assert await other.ok("/v1/cookies") == []
                assert (await other.post("/v1/cookies", [])).status == 200
            # The one that sends slowly has its share, and still reads and sends what arrives at once.
            assert MEGABYTE < receiving.used <= receiving.share
            assert await api.ok("/v1/cookies") == []
            assert (await api.post("/v1/cookies", [])).status == 200
        async with asyncio.timeout(60):
            while receiving.used:
                await asyncio.sleep(0.01)
        assert (await api.post("/v1/cookies", [])).status == 200


class TestBytes:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(mongo_database="test", max_bytes_in_flight=32 * MEGABYTE, receive_timeout=120, mongo_timeout=4)

    @pytest.fixture
    async def filled(self, api: Api) -> Api:
        """A caller with 12 MB of local storage."""
        for n in range(3):
            await api.ok("/v1/local-storage", [{"domain": "a", "key": str(n), "value": "x" * 4 * MEGABYTE}])
        return api

    async def begin_reading(self, api: Api, stack: AsyncExitStack) -> RawResponse:
        """Begin to read all local storage, and take no more than the first part."""
        connection = await stack.enter_async_context(connect(api))
        head = f"GET /v1/local-storage HTTP/1.1\r\n{HEAD}\r\n".replace("{token}", api.token)
        await connection.send(head.encode())
        return await connection.read_response(head_only=True)

    @pytest.mark.slow
    async def test_readers_that_take_nothing_hold_a_bounded_number_of_bytes_and_the_others_get_in(
        self, filled: Api, make_api: MakeApi
    ) -> None:
        other = await make_api()
        await other.ok("/v1/local-storage", [{"domain": "a", "key": "1", "value": "x" * MEGABYTE}])
        app = filled.client.app
        async with AsyncExitStack() as stack:
            responses = [await self.begin_reading(filled, stack)]
            while responses[-1].status == 200 and len(responses) < 20:
                responses.append(await self.begin_reading(filled, stack))
            assert (responses[-1].status, responses[-1].headers["retry-after"]) == (503, "1")
            assert app[GATES].sending.used <= app[GATES].sending.share
            assert len(await other.ok("/v1/local-storage")) == 1
        async with asyncio.timeout(60):
            while bytes_held(app):
                await asyncio.sleep(0.01)
        assert len(await filled.ok("/v1/local-storage")) == 3

    async def test_bodies_count_while_they_are_received_and_worked_on(self, api: Api, make_api: MakeApi) -> None:
        other = await make_api()
        budget = api.client.app[GATES].receiving
        async with AsyncExitStack() as stack:
            for _ in range(6):
                connection = await stack.enter_async_context(connect(api))
                head = f"POST /v1/cookies HTTP/1.1\r\n{HEAD}Content-Length: {6 * MEGABYTE}\r\n\r\n"
                await connection.send(head.replace("{token}", api.token).encode() + b" " * 5 * MEGABYTE)
            async with asyncio.timeout(60):
                while budget.used + budget.largest <= budget.share:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert budget.used <= budget.share
            assert (await other.post("/v1/cookies", [])).status == 200
        async with asyncio.timeout(60):
            while budget.used:
                await asyncio.sleep(0.01)

    @pytest.mark.slow
    async def test_followers_that_read_nothing_hold_a_bounded_number_of_bytes(
        self, api: Api, make_api: MakeApi, store: Store
    ) -> None:
        """401 of them and a write of 12 MB took 5 GB."""
        other, app = await make_api(), api.client.app
        most, end_of_share = 0, 24 * MEGABYTE  # of an organization
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
            assert bytes_held(app) == 0  # whoever waits holds nothing
            items = [make_output(n, data={"text": f"{n}" * 1_000_000}) for n in range(9)]
            await api.ok("/v1/outputs/g", items)
            end = time.monotonic() + 1
            async with asyncio.timeout(60):
                while time.monotonic() < end or not most:
                    most = max(most, bytes_held(app))
                    assert most <= end_of_share
                    assert await other.ok("/v1/cookies") == []
                    await asyncio.sleep(0.01)
            assert len((await other.ok("/v1/outputs/g"))["items"]) == 0
        async with asyncio.timeout(60):
            while bytes_held(app):
                await asyncio.sleep(0.01)

    @pytest.mark.parametrize("query", ["export?format=sse", "?wait=60"])
    async def test_the_large_head_of_a_reader_that_waits_counts_until_it_leaves(
        self, api: Api, store: Store, query: str
    ) -> None:
        """1,000 followers with heads of 64 KB, an emoji in each header, took 331 MB."""
        ledger, path = api.client.app[GATES].receiving, f"/v1/outputs/g{query if query[0] == '?' else '/' + query}"
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
        budget = api.client.app[GATES].sending
        with suppress(ConnectionError):
            await loop.sock_recv(connection, 1)
            while time.monotonic() < end and budget.used:
                await loop.sock_recv(connection, rate // 20)
                await asyncio.sleep(0.05)
        return bool(budget.used)

    @pytest.mark.slow
    async def test_a_steady_slow_reader_is_waited_for(self, filled: Api) -> None:
        with self.open(filled) as connection:
            # Nothing leaves the service's own buffer meanwhile: only the kernel's gets shorter.
            assert await self.take(filled, connection, 100_000, 3.5)

    @pytest.mark.slow
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


@pytest.mark.slow
async def test_nobody_cools_down_for_a_response_that_waits_for_its_client(api: Api, stranger: Api) -> None:
    for n in range(20):
        items = [make_output(10 * n + i, data={"text": "x" * 100_000}) for i in range(10)]
        await stranger.ok("/v1/outputs/shop", items)
    gates = api.client.app[GATES]
    async with asyncio.timeout(60), connect(api) as connection:
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        head = f"GET /v1/outputs/shop/export HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {stranger.token}"
        await connection.send(f"{head}\r\n\r\n".encode())
        since = None  # for how long it only sends: until then, the buffers between the two are not full
        while since is None or time.monotonic() < since + 0.3:
            only_sends = gates.sending.used and not gates.working.used
            since = (since or time.monotonic()) if only_sends else None
            await asyncio.sleep(0.01)
        assert gates.connections.used == 1
    async with asyncio.timeout(60):
        while gates.connections.used:
            await asyncio.sleep(0.01)
    assert not bytes_held(api.client.app)


class TestWhileTheDatabaseIsBusy:
    """What is read is held on its way, or slow, until a test has seen what waits for it."""

    @pytest.fixture
    def api(self, wired_api: Api) -> Api:
        return wired_api

    @pytest.fixture
    async def other(self, wired: Store, api: Api) -> Api:
        """A caller of another organization."""
        id = api.organization_id + 5_000
        return Api(api.client, await wired.tokens.create(id, ["read", "write", "delete", "state"]), id)

    @pytest.fixture
    async def endless(self, api: Api, wire: FaultProxy, small: Small) -> str:
        """The path of an export that searches one item after the other, in vain, for many seconds."""
        await api.ok("/v1/outputs/shop", make_outputs(500))
        small(first_window=1, window=1, search_seconds=0.0)
        wire.before("find", "outputs", lambda: asyncio.sleep(0.02), times=math.inf)
        return "/v1/outputs/shop/export?where=title:nothing"

    @pytest.mark.parametrize(("format", "encoding"), [("ndjson", "identity"), ("json", "gzip"), ("csv", "identity")])
    async def test_a_search_that_finds_nothing_holds_up_no_list_and_ends_with_its_client(
        self, api: Api, endless: str, small: Small, format: str, encoding: str
    ) -> None:
        small(whole_seconds=0.0)
        app = api.client.app
        headers = {"Authorization": f"Bearer {api.token}", "Accept-Encoding": encoding}
        async with asyncio.timeout(30):
            async with AsyncExitStack() as stack:
                for _ in range(6):  # more than the places that one token has
                    export = api.client.get(f"{endless}&format={format}", headers=headers)
                    assert (await stack.enter_async_context(export)).status == 200
                assert await api.ok("/v1/cookies") == []
                assert at_work(app) == 6
            while at_work(app):
                await asyncio.sleep(0.01)

    async def test_searches_of_one_organization_leave_others_a_place_to_begin(
        self, api: Api, other: Api, endless: str, small: Small
    ) -> None:
        small(whole_seconds=3600.0)
        exports = [asyncio.create_task(api.get(endless)) for _ in range(9)]
        async with asyncio.timeout(30):
            while at_work(api.client.app) < len(exports):
                await asyncio.sleep(0.01)
            assert await other.ok("/v1/cookies") == []
        for export in exports:
            export.cancel()
        await asyncio.gather(*exports, return_exceptions=True)

    @pytest.mark.slow
    async def test_large_pages_are_read_a_few_at_a_time_and_small_ones_do_not_wait_for_them(
        self, api: Api, wire: FaultProxy
    ) -> None:
        await api.ok("/v1/outputs/shop", [make_output(n, data={"text": "x" * 1000}) for n in range(1000)])
        over = asyncio.Event()
        reading = wire.before("find", "outputs", over.wait, times=math.inf, where=lambda b: b.get("limit", 0) > 100)
        large = [asyncio.create_task(api.get("/v1/outputs/shop?limit=1000")) for _ in range(12)]
        async with asyncio.timeout(60):
            while at_work(api.client.app) < len(large):
                await asyncio.sleep(0.01)
            assert len((await api.ok("/v1/outputs/shop?limit=10"))["items"]) == 10
            assert 0 < len(reading.bodies) < 8
            over.set()
            await asyncio.gather(*large)

    @pytest.mark.parametrize("method", ["GET", "DELETE"])
    @pytest.mark.parametrize("filters", ["where=x.y:1", "missing=x", "rejected=true", "url=u&job_id=j"])
    async def test_searches_run_a_few_at_a_time_and_nothing_else_waits_for_them(
        self, api: Api, wire: FaultProxy, method: str, filters: str
    ) -> None:
        """150 searches with limit=1 kept all threads of the driver at work: others waited 1.5 s for each page."""
        await api.ok("/v1/outputs/shop", [make_output(1)])
        (item,) = (await api.ok("/v1/outputs/shop?limit=1"))["items"]
        over = asyncio.Event()
        windows = wire.before("find", "outputs", over.wait, times=math.inf, where=lambda body: "skip" in body)
        choices = wire.before("count", "outputs", over.wait, times=math.inf)  # two for each search by two indexes
        path = f"/v1/outputs/shop?{filters}{'&all=true' if method == 'DELETE' else ''}"
        searches = [asyncio.create_task(api.request(method, path)) for _ in range(12)]
        async with asyncio.timeout(60):
            while at_work(api.client.app) < len(searches):
                await asyncio.sleep(0.01)
            assert (await api.ok("/v1/outputs/shop?limit=1"))["items"] == [item]
            assert await api.ok(f"/v1/outputs/shop/{item['output_id']}") == item
            searching = len(windows.bodies) + len(choices.bodies) // 2
            over.set()
            assert {response.status for response in await asyncio.gather(*searches)} == {200}
            assert 0 < searching < 8

    async def test_deletions_that_have_found_their_items_do_not_keep_others_from_searching(
        self, api: Api, wired: Store
    ) -> None:
        """A deletion works for 2 s and pauses: 16 of one token kept each other waiting until 8 got 503."""
        for n in range(8):
            await api.ok(f"/v1/outputs/shop-{n}", [make_output(1)])
        over, deleting = asyncio.Event(), list[str]()

        async def hold(step: str) -> None:
            if step == "before write":
                deleting.append(step)
                await over.wait()

        wired.outputs.ids.step = hold
        paths = [f"/v1/outputs/shop-{n}?missing=nothing&all=true" for n in range(8)]
        deletions = [asyncio.create_task(api.request("DELETE", path)) for path in paths]
        async with asyncio.timeout(60):
            while len(deleting) < len(deletions):
                await asyncio.sleep(0.01)
            assert (await api.ok("/v1/outputs/shop-0?missing=nothing&limit=1"))["items"]
            over.set()
            assert [response.json["deleted"] for response in await asyncio.gather(*deletions)] == [1] * 8

    async def test_single_outputs_are_read_a_few_at_a_time_and_counted(self, api: Api, wire: FaultProxy) -> None:
        """150 requests for one item of 520,000 zeros, 6 MB in the database, took 900 MB."""
        app = api.client.app
        await api.ok("/v1/outputs/shop", [make_output(1, data={"text": "x" * 500_000})])
        (item,) = (await api.ok("/v1/outputs/shop"))["items"]
        over = asyncio.Event()
        reading = wire.before("find", "outputs", over.wait, times=math.inf)
        requests = [asyncio.create_task(api.get(f"/v1/outputs/shop/{item['output_id']}")) for _ in range(12)]
        async with asyncio.timeout(60):
            while at_work(app) < len(requests):
                await asyncio.sleep(0.01)
            await reading.reached.wait()
            assert bytes_held(app) > 1_500_000 * len(reading.bodies)
            assert 0 < len(reading.bodies) < 8
            over.set()
            assert {response.status for response in await asyncio.gather(*requests)} == {200}
            while bytes_held(app):
                await asyncio.sleep(0.01)
