"""Every route needs the scope that the table gives it, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from service.store import Store, hash_token
from tests.conftest import MakeApi
from tests.support.api import Api, make_output
from tests.support.routes import API_ROUTES

SCOPES = ("read", "write", "delete")
GUARDED = [route for route in API_ROUTES if route.scope != "public"]


# The variables of paths: nothing but the group exists.
NAMES = {
    **{"group_id": "shop", "output_id": "nothing", "webhook_id": "nothing", "job_id": "nothing"},
    **{"token_id": "0123456789ab", "pool": "nothing", "name": "nothing", "lease_id": "x" * 22},
}
STATE = ("/v1/cookies", "/v1/local-storage", "/v1/storage-state")


def needed(method: str, path: str) -> str:
    """Return the scopes that the decisions ask for."""
    if path in STATE:
        return f"{_of_method(method)} state"
    if path.startswith("/v1/tokens"):
        return "admin"
    if path.startswith(("/v1/sessions", "/v1/leases")):
        return _of_sessions(method, path)
    if path.startswith("/v1/webhooks"):
        return "write"
    return _of_method(method)


def _of_sessions(method: str, path: str) -> str:
    """All need `state`; what returns secrets needs `read` too, what changes something `write`."""
    if method == "GET":
        return "read state" if path.endswith("{name}") else "state"
    if method == "DELETE":
        return "delete write state"
    return "read write state" if path.endswith("/lease") else "write state"


def _of_method(method: str) -> str:
    return {"GET": "read", "DELETE": "delete"}.get(method, "write")


def test_the_table_has_the_scopes_of_the_decisions() -> None:
    assert {(r.method, r.path): r.scope for r in GUARDED} == {
        (r.method, r.path): needed(r.method, r.path) for r in GUARDED
    }


async def test_a_token_without_the_scope_is_refused_and_changes_nothing(make_api: MakeApi) -> None:
    owner = await make_api(scopes=["read", "write"])
    written = await owner.ok("/v1/outputs/shop", [make_output()])
    output_id = written["items"][0]["output_id"]
    callers: dict[tuple[str, ...], Api] = {}
    before = (await owner.get("/v1/outputs/shop")).body, (await owner.get("/v1/groups/shop/stats")).body
    for route in GUARDED:
        path = route.path.format(**{**NAMES, "output_id": output_id})
        words = route.scope.split()
        without = [(tuple(scope for scope in (*SCOPES, "state") if scope != word), word) for word in words]
        for scopes, missing in without:
            if scopes not in callers:
                callers[scopes] = await make_api(owner.organization_id, list(scopes))
            # Refused before anything is read: also where the body is wrong.
            bodies: list[dict[str, Any]] = [{}, {"json": {}}] if route.method in ("POST", "PATCH", "PUT") else [{}]
            for body in bodies:
                response = await callers[scopes].request(route.method, path, **body)
                assert response.status == 403, (route, scopes)
                assert response.problems() == [(["header", "Authorization"], "scope_missing")], (route, scopes)
                assert missing in response.json["detail"][0]["msg"], (route, scopes)
    after = (await owner.get("/v1/outputs/shop")).body, (await owner.get("/v1/groups/shop/stats")).body
    assert after == before


@pytest.mark.slow
async def test_the_scope_alone_is_enough(make_api: MakeApi) -> None:
    for route in GUARDED:
        caller = await make_api(scopes=route.scope.split())
        path = route.path.format(**NAMES)
        bodies: dict[str, Any] = {"POST": [], "PATCH": [], "PUT": {}}
        options = {"json": bodies[route.method]} if route.method in bodies else {}
        response = await caller.request(route.method, path, **options)
        assert response.status in (200, 404, 409, 422), (route, response.body)


async def test_without_a_token_a_route_is_401(make_api: MakeApi) -> None:
    client = (await make_api()).client
    for route in GUARDED:
        path = route.path.format(**NAMES)
        async with client.request(route.method, path) as response:
            assert response.status == 401, route
            assert response.headers["WWW-Authenticate"] == "Bearer", route
            assert (await response.json())["detail"][0]["type"] == "auth_missing", route


async def test_a_token_that_syncs_outputs_does_not_see_the_sessions_of_accounts(make_api: MakeApi) -> None:
    consumer = await make_api(scopes=["read"])
    assert (await consumer.get("/v1/outputs/shop")).status == 200
    for path in STATE:
        response = await consumer.get(path)
        assert (response.status, response.problems()) == (403, [(["header", "Authorization"], "scope_missing")])


async def test_a_token_from_before_the_scope_state_keeps_its_access(make_api: MakeApi, store: Store) -> None:
    old = await make_api(scopes=["read"])
    await store.database["tokens"].update_one({"_id": hash_token(old.token)}, {"$unset": {"format": ""}})
    for path in STATE:
        assert (await old.get(path)).status == 200
    assert (await old.ok("/v1/token"))["scopes"] == ["read", "state"]
