"""Values of cookies and local storage are sealed in the database, each to its own record; keys rotate."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bson
import pytest

from service.cli import main
from service.runtime.local_mongo import local_mongo
from service.settings import Settings
from service.store import Store
from service.store.browser_state import BrowserState
from service.store.cookies import Cookies
from service.store.vault import Sealed, Vault, VaultError
from tests.support.api import Api, make_cookie, make_entry
from tests.support.fault_proxy import FaultProxy
from tests.support.groups import opened
from tests.support.limits import Small
from tests.support.processes import ServiceProcess

OLD, NEW = Vault.new_key("old"), Vault.new_key("new")
VALUE = "canary-" + os.urandom(20).hex()
STATE = {
    "cookies": [],
    "origins": [{"origin": "https://shop.example", "localStorage": [], "indexedDB": [{"records": [VALUE]}]}],
}


@pytest.fixture
def settings() -> Settings:
    return Settings(mongo_database="test", secret_keys=OLD)


async def fill(api: Api) -> None:
    await api.ok("/v1/cookies", [make_cookie(value=VALUE), make_cookie(name="other", value=VALUE)])
    await api.ok("/v1/local-storage", [make_entry(value=VALUE)])
    await api.ok("/v1/storage-state", STATE)


async def raw(store: Store, organization: int) -> list[dict[str, Any]]:
    """Return what an analyst with a Mongo shell sees of an organization's sealed records."""
    found = []
    for part in store.browser_state:
        found += await store.database[part.name].find({"organization_id": organization}).to_list(None)
    return found


async def test_the_database_holds_no_value_that_can_be_read(api: Api, store: Store) -> None:
    await fill(api)
    documents = await raw(store, api.organization_id)
    assert len(documents) == 4
    for document in documents:
        assert type(document["value"]) is bytes
        assert document["value"].startswith(b"\x03old")
        assert VALUE.encode() not in bson.encode(document)
    assert [cookie["value"] for cookie in await api.ok("/v1/cookies")] == [VALUE, VALUE]
    assert [entry["value"] for entry in await api.ok("/v1/local-storage")] == [VALUE]
    assert (await api.ok("/v1/storage-state"))["origins"][0]["indexedDB"] == [{"records": [VALUE]}]


async def test_one_value_sealed_twice_gives_nothing_in_common(api: Api, store: Store) -> None:
    await fill(api)
    first, second = (d["value"] for d in await raw(store, api.organization_id) if "name" in d)
    assert first[4:16] != second[4:16] and first[16:] != second[16:]


@pytest.mark.slow
async def test_no_file_of_the_database_holds_a_value(tmp_path: Path, organization: int) -> None:
    """The journal too, and the log. A value that is not sealed is found, so that this can fail."""
    plain = "canary-" + os.urandom(20).hex()
    with local_mongo(tmp_path) as mongo:
        for keys, value in ((OLD, VALUE), ("", plain)):
            store = Store.connect(Settings(mongo_database="files", secret_keys=keys), mongo.url)
            await store.ensure_indexes()
            cookie = make_cookie(name=f"sealed-{bool(keys)}", value=value) | {"expires": None}
            await store.cookies.set(organization, [cookie])
            entry = make_entry(key=f"sealed-{bool(keys)}", value=value) | {"expires": None}
            await store.local_storage.set(organization, [entry])
            await store.close()
        running = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    ended = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for files in (running, ended):
        assert plain.encode() in files
        assert VALUE.encode() not in files


def vault_parts() -> list[tuple[str | int, ...]]:
    """What a record's value belongs to, and the same with one part changed."""
    return [
        (1, "cookies", "a.example", "/", "sid", "value"),
        (2, "cookies", "a.example", "/", "sid", "value"),
        (1, "local_storage", "a.example", "/", "sid", "value"),
        (1, "cookies", "b.example", "/", "sid", "value"),
        (1, "cookies", "a.example", "/x", "sid", "value"),
        (1, "cookies", "a.example", "/", "sid2", "value"),
        (1, "cookies", "a.example", "/", "sid", "extra"),
        (1, "cookies", "a.example/", "", "sid", "value"),
    ]


@pytest.mark.parametrize("number", range(1, len(vault_parts())))
def test_a_value_opens_only_where_it_belongs(number: int) -> None:
    vault = Vault.parse(OLD)
    home, elsewhere = vault_parts()[0], vault_parts()[number]
    sealed = vault.seal(Sealed(VALUE, {"a": 1}), *home)
    assert vault.open(sealed, *home) == (VALUE, {"a": 1})
    with pytest.raises(VaultError):
        vault.open(sealed, *elsewhere)


