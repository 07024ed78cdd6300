"""Which version's layout a database has: marked, refused where it differs, upgraded on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure, WriteError

from service.settings import Settings
from service.store import LayoutError, Query, Store, StoreUnavailable
from service.store.layout import VERSION
from tests.support import database_v1
from tests.support.api import make_output
from tests.support.groups import DATABASE, Group, look_after


@pytest.fixture
def settings(organization: int) -> Settings:
    """A database of its own for each test."""
    return Settings(mongo_database=f"{DATABASE}_layout_{organization}")


@pytest.fixture
async def store(settings: Settings, mongo_url: str) -> AsyncIterator[Store]:
    store = Store.connect(settings, mongo_url)
    yield store
    await store.close()


@pytest.fixture
async def old(settings: Settings, mongo_url: str) -> dict[str, Any]:
    """The dump of a database of version 1, after it was written to the test's database."""

    def restore() -> dict[str, Any]:
        with MongoClient[dict[str, Any]](mongo_url, tz_aware=True) as client:
            return database_v1.restore(client[settings.mongo_database])

    return await asyncio.to_thread(restore)


async def test_an_empty_database_is_marked(store: Store) -> None:
    await store.ensure_indexes()
    assert await store.database["meta"].find_one() == {"_id": "layout", "version": VERSION}
    await store.ensure_indexes()
    assert await store.ping()


async def test_a_newer_database_is_refused(store: Store, group: Group) -> None:
    await store.database["meta"].insert_one({"_id": "layout", "version": VERSION + 1})
    with pytest.raises(LayoutError, match="newer version"):
        await store.ensure_indexes()
    with pytest.raises(StoreUnavailable):
        await group.write(store, make_output(1))
    assert set(await store.database.list_collection_names()) == {"meta"}


async def test_a_database_that_is_replaced_by_a_newer_one_is_refused(store: Store, group: Group) -> None:
    await store.ensure_indexes()
    await group.write(store, make_output(1))
    await store.database["meta"].update_one({}, {"$set": {"version": VERSION + 1}})
    with pytest.raises(LayoutError):
        await store.ensure_indexes()
    with pytest.raises(StoreUnavailable):
        await group.write(store, make_output(2))


async def test_an_older_database_is_refused_until_it_is_upgraded(store: Store, old: dict[str, Any]) -> None:
    with pytest.raises(LayoutError, match="export with that version"):
        await store.ensure_indexes()


async def test_the_upgrade_keeps_everything_that_was_served(store: Store, old: dict[str, Any]) -> None:
    steps: list[tuple[int, int]] = []
    await store.upgrade(lambda done, of: steps.append((done, of)))
    assert steps and all(done <= of for done, of in steps)
    documents = [d for d in old["collections"]["outputs"]["documents"] if "key_hash" in d]
    groups = {(d["organization_id"], d["group_id"]) for d in documents}
    assert groups
    for key in groups:
        group = Group(*key)
        expected = sorted(
            (d["id"], d["key_hash"], d["output_id"]) for d in documents if (d["organization_id"], d["group_id"]) == key
        )
        found = await group.walk(store)
        assert [(item["id"], item["key_hash"], item["output_id"]) for item in found] == expected
        await look_after(store, group)
        await group.assert_counts_are_exact(store)


async def test_a_consumer_with_an_old_cursor_misses_nothing_after_the_upgrade(
    store: Store, old: dict[str, Any]
) -> None:
    await store.upgrade(lambda done, of: None)
    documents = old["collections"]["outputs"]["documents"]
    sequences = {d["_id"]: d for d in old["collections"]["sequences"]["documents"] if "next" in d}
    for key in {(d["organization_id"], d["group_id"]) for d in documents}:
        group = Group(*key)
        # No reader of the old version can have seen an id from `next` on.
        cursor = sequences[key[0]]["next"] - 1
        assert await group.read(store, cursor=cursor) == []
        results = await group.write(store, make_output(1, key_hash="after the upgrade"))
        assert [item["id"] for item in await group.read(store, cursor=cursor)] == [r["id"] for r in results]


