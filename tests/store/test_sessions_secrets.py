"""The secrets of sessions can be read through two routes, and nowhere else."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import bson
import pytest

from service.settings import Settings
from service.store import Store, Vault, wanted
from service.store.vault import VaultError
from tests.support.api import Api
from tests.support.groups import opened
from tests.support.sessions import lease, make_state, put, release

OLD, NEW = Vault.new_key("old"), Vault.new_key("new")
VALUE = "canary-" + os.urandom(20).hex()
GIVEN: dict[str, Any] = {"storage_state": make_state(VALUE), "user_data": {"password": VALUE}}
COLLECTIONS = ("pools", "sessions", "session_secrets", "released_leases")


@pytest.fixture
def settings() -> Settings:
    return Settings(mongo_database="test", mongo_timeout=20.0, secret_keys=OLD)


async def use(api: Api) -> None:
    """Put a session with secrets, and save others with a lease."""
    await put(api, "/v1/sessions/shop/anna", GIVEN)
    taken = await lease(api, "shop")
    await put(api, f"/v1/leases/{taken['lease_id']}", GIVEN)
    await release(api, taken["lease_id"], **GIVEN, note="used")


async def documents(store: Store, organization: int) -> list[dict[str, Any]]:
    """Return all that the database has of the sessions of an organization."""
    found = []
    for name in COLLECTIONS:
        found += await store.database[name].find({"organization_id": organization}).to_list(None)
    return found


async def test_the_database_holds_no_secret_that_can_be_read(api: Api, store: Store) -> None:
    await use(api)
    stored = await documents(store, api.organization_id)
    assert len(stored) == 5  # a pool, a session, two secrets, a released lease
    for document in stored:
        assert VALUE.encode() not in bson.encode(document)
    sealed = [document["value"] for document in stored if "kind" in document]
    assert len(sealed) == 2 and all(value.startswith(b"\x03old") for value in sealed)
    found = await api.ok("/v1/sessions/shop/anna")
    assert {kind: found[kind] for kind in GIVEN} == GIVEN


async def test_each_secret_is_sealed_for_itself(api: Api, store: Store) -> None:
    await put(api, "/v1/sessions/shop/anna", {"user_data": {"a": 1}})
    (sealed,) = [document for document in await documents(store, api.organization_id) if "kind" in document]
    assert sealed["kind"] == "user_data"
    found = await api.ok("/v1/sessions/shop/anna")
    assert (found["storage_state"], found["user_data"]) == (None, {"a": 1})


@pytest.mark.parametrize("place", ["session", "pool", "kind", "organization"])
async def test_a_secret_that_was_moved_does_not_open(api: Api, stranger: Api, store: Store, place: str) -> None:
    """It is a 500 that says nothing."""
    target = stranger if place == "organization" else api
    other = {"session": "/v1/sessions/shop/ben", "pool": "/v1/sessions/forum/anna"}.get(place, "/v1/sessions/shop/anna")
    await put(api, "/v1/sessions/shop/anna", GIVEN)
    await put(target, other, {**GIVEN, "storage_state": {}})
    secrets = store.database["session_secrets"]
    mine = {"organization_id": api.organization_id, "name": "anna", "kind": "storage_state"}
    pool = await store.sessions.pools.find(api.organization_id, "shop")
    assert pool
    source = await secrets.find_one({**mine, "pool_id": pool.id})
    assert source
    theirs = await store.sessions.pools.find(target.organization_id, other.split("/")[3])
    assert theirs
    where = {"organization_id": target.organization_id, "pool_id": theirs.id, "name": other.split("/")[4]}
    kind = "user_data" if place == "kind" else "storage_state"
    await secrets.update_one({**where, "kind": kind}, {"$set": {"value": source["value"]}})
    response = await target.get(other)
    assert response.status == 500 and response.problems() == [([], "internal_error")]
    assert VALUE.encode() not in response.body
    body = {"name": where["name"]}
    assert (await target.post(f"/v1/sessions/{other.split('/')[3]}/lease", body)).status == 500


async def test_a_session_whose_secret_does_not_open_does_not_keep_others_from_work(api: Api, store: Store) -> None:
    for name in ("anna", "ben"):
        await put(api, f"/v1/sessions/shop/{name}", GIVEN)
    owner = {"organization_id": api.organization_id, "name": "anna"}
    await store.database["session_secrets"].update_many(owner, {"$set": {"value": bytes(64)}})
    assert (await api.post("/v1/sessions/shop/lease", {})).status == 500
    (pool,) = await api.ok("/v1/sessions")
    assert pool["sessions"]["ready"] == 2, "the lease that could not be delivered is taken back"
    assert (await lease(api, "shop"))["session"]["name"] == "ben"


async def test_no_list_error_or_metric_shows_a_secret_or_a_lease_id(
    api: Api, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "service")
    await put(api, "/v1/sessions/shop/anna", GIVEN)
    taken = await lease(api, "shop", owner="me")
    path = f"/v1/leases/{taken['lease_id']}"
    responses = [
        await api.get("/v1/sessions"),
        await api.get("/v1/sessions/shop"),
        await api.put("/v1/sessions/shop/anna", {"note": "x"}),
        await api.put("/v1/sessions/shop/anna", {**GIVEN, "surprise": VALUE}),
        await api.put("/v1/sessions/shop/anna", {**GIVEN, "if_version": 77}),
        await api.put("/v1/sessions/shop/anna", {"user_data": [VALUE]}),
        await api.put("/v1/sessions/shop/anna", {"storage_state": {"cookies": [{"name": VALUE, "value": 1}]}}),
        await api.put(path, {**GIVEN, "seconds": 1}),
        await api.put(path, GIVEN),
        await api.post(f"{path}/release", {**GIVEN, "outcome": VALUE}),
        await api.post("/v1/sessions/shop/lease", {}),
        await api.post(f"{path}/release", {**GIVEN, "outcome": "good"}),
        await api.post(f"{path}/release", {**GIVEN, "outcome": "good", "note": "other"}),
        await api.get("/metrics"),
    ]
    assert [response.status for response in responses] == [
        200,
        200,
        200,
        422,
        412,
        422,
        422,
        422,
        200,
        422,
        409,
        200,
        409,
        200,
    ]
    for response in responses:
        assert VALUE.encode() not in response.body and taken["lease_id"].encode() not in response.body
    assert VALUE not in caplog.text and taken["lease_id"] not in caplog.text


@pytest.mark.parametrize("keys", [OLD, ""], ids=["sealed", "plain"])
async def test_a_backup_has_secrets_only_sealed(
    mongo_url: str, settings: Settings, organization: int, keys: str
) -> None:
    store = Store.connect(replace(settings, secret_keys=keys), mongo_url)
    await store.ensure_indexes()
    texts = {"user_data": f'{{"password": "{VALUE}"}}'}
    await store.sessions.records.put(organization, "shop", "anna", texts, None)
    written = bytearray()
    await store.backup.write(organization, written.extend, lambda documents: None)
    assert VALUE.encode() not in written
    assert (b"session_secrets" in written) == bool(keys)
    assert b'"sessions"' in written and b'"pools"' in written
    await store.close()


@pytest.mark.slow
async def test_the_secrets_of_sessions_are_rotated_with_the_others(apart: Settings) -> None:
    old, both, new = [await opened(apart, keys) for keys in (OLD, f"{NEW},{OLD}", NEW)]
    texts = {"storage_state": "{}", "user_data": f'{{"password": "{VALUE}"}}'}
    for name in ("anna", "ben"):
        await old.sessions.records.put(1, "shop", name, texts, None)
    pool = await new.sessions.pools.find(1, "shop")
    assert pool
    taken = await new.sessions.leases.take(pool, wanted(name="anna"))
    assert taken
    with pytest.raises(VaultError):
        await new.sessions.secrets.read(1, taken.session)
    (part,) = (part for part in both.sealed if part.name == "session_secrets")
    assert [rotation async for rotation in part.rotate()][-1] == (4, 4, 0)
    assert await new.sessions.secrets.read(1, taken.session) == texts
    assert [rotation async for rotation in part.rotate()][-1] == (4, 0, 0)
    for store in (old, both, new):
        await store.close()