@pytest.mark.parametrize("damage", ["", "ff", "03", "036f6c64", "036f6c64" + "00" * 12, "036f6c64" + "00" * 40])
def test_bytes_that_were_never_sealed_do_not_open(damage: str) -> None:
    with pytest.raises(VaultError):
        Vault.parse(OLD).open(bytes.fromhex(damage), "x")


def test_a_changed_bit_does_not_open() -> None:
    vault = Vault.parse(OLD)
    sealed = bytearray(vault.seal(Sealed(VALUE, {}), "x"))
    for at in range(len(sealed)):
        changed = bytes(sealed[:at]) + bytes([sealed[at] ^ 1]) + bytes(sealed[at + 1 :])
        with pytest.raises(VaultError):
            vault.open(changed, "x")


@pytest.mark.parametrize(
    "text",
    ["x", "x:", ":AAAA", "x:AAAA", f"{OLD},{OLD}", OLD.replace("old", "o d"), f"{OLD}=", "x:" + "A" * 43 + "!"],
    ids=range(8),
)
def test_keys_that_cannot_be_used_are_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ValueError, match="SECRET_KEYS must be") as refused:
        Vault.parse(text)
    assert text not in str(refused.value)
    assert OLD.partition(":")[2] not in str(refused.value)


def test_settings_do_not_show_their_secrets() -> None:
    shown = repr(Settings(secret_keys=OLD, mongo_url="mongodb://user:password@host"))
    assert OLD not in shown and "password" not in shown


