"""A real MongoDB for each test process, one database in it, and a new organization for each test.

Everything in the service is scoped to an organization, so a new one is all the isolation a test needs.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from aiohttp import web, web_app
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from mongomock_motor import AsyncMongoMockClient
from pytest_aiohttp.plugin import AiohttpClient

from service.app import create_app
from service.http.keys import SETTINGS
from service.runtime.local_mongo import local_mongo
from service.runtime.server import Runner
from service.settings import Settings
from service.store import Store
from service.webhooks import COURIER
from tests.support.api import Api
from tests.support.connections import Background, begin_if_wanted, make_indexes_once, shared_client
from tests.support.fault_proxy import FaultProxy
from tests.support.limits import machine_clock, small  # noqa: F401  fixtures

# The same examples in every run, so that a failure is the change's and not the dice's; and no time limits, because
# machines are shared. `make test-all` takes `thorough`; `--hypothesis-profile=explore` looks further.
_calm = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
hypothesis_settings.register_profile("suite", max_examples=15, derandomize=True, **_calm)  # type: ignore[arg-type]
hypothesis_settings.register_profile("thorough", max_examples=100, derandomize=True, **_calm)  # type: ignore[arg-type]
hypothesis_settings.register_profile("explore", max_examples=5000, **_calm)  # type: ignore[arg-type]
hypothesis_settings.load_profile("suite")

# A shell starts background jobs with SIGINT ignored, and the processes that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_organizations = itertools.count(os.getpid() * 10_000)

FAIL_POINTS = ("--setParameter", "enableTestCommands=1")

MakeApi = Callable[..., Awaitable[Api]]


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking through three thousand collected tests again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def mongo_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a replica set of one on a temporary folder; `TEST_MONGO_URL` names another database."""
    given = os.environ.get("TEST_MONGO_URL")
    if given:
        with shared_client(given):
            yield given
        return
    with (
        local_mongo(Path(tmp_path_factory.mktemp("mongo")), options=FAIL_POINTS) as mongo,
        shared_client(mongo.url),
    ):
        yield mongo.url


@pytest.fixture
def settings() -> Settings:
    """The settings of the service under test, patient with a busy machine; a module may override this fixture."""
    return Settings(mongo_database="test", mongo_timeout=20.0, lease_seconds=60.0)


@pytest.fixture
async def nothing_due(settings: Settings, mongo_url: str) -> None:
    """Leave no work for the upkeep from the tests before."""
    store = Store.connect(settings, mongo_url)
    await store.database["groups"].update_many({"due": {"$exists": True}}, {"$unset": {"due": ""}})
    await store.close()


@pytest.fixture
def upkeep(nothing_due: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the upkeep run, as it does in a service: for tests that wait for what it does."""
    monkeypatch.setattr(Background, "wanted", {"upkeep", *Background.wanted})


@pytest.fixture
def courier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let messages to webhooks be sent, as a service does."""
    monkeypatch.setattr(Background, "wanted", {"courier", *Background.wanted})


@pytest.fixture
async def store(settings: Settings, mongo_url: str) -> AsyncIterator[Store]:
    """A store on the real engine."""
    store = Store.connect(settings, mongo_url)
    await make_indexes_once(store, mongo_url)
    yield store
    await store.close()


@pytest.fixture
async def wire(mongo_url: str) -> AsyncIterator[FaultProxy]:
    """What `wired` sends passes here."""
    async with FaultProxy(mongo_url).running() as wire:
        yield wire


@pytest.fixture
async def wired(settings: Settings, mongo_url: str, wire: FaultProxy) -> AsyncIterator[Store]:
    """A store whose commands a test may stop, refuse or lose on their way: `wire.before("find", "outputs", cut)`."""
    store = Store.connect(settings, wire.url)
    await make_indexes_once(store, mongo_url)
    yield store
    wire.clear()
    await store.close()


@pytest.fixture
def mock_store(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store on mongomock, for what does not depend on the database."""
    store = Store(settings, AsyncMongoMockClient(tz_aware=True))
    # mongomock knows neither partial indexes nor replica sets.
    monkeypatch.setattr(store.indexes, "require", lambda *collections: None)
    monkeypatch.setattr(store.layout, "check", AsyncMock())
    return store


@pytest.fixture
def one_day() -> None:
    """Begin no test shortly before midnight UTC that holds counts against today's date."""
    left = 86_400 - time.time() % 86_400
    if left < 15:
        time.sleep(left)


@pytest.fixture
def organization() -> int:
    """An organization that nobody else has."""
    return next(_organizations)


@pytest.fixture
def app(settings: Settings, store: Store) -> Iterator[web.Application]:
    app = create_app(settings, store)
    begin_if_wanted(app[COURIER], "run", "courier")
    yield app
    # aiohttp keeps the last 1,024 handlers with their applications: half a gigabyte, which each collection walks.
    web_app._cached_build_middleware.cache_clear()


class Server(TestServer):
    """The application on the server it has in production."""

    async def _make_runner(self, **_: Any) -> Runner:
        return Runner(self.app, self.app[SETTINGS])


@pytest.fixture
async def make_api(app: web.Application, store: Store, aiohttp_client: AiohttpClient) -> MakeApi:
    """Return a function that makes a caller with a token of its own: `make_api(scopes=["read"])`."""
    client: TestClient[Any, Any] = await aiohttp_client(Server(app))

    async def make(organization_id: int | None = None, scopes: list[str] | None = None, **token: Any) -> Api:
        organization_id = next(_organizations) if organization_id is None else organization_id
        secret = await store.tokens.create(organization_id, scopes or ["read", "write", "delete", "state"], **token)
        return Api(client, secret, organization_id)

    return make


@pytest.fixture
async def wired_api(settings: Settings, wired: Store, aiohttp_client: AiohttpClient, organization: int) -> Api:
    """A caller of an application whose store is `wired`."""
    app = create_app(settings, wired)
    begin_if_wanted(app[COURIER], "run", "courier")
    client: TestClient[Any, Any] = await aiohttp_client(Server(app))
    return Api(client, await wired.tokens.create(organization, ["read", "write", "delete", "state"]), organization)


@pytest.fixture
async def api(make_api: MakeApi, organization: int) -> Api:
    """A caller of the test's organization who may read, write and delete."""
    return await make_api(organization)


@pytest.fixture
async def stranger(make_api: MakeApi) -> Api:
    """A caller of another organization."""
    return await make_api()
