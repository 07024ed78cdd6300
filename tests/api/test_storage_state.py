"""Playwright's storageState in and out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.api import Api, make_cookie, make_entry

PATH = "/v1/storage-state"
LOCAL_STORAGE = "/v1/local-storage"


def make_state(**changes: Any) -> dict[str, Any]:
    return {
        "cookies": [
            {
                "name": "session",
                "value": "s3cret",
                "domain": ".shop.example",
                "path": "/",
                "expires": 1893499200.25,
                "httpOnly": True,
                "secure": True,
                "sameSite": "None",
                "partitionKey": "https://top.example",
                "_crHasCrossSiteAncestor": False,
            },
            {
                "name": "basket",
                "value": "",
                "domain": "shop.example",
                "path": "/cart",
                "expires": -1,
                "httpOnly": False,
                "secure": False,
                "sameSite": "Lax",
            },
        ],
        "origins": [
            {"origin": "http://127.0.0.1:8000", "localStorage": [{"name": "who", "value": "me"}]},
            {"origin": "http://shop.example", "localStorage": [{"name": "theme", "value": "light"}]},
            {
                "origin": "https://shop.example",
                "localStorage": [{"name": "locale", "value": "de"}, {"name": "theme", "value": "dark"}],
                "indexedDB": [{"name": "db", "version": 1, "stores": []}],
            },
        ],
    } | changes


def sorted_state(state: dict[str, Any]) -> dict[str, Any]:
    return {
        "cookies": sorted(state["cookies"], key=lambda c: (c["domain"], c["path"], c["name"])),
        "origins": sorted(state["origins"], key=lambda o: o["origin"]),
    }


@pytest.mark.parametrize("which", ["domain=shop.example", "all=true"])
async def test_what_is_deleted_with_its_domain_does_not_come_back(admin: Api, which: str) -> None:
    await admin.ok("/v1/storage-state", make_state())
    await admin.delete("/v1/local-storage?domain=shop.example&key=locale")
    assert b"indexedDB" in (await admin.get("/v1/storage-state")).body
    await admin.delete(f"/v1/local-storage?{which}")
    assert b"indexedDB" not in (await admin.get("/v1/storage-state")).body


async def test_what_playwright_saved_comes_back_with_nothing_lost(api: Api) -> None:
    written = await api.ok(PATH, make_state())
    assert written == {
        "cookies": {"created": 2, "updated": 0},
        "local_storage": {"created": 4, "updated": 0},
    }
    assert sorted_state(await api.ok(PATH)) == sorted_state(make_state())


async def test_posting_a_state_again_updates_and_keeps_the_rest(api: Api) -> None:
    await api.ok("/v1/cookies", [make_cookie(domain="other.example")])
    await api.ok(PATH, make_state())
    written = await api.ok(PATH, make_state())
    assert written == {
        "cookies": {"created": 0, "updated": 2},
        "local_storage": {"created": 0, "updated": 4},
    }
    assert len((await api.ok(PATH))["cookies"]) == 3


async def test_a_state_is_seen_as_cookies_and_local_storage(api: Api) -> None:
    await api.ok(PATH, make_state())
    cookies = {cookie["name"]: cookie for cookie in await api.ok("/v1/cookies")}
    assert cookies["session"]["expires"] == 1893499200
    assert cookies["session"]["http_only"] is True
    assert cookies["basket"]["expires"] == -1
    assert set(cookies["session"]) == {"name", "value", "url", "domain", "path", "expires", "http_only", "secure"}
    entries = {(entry["domain"], entry["key"]): entry for entry in await api.ok("/v1/local-storage")}
    assert entries["shop.example", "theme"]["value"] == "dark"
    assert entries["shop.example:80", "theme"]["value"] == "light"
    assert entries["127.0.0.1:8000", "who"]["value"] == "me"


async def test_cookies_and_local_storage_are_seen_as_a_state(api: Api) -> None:
    await api.ok("/v1/cookies", [make_cookie(path="", expires=None)])
    await api.ok("/v1/local-storage", [make_entry()])
    assert await api.ok(PATH) == {
        "cookies": [
            {
                "name": "session",
                "value": "s3cret",
                "domain": ".shop.example",
                "path": "/",
                "expires": -1,
                "httpOnly": True,
                "secure": True,
                "sameSite": "Lax",
            }
        ],
        "origins": [{"origin": "https://shop.example", "localStorage": [{"name": "theme", "value": "dark"}]}],
    }


@pytest.mark.parametrize("others", [{"indexedDB": [1]}, {}], ids=["with IndexedDB", "without"])
@pytest.mark.parametrize("size", [1, 200_000], ids=["read at once", "read one by one"])
async def test_an_entry_that_is_set_alone_stays_in_its_origin(api: Api, size: int, others: dict[str, Any]) -> None:
    for alone in ["a", "b", "c", "ab"]:
        entries = [{"name": name, "value": name * size} for name in "abc"]
        origin = {"origin": "http://localhost:3000", "localStorage": entries, **others}
        await api.ok(PATH, {"cookies": [], "origins": [origin]})
        for entry in entries:
            if entry["name"] in alone:
                entry["value"] = "n" * size
                await api.ok(LOCAL_STORAGE, [make_entry(domain="localhost:3000", key=entry["name"], value="n" * size)])
        assert (await api.ok(PATH))["origins"] == [origin], alone


async def test_entries_set_alone_belong_to_the_origin_whose_indexed_db_was_saved(api: Api) -> None:
    saved = {"origin": "http://localhost:3000", "localStorage": [], "indexedDB": [1]}
    await api.ok(PATH, {"cookies": [], "origins": [saved]})
    await api.ok("/v1/local-storage", [make_entry(domain="localhost:3000", key="a", value="b")])
    assert (await api.ok(PATH))["origins"] == [saved | {"localStorage": [{"name": "a", "value": "b"}]}]


async def test_of_one_key_with_two_paths_the_entry_of_the_whole_domain_counts(api: Api) -> None:
    await api.ok("/v1/local-storage", [make_entry(domain="shop.example", key="a", value="old", path="/shop")])
    newer = {"origin": "https://shop.example", "localStorage": [{"name": "a", "value": "new"}]}
    await api.ok(PATH, {"cookies": [], "origins": [newer]})
    (origin,) = (await api.ok(PATH))["origins"]
    assert [entry["value"] for entry in origin["localStorage"]] == ["old", "new"]


async def test_a_browser_is_not_loaded_with_expired_records(api: Api) -> None:
    await api.ok(PATH, make_state())
    await api.ok("/v1/cookies", [make_cookie(name="old", expires="2020-01-01")])
    await api.ok("/v1/local-storage", [make_entry(key="old", expires="2020-01-01")])
    assert sorted_state(await api.ok(PATH)) == sorted_state(make_state())


async def test_a_cookie_set_again_without_same_site_is_replaced_whole(api: Api) -> None:
    await api.ok(PATH, make_state(origins=[]))
    await api.ok("/v1/cookies", [make_cookie()])
    (session,) = [c for c in (await api.ok(PATH))["cookies"] if c["name"] == "session"]
    assert session["sameSite"] == "Lax"
    assert "partitionKey" not in session


async def test_a_domain_covers_its_subdomains_and_no_others(api: Api) -> None:
    domains = ["shop.example", ".shop.example", "a.shop.example", ".b.a.shop.example", "myshop.example", "example"]
    await api.ok("/v1/cookies", [make_cookie(domain=domain) for domain in domains])
    await api.ok(PATH, make_state(cookies=[]))
    state = await api.ok(f"{PATH}?domain=shop.example")
    assert {cookie["domain"] for cookie in state["cookies"]} == set(domains[:4])
    assert {origin["origin"] for origin in state["origins"]} == {"http://shop.example", "https://shop.example"}
    assert await api.ok(f"{PATH}?domain=shop.exampl.") == {"cookies": [], "origins": []}


async def test_another_organization_sees_nothing_of_it(api: Api, stranger: Api) -> None:
    await api.ok(PATH, make_state())
    assert await stranger.ok(PATH) == {"cookies": [], "origins": []}


async def test_a_faulty_state_is_refused_and_nothing_stored(api: Api) -> None:
    for state, loc, kind in [
        ([], ["body"], "dict_type"),
        ({"cookies": [{}]}, ["body", "cookies", "0", "name"], "missing"),
        ({"cookies": {}}, ["body", "cookies"], "list_type"),
        ({"cookie": []}, ["body", "cookie"], "unknown_field"),
        ({"origins": [{"origin": "about:blank"}]}, ["body", "origins", "0", "origin"], "value_error"),
        ({"origins": [{"origin": "https://[::"}]}, ["body", "origins", "0", "origin"], "value_error"),
        ({"origins": [{"origin": "https://a", "localStorage": [{"name": 1}]}]}, None, "string_type"),
    ]:
        response = await api.post(PATH, data=json.dumps(state), headers={"Content-Type": "application/json"})
        assert response.status == 422, state
        problems = response.problems()
        assert (loc, kind) in problems or (loc is None and kind in [found for _, found in problems]), state
        assert await api.ok(PATH) == {"cookies": [], "origins": []}, state


async def test_an_expiry_that_is_not_in_seconds_is_refused(api: Api) -> None:
    for expires in [1893499200000, 1893499200000000, -2, "soon", None, True]:
        state = make_state(origins=[])
        state["cookies"][0]["expires"] = expires
        response = await api.post(PATH, state)
        assert response.status == 422, expires
        assert response.problems()[0][0] == ["body", "cookies", "0", "expires"], expires


async def test_the_response_is_not_to_be_cached(api: Api) -> None:
    await api.ok(PATH, make_state())
    assert (await api.get(PATH)).headers["Cache-Control"] == "no-store"
