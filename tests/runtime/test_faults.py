"""The database fails in every way it can, under every route; the service is told to stop under load."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from aiohttp.test_utils import TestClient
from pytest_aiohttp.plugin import AiohttpClient

from service.app import create_app
from service.runtime.local_mongo import local_mongo
from service.settings import Settings
from service.store import Store, new_secret
from tests.conftest import MakeApi, Server
from tests.support.api import Api, Response, make_cookie, make_entry, make_output, make_review, walk
from tests.support.fault_proxy import FAULTS, Command, Fault, FaultProxy, until_ready
from tests.support.processes import SECONDS, ServiceProcess, make_token
from tests.support.routes import API_ROUTES

pytestmark = pytest.mark.slow

TIMEOUT = 1.5  # MONGO_TIMEOUT of the service under test
GRACE = 5.0  # beyond it, for a machine that does other things too; a driver without a limit takes 30 seconds
RECOVERY = 30.0  # seconds; one or two on a quiet machine
SCOPES = ["read", "write", "delete", "state", "admin"]


@pytest.fixture
def settings() -> Settings:
    return Settings(mongo_database="test", mongo_timeout=TIMEOUT, lease_seconds=1.0)


@pytest.fixture
async def proxy(mongo_url: str) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(mongo_url).running() as proxy:
        yield proxy


@pytest.fixture
async def store(settings: Settings, proxy: FaultProxy) -> AsyncIterator[Store]:
    """A store whose database is behind the proxy."""
    store = Store.connect(settings, proxy.url)
    await until_ready(store)
    yield store
    await proxy.heal()
    await store.close()


BODIES: dict[str, Any] = {
    "/v1/cookies": [make_cookie(), make_cookie(name="other")],
    "/v1/local-storage": [make_entry(), make_entry(key="other")],
    "/v1/storage-state": {
        "cookies": [],
        "origins": [
            {
                "origin": "https://shop.example",
                "localStorage": [{"name": "theme", "value": "dark"}],
                "indexedDB": [{"name": "db"}],
            }
        ],
    },
    "/v1/reviews/{group_id}": [make_review()],
    "/v1/outputs/{group_id}": [make_output(1), make_output(2)],
    "/v1/outputs/{group_id}/{output_id}/restore": {},
    "/v1/tokens": {"label": "reader", "scopes": ["read"]},
}
CHANGES: dict[tuple[str, str], Any] = {
    ("PATCH", "/v1/outputs/{group_id}"): [{"key_hash": "key-1", "is_approved": True}],
    ("PATCH", "/v1/outputs/{group_id}/{output_id}"): {"tags": {"country": "France"}},
    ("PUT", "/v1/groups/{group_id}"): {"retention_days": 30},
    ("PUT", "/v1/sessions/{pool}"): {"rest_seconds": 1},
    ("PUT", "/v1/sessions/{pool}/{name}"): {"user_data": {"account": "anna"}},
    ("PUT", "/v1/groups/{group_id}/jobs/{job_id}"): {"state": "running"},
}
# Routes that need more than their path, and the ways to read that stay open: all of them end after one item.
QUERIES = {
    ("DELETE", "/v1/cookies"): ["?all=true"],
    ("DELETE", "/v1/local-storage"): ["?all=true"],
    ("DELETE", "/v1/outputs/{group_id}"): ["?all=true"],
    ("GET", "/v1/outputs/{group_id}"): ["", "?wait=1"],
    ("GET", "/v1/outputs/{group_id}/export"): [
        *("", "?format=csv", "?format=json", "?follow=true&limit=1", "?format=sse&limit=1")
    ],
}
# An organization has a bounded number of webhooks, and each has its own name; leases and deletions of sessions need
# what other requests have made.
ONCE = {
    ("POST", "/v1/webhooks"),
    ("POST", "/v1/sessions/{pool}/lease"),
    ("PUT", "/v1/leases/{lease_id}"),
    ("POST", "/v1/leases/{lease_id}/release"),
    ("DELETE", "/v1/sessions/{pool}"),
    ("DELETE", "/v1/sessions/{pool}/{name}"),
}
# Requests that are refused by what the database says: the output or token to delete is an unknown one, the output to
# restore is not deleted.
REFUSED = {
    ("DELETE", "/v1/outputs/{group_id}/{output_id}"): 404,
    ("DELETE", "/v1/tokens/{token_id}"): 404,
    ("POST", "/v1/outputs/{group_id}/{output_id}/restore"): 409,
}
# What works without the database.
INDEPENDENT = {"/healthz", "/metrics"}
UNKNOWN_TOKEN = "0" * 12
# What works without the database while the token is remembered.
TOKEN_ONLY = "/v1/token"


class Request(NamedTuple):
    """What a caller sends: see `call`."""

    api: Api
    method: str
    path: str
    output_id: str = ""
    query: str = ""


class Call(NamedTuple):
    """A request to a route, its response and the seconds it took."""

    method: str
    path: str
    response: Response
    seconds: float

    @property
    def works(self) -> bool:
        return self.response.status == REFUSED.get((self.method, self.path), 200)


async def call(api: Api, method: str, path: str, output_id: str = "", query: str = "") -> Call:
    """Send a lifelike request; what deletes has a group of its own."""
    body = BODIES[path] if method == "POST" else CHANGES.get((method, path))
    group, output_id = ("deleted", "unknown") if method == "DELETE" else ("group", output_id)
    options = {} if body is None else {"json": body}
    started = time.monotonic()
    names = {"group_id": group, "output_id": output_id, "job_id": "job-1", "pool": "shop", "name": "anna"}
    response = await api.request(method, path.format(**names, token_id=UNKNOWN_TOKEN) + query, **options)
    return Call(method, path, response, time.monotonic() - started)


def requests_of(*callers: tuple[Api, str]) -> list[Request]:
    """Return a request to every route that needs the database; callers come with an output of their group."""
    return [
        Request(api, method, path, output_id, query)
        for api, output_id in callers
        for method, path, _, _ in API_ROUTES
        if path not in INDEPENDENT and (method, path) not in ONCE and "{webhook_id}" not in path
        for query in QUERIES.get((method, path), [""])
    ]


async def call_all(requests: list[Request]) -> list[Call]:
    """Send requests, all at once."""
    return await asyncio.gather(*(call(*request) for request in requests))


async def until_all_work(*callers: tuple[Api, str]) -> None:
    """Wait until every route has worked."""
    started = time.monotonic()
    waiting = requests_of(*callers)
    while waiting:
        assert time.monotonic() - started < RECOVERY, [request[1:] for request in waiting]
        calls = await call_all(waiting)
        waiting = [request for request, done in zip(waiting, calls, strict=True) if not done.works]
        await asyncio.sleep(0.05)


async def again(api: Api, path: str, body: Any = None) -> Any:
    """Send a request until it is not a 503, as a client would, and return its JSON."""
    deadline = time.monotonic() + 4 * RECOVERY  # it may begin before the fault
    while True:
        path = path.format(group_id="group")
        response = await (api.get(path) if body is None else api.post(path, body))
        if response.status != 503:
            assert response.status == 200
            return response.json
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_route_answers_in_time_whatever_the_database_does(
    make_api: MakeApi, proxy: FaultProxy, fault: Fault
) -> None:
    unhandled: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(str(context)))
    known, writer = await make_api(scopes=SCOPES), await make_api(scopes=SCOPES)
    new = await make_api(writer.organization_id, SCOPES)
    callers = []
    for api, caller in ((known, known), (writer, new)):
        written = await again(api, "/v1/outputs/group", BODIES["/v1/outputs/{group_id}"])
        callers.append((caller, written["items"][0]["output_id"]))
    await until_all_work(callers[0])
    # With this latency one round trip is in time, several are not.
    async with proxy.faulty(fault, latency=0.6 * TIMEOUT):
        # The first caller's token is remembered, the second's has to be looked up.
        calls = await call_all(requests_of(*callers))
    for done in calls:
        assert done.seconds < TIMEOUT + GRACE, done
        if done.response.status != 503:
            assert done.works and (fault == "latency" or done.path == TOKEN_ONLY), done
        else:
            assert done.response.problems() == [([], "unavailable")]
            assert done.response.headers["Retry-After"] == "1"
    assert any(done.response.status == 503 for done in calls)
    await until_all_work(*callers)
    gc.collect()  # a failed task that nobody asked for its result says so when it goes
    assert unhandled == []


COUNT = Command("findAndModify", "sequences")
STEPS = [
    {"/v1/local-storage": COUNT, "/v1/storage-state": COUNT, "/v1/reviews/{group_id}": COUNT},
    {
        "/v1/cookies": Command("update", "cookies"),
        "/v1/local-storage": Command("update", "local_storage"),
        "/v1/storage-state": Command("update", "local_storage"),
        "/v1/reviews/{group_id}": Command("insert", "reviews"),
    },
    {"/v1/storage-state": Command("update", "origins")},
]  # those of outputs are in the next test


@pytest.mark.parametrize("fault", ["lost", "cut"])
async def test_a_write_that_fails_at_any_step_is_a_503_and_works_when_sent_again(
    api: Api, proxy: FaultProxy, fault: Fault
) -> None:
    await again(api, "/readyz")
    for steps in STEPS:
        async with proxy.faulty(fault, lambda command, steps=steps: command in steps.values()):  # type: ignore[misc]
            failed = await asyncio.gather(*(call(api, "POST", path) for path in steps))
        for done in failed:
            assert done.response.status == 503, steps
            assert done.seconds < TIMEOUT + GRACE
        for path in steps:
            await again(api, path, BODIES[path])
    assert len(await api.ok("/v1/cookies")) == 2
    assert len(await api.ok("/v1/local-storage")) == 2
    assert len(await api.ok("/v1/reviews/group")) == 1


OUTPUT_STEPS = [
    Command("find", "outputs"),
    Command("findAndModify", "groups"),
    Command("insert", "outputs"),
    Command("update", "outputs"),
]


@pytest.mark.parametrize("fault", ["lost", "cut"])
async def test_a_reader_misses_nothing_of_writes_that_failed_and_were_sent_again(
    api: Api, proxy: FaultProxy, fault: Fault
) -> None:
    """The reply to the write or to the release is lost: the worst moments."""
    body = [make_output(1, is_approved=True), make_output(2), make_output(3, root_job_id="job-2")]
    readers: dict[str, tuple[dict[str, Any], int]] = {}
    for step in OUTPUT_STEPS:
        path = f"/v1/outputs/{step.name}-{step.collection}"
        await again(api, path, [make_output(1), make_output(2)])
        async with proxy.faulty(fault, lambda command, step=step: command == step):  # type: ignore[misc]
            assert (await api.post(path, body)).status == 503, step
        seen = {item["key_hash"]: item for item in (await again(api, path))["items"]}
        readers[path] = seen, max(item["id"] for item in seen.values())
        response = await again(api, path, body)
        assert {item["key_hash"] for item in response["items"]} == {"key-1", "key-2", "key-3"}
    deadline = time.monotonic() + RECOVERY
    for path, (seen, cursor) in readers.items():
        while len(seen) < 3 or not seen["key-1"]["is_approved"]:
            assert time.monotonic() < deadline, (path, seen.keys())
            for item in (await again(api, f"{path}?cursor={cursor}"))["items"]:
                seen[item["key_hash"]], cursor = item, item["id"]
            await asyncio.sleep(0.1)
        stored = {item["key_hash"]: item["id"] for item in await walk(api, path)}
        assert {key: item["id"] for key, item in seen.items()} == stored
        assert (await api.ok(path.replace("outputs", "groups", 1) + "/stats"))["items"] == 3


async def test_a_write_that_ran_out_of_time_does_not_lock_its_session(api: Api, proxy: FaultProxy) -> None:
    """Its transaction is open at that moment; the database itself would end it after a minute."""
    path, body = "/v1/sessions/shop/anna", {"user_data": {"account": "anna"}}

    async def until_it_works() -> None:
        async with asyncio.timeout(RECOVERY):
            while (await api.put(path, body)).status != 200:
                await asyncio.sleep(0.1)

    await until_it_works()
    async with proxy.faulty("lost", lambda command: command == Command("update", "session_secrets")):
        assert (await api.put(path, body)).status == 503
    await until_it_works()


async def test_writes_to_one_key_of_a_hanging_database_do_not_wait_for_each_other(api: Api, proxy: FaultProxy) -> None:
    """They cannot share a round: the last of them would wait for all the others' time."""
    await again(api, "/v1/outputs/group", [make_output(1)])
    async with proxy.faulty("hang"):
        versions = [api.post("/v1/outputs/group", [make_output(1, root_job_id=f"job-{n}")]) for n in range(8)]
        started = time.monotonic()
        responses = await asyncio.gather(*versions)
        assert time.monotonic() - started < TIMEOUT + GRACE
        assert {response.status for response in responses} == {503}
    await again(api, "/v1/outputs/group", [make_output(1, root_job_id="last")])


