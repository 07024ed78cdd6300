"""DELETE /v1/outputs/{group_id}: what the filters match is deleted, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.api import Api, make_output
from tests.support.limits import Small


@pytest.fixture
async def shop(admin: Api) -> Api:
    """A caller whose groups `shop` and `other` have the outputs key-0 to key-7 each."""
    for group in ("shop", "other"):
        await fill(admin, group)
    return admin


async def fill(api: Api, group: str) -> None:
    await api.ok(
        f"/v1/outputs/{group}",
        [
            make_output(
                n,
                root_job_id=f"job-{n % 2}",
                source_url=f"https://shop.example/p/{n % 4}",
                tags={"country": "Germany" if n < 4 else "France", "region": f"R-{n}"},
                is_approved=n in (0, 5),
                last_scraped_date=f"2026-01-0{n + 1}T12:00:00Z",
            )
            for n in range(8)
        ],
    )


async def left(api: Api, group: str = "shop") -> list[int]:
    items = (await api.ok(f"/v1/outputs/{group}?limit=1000"))["items"]
    return sorted(int(item["key_hash"].removeprefix("key-")) for item in items)


MATCHES: list[tuple[dict[str, str], list[int]]] = [
    ({"job_id": "job-1"}, [0, 2, 4, 6]),
    ({"url": "https://shop.example/p/3"}, [0, 1, 2, 4, 5, 6]),
    ({"country": "France"}, [0, 1, 2, 3]),
    ({"region": "R-6"}, [0, 1, 2, 3, 4, 5, 7]),
    ({"key_hash": "key-6"}, [0, 1, 2, 3, 4, 5, 7]),
    ({"key_hash": "key-6", "country": "Germany"}, list(range(8))),
    ({"is_approved": "true"}, [1, 2, 3, 4, 6, 7]),
    ({"is_approved": "false"}, [0, 5]),
    ({"scraped_before": "2026-01-03T12:00:00Z"}, [2, 3, 4, 5, 6, 7]),
    ({"max_id": "6"}, [6, 7]),
    ({"max_id": "6", "job_id": "job-1"}, [0, 2, 4, 6, 7]),
    ({"max_id": "6", "all": "true"}, [6, 7]),
    ({"all": "true"}, []),
    ({"country": "Germany", "scraped_before": "2026-01-02", "is_approved": "false"}, list(range(8))),
    ({"job_id": "nothing"}, list(range(8))),
    ({"country": "germany"}, list(range(8))),
]


@pytest.mark.slow
async def test_what_matches_is_deleted(shop: Api) -> None:
    for number, (query, expected) in enumerate(MATCHES):
        group = f"shop-{number}"
        await fill(shop, group)
        response = await shop.delete(f"/v1/outputs/{group}", params=query)
        assert (response.status, response.json) == (200, {"deleted": 8 - len(expected), "more": False, "cursor": None})
        assert await left(shop, group) == expected, query
        stats = await shop.ok(f"/v1/groups/{group}/stats")
        assert (stats["items"], stats["approved"]) == (len(expected), len({0, 5} & set(expected))), query
    assert await left(shop, "other") == list(range(8))


async def test_the_same_deletion_again_deletes_nothing(shop: Api) -> None:
    await shop.delete("/v1/outputs/shop?job_id=job-1")
    before = await shop.ok("/v1/outputs/shop?deleted=true&limit=100")
    response = await shop.delete("/v1/outputs/shop?job_id=job-1")
    assert response.json == {"deleted": 0, "more": False, "cursor": None}
    assert await shop.ok("/v1/outputs/shop?deleted=true&limit=100") == before


@pytest.mark.parametrize("query", ["", "?all=false"])
async def test_without_a_filter_nothing_is_deleted(shop: Api, query: str) -> None:
    response = await shop.delete(f"/v1/outputs/shop{query}")
    assert (response.status, response.problems()) == (422, [(["query"], "missing")])
    assert await left(shop) == list(range(8))


async def test_a_wrong_filter_deletes_nothing(shop: Api) -> None:
    for query, name, kind in [
        ("is_approved=yes", "is_approved", "bool_type"),
        ("scraped_before=yesterday", "scraped_before", "datetime_invalid"),
        ("all=1", "all", "bool_type"),
        ("max_id=0", "max_id", "greater_than_equal"),
        ("job_id=job-0&job_id=job-1", "job_id", "value_error"),
        ("job_id=" + "x" * 257, "job_id", "string_too_long"),
    ]:
        response = await shop.delete(f"/v1/outputs/shop?country=France&{query}")
        assert (response.status, response.problems()) == (422, [(["query", name], kind)]), (query, name, kind)
        assert await left(shop) == list(range(8)), (query, name, kind)


async def test_a_group_that_does_not_exist_has_nothing_to_delete(admin: Api) -> None:
    response = await admin.delete("/v1/outputs/nothing?all=true")
    assert (response.status, response.json) == (200, {"deleted": 0, "more": False, "cursor": None})
    assert await admin.ok("/v1/groups") == []


async def test_a_deletion_that_takes_long_says_that_there_is_more(shop: Api, small: Small) -> None:
    small(deleted_beside_others=3, deletion_seconds=0.0)
    responses: list[dict[str, Any]] = []
    cursor = ""
    while not responses or responses[-1]["more"]:
        assert len(responses) < 8
        responses.append((await shop.delete(f"/v1/outputs/shop?all=true{cursor}")).json)
        cursor = f"&cursor={responses[-1]['cursor']}"
    assert sum(response["deleted"] for response in responses) == 8
    assert len(responses) >= 3
    assert await left(shop) == []


async def test_an_output_written_again_while_it_is_deleted_is_kept_or_deleted_whole(shop: Api) -> None:
    async def rewrite() -> Any:
        return await shop.ok("/v1/outputs/shop", [make_output(n, data={"round": 2}) for n in range(8)])

    await asyncio.gather(rewrite(), shop.delete("/v1/outputs/shop?all=true"))
    items = (await shop.ok("/v1/outputs/shop?deleted=true&limit=100"))["items"]
    assert len({item["output_id"] for item in items}) == len(items) == 8
    for item in items:
        assert item["data"] == ({} if item.get("deleted") else {"round": 2})


@pytest.mark.parametrize("query", ["country=France&job_id=", "all=true&url=", "job_id=&country=", "scraped_before="])
async def test_an_empty_filter_deletes_nothing(shop: Api, query: str) -> None:
    empty = next(part.rstrip("=") for part in query.split("&") if part.endswith("="))
    response = await shop.delete(f"/v1/outputs/shop?{query}")
    assert response.status == 422 and response.problems()[0] == (["query", empty], "value_error")
    assert await left(shop) == list(range(8))
