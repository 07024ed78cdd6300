"""Two organizations with the same group ids, domains, keys and names never see each other's records.

Every route is called by both; a route that is missing here fails the first test.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import chain
from typing import Any

import pytest

from tests.conftest import MakeApi
from tests.support.api import Api, Response, make_cookie, make_entry, make_file, make_output, make_review
from tests.support.contract import DATE, HeldApi
from tests.support.routes import API_ROUTES

# Say nothing about any organization, and take no token.
OPEN = {("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/metrics"), ("GET", "/")}

Write = Callable[[Api, str], Awaitable[Response]]


async def set_cookies(api: Api, mark: str) -> Response:
    return await api.post("/v1/cookies", [make_cookie(value=mark), make_cookie(domain="b.example", value=mark)])


async def set_local_storage(api: Api, mark: str) -> Response:
    return await api.post("/v1/local-storage", [make_entry(value=mark), make_entry(domain="b.example", value=mark)])


async def set_storage_state(api: Api, mark: str) -> Response:
    cookie = {"name": "sid", "value": mark, "domain": "state.example", "path": "/", "sameSite": "Lax"}
    origin = {"origin": "https://state.example", "localStorage": [{"name": "k", "value": mark}], "indexedDB": [mark]}
    return await api.post("/v1/storage-state", {"cookies": [cookie], "origins": [origin]})


async def add_reviews(api: Api, mark: str) -> Response:
    return await api.post("/v1/reviews/group-1", [make_review(status=mark, comment=mark)])  # of job-1


async def write_outputs(api: Api, mark: str) -> Response:
    tagged = {"country": "Germany", "region": "DE-BE", "mark": mark}
    outputs = [
        make_output(n, data={"mark": mark}, tags=tagged, files=[make_file(blob_key=mark)], is_approved=True)
        for n in range(3)
    ]
    return await api.post("/v1/outputs/group-1", outputs)


WRITES: dict[tuple[str, str], Write] = {
    ("POST", "/v1/cookies"): set_cookies,
    ("POST", "/v1/local-storage"): set_local_storage,
    ("POST", "/v1/storage-state"): set_storage_state,
    ("POST", "/v1/reviews/{group_id}"): add_reviews,
    ("POST", "/v1/outputs/{group_id}"): write_outputs,
}
# Each way to ask, whether it shows what was written, and its headers.
READS: dict[tuple[str, str], list[tuple[str, dict[str, str]]]] = {
    ("GET", "/v1/cookies"): [
        ("/v1/cookies", {}),
        ("/v1/cookies?domain=b.example", {}),
        ("/v1/cookies?active=true", {}),
    ],
    ("GET", "/v1/local-storage"): [
        ("/v1/local-storage", {}),
        ("/v1/local-storage?domain=b.example&active=true", {}),
    ],
    ("GET", "/v1/storage-state"): [
        ("/v1/storage-state", {}),
        ("/v1/storage-state?domain=state.example", {}),
    ],
    ("GET", "/v1/reviews/{group_id}"): [("/v1/reviews/group-1", {})],
    ("GET", "/v1/outputs/{group_id}"): [
        ("/v1/outputs/group-1", {}),
        ("/v1/outputs/group-1?limit=1", {}),
        ("/v1/outputs/group-1?job_id=job-1", {}),
        ("/v1/outputs/group-1?created_after=2020-01-01", {}),
        ("/v1/outputs/group-1?url=https://shop.example/p/1", {}),
        ("/v1/outputs/group-1?country=Germany", {}),
        ("/v1/outputs/group-1?region=DE-BE", {}),
        ("/v1/outputs/group-1?fields=data.mark", {}),
        ("/v1/outputs/group-1?order=desc", {}),
        ("/v1/outputs/group-1?deleted=true", {}),
        ("/v1/outputs/group-1?is_approved=true", {}),
        ("/v1/outputs/group-1?key_hash=key-1", {}),
    ],
    ("GET", "/v1/outputs/{group_id}/export"): [
        (f"/v1/outputs/group-1/export?format={format}", {}) for format in ("ndjson", "csv", "json")
    ],
    ("GET", "/v1/groups/{group_id}/jobs"): [("/v1/groups/group-1/jobs", {})],
    ("GET", "/v1/groups/{group_id}/fields"): [
        ("/v1/groups/group-1/fields", {}),
        ("/v1/groups/group-1/fields?job_id=job-1", {}),
    ],
}
# These wait where there is too little.
FOLLOWED = [
    "/v1/outputs/group-1?wait=1",
    "/v1/outputs/group-1/export?follow=true&limit=3",
    "/v1/outputs/group-1/export?format=sse&limit=3",
]
# These show numbers, or changes that nobody has made, not what was written.
COUNTS = {
    ("GET", "/v1/token"): "/v1/token",
    ("GET", "/v1/groups"): "/v1/groups",
    ("GET", "/v1/groups/{group_id}"): "/v1/groups/group-1",
    ("GET", "/v1/groups/{group_id}/stats"): "/v1/groups/group-1/stats",
    ("GET", "/v1/groups/{group_id}/jobs/{job_id}"): "/v1/groups/group-1/jobs/job-1",
    ("GET", "/v1/groups/{group_id}/jobs/{job_id}/changes"): "/v1/groups/group-1/jobs/job-1/changes",
}
# Each changes something that the caller's organization has: its path and its body.
CHANGES: dict[tuple[str, str], tuple[str, Any]] = {
    ("PATCH", "/v1/outputs/{group_id}"): ("/v1/outputs/group-1", [{"key_hash": "key-1", "is_approved": False}]),
    ("PUT", "/v1/groups/{group_id}"): ("/v1/groups/group-1", {"retention_days": 7}),
    ("PUT", "/v1/groups/{group_id}/jobs/{job_id}"): ("/v1/groups/group-1/jobs/job-1", {"state": "finished"}),
}
# Each deletes all that the caller's organization has there.
DELETIONS = {
    ("DELETE", "/v1/cookies"): "/v1/cookies?all=true",
    ("DELETE", "/v1/local-storage"): "/v1/local-storage?all=true",
    ("DELETE", "/v1/outputs/{group_id}"): "/v1/outputs/group-1?all=true",
    ("DELETE", "/v1/groups/{group_id}"): "/v1/groups/group-1",
}
# One output, by an id that nobody else has: never found by anybody else.
OF_ONE: dict[tuple[str, str], Any] = {
    ("GET", "/v1/outputs/{group_id}/{output_id}"): None,
    ("PATCH", "/v1/outputs/{group_id}/{output_id}"): {"is_approved": False, "tags": {"mark": "stolen"}},
    ("DELETE", "/v1/outputs/{group_id}/{output_id}"): None,
}


def test_every_route_is_held_to_this() -> None:
    # Sessions are held to it in test_sessions.py, webhooks in test_webhooks.py, versions in test_versions.py, tokens in
    # test_tokens.py.
    output = "/v1/outputs/{group_id}/{output_id}"
    elsewhere = ("/v1/sessions", "/v1/leases", "/v1/webhooks", "/v1/tokens", f"{output}/versions", f"{output}/restore")
    routes = {(method, path) for method, path, _, _ in API_ROUTES if not path.startswith(elsewhere)}
    assert routes - OPEN == {*WRITES, *READS, *COUNTS, *CHANGES, *DELETIONS, *OF_ONE}


def test_every_route_that_takes_no_token_is_meant_to() -> None:
    assert {(method, path) for method, path, scope, _ in API_ROUTES if scope == "public"} <= OPEN


@pytest.fixture
async def two(make_api: MakeApi) -> tuple[Api, Api]:
    """Two callers of two organizations."""
    callers = [await make_api(scopes=["read", "write", "delete", "state"]) for _ in range(2)]
    first, second = (HeldApi(api.client, api.token, api.organization_id) for api in callers)
    return first, second


async def everything(api: Api) -> list[bytes]:
    """Return the response of every way to read, of all routes."""
    ways = [*chain(*READS.values()), *((path, {}) for path in COUNTS.values())]
    # Without the check of their form, which takes longer than the requests: the next test makes it.
    responses = [await Api.request(api, "GET", path, headers=headers) for path, headers in ways]
    assert all(response.status == 200 or "/jobs/" in path for response, (path, _) in zip(responses, ways, strict=True))
    return [response.body for response in responses]


@pytest.mark.slow
async def test_each_reads_its_own_and_nothing_of_the_other(two: tuple[Api, Api]) -> None:
    marks = ["first-0f3c", "second-9b1d"]
    for api, mark in zip(two, marks, strict=True):
        for write in WRITES.values():
            assert (await write(api, mark)).status == 200
    for api, own, other in zip(two, marks, reversed(marks), strict=True):
        for path, headers in [*chain(*READS.values()), *((path, {}) for path in FOLLOWED)]:
            response = await api.get(path, headers=headers)
            assert own in response.body.decode(), (path, headers)
            assert other not in response.body.decode(), (path, headers)
        for path in COUNTS.values():
            assert other not in (await api.get(path)).body.decode(), path


def changed(before: list[bytes], after: list[bytes]) -> int:
    """Return how many responses differ."""
    return sum(one != other for one, other in zip(before, after, strict=True))


async def test_writes_of_one_organization_change_nothing_for_another(two: tuple[Api, Api]) -> None:
    first, second = two
    for write in WRITES.values():
        await write(first, "first-0f3c")
    before = await everything(first)
    for route, write in WRITES.items():
        response = await write(second, "second-9b1d")
        # New to the second, although the first has all the same keys.
        assert '"created":0' not in response.body.decode(), route
        assert '"updated":0' in response.body.decode() or "reviews" in route[1], route
        # Nor does writing over it.
        assert (await write(second, "second-again")).body != response.body, route
    assert await everything(first) == before


@pytest.mark.slow
async def test_changes_of_one_organization_change_nothing_for_another(two: tuple[Api, Api]) -> None:
    first, second = two
    for api in two:
        for write in WRITES.values():
            await write(api, "mark")
    before, own = await everything(first), await everything(second)
    for route, (path, body) in CHANGES.items():
        assert (await second.request(route[0], path, json=body)).status == 200, route
    assert await everything(first) == before
    assert changed(own, await everything(second)) > len(CHANGES)


@pytest.mark.slow
async def test_deletions_of_one_organization_delete_nothing_of_another(two: tuple[Api, Api]) -> None:
    first, second = two
    for write in WRITES.values():
        await write(first, "mark")
    before = await everything(first)
    for route, path in DELETIONS.items():
        for write in WRITES.values():
            await write(second, "mark")
        assert (await second.delete(path)).json["deleted"] > 0, route
        if ("GET", route[1]) in READS:
            assert b"mark" not in (await second.get(READS["GET", route[1]][0][0])).body, route
    assert await everything(first) == before


@pytest.mark.slow
async def test_one_output_of_another_organization_is_not_found(two: tuple[Api, Api]) -> None:
    first, second = two
    for api in two:
        await write_outputs(api, "mark")
    before = await everything(first)
    output_id = (await first.ok("/v1/outputs/group-1"))["items"][0]["output_id"]
    own = (await second.ok("/v1/outputs/group-1"))["items"][0]["output_id"]
    for (method, _), body in OF_ONE.items():
        options = {} if body is None else {"json": body}
        theirs = await second.request(method, f"/v1/outputs/group-1/{output_id}", **options)
        nobodys = await second.request(method, "/v1/outputs/group-1/00000000-0000-4000-8000-000000000000", **options)
        assert (theirs.status, theirs.body) == (nobodys.status, nobodys.body), method
        assert (theirs.status, theirs.problems()) == (404, [(["path", "output_id"], "not_found")]), method
        assert headers_of(theirs) == headers_of(nobodys), method
        # Its own is found.
        assert (await second.request(method, f"/v1/outputs/group-1/{own}", **options)).status == 200, method
    assert await everything(first) == before


def headers_of(response: Response) -> dict[str, str]:
    """Return the headers that do not differ from one request to the next."""
    return {name: value for name, value in response.headers.items() if name not in ("Date", "X-Request-ID")}


@pytest.mark.slow
async def test_another_organizations_group_looks_like_one_that_does_not_exist(two: tuple[Api, Api]) -> None:
    first, second = two
    for write in WRITES.values():
        await write(first, "first-0f3c")
    paths: list[tuple[str, str, Any]] = [
        *(("GET", path, None) for ways in READS.values() for path, _ in ways),
        *(("GET", path, None) for path in COUNTS.values()),
        *((method, path, body) for (method, _), (path, body) in CHANGES.items()),
        *(("DELETE", path, None) for path in DELETIONS.values()),
    ]
    before = await everything(first)
    for method, path, body in paths:
        options = {} if body is None else {"json": body}
        theirs = await second.request(method, path, **options)
        nobodys = await second.request(method, path.replace("group-1", "group-x"), **options)
        assert theirs.status == nobodys.status, path
        bodies = [DATE.sub("now", response.body.decode()) for response in (theirs, nobodys)]
        assert bodies[0].replace("group-1", "group-x") == bodies[1]
        assert headers_of(theirs) == headers_of(nobodys)
    assert await everything(first) == before
    assert await second.ok("/v1/groups") == []


async def test_counts_are_of_the_organization_alone(two: tuple[Api, Api], make_api: MakeApi) -> None:
    first, second = two
    await write_outputs(first, "first")
    await second.ok("/v1/outputs/group-1", [make_output()])
    for api, items in ((first, 3), (second, 1)):
        ((group),) = await api.ok("/v1/groups")
        assert (group["group_id"], group["items"], group["jobs"]) == ("group-1", items, 1)
        assert (await api.ok("/v1/groups/group-1/stats"))["items"] == items


async def test_local_storage_carries_the_tokens_organization(two: tuple[Api, Api]) -> None:
    for api in two:
        await set_local_storage(api, "x")
        entries: list[dict[str, Any]] = await api.ok("/v1/local-storage")
        assert {entry["organization_id"] for entry in entries} == {api.organization_id}