async def until_ready_to_serve(service: ServiceProcess) -> None:
    async with asyncio.timeout(RECOVERY), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{service.url}/readyz") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.05)


async def test_the_service_starts_before_its_database_and_works_once_that_is_there(
    mongo_url: str, proxy: FaultProxy, organization: int
) -> None:
    database = f"late{organization}"
    token = new_secret()  # well-formed and unknown: only the database can say so
    await proxy.start("refused")
    with ServiceProcess(proxy.url, mongo_database=database, mongo_timeout=TIMEOUT) as service:
        await asyncio.to_thread(service.wait_until_listening)
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
            for path, status in (("/healthz", 200), ("/readyz", 503), ("/v1/cookies", 503)):
                async with session.get(service.url + path) as response:
                    assert response.status == status
                    assert status == 200 or (await response.json())["detail"][0]["type"] == "unavailable"
            await proxy.heal()
            await until_ready_to_serve(service)
            async with session.get(f"{service.url}/v1/cookies") as response:
                assert response.status == 401
        assert await asyncio.to_thread(service.stop) == 0
    direct = Store.connect(Settings(mongo_database=database), mongo_url)
    assert "id" in await direct.database["outputs"].index_information()
    await direct.client.drop_database(database)
    await direct.close()


async def test_a_stalled_database_stops_neither_health_checks_nor_later_requests(
    mongo_url: str, proxy: FaultProxy, organization: int
) -> None:
    pool = 8
    token = await asyncio.to_thread(make_token, mongo_url, organization, "read", "write", "state")
    with ServiceProcess(proxy.url, mongo_timeout=TIMEOUT, mongo_pool=pool) as service:
        await asyncio.to_thread(service.wait_until_ready)
        tasks = f"/proc/{service.process.pid}/task"
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            service.url, connector=connector, headers={"Authorization": f"Bearer {token}"}
        ) as session:

            async def ask(number: int) -> tuple[int, float]:
                started = time.monotonic()
                if number % 2:
                    request = session.post(f"/v1/outputs/group-{number}", json=[make_output(number)])
                else:
                    group = "large?limit=100" if number % 4 else f"group-{number}"
                    request = session.get(f"/v1/outputs/{group}")
                async with request as response:
                    await response.read()
                    return response.status, time.monotonic() - started

            async def until_all_are_served() -> None:
                async with asyncio.timeout(RECOVERY):
                    while {status for status, _ in await asyncio.gather(*map(ask, range(20)))} != {200}:
                        await asyncio.sleep(0.05)

            large = [make_output(number, data={"text": "x" * 10_000}) for number in range(100)]
            async with session.post("/v1/outputs/large", json=large) as response:
                assert response.status == 200
            await until_all_are_served()
            threads = []
            async with proxy.faulty("hang"):
                stuck = [asyncio.create_task(ask(number)) for number in range(100)]
                await asyncio.sleep(0.1)
                health = []
                while not all(task.done() for task in stuck):
                    started = time.monotonic()
                    async with session.get("/healthz") as response:
                        assert response.status == 200
                    health.append(time.monotonic() - started)
                    threads.append(len(os.listdir(tasks)))
                    await asyncio.sleep(0.02)
                responses = [task.result() for task in stuck]
            assert {status for status, _ in responses} == {503}
            assert max(seconds for _, seconds in responses) < TIMEOUT + GRACE
            assert statistics.median(health) < TIMEOUT / 5
            # The driver's threads and its monitors, those for work off the loop, the main one.
            assert max(threads) <= pool + 16
            await until_ready_to_serve(service)
            await until_all_are_served()


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_stop_under_load_answers_every_request_that_was_accepted(
    mongo_url: str, organization: int, workers: int
) -> None:
    token = await asyncio.to_thread(make_token, mongo_url, organization, "read", "write", "state")
    headers = {"Authorization": f"Bearer {token}"}
    stopped = asyncio.Event()
    written: set[str] = set()
    last_words: list[str | None] = []

    async def load(service: ServiceProcess, number: int) -> None:
        """Write or read until nobody listens any more; any other failure ends the test."""
        connector = aiohttp.TCPConnector(force_close=number % 4 < 2)
        async with aiohttp.ClientSession(service.url, connector=connector, headers=headers) as session:
            turn = 0
            while True:
                turn += 1
                items = [make_output(1, key_hash=f"{number}-{turn}-{item}") for item in range(5)]
                write = number % 2
                path = "/v1/outputs/stopped"
                try:
                    async with session.post(path, json=items) if write else session.get(path) as response:
                        assert response.status == 200
                        await response.read()
                        if stopped.is_set():
                            last_words.append(response.headers.get("Connection"))
                except aiohttp.ClientConnectorError:
                    return
                if write:
                    written.update(item["key_hash"] for item in items)

    with ServiceProcess(mongo_url, workers=workers) as service:
        await asyncio.to_thread(service.wait_until_ready)
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        body = json.dumps([make_output(1, key_hash="slow")]).encode()
        head = f"POST /v1/outputs/stopped HTTP/1.1\r\nHost: x\r\nAuthorization: {headers['Authorization']}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
        writer.write(head.encode())
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body[:10])
        clients = [asyncio.create_task(load(service, number)) for number in range(12)]
        async with asyncio.timeout(SECONDS):
            while len(written) < 60:
                await asyncio.sleep(0.05)
        stopped.set()
        service.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(*clients), SECONDS)
        writer.write(body[10:])  # its body was on the way when the order came
        response = await asyncio.wait_for(reader.read(), SECONDS)
        assert response.startswith(b"HTTP/1.1 200") and b"connection: close" in response.lower()
        writer.close()
        assert await asyncio.to_thread(service.process.wait, SECONDS) == 0, service.log()[-3000:]
    assert "close" in last_words
    store = Store.connect(Settings(mongo_database="test"), mongo_url)
    found = store.database["outputs"].find({"organization_id": organization, "group_id": "stopped"}, {"key_hash": 1})
    assert {*written, "slow"} <= {document["key_hash"] async for document in found}
    await store.close()


