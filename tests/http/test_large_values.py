"""Lists of large and of many records are read a megabyte at a time, off the event loop, by a real process."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from scripts.attack.probe import Probe
from service.settings import Settings
from service.store import Group, Store, Vault
from tests.support.processes import ServiceProcess, make_token

# The probe comes late itself where others compete for the cores.
pytestmark = pytest.mark.alone

MEGABYTE = 2**20
ORGANIZATION = 8_000_000_101
KEY = Vault.new_key("large")
VALUES = 24
REVIEWS = 50_000
STALL, GROWTH = 0.1, 100 * MEGABYTE


@pytest.fixture(scope="module")
def service(mongo_url: str) -> Iterator[ServiceProcess]:
    asyncio.run(fill(mongo_url))
    with ServiceProcess(mongo_url, secret_keys=KEY) as service:
        yield service.wait_until_ready()


async def fill(mongo_url: str) -> None:
    store = Store.connect(
        Settings(mongo_database="test", mongo_timeout=60, lease_seconds=90, secret_keys=KEY), mongo_url
    )
    await store.ensure_indexes()
    for n in range(VALUES):
        entry = {"domain": f"d{n % 3}.example", "key": f"{n:04}", "path": "/", "value": "x" * 5 * MEGABYTE}
        await store.local_storage.set(ORGANIZATION, [{**entry, "expires": None}])
        await store.origins.set(
            ORGANIZATION,
            [
                {
                    "origin": f"https://d{n}.example",
                    "domain": f"d{n}.example",
                    "value": json.dumps({"indexedDB": ["y" * 900_000]}),
                }
            ],
        )
    reviews = [
        {"job_id": f"job-{n}", "status": "approved", "comment": "Looks good.", "review_date": None}
        for n in range(REVIEWS)
    ]
    for start in range(0, REVIEWS, 5000):
        await store.reviews.add(Group(ORGANIZATION, "g"), reviews[start : start + 5000])
    await store.close()


@pytest.fixture(scope="module")
def token(mongo_url: str) -> str:
    return make_token(mongo_url, ORGANIZATION)


def get(service: ServiceProcess, token: str, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"})
    response = connection.getresponse()
    assert response.status == 200
    body = response.read()
    connection.close()
    return body


@pytest.mark.parametrize("path", ["/v1/local-storage", "/v1/storage-state", "/v1/reviews/g"])
def test_listing_much_neither_stalls_nor_fills_the_process(service: ServiceProcess, token: str, path: str) -> None:
    get(service, token, "/v1/cookies")
    for _ in range(3):  # what stalls does so each time; a busy machine only now and then
        with Probe(service.port, service.process.pid) as probe:
            body = get(service, token, path)
        assert check(path, json.loads(body))
        assert probe.growth < GROWTH, probe
        if probe.stall < STALL:
            break
    assert probe.stall < STALL, probe


def check(path: str, value: Any) -> bool:
    if path == "/v1/reviews/g":
        return len({review["job_id"] for review in value}) == REVIEWS
    if path == "/v1/local-storage":
        return [len(entry["value"]) for entry in value] == [5 * MEGABYTE] * VALUES
    origins = {origin["origin"]: origin for origin in value["origins"]}
    assert len(value["origins"]) == len(origins) == VALUES
    assert sum(len(origin["localStorage"]) for origin in origins.values()) == VALUES
    return all(len(origin["indexedDB"][0]) == 900_000 for origin in origins.values())
