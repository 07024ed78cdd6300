"""Every route needs the scope that the table gives it, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from service.http.routing import Route
from tests.conftest import MakeApi
from tests.support.api import make_output
from tests.support.routes import API_ROUTES

SCOPES = ("read", "write", "delete")
GUARDED = [route for route in API_ROUTES if route.scope != "public"]


def needed(method: str, path: str) -> str:
    """Return the scope that the decisions ask for."""
    if method == "PUT" and path.startswith("/v1/groups/"):  # to set a retention is to delete
        return "delete"
    return {"GET": "read", "DELETE": "delete"}.get(method, "write")


def test_the_table_has_the_scopes_of_the_decisions() -> None:
    assert {(r.method, r.path): r.scope for r in GUARDED} == {
        (r.method, r.path): needed(r.method, r.path) for r in GUARDED
    }


@pytest.mark.parametrize("route", GUARDED, ids=lambda route: f"{route.method} {route.path}")
async def test_a_token_without_the_scope_is_refused_and_changes_nothing(make_api: MakeApi, route: Route) -> None:
    owner = await make_api(scopes=["read", "write"])
    written = await owner.ok("/v1/outputs/shop", [make_output()])
    path = route.path.format(group_id="shop", output_id=written["items"][0]["output_id"])
    before = (await owner.get("/v1/outputs/shop")).body, (await owner.get("/v1/groups/shop/stats")).body
    others = [scope for scope in SCOPES if scope != route.scope]
    for scopes in ([others[0]], [others[1]], others):
        caller = await make_api(owner.organization_id, scopes)
        # Refused before anything is read: also where the body is wrong.
        bodies: list[dict[str, Any]] = [{}, {"json": {}}] if route.method in ("POST", "PATCH", "PUT") else [{}]
        for body in bodies:
            response = await caller.request(route.method, path, **body)
            assert response.status == 403
            assert response.problems() == [(["header", "Authorization"], "scope_missing")]
            assert route.scope in response.json["detail"][0]["msg"]
    assert before == ((await owner.get("/v1/outputs/shop")).body, (await owner.get("/v1/groups/shop/stats")).body)


@pytest.mark.parametrize("route", GUARDED, ids=lambda route: f"{route.method} {route.path}")
async def test_the_scope_alone_is_enough(make_api: MakeApi, route: Route) -> None:
    caller = await make_api(scopes=[route.scope])
    path = route.path.format(group_id="shop", output_id="nothing")
    bodies: dict[str, Any] = {"POST": [], "PATCH": [], "PUT": {"retention_days": 1}}
    options = {"json": bodies[route.method]} if route.method in bodies else {}
    response = await caller.request(route.method, path, **options)
    assert response.status in (200, 404, 422), response.body


@pytest.mark.parametrize("route", GUARDED, ids=lambda route: f"{route.method} {route.path}")
async def test_without_a_token_nothing_is_told(make_api: MakeApi, route: Route) -> None:
    client = (await make_api()).client
    path = route.path.format(group_id="shop", output_id="nothing")
    async with client.request(route.method, path) as response:
        assert response.status == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert (await response.json())["detail"][0]["type"] == "auth_missing"
