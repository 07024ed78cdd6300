"""Patches, deletions and what else changes or describes a group: what is sent, and what comes of the response."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime
from typing import Any

import pytest

from sds_client import AsyncClient, Client, ClientError, VersionConflict
from tests.support.peer import Peer, failure, peer

Call = Callable[[AsyncClient], Awaitable[Any]]


async def sent(call: Call, *responses: Any) -> tuple[Any, Peer]:
    """Return the result of a call, and the service that it was sent to."""
    async with peer(*responses) as service, AsyncClient(service.url, "t") as client:
        return await call(client), service


def line(service: Peer, number: int = 0) -> str:
    return f"{service.requests[number].method} {service.requests[number].path_qs}"


PATCHED = {"id": 9, "output_id": "o", "key_hash": "k", "result": "updated"}


@pytest.mark.parametrize(
    ("call", "expected", "body", "response", "result"),
    [
        (lambda c: c.get("a/b", "o"), "GET /v1/outputs/a%2Fb/o", None, {"id": 1}, {"id": 1}),
        (
            lambda c: c.patch("g", "o", is_approved=True),
            "PATCH /v1/outputs/g/o",
            {"is_approved": True},
            PATCHED,
            PATCHED,
        ),
        (
            lambda c: c.patch("g", "o", tags={"country": "Peru", "region": None}),
            "PATCH /v1/outputs/g/o",
            {"tags": {"country": "Peru", "region": None}},
            PATCHED,
            PATCHED,
        ),
        (lambda c: c.restore("g", "o"), "POST /v1/outputs/g/o/restore", {}, {"items": [PATCHED]}, PATCHED),
        (lambda c: c.restore("g", "o", 7), "POST /v1/outputs/g/o/restore", {"id": 7}, {"items": [PATCHED]}, PATCHED),
        (lambda c: c.reviews("g", history=True), "GET /v1/reviews/g?history=true", None, [], []),
        (lambda c: c.delete("g", "o"), "DELETE /v1/outputs/g/o", None, {"deleted": 1}, True),
        (
            lambda c: c.delete_many("g", job_id="monday", is_approved=False),
            "DELETE /v1/outputs/g?job_id=monday&is_approved=false",
            None,
            {"deleted": 3, "more": False},
            3,
        ),
        (
            lambda c: c.delete_many("g", all=True, max_id=7),
            "DELETE /v1/outputs/g?all=true&max_id=7",
            None,
            {"deleted": 3, "more": False},
            3,
        ),
        (
            lambda c: c.delete_many("g", scraped_before=datetime(2026, 1, 31, tzinfo=UTC)),
            "DELETE /v1/outputs/g?scraped_before=2026-01-31T00:00:00%2B00:00",
            None,
            {"deleted": 3, "more": False},
            3,
        ),
        (
            lambda c: c.delete_many("g", all=True),
            "DELETE /v1/outputs/g?all=true",
            None,
            {"deleted": 3, "more": False},
            3,
        ),
        (lambda c: c.delete_group("g"), "DELETE /v1/groups/g", None, {"deleted": 5, "more": False}, 5),
        (lambda c: c.set_retention("g", 90), "PUT /v1/groups/g", {"retention_days": 90}, {}, None),
        (lambda c: c.set_retention("g", None), "PUT /v1/groups/g", {"retention_days": None}, {}, None),
        (lambda c: c.jobs("g"), "GET /v1/groups/g/jobs", None, [{"job_id": "j"}], [{"job_id": "j"}]),
        (lambda c: c.fields("g"), "GET /v1/groups/g/fields", None, {"items": 1}, {"items": 1}),
        (lambda c: c.fields("g", job_id="j"), "GET /v1/groups/g/fields?job_id=j", None, {"items": 1}, {"items": 1}),
        (lambda c: c.token(), "GET /v1/token", None, {"scopes": ["read"]}, {"scopes": ["read"]}),
        (lambda c: c.delete_cookies(expired=True), "DELETE /v1/cookies?expired=true", None, {"deleted": 2}, 2),
        (
            lambda c: c.delete_cookies(domain=".a.example", path="", name="n"),
            "DELETE /v1/cookies?domain=.a.example&path=/&name=n",
            None,
            {"deleted": 2},
            2,
        ),
        (lambda c: c.delete_local_storage(key="k"), "DELETE /v1/local-storage?key=k", None, {"deleted": 2}, 2),
        (lambda c: c.delete_local_storage(all=True), "DELETE /v1/local-storage?all=true", None, {"deleted": 2}, 2),
    ],
)
async def test_each_method_is_one_request(call: Call, expected: str, body: Any, response: Any, result: Any) -> None:
    found, service = await sent(call, response)
    assert line(service) == expected
    assert (json.loads(service.bodies[0]) if service.bodies[0] else None) == body
    assert found == result


async def test_new_filters_and_the_order_are_sent() -> None:
    empty = {"metadata": {"next_cursor": None, "next_url": None}, "items": []}

    async def read(client: AsyncClient) -> None:
        filters: Any = {"is_approved": True, "key_hash": "k", "created_after": date(2026, 1, 31), "job_id": None}
        assert [item async for item in client.outputs("g", order="desc", cursor=9, **filters)] == []

    _, service = await sent(read, empty)
    query = dict(service.requests[0].query)
    assert query == {
        "is_approved": "true",
        "key_hash": "k",
        "created_after": "2026-01-31",
        "limit": "500",
        "order": "desc",
        "cursor": "9",
    }


async def test_an_export_asks_its_own_route_and_continues_behind_the_last_line() -> None:
    async def read(client: AsyncClient) -> bytes:
        return b"".join([block async for block in client.ndjson("g", country="Peru", fields=["data.title"])])

    text, service = await sent(read, failure(503), b'{"id": 1}\n{"id": 2}\n')
    assert text == b'{"id": 1}\n{"id": 2}\n'
    assert line(service) == "GET /v1/outputs/g/export?country=Peru&fields=data.title&format=ndjson"


async def test_a_patch_of_what_does_not_exist_is_an_error() -> None:
    with pytest.raises(ClientError) as caught:
        await sent(lambda c: c.patch("g", "o", is_approved=True), failure(404, "not_found"))
    assert caught.value.status == 404


async def test_a_patch_of_an_older_version_is_a_conflict() -> None:
    async with peer(failure(412, "version_conflict")) as service, AsyncClient(service.url, "t") as client:
        with pytest.raises(VersionConflict):
            await client.patch("g", "o", is_approved=True, if_id=7)
    assert service.requests[0].headers["If-Match"] == '"7"'


@pytest.mark.parametrize("fault", ["lost", 503])
async def test_a_patch_is_sent_again_unless_it_names_a_version(fault: Any) -> None:
    first = fault if fault == "lost" else lambda: failure(fault)
    _, service = await sent(lambda c: c.patch("g", "o", is_approved=True), first, PATCHED)
    assert len(service.requests) == 2
    with pytest.raises(ClientError):
        await sent(lambda c: c.patch("g", "o", is_approved=True, if_id=7), first, PATCHED)
    with pytest.raises(ClientError):
        await sent(lambda c: c.patch_many("g", [{"output_id": "o", "is_approved": True, "if_id": 7}]), first, {})


def many(updated: int, conflict: int = 0, too_large: int = 0) -> dict[str, Any]:
    counts = {"updated": updated, "unchanged": 0, "not_found": 0, "conflict": conflict, "too_large": too_large}
    return {**counts, "items": [{"result": result} for result, count in counts.items() for _ in range(count)]}


async def test_any_number_of_patches_goes_in_batches_and_is_counted() -> None:
    patches = ({"key_hash": str(n), "is_approved": True} for n in range(1203))
    patched, service = await sent(lambda c: c.patch_many("g", patches), many(500), many(490, 10), many(200, 0, 3))
    assert (patched.updated, patched.conflict, patched.too_large, len(patched.items)) == (1190, 10, 3, 1203)
    assert [len(json.loads(body)) for body in service.bodies] == [500, 500, 203]


async def test_large_patches_go_in_several_bodies() -> None:
    patches = [{"key_hash": str(n), "tags": {"note": "x" * 1_500_000}} for n in range(8)]
    part = 8 * 2**20 // 1_500_100
    patched, service = await sent(lambda c: c.patch_many("g", patches), many(part), many(8 - part))
    assert (patched.updated, len(service.bodies)) == (8, 2)


async def test_a_rejected_patch_is_named_by_its_place_among_all() -> None:
    wrong = failure(422)
    wrong.text = json.dumps({"detail": [{"loc": ["body", "3", "tags"], "msg": "Must be an object", "type": "x"}]})
    patches = [{"output_id": "o", "is_approved": True}] * 501
    async with peer(many(500), wrong) as service, AsyncClient(service.url, "t") as client:
        with pytest.raises(ClientError, match=r"body\.503\.tags"):
            await client.patch_many("g", patches)


@pytest.mark.parametrize(
    "call", [lambda c, **o: c.delete_many("g", job_id="j", **o), lambda c, **o: c.delete_group("g", **o)]
)
async def test_a_large_deletion_is_repeated_while_there_is_more(call: Any) -> None:
    seen: list[int] = []
    rounds = [
        {"deleted": 1000, "more": True},
        failure(503),
        {"deleted": 1000, "more": True},
        {"deleted": 7, "more": False},
    ]
    deleted, service = await sent(lambda c: call(c, on_progress=seen.append), *rounds)
    assert deleted == 2007
    assert seen == [1000, 2000, 2007]
    assert len({line(service, number) for number in range(4)}) == 1


@pytest.mark.parametrize(
    "filters", [{}, {"job_id": ""}, {"job_id": None}, {"country": "Peru", "job_id": None}, {"all": False}]
)
def test_a_deletion_with_an_empty_filter_is_not_sent(filters: dict[str, Any]) -> None:
    with Client("http://127.0.0.1:9", "t") as client, pytest.raises(ValueError, match=r"give a value|at least one"):
        client.delete_many("g", **filters)


def test_a_moment_without_a_time_zone_is_not_sent() -> None:
    """The local time in Tokyo, read as UTC, is nine hours later."""
    local = datetime(2026, 1, 31, 12)
    with Client("http://127.0.0.1:9", "t") as client:
        with pytest.raises(ValueError, match="2026-01-31 12:00:00 has no time zone"):
            client.delete_many("g", scraped_before=local)
        with pytest.raises(ValueError, match="has no time zone"):
            next(client.outputs("g", created_after=local))


@pytest.mark.parametrize("filters", [{}, {"domain": ""}, {"expired": False, "all": False}])
def test_browser_state_is_not_deleted_without_a_filter(filters: dict[str, Any]) -> None:
    with Client("http://127.0.0.1:9", "t") as client:
        with pytest.raises(ValueError, match=r"give a value|at least one"):
            client.delete_cookies(**filters)
        with pytest.raises(ValueError, match=r"give a value|at least one"):
            client.delete_local_storage(**filters)


def test_an_empty_path_of_local_storage_is_not_taken_for_another_one() -> None:
    with Client("http://127.0.0.1:9", "t") as client, pytest.raises(ValueError, match="path is empty"):
        client.delete_local_storage(domain="shop.example", path="")


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert methods(AsyncClient) == methods(Client)
