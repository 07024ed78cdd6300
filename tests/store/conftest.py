"""Two stores on one database: two processes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest
from pymongo import MongoClient

from service.settings import Settings
from service.store import Store
from tests.support.commands import Commands, listening_store
from tests.support.connections import make_indexes_once
from tests.support.groups import DATABASE, LEASE, Group, opened


@pytest.fixture(scope="session", autouse=True)
def no_database_stays() -> Iterator[None]:
    """Drop the databases of these tests where the server stays."""
    yield
    if url := os.environ.get("TEST_MONGO_URL"):
        with MongoClient[dict[str, Any]](url) as client:
            for name in client.list_database_names():
                if name.startswith(DATABASE):
                    client.drop_database(name)


@pytest.fixture
def settings() -> Settings:
    return Settings(mongo_database=DATABASE, lease_seconds=LEASE)


@pytest.fixture
async def other(settings: Settings, mongo_url: str) -> AsyncIterator[Store]:
    """The store of a second process."""
    other = Store.connect(settings, mongo_url)
    await make_indexes_once(other, mongo_url)
    yield other
    await other.close()


@pytest.fixture
def commands() -> Commands:
    return Commands()


@pytest.fixture
async def listening(settings: Settings, mongo_url: str, commands: Commands) -> AsyncIterator[Store]:
    """A store whose commands are seen."""
    store = listening_store(settings, mongo_url, commands)
    await make_indexes_once(store, mongo_url)
    commands.clear()
    yield store
    await store.close()


@pytest.fixture
async def apart(mongo_url: str, settings: Settings, organization: int) -> AsyncIterator[Settings]:
    """A database of its own, for what touches every organization."""
    apart = replace(settings, mongo_url=mongo_url, mongo_database=f"{DATABASE}_{organization}")
    store = await opened(apart, "")
    yield apart
    await store.client.drop_database(apart.mongo_database)
    await store.close()


@pytest.fixture
def group(organization: int) -> Group:
    return Group(organization)
