"""One process of the service for the tests of the client, and a client of an organization that nobody else has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sds_client import Client
from tests.support.processes import ServiceProcess, make_token


@pytest.fixture(scope="package")
def running(mongo_url: str) -> Iterator[ServiceProcess]:
    """A real process of the service, which ends with these tests: it would deliver to the webhooks of others."""
    with ServiceProcess(mongo_url) as process:
        yield process.wait_until_ready()


@pytest.fixture
def token(mongo_url: str, organization: int, running: ServiceProcess) -> str:
    """A token of an organization that nobody else has."""
    return make_token(mongo_url, organization, "read", "write", "delete", "state")


@pytest.fixture
def other_token(mongo_url: str, organization: int) -> str:
    """A token of a second organization."""
    return make_token(mongo_url, organization + 5000)


@pytest.fixture
def client(running: ServiceProcess, token: str) -> Iterator[Client]:
    with Client(running.url, token, patience=10) as client:
        yield client


@pytest.fixture
def environment(client: Client, running: ServiceProcess, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands find the address and the token of `client`."""
    monkeypatch.setenv("SDS_URL", running.url)
    monkeypatch.setenv("SDS_TOKEN", token)
