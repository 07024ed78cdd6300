"""DELETE /v1/cookies and DELETE /v1/local-storage."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import MakeApi
from tests.support.api import Api, make_cookie, make_entry
from tests.support.fault_proxy import FaultProxy
from tests.support.limits import Small

PAST, FUTURE = "2020-01-01T00:00:00Z", "2100-01-01T00:00:00Z"
COOKIES, ENTRIES = "/v1/cookies", "/v1/local-storage"


def make(route: str, name: str, **changes: Any) -> dict[str, Any]:
    return make_cookie(name=name, **changes) if route == COOKIES else make_entry(key=name, **changes)


async def names(api: Api, path: str) -> list[str]:
    return [record["name" if path == COOKIES else "key"] for record in await api.ok(path)]


async def delete(api: Api, route: str, **query: str) -> Any:
    response = await api.request("DELETE", route, params=query)
    assert response.status == 200, response.body
    return response.json


async def fill(api: Api, path: str) -> None:
    """Set four records."""
    records = [
        make(path, "a", domain="a.example", path="/", expires=FUTURE),
        make(path, "b", domain="a.example", path="/x", expires=PAST),
        make(path, "c", domain="c.example", path="/", expires=PAST),
        make(path, "d", domain="d.example", path="/", expires=None),
    ]
    await api.ok(path, records)


@pytest.fixture(params=[COOKIES, ENTRIES])
async def path(request: pytest.FixtureRequest, api: Api) -> str:
    """The route, with four records in it."""
    path: str = request.param
    await fill(api, path)
    return path


async def test_what_matches_all_filters_is_deleted(api: Api, path: str) -> None:
    for query, left in [
        ({"domain": "a.example"}, "cd"),
        ({"path": "/x"}, "acd"),
        ({"name": "c"}, "abd"),
        ({"expired": "true"}, "ad"),
        ({"domain": "a.example", "expired": "true"}, "acd"),
        ({"domain": "a.example", "path": "/", "name": "a"}, "bcd"),
        ({"domain": "a.example", "name": "c"}, "abcd"),
        ({"all": "true"}, ""),
        ({"all": "true", "domain": "c.example"}, "abd"),
        ({"all": "false", "domain": "c.example"}, "abd"),
    ]:
        if path == ENTRIES and "name" in query:
            query = {**query, "key": query["name"]}
            del query["name"]
        assert await delete(api, path, **query) == {"deleted": 4 - len(left)}, (query, left)
        assert "".join(await names(api, path)) == left, (query, left)
        assert await delete(api, path, **query) == {"deleted": 0}, query
        await fill(api, path)


async def test_without_a_filter_nothing_is_deleted(api: Api, path: str) -> None:
    for query in ["", "expired=false", "all=false"]:
        response = await api.request("DELETE", f"{path}?{query}")
        assert (response.status, response.problems()) == (422, [(["query"], "missing")]), query
        assert len(await names(api, path)) == 4, query


async def test_a_filter_of_the_other_kind_is_unknown(api: Api, path: str) -> None:
    other = "key" if path == COOKIES else "name"
    response = await api.request("DELETE", f"{path}?{other}=a")
    assert (response.status, response.problems()) == (422, [(["query", other], "unknown_parameter")])


async def test_an_empty_path_of_a_cookie_is_the_root(api: Api) -> None:
    await api.ok(COOKIES, [make_cookie(name="a", path=""), make_cookie(name="b", path="/")])
    assert await delete(api, COOKIES, path="/") == {"deleted": 2}


async def test_a_crawlers_token_cannot_delete(make_api: MakeApi, api: Api, path: str) -> None:
    crawler = await make_api(api.organization_id, scopes=["read", "write", "state"])
    response = await crawler.request("DELETE", f"{path}?all=true")
    assert (response.status, response.problems()) == (403, [(["header", "Authorization"], "scope_missing")])
    assert len(await names(api, path)) == 4


async def test_many_are_deleted_in_bounded_commands(wired_api: Api, wire: FaultProxy, path: str, small: Small) -> None:
    small(state_chunk=7)
    await wired_api.ok(path, [make(path, f"n{n}") for n in range(50)])
    deletes = wire.noting("delete", "cookies" if path == COOKIES else "local_storage")
    assert await delete(wired_api, path, all="true") == {"deleted": 54}
    assert len(deletes.bodies) >= 8
    assert await names(wired_api, path) == []


async def test_an_empty_filter_deletes_nothing(api: Api, path: str) -> None:
    for query in ["domain=", "domain=a.example&path=", "all=true&domain=", "expired=&domain=a.example"]:
        empty = next(part.rstrip("=") for part in query.split("&") if part.endswith("="))
        response = await api.request("DELETE", f"{path}?{query}")
        assert response.status == 422 and response.problems()[0][0] == ["query", empty], query
        assert len(await names(api, path)) == 4, query
