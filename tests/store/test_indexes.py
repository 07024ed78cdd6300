"""Indexes are made once, however long that takes; until then nothing that needs them is read or written."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import DuplicateKeyError

from service.settings import Settings
from service.store import Patch, Query, Selection, Store, StoreError, StoreUnavailable, Vault
from service.store.indexes import INDEXES
from tests.support.api import make_output
from tests.support.groups import DATABASE, Group
from tests.support.live_pages import reading
from tests.support.processes import SECONDS, ServiceProcess, make_token, wait_until

MONGO_TIMEOUT = 1.0
HANG = "hangAfterStartingIndexBuild"


@pytest.fixture
def client(mongo_url: str) -> Iterator[MongoClient[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](mongo_url) as client:
        yield client


@contextmanager
def held_builds(client: MongoClient[dict[str, Any]]) -> Iterator[None]:
    """Let no index build of a collection that holds something end, as if it held very much."""
    client.admin.command("configureFailPoint", HANG, mode="alwaysOn")
    try:
        yield
    finally:
        client.admin.command("configureFailPoint", HANG, mode="off")


def builds(client: MongoClient[dict[str, Any]], namespace: str) -> list[str]:
    """Return the index builds of a collection that the server has begun, by the last 1024 lines of its log."""
    lines = map(json.loads, client.admin.command("getLog", "global")["log"])
    begun = [line for line in lines if line["msg"] == "Index build: registering"]
    return [line["attr"]["buildUUID"]["uuid"]["$uuid"] for line in begun if line["attr"]["namespace"] == namespace]


def status(service: ServiceProcess, path: str, token: str = "", body: Any = None) -> int:
    request = urllib.request.Request(
        service.url + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def errors(service: ServiceProcess) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in service.log().splitlines() if line.startswith("{")]
    return [line for line in lines if line["level"].upper() in ("WARNING", "ERROR")]


@pytest.mark.slow
def test_an_index_build_longer_than_the_time_limit_is_done_once_and_for_all_processes(
    mongo_url: str, client: MongoClient[dict[str, Any]], organization: int
) -> None:
    name = f"{DATABASE}_slow_{organization}"
    # As after a restore by other tools: documents, and no index.
    client[name]["outputs"].insert_many({"organization_id": organization, "group_id": "old", "id": n} for n in range(9))
    token = make_token(mongo_url, organization, database=name)
    options: dict[str, Any] = {
        "mongo_database": name,
        "mongo_timeout": MONGO_TIMEOUT,
        "lease_seconds": 2,
        "secret_keys": Vault.new_key("k"),  # without a key the log says so
    }
    with ServiceProcess(mongo_url, **options) as first, ServiceProcess(mongo_url, **options) as second:
        with held_builds(client):
            for service in (first, second):
                service.wait_until_listening()
            wait_until(lambda: bool(builds(client, f"{name}.outputs")))
            begun_builds = set(builds(client, f"{name}.outputs"))
            for service in (first, second):
                for path in ("/v1/groups", "/v1/cookies"):
                    wait_until(lambda service=service, path=path: status(service, path, token) == 200)  # type: ignore[misc]
            begun = time.monotonic()
            while time.monotonic() < begun + 3 * MONGO_TIMEOUT:
                begun_builds.update(builds(client, f"{name}.outputs"))
                for service in (first, second):
                    assert status(service, "/healthz") == 200
                    assert status(service, "/readyz") == 503
                    assert status(service, "/v1/outputs/g", token) == 503
                    assert status(service, "/v1/outputs/g?job_id=j", token) == 503
                    assert status(service, "/v1/outputs/g", token, [make_output(1)]) == 503
                    # What needs no index of that collection goes on.
                    wait_until(lambda service=service: status(service, "/v1/cookies", token) == 200)  # type: ignore[misc]
        for service in (first, second):
            service.wait_until_ready()
            for path, body in (("/v1/outputs/g?job_id=j", None), ("/v1/outputs/g", [make_output(1)])):
                wait_until(lambda s=service, p=path, b=body: status(s, p, token, b) == 200)  # type: ignore[misc]
            # Nothing went wrong but the requests above, which were refused.
            assert {line["event"] for line in errors(service)} <= {"request failed"}
    assert set(client[name]["outputs"].index_information()) == {
        "_id_",
        *(i.document["name"] for i in INDEXES["outputs"]),
    }
    assert len(begun_builds.union(builds(client, f"{name}.outputs"))) == 1
    client.drop_database(name)


@pytest.mark.slow
async def test_services_that_start_at_the_same_moment_on_an_empty_database_are_all_ready(
    mongo_url: str, organization: int
) -> None:
    for attempt in range(2):
        settings = Settings(mongo_database=f"{DATABASE}_start_{organization}_{attempt}")
        stores = [Store.connect(settings, mongo_url) for _ in range(4)]
        await asyncio.gather(*(store.ping() for store in stores))  # connected: the race is for the database
        await asyncio.gather(*(store.ensure_indexes() for store in stores))
        assert all([await store.ping() for store in stores])
        await stores[0].client.drop_database(settings.mongo_database)
        for store in stores:
            await store.close()


@pytest.mark.slow
async def test_a_collection_whose_indexes_cannot_be_made_does_not_hold_up_the_others(
    mongo_url: str, organization: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store.connect(Settings(mongo_database=f"{DATABASE}_twice_{organization}"), mongo_url)
    same = {"organization_id": organization, "domain": "d", "path_key": "/", "name": "n"}
    await store.database["cookies"].insert_many([dict(same), dict(same)])
    with pytest.raises(StoreError):
        await store.ensure_indexes()
    assert not await store.ping()
    with pytest.raises(StoreUnavailable):
        await CALLS["set cookies"](store, organization)
    for name, call in CALLS.items():
        if "cookies" not in name:
            await call(store, organization)
    (line,) = [record for record in caplog.records if "stored twice" in record.getMessage()]
    assert line.__dict__["collection"] == "cookies"
    await store.client.drop_database(store.database.name)
    await store.close()


async def test_the_upkeep_goes_on_while_the_indexes_of_another_collection_cannot_be_made(
    mongo_url: str, organization: int
) -> None:
    store = Store.connect(Settings(mongo_database=f"{DATABASE}_broken_{organization}"), mongo_url)
    same = {"organization_id": organization, "domain": "d", "path_key": "/", "name": "n"}
    await store.database["cookies"].insert_many([dict(same), dict(same)])
    store.start_upkeep()
    group = Group(organization)
    async with asyncio.timeout(SECONDS):
        while not store.indexes.have("outputs", "groups", "jobs", "days", "versions"):
            await asyncio.sleep(0.01)
        await group.write(store, make_output(1, last_scraped_date="2020-01-01"))
        await store.groups.set(group.key, {"retention_days": 1})
        while await group.read(store):
            await asyncio.sleep(0.05)
    assert not store.indexes.have("cookies")
    await store.client.drop_database(store.database.name)
    await store.close()


IDENTITIES = ["cookies", "local_storage", "origins", "groups", "jobs", "days", "webhooks"]


@pytest.mark.parametrize("name", IDENTITIES)
async def test_the_database_refuses_a_second_record_of_the_same_identity(
    store: Store, organization: int, name: str
) -> None:
    identity = next(index.document["key"] for index in INDEXES[name] if index.document.get("unique"))
    record = {field: organization if field == "organization_id" else "same" for field in identity}
    await store.database[name].insert_one(dict(record))
    with pytest.raises(DuplicateKeyError):
        await store.database[name].insert_one(dict(record))


async def test_setting_a_local_storage_entry_in_two_processes_at_once_stores_it_once(
    store: Store, other: Store, organization: int
) -> None:
    entries = [{**ENTRY, "key": f"key-{number}"} for number in range(50)]
    await asyncio.gather(*(each.local_storage.set(organization, entries) for each in (store, other) * 4))
    where = {"organization_id": organization}
    assert await store.database["local_storage"].count_documents(where) == len(entries)


@pytest.mark.slow
async def test_indexes_that_vanish_are_noticed_and_nothing_is_written_without_them(
    mongo_url: str, organization: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store.connect(Settings(mongo_database=f"{DATABASE}_gone_{organization}"), mongo_url)
    await store.ensure_indexes()
    await store.indexes.verify()
    await store.client.drop_database(store.database.name)
    with pytest.raises(StoreUnavailable):
        await store.indexes.verify()
    assert not await store.ping()
    for call in CALLS.values():
        with pytest.raises(StoreUnavailable):
            await call(store, organization)
    assert "indexes have vanished" in caplog.text
    await store.ensure_indexes()
    await store.indexes.verify()
    assert await store.ping()
    await store.client.drop_database(store.database.name)
    await store.close()


@pytest.mark.slow
async def test_the_upkeep_makes_indexes_again_that_somebody_dropped(mongo_url: str, organization: int) -> None:
    store = Store.connect(Settings(mongo_database=f"{DATABASE}_dropped_{organization}"), mongo_url)
    store.start_upkeep()
    async with asyncio.timeout(SECONDS):
        await store.indexes.wait_until_ready()
        await store.database["outputs"].drop_index("id")
        while store.indexes.are_ready:
            await asyncio.sleep(0.01)
        while not store.indexes.are_ready:
            await asyncio.sleep(0.01)
    assert "id" in await store.database["outputs"].index_information()
    await store.client.drop_database(store.database.name)
    await store.close()


async def _follow(store: Store, group: Group) -> None:
    with reading(store, group) as reader:
        await reader.next(0.1)


# Everything that reads or writes a collection by its indexes.
Call = Callable[[Store, int], Awaitable[Any]]
ENTRY = {"domain": "d", "path": "/", "value": "v", "expires": None}
CALLS: dict[str, Call] = {
    "write outputs": lambda store, org: Group(org).write(store, make_output(1)),
    "patch outputs": lambda store, org: store.outputs.patch(Group(org).key, [Patch("key_hash", "k", True)]),
    "delete an output": lambda store, org: store.outputs.delete(Group(org).key, "id"),
    "delete outputs": lambda store, org: Group(org).delete_matching(store),
    "read outputs": lambda store, org: store.outputs.page(Group(org).key, Query()),
    "read an output": lambda store, org: store.outputs.one(Group(org).key, "id"),
    "the version of a group": lambda store, org: store.outputs.watermark(Group(org).key),
    "follow outputs": lambda store, org: _follow(store, Group(org)),
    "list groups": lambda store, org: store.groups.listing(org, "", None, None),
    "a group": lambda store, org: store.groups.one(Group(org).key),
    "set the retention": lambda store, org: store.groups.set(Group(org).key, {"retention_days": 1}),
    "remove a group": lambda store, org: store.groups.remove(Group(org).key, 1),
    "list jobs": lambda store, org: anext(store.jobs.batches(Group(org).key, 10), None),
    "collect counts of jobs": lambda store, org: store.jobs.collect(Group(org).key),
    "remove jobs": lambda store, org: store.jobs.remove(Group(org).key, 1),
    "add reviews": lambda store, org: store.reviews.add(
        Group(org).key, [{"job_id": "j", "status": "ok", "comment": "", "review_date": None}]
    ),
    "read reviews": lambda store, org: store.reviews.latest(Group(org).key, None, None),
    "reviews of jobs": lambda store, org: store.reviews.latest_of(Group(org).key, ["j"]),
    "remove reviews": lambda store, org: store.reviews.remove(Group(org).key),
    "set cookies": lambda store, org: store.cookies.set(
        org, [{**ENTRY, "name": "n", "secure": False, "http_only": False}]
    ),
    "list cookies": lambda store, org: store.cookies.page(org, Selection(), None, None),
    "delete cookies": lambda store, org: store.cookies.delete(org, Selection()),
    "set local storage": lambda store, org: store.local_storage.set(org, [{**ENTRY, "key": "k"}]),
    "list local storage": lambda store, org: store.local_storage.page(org, Selection(), 10, None),
    "delete local storage": lambda store, org: store.local_storage.delete(org, Selection()),
    "set origins": lambda store, org: store.origins.set(org, [{"origin": "o", "domain": "d", "value": "{}"}]),
    "list origins": lambda store, org: store.origins.page(org, Selection(), None, None),
    "versions of an output": lambda store, org: store.outputs.versions(Group(org).key, "id", 10, 0),
    "settings of a group": lambda store, org: store.groups.settings(Group(org).key),
    "declare a job": lambda store, org: store.crawls.declare(Group(org).key, "j", {"state": "running"}),
    "a job": lambda store, org: store.crawls.one(Group(org).key, "j"),
    "what a job did not see": lambda store, org: store.missing.of(Group(org).key, "j"),
    "make a webhook": lambda store, org: store.webhooks.create(
        org, {"url": "https://hooks.example/", "events": ["job.finished"], "group_id": None, "label": ""}
    ),
    "list webhooks": lambda store, org: store.webhooks.list(org),
    "a webhook": lambda store, org: store.webhooks.find(org, "w"),
    "delete a webhook": lambda store, org: store.webhooks.delete(org, "w"),
    "messages to a webhook": lambda store, org: store.webhooks.deliveries.recent(org, "w"),
}


@pytest.mark.parametrize("name", CALLS)
async def test_nothing_is_read_or_written_before_the_indexes_of_its_collection_are_there(
    mongo_url: str, organization: int, name: str
) -> None:
    store = Store.connect(Settings(mongo_database=f"{DATABASE}_unindexed"), mongo_url)
    with pytest.raises(StoreUnavailable, match="indexes are being built"):
        await CALLS[name](store, organization)
    assert await store.database.list_collection_names() == []
    await store.close()


@pytest.mark.parametrize("name", CALLS)
async def test_the_same_is_done_once_they_are_there(store: Store, organization: int, name: str) -> None:
    await CALLS[name](store, organization)
