"""Pools and their sessions: put, listed, read and deleted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.store import Store
from tests.conftest import MakeApi
from tests.support.api import Api
from tests.support.fault_proxy import FaultProxy, refuse
from tests.support.limits import Small
from tests.support.sessions import lease, make_state, put, release, session_of

DEFAULTS = {
    "lease_seconds": 300,
    "max_lease_seconds": 14400,
    "rest_seconds": 0,
    "max_errors": 3,
    "max_uses": None,
    "max_age_days": None,
    "blocked_rest_seconds": 3600,
}
NONE = dict.fromkeys(("ready", "resting", "leased", "needs_login", "blocked", "retired"), 0)


async def test_a_pool_is_created_with_defaults_and_keeps_what_is_left_out(admin: Api) -> None:
    created = await put(admin, "/v1/sessions/shop", {})
    assert created == {"pool": "shop", **DEFAULTS, "sessions": NONE}
    changed = await put(admin, "/v1/sessions/shop", {"rest_seconds": 60, "max_uses": 5})
    assert changed == {**created, "rest_seconds": 60, "max_uses": 5}
    assert await put(admin, "/v1/sessions/shop", {"max_uses": None}) == {**created, "rest_seconds": 60}
    assert await admin.ok("/v1/sessions") == [{**created, "rest_seconds": 60}]


async def test_the_pools_are_listed_by_name_with_their_sessions_by_state(admin: Api, stranger: Api) -> None:
    await put(admin, "/v1/sessions/shop/a", {})
    await put(admin, "/v1/sessions/shop/b", {"state": "needs_login"})
    await put(admin, "/v1/sessions/shop/c", {"state": "blocked"})
    await put(admin, "/v1/sessions/alpha", {"rest_seconds": 60})
    await put(admin, "/v1/sessions/alpha/a", {})
    await put(admin, "/v1/sessions/alpha/b", {})
    await lease(admin, "alpha", name="a")
    await release(admin, (await lease(admin, "alpha"))["lease_id"])
    alpha, shop = await admin.ok("/v1/sessions")
    assert (alpha["pool"], alpha["sessions"]) == ("alpha", {**NONE, "leased": 1, "resting": 1})
    assert (shop["pool"], shop["sessions"]) == ("shop", {**NONE, "ready": 1, "needs_login": 1, "blocked": 1})
    assert await stranger.ok("/v1/sessions") == []


async def test_putting_a_session_creates_it_and_its_pool(admin: Api) -> None:
    created = await put(admin, "/v1/sessions/shop/anna", {})
    assert created == {
        **{"pool": "shop", "name": "anna", "state": "ready", "note": "", "version": 1, "uses": 0, "errors": 0},
        **{"create_date": created["create_date"], "update_date": created["create_date"]},
        **dict.fromkeys(("last_used", "rest_until", "owner", "lease_expires")),
    }
    assert (await admin.ok("/v1/sessions"))[0]["sessions"]["ready"] == 1


async def test_a_session_returns_its_secrets_as_they_were_sent(admin: Api) -> None:
    state = make_state("anna", partitionKey="https://top.example", expires=1893499200.25)
    secrets = {"storage_state": state, "user_data": {"proxy": "http://p:1", "b": [1, 2.5, None], "a": {}}}
    await put(admin, "/v1/sessions/shop/anna", {**secrets, "note": "of Anna"})
    found = await admin.ok("/v1/sessions/shop/anna")
    assert {kind: found[kind] for kind in secrets} == secrets
    assert list(found["user_data"]) == ["proxy", "b", "a"]
    assert (found["note"], found["version"]) == ("of Anna", 1)
    await put(admin, "/v1/sessions/shop/anna", {"user_data": {}})
    found = await admin.ok("/v1/sessions/shop/anna")
    assert (found["storage_state"], found["user_data"], found["note"], found["version"]) == (state, {}, "of Anna", 2)


async def test_a_state_has_what_browsers_rely_on_whatever_was_left_out(admin: Api) -> None:
    cookie = {"name": "sid", "value": "4f1c", "domain": "shop.example"}
    whole = {**cookie, "path": "/", "expires": -1, "httpOnly": False, "secure": False}
    origin = {"origin": "https://shop.example"}
    for sent, kept in (
        ({}, {"cookies": [], "origins": []}),
        ({"cookies": [cookie]}, {"cookies": [whole], "origins": []}),
        ({"origins": [origin]}, {"cookies": [], "origins": [{**origin, "localStorage": []}]}),
    ):
        await put(admin, "/v1/sessions/shop/anna", {"storage_state": sent})
        held = await lease(admin, "shop")
        assert held["session"]["storage_state"] == kept
        path = f"/v1/leases/{held['lease_id']}"
        await put(admin, path, {"storage_state": sent})
        assert (await admin.ok("/v1/sessions/shop/anna"))["storage_state"] == kept
        await release(admin, held["lease_id"], storage_state=sent)
        assert (await admin.ok("/v1/sessions/shop/anna"))["storage_state"] == kept


async def test_a_session_without_secrets_has_null_for_them(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop/anna", {})
    found = await admin.ok("/v1/sessions/shop/anna")
    assert (found["storage_state"], found["user_data"]) == (None, None)


async def test_a_list_has_no_secrets_and_goes_by_name(admin: Api) -> None:
    for name in ("c", "a", "b"):
        await put(
            admin, f"/v1/sessions/shop/{name}", {"storage_state": make_state("canary"), "user_data": {"x": "canary"}}
        )
    response = await admin.get("/v1/sessions/shop")
    assert [session["name"] for session in response.json] == ["a", "b", "c"]
    assert b"canary" not in response.body


async def test_a_list_can_be_read_page_by_page_and_by_state(admin: Api) -> None:
    for number in range(5):
        state = "ready" if number % 2 else "retired"
        await put(admin, f"/v1/sessions/shop/{number}", {"state": state})
    names: list[str] = []
    path: str | None = "/v1/sessions/shop?limit=2"
    while path:
        response = await admin.get(path)
        names += [session["name"] for session in response.json]
        link = response.headers.get("Link")
        path = "/" + link.split(">")[0].split("/", 3)[3] if link else None
    assert names == list("01234")
    assert [session["name"] for session in await admin.ok("/v1/sessions/shop?state=ready")] == ["1", "3"]
    assert (await admin.get("/v1/sessions/shop?state=leased&limit=1")).json == []
    assert (await admin.get("/v1/sessions/shop?state=idle")).problems() == [(["query", "state"], "value_error")]
    assert (await admin.get("/v1/sessions/shop?cursor=x")).problems() == [(["query", "cursor"], "value_error")]


@pytest.mark.parametrize("name", ["ä 1", "a%2Fb", "x" * 128, "$name", "a.b", "user_data"])
async def test_names_may_be_any_text(admin: Api, name: str) -> None:
    created = await put(admin, f"/v1/sessions/{name}/{name}", {"user_data": {"is": name}, "note": "$note"})
    assert created["name"] == created["pool"] == name.replace("%2F", "/")
    assert (await admin.ok(f"/v1/sessions/{name}/{name}"))["user_data"] == {"is": name}
    assert (await lease(admin, name, owner="$owner"))["session"]["owner"] == "$owner"
    assert (await session_of(admin, name, name))["note"] == "$note"


@pytest.mark.parametrize(
    "path", ["/v1/sessions/shop", "/v1/sessions/shop/a", "/v1/sessions/other/anna", "/v1/sessions/shop/anna"]
)
async def test_what_does_not_exist_or_belongs_to_others_is_404(admin: Api, stranger: Api, path: str) -> None:
    await put(stranger, "/v1/sessions/shop/anna", {})
    for method in ("GET", "DELETE"):
        response = await admin.request(method, path)
        assert (response.status, response.problems()) == (404, [(["path", "pool"], "not_found")])
    response = await admin.post("/v1/sessions/shop/lease", {})
    assert (response.status, response.problems()) == (404, [(["path", "pool"], "not_found")])
    assert len(await stranger.ok("/v1/sessions/shop")) == 1


async def test_a_session_that_does_not_exist_is_404(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop", {})
    for method in ("GET", "DELETE"):
        response = await admin.request(method, "/v1/sessions/shop/anna")
        assert (response.status, response.problems()) == (404, [(["path", "name"], "not_found")])


async def test_a_deleted_session_is_gone_with_its_lease(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop/anna", {"storage_state": make_state("anna")})
    lost = await lease(admin, "shop")
    assert (await admin.delete("/v1/sessions/shop/anna")).json == {"deleted": 1}
    assert await admin.ok("/v1/sessions/shop") == []
    await put(admin, "/v1/sessions/shop/anna", {})
    assert (await admin.ok("/v1/sessions/shop/anna"))["storage_state"] is None
    response = await admin.put(f"/v1/leases/{lost['lease_id']}", {"storage_state": make_state("late")})
    assert (response.status, response.problems()) == (409, [(["path", "lease_id"], "lease_lost")])
    assert (await admin.ok("/v1/sessions/shop/anna"))["storage_state"] is None


async def test_nothing_of_a_deleted_pool_appears_in_a_new_one_of_its_name(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop", {"rest_seconds": 60})
    for name in ("anna", "ben"):
        await put(admin, f"/v1/sessions/shop/{name}", {"user_data": {"name": name}})
    lost = await lease(admin, "shop")
    assert (await admin.delete("/v1/sessions/shop")).json == {"deleted": 2}
    assert await admin.ok("/v1/sessions") == []
    assert (await admin.delete("/v1/sessions/shop")).status == 404
    await put(admin, "/v1/sessions/shop/anna", {})
    assert (await admin.ok("/v1/sessions"))[0] == {"pool": "shop", **DEFAULTS, "sessions": {**NONE, "ready": 1}}
    assert (await admin.ok("/v1/sessions/shop/anna"))["user_data"] is None
    ended = await admin.post(f"/v1/leases/{lost['lease_id']}/release", {"outcome": "good", "user_data": {"a": 1}})
    assert (ended.status, ended.problems()) == (409, [(["path", "lease_id"], "lease_lost")])
    assert (await admin.ok("/v1/sessions/shop/anna"))["user_data"] is None


async def test_if_version_guards_against_a_newer_one(admin: Api) -> None:
    path = "/v1/sessions/shop/anna"
    for version in (1, 2**62):
        response = await admin.put(path, {"if_version": version})
        assert (response.status, response.problems()) == (412, [(["body", "if_version"], "precondition_failed")])
    assert (await put(admin, path, {"if_version": 0, "note": "new"}))["version"] == 1
    assert (await admin.put(path, {"if_version": 0, "note": "again"})).status == 412
    assert (await put(admin, path, {"if_version": 1, "storage_state": make_state("a")}))["version"] == 2
    response = await admin.put(path, {"if_version": 1, "storage_state": make_state("b"), "note": "late"})
    assert response.status == 412
    found = await admin.ok(path)
    assert (found["version"], found["note"], found["storage_state"]) == (2, "new", make_state("a"))


async def test_of_many_that_create_a_session_at_once_one_does(admin: Api) -> None:
    path = "/v1/sessions/shop/anna"
    responses = await asyncio.gather(
        *(admin.put(path, {"if_version": 0, "user_data": {"number": n}}) for n in range(10))
    )
    assert sorted(response.status for response in responses) == [200, *[412] * 9]
    number = next(n for n, response in enumerate(responses) if response.status == 200)
    assert (await admin.ok(path))["user_data"] == {"number": number}


async def test_a_new_state_sets_ready_and_restarts_uses_errors_and_rest(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop", {"rest_seconds": 3600})
    await put(admin, "/v1/sessions/shop/anna", {})
    ended = await release(admin, (await lease(admin, "shop"))["lease_id"], "bad")
    assert (ended["state"], ended["uses"], ended["errors"]) == ("resting", 1, 1)
    renewed = await put(admin, "/v1/sessions/shop/anna", {"storage_state": make_state("a")})
    assert (renewed["state"], renewed["uses"], renewed["errors"], renewed["rest_until"]) == ("ready", 0, 0, None)
    marked = await put(admin, "/v1/sessions/shop/anna", {"storage_state": make_state("a"), "state": "needs_login"})
    assert marked["state"] == "needs_login"


@pytest.mark.parametrize("mark", ["needs_login", "retired", "blocked"])
async def test_a_marked_session_is_not_leased(admin: Api, mark: str) -> None:
    marked = await put(admin, "/v1/sessions/shop/anna", {"state": mark})
    assert (marked["state"], marked["rest_until"] is not None) == (mark, mark == "blocked")
    response = await admin.post("/v1/sessions/shop/lease", {})
    assert (response.status, response.problems()) == (409, [(["path", "pool"], "no_session")])
    assert (await put(admin, "/v1/sessions/shop/anna", {"note": "only a note"}))["state"] == mark
    assert (await put(admin, "/v1/sessions/shop/anna", {"state": "ready"}))["state"] == "ready"
    assert (await lease(admin, "shop"))["session"]["name"] == "anna"


async def test_a_blocked_session_is_retired_where_the_pool_says_so(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop", {"blocked_rest_seconds": None})
    assert (await put(admin, "/v1/sessions/shop/anna", {"state": "blocked"}))["state"] == "retired"


BAD_BODIES: list[tuple[str, Any, list[Any]]] = [
    ("PUT /v1/sessions/shop", {"lease_seconds": 9}, [(["body", "lease_seconds"], "greater_than_equal")]),
    ("PUT /v1/sessions/shop", {"lease_seconds": 3601}, [(["body", "lease_seconds"], "less_than_equal")]),
    ("PUT /v1/sessions/shop", {"max_lease_seconds": 604801}, [(["body", "max_lease_seconds"], "less_than_equal")]),
    ("PUT /v1/sessions/shop", {"rest_seconds": None}, [(["body", "rest_seconds"], "int_type")]),
    ("PUT /v1/sessions/shop", {"max_errors": 101}, [(["body", "max_errors"], "less_than_equal")]),
    ("PUT /v1/sessions/shop", {"max_use": 1}, [(["body", "max_use"], "unknown_field")]),
    ("PUT /v1/sessions/shop/a", {"state": "leased"}, [(["body", "state"], "value_error")]),
    ("PUT /v1/sessions/shop/a", {"note": "x" * 1001}, [(["body", "note"], "string_too_long")]),
    ("PUT /v1/sessions/shop/a", {"note": "a\0"}, [(["body", "note"], "value_error")]),
    ("PUT /v1/sessions/shop/a", {"user_data": []}, [(["body", "user_data"], "dict_type")]),
    ("PUT /v1/sessions/shop/a", {"user_data": {"a": "x" * 65536}}, [(["body", "user_data"], "too_large")]),
    ("PUT /v1/sessions/shop/a", {"storage_state": None}, [(["body", "storage_state"], "dict_type")]),
    (
        "PUT /v1/sessions/shop/a",
        {"storage_state": {"cookie": []}},
        [(["body", "storage_state", "cookie"], "unknown_field")],
    ),
    (
        "PUT /v1/sessions/shop/a",
        {"storage_state": {"cookies": [{"name": "a", "value": "b"}]}},
        [(["body", "storage_state", "cookies", "0", "domain"], "missing")],
    ),
    ("PUT /v1/sessions/shop/a", {"if_version": -1}, [(["body", "if_version"], "greater_than_equal")]),
    ("PUT /v1/sessions/shop/a", [], [(["body"], "dict_type")]),
    ("POST /v1/sessions/shop/lease", {"lease_id": "short"}, [(["body", "lease_id"], "string_too_short")]),
    ("POST /v1/sessions/shop/lease", {"lease_id": "ä" * 22}, [(["body", "lease_id"], "value_error")]),
    ("POST /v1/sessions/shop/lease", {"seconds": 9}, [(["body", "seconds"], "greater_than_equal")]),
    ("POST /v1/sessions/shop/lease", {"wait": 61}, [(["body", "wait"], "less_than_equal")]),
    ("POST /v1/sessions/shop/lease", {"shared": 1}, [(["body", "shared"], "bool_type")]),
    ("POST /v1/sessions/shop/lease", {"owner": "x" * 129}, [(["body", "owner"], "string_too_long")]),
    ("PUT /v1/leases/{lease}", {"seconds": 3601}, [(["body", "seconds"], "less_than_equal")]),
    (
        "PUT /v1/leases/{lease}",
        {"storage_state": {"cookies": 1}},
        [(["body", "storage_state", "cookies"], "list_type")],
    ),
    ("POST /v1/leases/{lease}/release", {}, [(["body", "outcome"], "missing")]),
    ("POST /v1/leases/{lease}/release", {"outcome": "fine"}, [(["body", "outcome"], "value_error")]),
    (
        "POST /v1/leases/{lease}/release",
        {"outcome": "good", "rest_seconds": 86401},
        [(["body", "rest_seconds"], "less_than_equal")],
    ),
]


async def test_bad_input_is_refused_with_its_place_and_changes_nothing(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop/a", {"user_data": {"kept": True}})
    held = await lease(admin, "shop")
    before = await admin.ok("/v1/sessions/shop/a"), await admin.ok("/v1/sessions")
    for route, body, problems in BAD_BODIES:
        method, path = route.format(lease=held["lease_id"]).split()
        response = await admin.request(method, path, json=body)
        assert (response.status, response.problems()) == (422, problems), (route, body)
    assert (await admin.ok("/v1/sessions/shop/a"), await admin.ok("/v1/sessions")) == before


async def test_a_storage_state_may_have_four_mebibytes(admin: Api) -> None:
    entry = {"name": "a", "value": "x" * (4 * 1024 * 1024 - 200)}
    state = {"cookies": [], "origins": [{"origin": "https://a.example", "localStorage": [entry]}]}
    await put(admin, "/v1/sessions/shop/anna", {"storage_state": state})
    assert (await lease(admin, "shop"))["session"]["storage_state"] == state
    entry["value"] += "x" * 200
    response = await admin.put("/v1/sessions/shop/anna", {"storage_state": state})
    assert (response.status, response.problems()) == (422, [(["body", "storage_state"], "too_large")])


async def test_the_numbers_of_pools_and_sessions_are_limited(admin: Api, stranger: Api, small: Small) -> None:
    small(pools=2, sessions_in_pool=2, sessions_in_organization=3)
    for path in ("shop/a", "shop/b", "forum/a"):
        await put(admin, f"/v1/sessions/{path}", {})
    for path in ("third", "third/a", "shop/c", "forum/b"):
        response = await admin.put(f"/v1/sessions/{path}", {})
        assert (response.status, response.problems()) == (422, [(["path", "pool"], "too_many")]), path
    await put(admin, "/v1/sessions/shop/a", {"note": "a known one may change"})
    await put(stranger, "/v1/sessions/third/a", {})


async def test_a_pool_too_large_to_be_deleted_at_once_is_hidden_at_once(
    wired_api: Api, wired: Store, wire: FaultProxy, small: Small
) -> None:
    small(purge_after_seconds=0, purge_every_seconds=0)
    for name in ("anna", "ben"):
        await put(wired_api, f"/v1/sessions/shop/{name}", {"user_data": {"a": 1}})
    wire.before("delete", "session_secrets", refuse())
    response = await wired_api.delete("/v1/sessions/shop")
    assert (response.status, response.json) == (200, {"deleted": 2})
    assert (await wired_api.get("/v1/sessions/shop")).status == 404
    owner = {"organization_id": wired_api.organization_id}
    assert await wired.database["session_secrets"].count_documents(owner) == 2
    await wired.sessions.pools.purge()
    for collection in ("pools", "sessions", "session_secrets"):
        assert await wired.database[collection].count_documents(owner) == 0, collection


async def test_too_long_names_are_refused(admin: Api) -> None:
    for path, place in ((f"/v1/sessions/{'x' * 129}", "pool"), (f"/v1/sessions/a/{'x' * 129}", "name")):
        response = await admin.put(path, {})
        assert response.problems() == [(["path", place], "string_too_long")]


async def test_reading_sessions_needs_state_and_their_secrets_read_too(make_api: MakeApi) -> None:
    lister, worker = await make_api(scopes=["state"]), await make_api(scopes=["read", "write"])
    assert (await lister.get("/v1/sessions")).status == 200
    assert (await lister.get("/v1/sessions/shop")).status == 404
    assert (await lister.get("/v1/sessions/shop/anna")).status == 403
    assert (await worker.get("/v1/sessions")).status == 403
    writer = await make_api(scopes=["write", "state"])
    assert (await writer.put("/v1/sessions/shop/anna", {})).status == 200
    assert (await writer.post("/v1/sessions/shop/lease", {})).status == 403
    assert (await writer.delete("/v1/sessions/shop/anna")).status == 403