async def test_the_same_items_are_unchanged_after_the_upgrade(store: Store, old: dict[str, Any]) -> None:
    some = [d for d in old["collections"]["outputs"]["documents"] if "key_hash" in d][:20]
    # Members that the driver takes for a reference to another document.
    some[0]["data"] = {"x": {"$ref": "outputs", "$id": 1, "$db": None}}
    await store.database["outputs"].update_one({"_id": some[0]["_id"]}, {"$set": {"data": some[0]["data"]}})
    await store.upgrade(lambda done, of: None)
    for document in some:
        group = Group(document["organization_id"], document["group_id"])
        files = [
            {name: value for name, value in file.items() if name not in ("id", "create_date")}
            for file in document["files"]
        ]
        sent = {
            **{
                name: document[name] for name in ("source_url", "data", "key_hash", "value_hash", "root_job_id", "tags")
            },
            "files": files,
        }
        (result,) = await group.write(store, sent)
        assert (result["result"], result["id"]) == ("unchanged", document["id"])


async def test_the_second_upgrade_changes_nothing(store: Store, old: dict[str, Any]) -> None:
    async def everything() -> dict[str, Any]:
        names = sorted(await store.database.list_collection_names())
        return {name: await store.database[name].find().sort("_id").to_list(None) for name in names}

    await store.upgrade(lambda done, of: None)
    before = await everything()
    await store.upgrade(lambda done, of: None)
    assert await everything() == before


@pytest.mark.parametrize("step", ["_upgrade_groups", "_upgrade_outputs"])
async def test_an_upgrade_that_broke_off_is_begun_again(
    store: Store, old: dict[str, Any], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*args: Any) -> None:
        raise StoreUnavailable("injected")

    with monkeypatch.context() as patched:
        patched.setattr(store.layout, step, broken)
        with pytest.raises(StoreUnavailable):
            await store.upgrade(lambda done, of: None)
    with pytest.raises(LayoutError):
        await store.ensure_indexes()
    await store.upgrade(lambda done, of: None)
    (document, *_) = old["collections"]["outputs"]["documents"]
    group = Group(document["organization_id"], document["group_id"])
    assert (await store.outputs.page(*group.key, Query())).documents


async def test_a_writer_of_the_old_version_is_refused(store: Store, old: dict[str, Any]) -> None:
    await store.upgrade(lambda done, of: None)
    for organization in (old["collections"]["sequences"]["documents"][0]["_id"], 987654):
        with pytest.raises((WriteError, OperationFailure), match="validation"):
            # How version 1 took ids.
            await store.database["sequences"].find_one_and_update(
                {"_id": organization},
                [{"$set": {"next": {"$add": [{"$ifNull": ["$next", 1]}, 5]}, "open": [{"group_id": "g", "n": 5}]}}],
                upsert=True,
            )


async def test_the_names_of_all_groups_may_be_more_than_one_reply_holds(store: Store, organization: int) -> None:
    names = [f"{n:06}{'x' * 250}" for n in range(66_000)]  # 16.9 MB
    outputs = store.database["outputs"]
    await outputs.create_index([("organization_id", 1), ("group_id", 1), ("id", 1)])
    for start in range(0, len(names), 10_000):
        some = names[start : start + 10_000]
        await outputs.insert_many(
            [{"organization_id": organization, "group_id": name, "id": 1} for name in some], ordered=False
        )
    await outputs.insert_one({"organization_id": organization, "group_id": names[0], "id": 2})
    await outputs.insert_one({"organization_id": organization + 1, "group_id": "of another", "id": 1})
    assert sorted([name async for name in store.layout._groups_of(organization)]) == names
    await store.client.drop_database(store.database.name)


async def test_plain_counters_still_count_after_the_upgrade(store: Store, old: dict[str, Any]) -> None:
    await store.upgrade(lambda done, of: None)
    organization = old["collections"]["sequences"]["documents"][0]["_id"]
    entry = {"domain": "d", "path": "/", "key": "new", "value": "v", "expires": None}
    assert (await store.local_storage.set(organization, [entry])).created == 1