async def test_a_value_moved_to_another_record_is_a_500_that_says_nothing(
    api: Api, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """All of the list fails: a cookie that is silently missing looks like an account logged out."""
    mine = [make_cookie(name="a", value=VALUE), make_cookie(name="b", value="b", domain="b.example")]
    await api.ok("/v1/cookies", [*mine, make_cookie(name="c", domain="c.example")])
    cookies = store.database["cookies"]
    moved = await cookies.find_one({"organization_id": api.organization_id, "name": "a"})
    assert moved
    await cookies.update_one({"organization_id": api.organization_id, "name": "b"}, {"$set": {"value": moved["value"]}})
    response = await api.get("/v1/cookies")
    assert response.status == 500 and response.problems() == [([], "internal_error")]
    assert VALUE.encode() not in response.body
    assert any("SECRET_KEYS" in record.getMessage() for record in caplog.records)
    assert VALUE not in caplog.text
    # What does not hold that record works, and setting it again heals it.
    assert [c["name"] for c in await api.ok("/v1/cookies?domain=c.example")] == ["c"]
    await api.ok("/v1/cookies", mine)
    assert len(await api.ok("/v1/cookies")) == 3


@pytest.mark.parametrize("keys", [NEW, Vault.new_key("old")], ids=["unknown key", "another key of the same id"])
async def test_a_value_under_a_key_that_is_not_there_says_which_setting_to_look_at(
    api: Api, mongo_url: str, settings: Settings, caplog: pytest.LogCaptureFixture, keys: str
) -> None:
    await fill(api)
    other = Store.connect(replace(settings, secret_keys=keys), mongo_url)
    await other.ensure_indexes()
    with pytest.raises(VaultError):
        (await anext(other.cookies.records(api.organization_id))).open()
    await other.close()
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "SECRET_KEYS" in record.getMessage() and record.__dict__["key_id"] == "old"


# -- the record around the value ---------------------------------------------------------------------

SAVED = {
    "cookies": [
        {
            "name": "sid",
            "value": VALUE,
            "domain": "shop.example",
            "path": "/",
            "secure": True,
            "partitionKey": "canary-x",
        }
    ],
    "origins": [{"origin": "https://shop.example:8443", "localStorage": [{"name": "k", "value": VALUE}]}],
}


@pytest.mark.parametrize(
    ("collection", "change"),
    [
        ("cookies", {"domain": "evil.example"}),
        ("cookies", {"secure": False}),
        ("cookies", {"http_only": True}),
        ("cookies", {"path": "/x"}),
        ("cookies", {"expires": 4102444800}),
        ("local_storage", {"domain": "evil.example"}),
        ("local_storage", {"expires": datetime(2100, 1, 1, tzinfo=UTC)}),
        ("local_storage", {"update_date": datetime(2100, 1, 1, tzinfo=UTC)}),
    ],
)
async def test_a_record_that_was_changed_in_the_database_does_not_open(
    api: Api, store: Store, collection: str, change: dict[str, Any]
) -> None:
    await api.ok("/v1/storage-state", SAVED)
    await store.database[collection].update_one({"organization_id": api.organization_id}, {"$set": change})
    assert (await api.get(f"/v1/{collection.replace('_', '-')}")).status == 500
    assert (await api.get("/v1/storage-state")).status == 500


async def test_members_that_only_the_browser_knows_are_sealed_too(api: Api, store: Store) -> None:
    await api.ok("/v1/storage-state", SAVED)
    for document in await raw(store, api.organization_id):
        stored = bson.encode(document)  # with the port in `domain`, but not with the origin
        assert b"canary-x" not in stored and b"https://shop.example:8443" not in stored
    state = await api.ok("/v1/storage-state")
    assert state["cookies"][0]["partitionKey"] == "canary-x"
    assert state["origins"][0]["origin"] == "https://shop.example:8443"


async def test_extra_never_redirects_a_value(api: Api, store: Store) -> None:
    """Neither beside a sealed value, where it is not looked at, nor beside a plain one."""
    for keys in (OLD, ""):
        await api.ok("/v1/storage-state", SAVED)
        mine = {"organization_id": api.organization_id}
        if not keys:
            plain = {"value": VALUE}
            await store.database["cookies"].update_one(mine, {"$set": plain})
            await store.database["local_storage"].update_one(mine, {"$set": plain})
        evil = {
            "domain": "evil.example",
            "name": "x",
            "secure": False,
            "expires": 1.5,
            "origin": "https://evil.example",
        }
        await store.database["cookies"].update_one(mine, {"$set": {"extra": evil}})
        await store.database["local_storage"].update_one(mine, {"$set": {"extra": evil}})
        state = await api.ok("/v1/storage-state")
        (cookie,), (origin,) = state["cookies"], state["origins"]
        assert (cookie["domain"], cookie["name"], cookie["secure"]) == ("shop.example", "sid", True)
        assert cookie["expires"] == -1
        assert origin["origin"] == "https://shop.example:8443"


async def test_plain_values_are_refused_once_only_sealed_ones_are_allowed(
    apart: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    plain = await opened(apart, "")
    await set_cookies(plain, 1)
    strict = Cookies(plain.database, Vault.parse(OLD, sealed_only=True), plain.indexes)
    with pytest.raises(VaultError):
        await values(plain, strict)
    assert "secrets rotate" in caplog.text and VALUE not in caplog.text
    await plain.close()


def test_only_sealed_values_without_a_key_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="SEALED_ONLY needs SECRET_KEYS"):
        Vault.parse("", sealed_only=True)


async def test_a_record_changed_while_it_is_rotated_is_left_to_the_next_pass(apart: Settings, wire: FaultProxy) -> None:
    plain, both = await opened(apart, ""), await opened(replace(apart, mongo_url=wire.url), NEW)
    await set_cookies(plain, 1)

    async def change_first() -> None:
        """A service without keys writes the same value with another expiry before the sealed one is stored."""
        await plain.database["cookies"].update_one({}, {"$set": {"expires": 4102444800}})

    wire.before("update", "cookies", change_first)
    assert [rotation async for rotation in both.cookies.rotate()][-1] == (1, 1, 0)
    # Found once more: the pass before could not seal it.
    assert [rotation async for rotation in both.cookies.rotate()][-1] == (1, 1, 0)
    assert [rotation async for rotation in both.cookies.rotate()][-1] == (1, 0, 0)
    assert await values(both) == [VALUE]
    await plain.close()
    await both.close()


# -- rotation: on databases of their own, because it touches every organization ---------------------


async def set_cookies(store: Store, count: int, value: str = VALUE) -> None:
    for start in range(0, count, 1000):
        numbers = range(start, min(count, start + 1000))
        await store.cookies.set(1, [make_cookie(name=str(n), value=value) | {"expires": None} for n in numbers])


async def values(store: Store, part: BrowserState | None = None) -> list[str]:
    batches = (part or store.cookies).records(1)
    return [record["value"] async for batch in batches for record in batch.open()]


async def test_rotation_seals_everything_with_the_first_key(apart: Settings, small: Small) -> None:
    small(sealed_at_once=10)
    plain, old, both, new = [await opened(apart, keys) for keys in ("", OLD, f"{NEW},{OLD}", NEW)]
    await set_cookies(old, 12)
    entry = make_entry(value=VALUE) | {"expires": None}
    await plain.local_storage.set(1, [entry])  # from before there were keys
    await both.origins.set(1, [{"origin": "https://a.example", "domain": "a.example", "value": VALUE}])
    assert await values(both) == [VALUE] * 12
    assert await values(both, both.local_storage) == [VALUE]
    done = [[rotation async for rotation in part.rotate()][-1] for part in both.browser_state]
    assert done == [(12, 12, 0), (1, 1, 0), (1, 0, 0)]
    assert [[rotation async for rotation in part.rotate()][-1].resealed for part in both.browser_state] == [0, 0, 0]
    assert all(document["value"].startswith(b"\x03new") for document in await raw(new, 1))
    assert await values(new) == [VALUE] * 12
    assert await values(new, new.local_storage) == await values(new, new.origins) == [VALUE]
    for store in (plain, old, both, new):
        await store.close()


@pytest.mark.slow
async def test_a_rotation_that_was_stopped_goes_on_where_it_was(apart: Settings, small: Small) -> None:
    small(sealed_at_once=10)
    old, both = await opened(apart, OLD), await opened(apart, f"{NEW},{OLD}")
    await set_cookies(old, 12)
    async for rotation in both.cookies.rotate():
        assert rotation == (10, 10, 0)
        break
    assert await values(both) == [VALUE] * 12
    assert [rotation async for rotation in both.cookies.rotate()][-1] == (12, 2, 0)
    await old.close()
    await both.close()


async def test_rotation_never_takes_back_what_a_running_service_writes(apart: Settings, wire: FaultProxy) -> None:
    service, both = await opened(apart, OLD), await opened(replace(apart, mongo_url=wire.url), f"{NEW},{OLD}")
    await set_cookies(service, 20)
    newer = [make_cookie(name=name, value="newer") | {"expires": None} for name in ("3", "7")]
    # The values are open; before they are sealed again, a service that has only the old key sets two.
    wire.before("update", "cookies", lambda: service.cookies.set(1, newer))
    assert [rotation async for rotation in both.cookies.rotate()][-1] == (20, 20, 0)
    assert sorted(await values(both)) == sorted([VALUE] * 18 + ["newer"] * 2)
    assert [rotation async for rotation in both.cookies.rotate()][-1] == (20, 2, 0)
    await service.close()
    await both.close()


def rotate(settings: Settings, keys: str) -> int:
    arguments = {"--mongo-url": settings.mongo_url, "--mongo-database": settings.mongo_database, "--secret-keys": keys}
    return main(["secrets", "rotate", *(word for pair in arguments.items() for word in pair)])


@pytest.mark.slow
async def test_the_command_rotates_and_says_how_many(apart: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    store = await opened(apart, OLD)
    await set_cookies(store, 3)
    assert await asyncio.to_thread(rotate, apart, f"{NEW},{OLD}") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "cookies: 3 values, 3 sealed now"
    assert lines[-1] == "every value is sealed with the first key of SECRET_KEYS"
    assert "\r" not in "".join(lines)
    assert await asyncio.to_thread(rotate, apart, Vault.new_key("third")) == 1
    error = capsys.readouterr().err
    assert "3 values do not open with the keys of SECRET_KEYS" in error and VALUE not in error
    await store.close()


@pytest.mark.slow
async def test_the_command_shows_a_bar_on_a_terminal(
    apart: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(apart, OLD)
    await set_cookies(store, 3)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert await asyncio.to_thread(rotate, apart, f"{NEW},{OLD}") == 0
    assert f"\rcookies        [{'#' * 30}] 100%" in capsys.readouterr().out
    await store.close()


def test_rotation_without_keys_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONGO_URL", "mongodb://127.0.0.1:1")
    monkeypatch.delenv("SECRET_KEYS", raising=False)
    assert main(["secrets", "rotate"]) == 1
    assert "SECRET_KEYS is not set" in capsys.readouterr().err


def test_a_new_key_can_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["secrets", "new-key", "--id", "2026-11"]) == 0
    key = capsys.readouterr().out.strip()
    assert key.startswith("2026-11:") and Vault.parse(key).active
    assert main(["secrets", "new-key", "--id", "a,b"]) == 1


@pytest.mark.slow
def test_a_service_without_keys_warns_when_it_starts(mongo_url: str) -> None:
    with ServiceProcess(mongo_url, secret_keys="") as service:
        service.wait_until_listening()
        assert "SECRET_KEYS is not set" in service.log()