async def test_nothing_acknowledged_is_lost_when_the_database_is_killed_under_load(
    settings: Settings, aiohttp_client: AiohttpClient, tmp_path: Path
) -> None:
    acknowledged: dict[str, int] = {}
    followed: dict[str, int] = {}
    over = False

    async def write(api: Api, number: int) -> None:
        turn = 0
        while not over:
            items = [make_output(1, key_hash=f"{number}-{turn}-{item}") for item in range(3)]
            # The same body until it is acknowledged, as a client would: what a 503 leaves may be stored or not.
            written = await again(api, "/v1/outputs/killed", items)
            acknowledged.update((item["key_hash"], item["id"]) for item in written["items"])
            turn += 1

    async def follow(api: Api, writers: list[asyncio.Task[None]]) -> None:
        """Follow until every writer has ended and all that it wrote was seen."""
        cursor = 0
        while not (all(writer.done() for writer in writers) and acknowledged.keys() <= followed.keys()):
            page = await api.get(f"/v1/outputs/killed?limit=1000&cursor={cursor}")
            for item in page.json["items"] if page.status == 200 else []:
                cursor = item["id"]
                followed[item["key_hash"]] = cursor
            await asyncio.sleep(0.05)

    with ExitStack() as engines:
        mongo = await asyncio.to_thread(engines.enter_context, local_mongo(tmp_path))
        store = Store.connect(settings, mongo.url)
        await until_ready(store)
        client: TestClient[Any, Any] = await aiohttp_client(Server(create_app(settings, store)))
        api = Api(client, await store.tokens.create(1, ["read", "write", "state"]), 1)
        writers = [asyncio.create_task(write(api, number)) for number in range(6)]
        follower = asyncio.create_task(follow(api, writers))
        async with asyncio.timeout(RECOVERY):
            while len(acknowledged) < 60:
                await asyncio.sleep(0.05)
        before = len(acknowledged)
        os.kill(mongo.pid, signal.SIGKILL)
        await asyncio.to_thread(engines.close)
        await asyncio.to_thread(engines.enter_context, local_mongo(tmp_path))  # on the port it had before
        back = time.monotonic()
        while len(acknowledged) < before + 30:
            assert time.monotonic() - back < RECOVERY
            await asyncio.sleep(0.05)
        over = True
        await asyncio.wait_for(asyncio.gather(*writers, follower), 2 * RECOVERY)
        stored = {item["key_hash"]: item["id"] for item in await walk(api, "/v1/outputs/killed?limit=1000")}
        assert stored == acknowledged
        assert followed == stored
        await client.close()  # while its database is there
