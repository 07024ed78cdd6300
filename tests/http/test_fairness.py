"""No token can keep the others out: places, bodies being received, bytes in flight, slow readers."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
from aiohttp import web

from service.http import reply
from service.http.keys import GATES
from service.http.output.slow_readers import unsent
from service.settings import Settings
from service.store import Group, Page, Query, Store
from service.store.outputs.ids import Watermark
from service.store.outputs.query import is_search
from service.store.outputs.ranges import Found, Ranges
from tests.conftest import MakeApi
from tests.support.api import Api, make_output
from tests.support.capacity import at_work, bytes_held
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
            end = time.monotonic() + 3
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
    monkeypatch.setattr(reply, "_WHOLE_SECONDS", 0.0)
    app = api.client.app
    headers = {"Authorization": f"Bearer {api.token}", "Accept-Encoding": encoding}
    async with asyncio.timeout(30):
        async with AsyncExitStack() as stack:
            for _ in range(6):  # more than the places that one token has
                export = api.client.get(f"/v1/outputs/shop/export?format={format}", headers=headers)
                assert (await stack.enter_async_context(export)).status == 200
            assert await api.ok("/v1/cookies") == []
            assert at_work(app) == 6
        while at_work(app):
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("endless")
async def test_searches_of_one_organization_leave_others_a_place_to_begin(
    api: Api, stranger: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply, "_WHOLE_SECONDS", 3600.0)
    exports = [asyncio.create_task(api.get("/v1/outputs/shop/export")) for _ in range(9)]
    async with asyncio.timeout(30):
        while at_work(api.client.app) < len(exports):
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
    read, over, reading = Ranges.read, asyncio.Event(), []

    async def slow(ranges: Ranges, group: Group, query: Query, watermark: Watermark) -> Found:
        if query.limit > 10:
            reading.append(query)
            await over.wait()
        return await read(ranges, group, query, watermark)

    monkeypatch.setattr(Ranges, "read", slow)
    large = [asyncio.create_task(api.get("/v1/outputs/shop?limit=1000")) for _ in range(12)]
    async with asyncio.timeout(60):
        while at_work(api.client.app) < len(large):
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
    read, over, searching = Ranges.read, asyncio.Event(), []

    async def slow(ranges: Ranges, group: Group, query: Query, watermark: Watermark) -> Found:
        if is_search(group, query):
            searching.append(query)
            await over.wait()
        return await read(ranges, group, query, watermark)

    monkeypatch.setattr(Ranges, "read", slow)
    path = f"/v1/outputs/shop?{filters}{'&all=true' if method == 'DELETE' else ''}"
    searches = [asyncio.create_task(api.request(method, path)) for _ in range(12)]
    async with asyncio.timeout(60):
        while at_work(app) < len(searches):
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
    apply, over, deleting = store.outputs.write_queues.apply, asyncio.Event(), []

    async def slow(group: Group, changes: Any) -> Any:
        deleting.append(group)
        await over.wait()
        return await apply(group, changes)

    monkeypatch.setattr(store.outputs.write_queues, "apply", slow)
    paths = [f"/v1/outputs/shop-{n}?missing=nothing&all=true" for n in range(8)]
    deletions = [asyncio.create_task(api.request("DELETE", path)) for path in paths]
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
    find, array, over, reading, held = Ranges.find, Page.array, asyncio.Event(), [], []

    async def slow(ranges: Ranges, wanted: dict[str, Any], limit: int, since: Any) -> Found:
        reading.append(limit)
        await over.wait()
        return await find(ranges, wanted, limit, since)

    def render(page: Page) -> bytes:
        held.append(bytes_held(app))
        return array(page)

    monkeypatch.setattr(Ranges, "find", slow)
    monkeypatch.setattr(Page, "array", render)
    requests = [asyncio.create_task(api.get(f"/v1/outputs/shop/{item['output_id']}")) for _ in range(12)]
    async with asyncio.timeout(60):
        while at_work(app) < len(requests):
            await asyncio.sleep(0.01)
        while not reading:
            await asyncio.sleep(0.01)
        at_once = len(reading)
        over.set()
        assert {response.status for response in await asyncio.gather(*requests)} == {200}
        assert 0 < at_once < 8
        assert min(held) > 1_500_000
        while bytes_held(app):
            await asyncio.sleep(0.01)
