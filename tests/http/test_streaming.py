"""Long lists are streamed: memory stays bounded, slow readers are waited for, HEAD sends no body."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from service.settings import Settings
from service.store import Store
from tests.support.api import Api, make_cookie, make_entry
from tests.support.limits import Small
from tests.support.processes import ServiceProcess, make_token

# What these tests read takes seconds to load: once, not in every test process.
pytestmark = pytest.mark.xdist_group("streaming")

MANY = 100_000
MONGO_TIMEOUT = 4  # of the service, in seconds
MEGABYTE = 1024 * 1024
ORGANIZATION = 8_000_000_001


def cookie_document(n: int) -> dict[str, Any]:
    return {
        "organization_id": ORGANIZATION,
        "name": f"cookie-{n:06}",
        "value": "v" * 100,
        "url": "https://shop.example/",
        "domain": ".shop.example",
        "path": "/",
        "path_key": "/",
        "expires": -1,
        "http_only": False,
        "secure": True,
        "extra": {},
    }


def entry_document(n: int) -> dict[str, Any]:
    date = datetime(2026, 1, 31, tzinfo=UTC)
    return {
        "organization_id": ORGANIZATION,
        "domain": "shop.example",
        "key": f"key-{n:06}",
        "value": "v" * 100,
        "expires": None,
        "id": n,
        "group_id": 0,
        "path": "/",
        "create_date": date,
        "update_date": date,
        "extra": {},
    }


async def load(mongo_url: str) -> None:
    """Put the records in as the store would, 10,000 at a time."""
    store = Store.connect(Settings(mongo_database="test", mongo_timeout=60), mongo_url)
    await store.ensure_indexes()
    for name, make in (("cookies", cookie_document), ("local_storage", entry_document)):
        for start in range(0, MANY, 10_000):
            await store.database[name].insert_many([make(n) for n in range(start, start + 10_000)], ordered=False)
    await store.close()


@pytest.fixture(scope="module")
def service(mongo_url: str) -> Iterator[ServiceProcess]:
    asyncio.run(load(mongo_url))
    with ServiceProcess(mongo_url, mongo_timeout=MONGO_TIMEOUT) as service:
        yield service.wait_until_ready()


@pytest.fixture(scope="module")
def token(mongo_url: str) -> str:
    return make_token(mongo_url, ORGANIZATION)


def peak(service: ServiceProcess) -> int:
    """Return the most memory the process ever had resident."""
    text = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) * 1024


def connect(service: ServiceProcess) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
@pytest.mark.parametrize(("path", "field"), [("/v1/cookies", "name"), ("/v1/local-storage", "key")])
def test_listing_100000_records_grows_the_process_by_less_than_50_mb(
    service: ServiceProcess, token: str, path: str, field: str, encoding: str
) -> None:
    headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": encoding}
    connection = connect(service)
    connection.request("GET", f"{path}?domain=nothing", headers=headers)
    connection.getresponse().read()
    before = peak(service)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    assert response.status == 200
    body = response.read()
    grown = peak(service) - before
    records = json.loads(gzip.decompress(body) if encoding == "gzip" else body)
    assert [record[field][-6:] for record in records] == [f"{n:06}" for n in range(MANY)]
    assert grown < 50 * MEGABYTE
    connection.close()


@pytest.mark.slow
def test_a_reader_slower_than_the_databases_time_limit_gets_everything(service: ServiceProcess, token: str) -> None:
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        head = f"GET /v1/cookies HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        size, pauses, end = 0, 0, b""
        while piece := connection.recv(MEGABYTE):
            size += len(piece)
            end = (end + piece)[-16:]
            if size > 4 * MEGABYTE and not pauses:
                pauses += 1
                # That limit is for the database, not for the reader.
                time.sleep(MONGO_TIMEOUT + 0.5)
    assert pauses == 1
    assert end.endswith(b"]\r\n0\r\n\r\n")


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
@pytest.mark.parametrize("path", ["/v1/cookies", "/v1/local-storage", "/v1/storage-state"])
def test_head_of_a_long_list_sends_no_body_and_the_connection_goes_on(
    service: ServiceProcess, token: str, path: str, encoding: str
) -> None:
    headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": encoding}
    connection = connect(service)
    connection.request("HEAD", path, headers=headers)
    response = connection.getresponse()
    assert (response.status, response.read()) == (200, b"")
    assert response.getheader("Content-Type") == "application/json"
    assert response.getheader("Content-Encoding") == (None if encoding == "identity" else "gzip")
    # On the same connection, which nothing left over may disturb.
    connection.request("GET", "/healthz")
    assert json.loads(connection.getresponse().read()) == {"status": "ok"}
    connection.close()


async def test_a_list_of_several_batches_is_one_json_array(api: Api, small: Small) -> None:
    small(first_records=10, chunk_bytes=2000)
    for path, make, key in (("/v1/cookies", make_cookie, "name"), ("/v1/local-storage", make_entry, "key")):
        await api.ok(path, [make(**{key: f"{n:04}"}) for n in range(35)])
        assert [record[key] for record in await api.ok(path)] == [f"{n:04}" for n in range(35)]
