"""Which version's layout a database has: marked, refused where it differs, upgraded on demand."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from service.settings import Settings
from service.store import DatabaseRefused, Store, StoreUnavailable
from service.store.layout import VERSION
from tests.support.api import make_output
from tests.support.groups import DATABASE, Group


@pytest.fixture
def settings(organization: int) -> Settings:
    """A database of its own for each test."""
    return Settings(mongo_database=f"{DATABASE}_layout_{organization}")


@pytest.fixture
async def store(settings: Settings, mongo_url: str) -> AsyncIterator[Store]:
    store = Store.connect(settings, mongo_url)
    yield store
    await store.close()


async def test_an_empty_database_is_marked(store: Store) -> None:
    await store.ensure_indexes()
    assert await store.database["meta"].find_one() == {"_id": "layout", "version": VERSION}
    await store.ensure_indexes()
    assert await store.ping()


async def test_a_newer_database_is_refused(store: Store, group: Group) -> None:
    await store.database["meta"].insert_one({"_id": "layout", "version": VERSION + 1})
    with pytest.raises(DatabaseRefused, match="newer version"):
        await store.ensure_indexes()
    with pytest.raises(StoreUnavailable):
        await group.write(store, make_output(1))
    assert set(await store.database.list_collection_names()) == {"meta"}


@pytest.mark.slow
async def test_a_database_that_is_replaced_by_a_newer_one_is_refused(store: Store, group: Group) -> None:
    await store.ensure_indexes()
    await group.write(store, make_output(1))
    await store.database["meta"].update_one({}, {"$set": {"version": VERSION + 1}})
    with pytest.raises(DatabaseRefused):
        await store.ensure_indexes()
    with pytest.raises(StoreUnavailable):
        await group.write(store, make_output(2))


async def test_an_older_database_is_refused_with_how_to_move_it(store: Store, group: Group) -> None:
    await store.database["meta"].insert_one({"_id": "layout", "version": VERSION - 1})
    with pytest.raises(DatabaseRefused, match=r"older version.*export"):
        await store.ensure_indexes()
    with pytest.raises(StoreUnavailable):
        await group.read(store)


async def test_a_database_of_the_first_version_has_no_marker_and_is_refused(store: Store) -> None:
    await store.database["sequences"].insert_one({"_id": 1, "next": 7})
    with pytest.raises(DatabaseRefused, match="older version"):
        await store.ensure_indexes()
    assert await store.database["meta"].find_one() is None
