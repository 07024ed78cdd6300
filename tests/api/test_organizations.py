"""Two organizations with the same group ids, domains, keys and names never see each other's records.

Every route is called by both; a route that is missing here fails the first test.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.conftest import MakeApi
from tests.support.api import Answer, Api, make_cookie, make_entry, make_file, make_output, make_review
from tests.support.contract import HeldApi
from tests.support.routes import API_ROUTES

# Say nothing about any organization, and take no token.
OPEN = {("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/metrics"), ("GET", "/")}

Write = Callable[[Api, str], Awaitable[Answer]]


async def set_cookies(api: Api, mark: str) -> Answer:
    return await api.post("/v1/cookies", [make_cookie(value=mark), make_cookie(domain="b.example", value=mark)])


async def set_local_storage(api: Api, mark: str) -> Answer:
    return await api.post("/v1/local-storage", [make_entry(value=mark), make_entry(domain="b.example", value=mark)])


async def set_storage_state(api: Api, mark: str) -> Answer:
    cookie = {"name": "sid", "value": mark, "domain": "state.example", "path": "/", "sameSite": "Lax"}
    origin = {"origin": "https://state.example", "localStorage": [{"name": "k", "value": mark}], "indexedDB": [mark]}
    return await api.post("/v1/storage-state", {"cookies": [cookie], "origins": [origin]})


async def add_reviews(api: Api, mark: str) -> Answer:
    return await api.post("/v1/reviews/group-1", [make_review(status=mark, comment=mark)])


async def write_outputs(api: Api, mark: str) -> Answer:
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
    ],
    ("GET", "/v1/outputs/{group_id}/export"): [
        (f"/v1/outputs/group-1/export?format={format}", {}) for format in ("ndjson", "csv", "json")
    ],
}
# Each deletes all that the caller's organization has there.
DELETIONS = {
    ("DELETE", "/v1/cookies"): "/v1/cookies?all=true",
    ("DELETE", "/v1/local-storage"): "/v1/local-storage?all=true",
}
# These show numbers, not what was written.
COUNTS = {
    ("GET", "/v1/token"): "/v1/token",
    ("GET", "/v1/groups"): "/v1/groups",
    ("GET", "/v1/groups/{group_id}/stats"): "/v1/groups/group-1/stats",
}


def test_every_route_is_held_to_this() -> None:
    routes = {(method, path) for method, path, _, _ in API_ROUTES}
    assert routes - OPEN == {*WRITES, *READS, *COUNTS, *DELETIONS}


def test_every_route_that_takes_no_token_is_meant_to() -> None:
    for method, path, scope, _ in API_ROUTES:
        needs = "public" if (method, path) in OPEN else {"GET": "read", "DELETE": "delete"}.get(method, "write")
        assert scope == needs, (method, path)


@pytest.fixture
async def two(make_api: MakeApi) -> tuple[Api, Api]:
    """Two callers of two organizations."""
    callers = [await make_api(), await make_api()]
    first, second = (HeldApi(api.client, api.token, api.organization_id) for api in callers)
    return first, second


async def everything(api: Api) -> list[bytes]:
    """Return what every way to read answers, of all routes."""
    ways = [way for ways in READS.values() for way in ways] + [(path, {}) for path in COUNTS.values()]
    answers = [await api.get(path, headers=headers) for path, headers in ways]
    assert all(answer.status == 200 for answer in answers)
    return [answer.body for answer in answers]


async def test_each_reads_its_own_and_nothing_of_the_other(two: tuple[Api, Api]) -> None:
    marks = ["first-0f3c", "second-9b1d"]
    for api, mark in zip(two, marks, strict=True):
        for write in WRITES.values():
            assert (await write(api, mark)).status == 200
    for api, own, other in zip(two, marks, reversed(marks), strict=True):
        for ways in READS.values():
            for path, headers in ways:
                answer = await api.get(path, headers=headers)
                assert own in answer.body.decode(), (path, headers)
                assert other not in answer.body.decode(), (path, headers)


@pytest.mark.parametrize("route", WRITES, ids=" ".join)
async def test_what_one_writes_changes_nothing_for_the_other(two: tuple[Api, Api], route: tuple[str, str]) -> None:
    first, second = two
    for write in WRITES.values():
        await write(first, "first-0f3c")
    before, empty = await everything(first), await everything(second)
    answer = await WRITES[route](second, "second-9b1d")
    # New to the second, although the first has all the same keys.
    assert '"created":0' not in answer.body.decode()
    assert '"updated":0' in answer.body.decode() or "reviews" in route[1]
    assert await everything(first) == before
    assert await everything(second) != empty
    # Nor does writing over it.
    await WRITES[route](second, "second-again")
    assert await everything(first) == before


@pytest.mark.parametrize("route", DELETIONS, ids=" ".join)
async def test_what_one_deletes_stays_with_the_other(two: tuple[Api, Api], route: tuple[str, str]) -> None:
    first, second = two
    for api in two:
        for write in WRITES.values():
            await write(api, "mark")
    before = await everything(first)
    answer = await second.request("DELETE", DELETIONS[route])
    assert answer.json["deleted"] > 0
    assert await everything(first) == before
    assert await second.ok(route[1]) == []


async def test_another_organizations_group_answers_like_one_that_does_not_exist(two: tuple[Api, Api]) -> None:
    first, second = two
    for write in WRITES.values():
        await write(first, "first-0f3c")
    for path in ("/v1/outputs/group-1", "/v1/reviews/group-1", "/v1/groups/group-1/stats"):
        theirs = await second.get(path)
        nobodys = await second.get(path.replace("group-1", "group-x"))
        assert theirs.body.replace(b"group-1", b"group-x") == nobodys.body
        skip = {"Date", "X-Request-ID"}
        kept = [{k: v for k, v in answer.headers.items() if k not in skip} for answer in (theirs, nobodys)]
        assert kept[0] == kept[1]
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
