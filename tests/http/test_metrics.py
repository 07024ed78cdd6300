"""GET /metrics: what is counted, for one process and for several."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from service import __version__
from service.app import create_app
from service.capacity.work import Gates
from service.http.metrics import Metrics
from service.settings import Settings
from service.store import Store, new_secret
from service.store.outputs.counts import Change
from tests.conftest import MakeApi, Server
from tests.support.api import Api, make_output
from tests.support.capacity import request_of
from tests.support.groups import Group, open_batch
from tests.support.processes import SECONDS, ServiceProcess
from tests.support.raw import connect, exchange
from tests.support.receiver import receiving
from tests.support.workers import pausing


def parse(text: str) -> dict[str, float]:
    """Return the samples by name and labels, as they stand in the text; each family and each sample stands once."""
    samples: dict[str, float] = {}
    types = []
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            types.append(line.split()[2])
        elif line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            assert name not in samples, line
            samples[name] = float(value)
    assert len(types) == len(set(types))
    assert not any("_created" in name or "pid=" in name for name in samples)
    return samples


async def metrics(api: Api) -> dict[str, float]:
    async with api.client.get("/metrics") as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        return parse(await response.text())


async def eventually(read: Callable[[], Any], name: str, holds: Callable[[float], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds((await read()).get(name, 0.0)):
            await asyncio.sleep(0.1)


async def test_requests_are_counted_by_method_route_and_status(api: Api) -> None:
    await api.ok("/v1/outputs/secret-group")
    await api.ok("/v1/outputs/another")
    await api.get("/v1/outputs/another?limit=0")
    await api.get("/nowhere/at/all")
    async with api.client.get("/v1/cookies") as response:
        assert response.status == 401
    found = await metrics(api)
    assert found['sds_requests_total{method="GET",route="/v1/outputs/{group_id}",status="200"}'] == 2
    assert found['sds_requests_total{method="GET",route="/v1/outputs/{group_id}",status="422"}'] == 1
    assert found['sds_requests_total{method="GET",route="unmatched",status="404"}'] == 1
    assert found['sds_requests_total{method="GET",route="/v1/cookies",status="401"}'] == 1
    assert not any("secret-group" in name for name in found)


async def test_the_response_time_is_a_histogram_by_route(api: Api) -> None:
    for _ in range(3):
        await api.ok("/v1/cookies")
    found = await metrics(api)
    labels = 'kind="request",method="GET",route="/v1/cookies"'
    assert found[f"sds_request_seconds_count{{{labels}}}"] == 3
    beyond = labels.replace(",method", ',le="+Inf",method')
    assert found[f"sds_request_seconds_bucket{{{beyond}}}"] == 3
    assert 0 < found[f"sds_request_seconds_sum{{{labels}}}"] < 60


async def test_long_polls_and_exports_have_times_of_their_own(api: Api) -> None:
    await api.ok("/v1/outputs/g")
    await api.ok("/v1/outputs/g?wait=0")
    await api.get("/v1/outputs/g/export?format=ndjson")
    found = await metrics(api)
    kinds = {name.split('"')[1] for name in found if name.startswith("sds_request_seconds_count") and "outputs" in name}
    assert kinds == {"request", "wait", "stream"}


async def test_commands_of_the_database_are_timed_by_name(api: Api) -> None:
    await api.ok("/v1/outputs/g", [make_output(1)])
    await api.ok("/v1/outputs/g")
    found = await metrics(api)
    assert found['sds_database_seconds_count{command="find"}'] >= 1
    assert found['sds_database_seconds_count{command="findAndModify"}'] >= 1
    assert 0 < found['sds_database_seconds_sum{command="find"}'] < 60


async def test_sessions_are_counted_by_state_and_requests_that_got_none(
    make_api: MakeApi, organization: int, store: Store
) -> None:
    api = await make_api(organization, ["read", "write", "state"])
    for name, given in {"a": {}, "b": {}, "c": {"state": "needs_login"}}.items():
        await api.put(f"/v1/sessions/shop/{name}", given)
    await api.ok("/v1/sessions/shop/lease", {"name": "a"})
    for _ in range(2):
        assert (await api.post("/v1/sessions/shop/lease", {"name": "a"})).status == 409
    for state in ("leased", "ready", "needs_login"):
        stored = ["leased", "shared"] if state == "leased" else [state]
        number = await store.database["sessions"].count_documents({"state": {"$in": stored}})  # of all organizations
        assert number
        await eventually(lambda: metrics(api), f'sds_sessions{{state="{state}"}}', float(number).__eq__)
    assert (await metrics(api))[f'sds_no_session_total{{organization="{organization}"}}'] == 2


async def test_the_use_of_a_resource_is_shown_beside_its_limit(api: Api, settings: Settings) -> None:
    found = await metrics(api)
    limits = {
        "receiving": settings.max_bytes_in_flight // 4,
        "working": settings.max_bytes_in_flight // 2,
        "sending": settings.max_bytes_in_flight // 4,
        "searches": 5,
        "reads": 5,
        "database": settings.mongo_pool,
    }
    for resource, limit in limits.items():
        assert found[f'sds_resource_limit{{resource="{resource}"}}'] == limit
        assert 0 <= found[f'sds_resource_used{{resource="{resource}"}}'] <= limit


@pytest.mark.slow
async def test_each_503_has_a_reason(settings: Settings) -> None:
    settings = dataclasses.replace(settings, mongo_timeout=0.3)
    store = Store.connect(settings, "mongodb://127.0.0.1:9/?directConnection=true")
    async with TestClient(Server(create_app(settings, store))) as client:
        for path, token in (("/readyz", ""), ("/v1/cookies", new_secret())):
            async with client.get(path, headers={"Authorization": f"Bearer {token}"}) as response:
                assert response.status == 503
        async with client.get("/metrics") as response:
            found = parse(await response.text())
    assert found['sds_unavailable_total{reason="not_ready"}'] == 1
    assert found['sds_unavailable_total{reason="database"}'] == 1


async def test_openmetrics_is_given_to_clients_that_accept_it(api: Api) -> None:
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    async with api.client.get("/metrics", headers=accept) as response:
        assert response.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert (await response.text()).endswith("# EOF\n")


@pytest.mark.parametrize(
    "accept",
    [b"text/plain; version=x", b"application/openmetrics-text; version=abc", b"text/plain; version=1.0.0.x\xff=\xff"],
)
async def test_an_unreadable_accept_header_gets_the_default_format(api: Api, accept: bytes) -> None:
    response = await exchange(api, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: " + accept + b"\r\n\r\n")
    assert response.status == 200
    headers = {name.lower(): value for name, value in response.headers.items()}
    assert headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_the_version_and_the_process_are_shown(api: Api) -> None:
    found = await metrics(api)
    assert any(name.startswith("sds_build_info") and f'version="{__version__}"' in name for name in found)
    assert found["sds_workers"] == 1
    assert found['process_resident_memory_bytes{worker="0"}'] > 10_000_000


async def test_organizations_beyond_the_first_hundred_are_counted_together(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Metrics(settings, store, Gates(settings.max_bytes_in_flight))
    for organization in range(150):
        with request_of(organization):
            counted.count_own("sds_items_out_total", amount=2)
    found = parse(counted.render("", None, {})[0].decode())
    assert len([name for name in found if name.startswith("sds_items_out_total")]) == 101
    assert found['sds_items_out_total{organization="other"}'] == 100


async def test_a_made_up_method_makes_no_series_of_its_own(api: Api) -> None:
    for method in ("PROPFIND", "LOCK", "SEARCH"):
        await api.request(method, "/v1/cookies")
    found = await metrics(api)
    assert found['sds_requests_total{method="OTHER",route="unmatched",status="405"}'] == 3


async def test_items_are_counted_in_and_out(api: Api) -> None:
    items = [make_output(n) for n in range(5)]
    await api.ok("/v1/outputs/g", items)
    await api.ok("/v1/outputs/g", [*items[:2], make_output(2, data={"new": 1})])
    await api.ok("/v1/outputs/g?limit=3")
    lines = await api.get("/v1/outputs/g/export?format=ndjson")
    assert lines.body.count(b"\n") == 5
    found = await metrics(api)
    organization = f'organization="{api.organization_id}"'
    assert found[f'sds_items_in_total{{{organization},result="created"}}'] == 5
    assert found[f'sds_items_in_total{{{organization},result="updated"}}'] == 1
    assert found[f'sds_items_in_total{{{organization},result="unchanged"}}'] == 2
    assert found[f"sds_items_out_total{{{organization}}}"] == 8


class TestBatches:
    @pytest.fixture
    def settings(self, organization: int) -> Settings:
        """A database without the batches of other tests, and a lease that ends none of these."""
        return Settings(mongo_database=f"batches{organization}", lease_seconds=120)

    @pytest.mark.slow
    async def test_batches_in_flight_and_the_age_of_the_oldest(self, api: Api, store: Store) -> None:
        before = await metrics(api)
        assert (before["sds_database_up"], before["sds_batches_in_flight"]) == (1, 0)
        batches = [await open_batch(store, Group(api.organization_id, name), 3) for name in "gh"]
        await eventually(lambda: metrics(api), "sds_oldest_batch_seconds", lambda seconds: seconds >= 0.25)
        assert (await metrics(api))["sds_batches_in_flight"] == 2
        for batch in batches:
            await store.outputs.ids.turn(batch.group, (batch, Change()), 0)
        await eventually(lambda: metrics(api), "sds_batches_in_flight", lambda count: count == 0)
        await store.client.drop_database(store.database.name)


class TestWebhooks:
    @pytest.fixture
    def settings(self, organization: int) -> Settings:
        """A database without the webhooks of other tests, whose messages would be counted too."""
        return Settings(mongo_database=f"webhooks{organization}", webhook_private=True)

    @pytest.mark.slow
    @pytest.mark.usefixtures("courier")
    async def test_attempts_to_deliver_a_webhook_are_counted_by_result(self, api: Api, store: Store) -> None:
        delivered, failed = (f'sds_webhook_deliveries_total{{result="{name}"}}' for name in ("delivered", "failed"))
        async with receiving() as receiver:
            webhook = await api.ok("/v1/webhooks", {"url": receiver.url, "events": ["group.changed"]})
            found = await metrics(api)
            assert (found[delivered], found[failed]) == (0, 0)
            await api.ok("/v1/outputs/g", [make_output(1)])
            await eventually(lambda: metrics(api), delivered, lambda count: count == 1)
            receiver.status = 500
            for _ in range(2):
                await api.post(f"/v1/webhooks/{webhook['webhook_id']}/test")
            found = await metrics(api)
            assert (found[delivered], found[failed]) == (1, 2)
        await store.client.drop_database(store.database.name)


async def test_pool_use_and_loop_lag_are_measured(api: Api) -> None:
    await api.ok("/v1/cookies")
    await eventually(lambda: metrics(api), "sds_event_loop_lag_seconds_count", lambda value: value >= 2)
    found = await metrics(api)
    assert found['sds_resource_used{resource="database"}'] >= 0
    assert found['sds_resource_used{resource="working"}'] == 0


async def test_a_stall_of_the_loop_shows(api: Api) -> None:
    time.sleep(0.6)  # at least 0.35 longer than any sample is due

    async def slow() -> dict[str, float]:
        found = await metrics(api)
        return {
            "slow": found["sds_event_loop_lag_seconds_count"] - found['sds_event_loop_lag_seconds_bucket{le="0.25"}']
        }

    await eventually(slow, "slow", lambda value: value >= 1)


async def test_connections_at_work_are_counted(store: Store) -> None:
    seen: list[str] = []
    store.pool.on_command = lambda name, seconds, failed: seen.append(name)
    most, pings = 0, [asyncio.ensure_future(store.database.command("ping")) for _ in range(20)]
    while not all(ping.done() for ping in pings):
        most = max(most, store.pool.in_use)
        await asyncio.sleep(0)
    await asyncio.gather(*pings)
    assert seen.count("ping") == 20
    assert most > 0 and store.pool.in_use == 0


@pytest.mark.slow
async def test_without_a_database_all_the_rest_is_shown(settings: Settings) -> None:
    store = Store.connect(settings, "mongodb://127.0.0.1:9/?directConnection=true")
    async with TestClient(Server(create_app(settings, store))) as client:
        async with client.get("/healthz") as response:
            assert response.status == 200
        async with asyncio.timeout(60), client.get("/metrics") as response:
            assert response.status == 200
            found = parse(await response.text())
    assert found["sds_database_up"] == 0
    assert "sds_batches_in_flight" not in found
    assert found['sds_requests_total{method="GET",route="/healthz",status="200"}'] == 1


async def test_a_client_that_leaves_before_its_body_is_in_is_no_error_of_the_service(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    head = f"POST /v1/outputs/lamps HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.token}\r\n"
    async with connect(api) as connection:
        await connection.send(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n[".encode())
        await eventually(lambda: metrics(api), 'sds_resource_used{resource="receiving"}', lambda size: size > 0)
        connection.writer.transport.abort()
    left = 'sds_requests_total{method="POST",route="/v1/outputs/{group_id}",status="499"}'
    await eventually(lambda: metrics(api), left, lambda count: count == 1)
    assert not any('status="500"' in name for name in await metrics(api))
    assert "request failed" not in caplog.text


def fetch(service: ServiceProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"{service.url}/metrics", timeout=SECONDS) as response:
        return parse(response.read().decode())


# Nobody but the test sends these: the supervisor looks at /healthz itself.
REFUSED = 'sds_requests_total{method="GET",route="/v1/token",status="401"}'


def send_refused(service: ServiceProcess, times: int) -> None:
    for _ in range(times):  # each on a connection of its own: both workers get some
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{service.url}/v1/token", timeout=SECONDS)


@pytest.mark.slow
def test_several_workers_count_together_also_when_one_is_killed(mongo_url: str) -> None:
    with ServiceProcess(mongo_url, workers=2) as service:
        first = service.wait_for("listening", 2)[0]["pid"]
        send_refused(service, 40)
        assert fetch(service)[REFUSED] == 40
        os.kill(first, signal.SIGKILL)
        service.wait_for("listening", 3)
        send_refused(service, 10)
        found = fetch(service)
        assert found[REFUSED] == 50  # nothing that the dead worker counted is lost
        assert found['sds_resource_used{resource="working"}'] == 0
        assert found["sds_worker_restarts_total"] == 1
        assert found["sds_workers"] == 2
        assert found['sds_resource_limit{resource="reads"}'] == 2 * 5


@pytest.mark.slow
def test_a_worker_that_is_gone_uses_nothing_and_its_counts_stay(mongo_url: str) -> None:
    with ServiceProcess(mongo_url, workers=2, entry=pausing(10 * SECONDS)) as service:
        first = service.wait_for("listening", 2)[0]["pid"]
        send_refused(service, 20)
        os.kill(first, signal.SIGKILL)
        service.wait_for("a worker died")
        found = fetch(service)
        assert found[REFUSED] == 20
        assert found["sds_workers"] == 1
        assert found['sds_resource_limit{resource="reads"}'] == 5
