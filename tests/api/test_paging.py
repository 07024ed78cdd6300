"""Lists with `limit`: so many records, and a Link to the next page."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest

from service.settings import Settings
from service.store import Group, Store
from tests.support.api import Api, Response, make_cookie, make_entry, make_output, make_review

LISTS = ["/v1/cookies", "/v1/local-storage", "/v1/reviews/g"]
NAMES = {"/v1/cookies": "name", "/v1/local-storage": "key", "/v1/reviews/g": "job_id"}


def make(path: str, name: str) -> dict[str, Any]:
    if path == "/v1/cookies":
        return make_cookie(name=name)
    return make_entry(key=name) if path == "/v1/local-storage" else make_review(job_id=name)


def next_page(response: Response) -> str | None:
    link = response.headers.get("Link")
    if link is None:
        return None
    match = re.fullmatch(r'<(https?://[^>]+)>; rel="next"', link)
    assert match, link
    return "/" + match[1].split("/", 3)[3]


async def walk(api: Api, path: str | None) -> list[list[Any]]:
    """Return the pages from one on."""
    pages = []
    while path:
        response = await api.get(path)
        assert response.status == 200, response.body
        pages.append(response.json)
        path = next_page(response)
    return pages


@pytest.fixture(params=LISTS)
async def path(request: pytest.FixtureRequest, api: Api) -> str:
    """A list of 23 records."""
    path: str = request.param
    for n in range(23):
        await api.ok(path, [make(path, f"n{n:02}")])
    return path


@pytest.mark.slow
async def test_the_pages_together_are_the_whole_list(api: Api, path: str) -> None:
    whole = await api.ok(path)
    for limit in (2, 22, 23, 24):
        pages = await walk(api, f"{path}?limit={limit}")
        assert [record for page in pages for record in page] == whole, limit
        assert [len(page) for page in pages[:-1]] == [limit] * (len(pages) - 1), limit
        assert len(pages) == -(-23 // limit), limit


@pytest.mark.slow
async def test_without_a_limit_there_is_no_link(api: Api, path: str) -> None:
    response = await api.get(path)
    assert "Link" not in response.headers and len(response.json) == 23


async def test_an_empty_list_is_one_page(api: Api) -> None:
    assert await walk(api, "/v1/cookies?limit=5") == [[]]


async def test_a_cursor_alone_leads_to_all_the_rest(api: Api, path: str) -> None:
    following = next_page(await api.get(f"{path}?limit=5"))
    assert following
    assert await api.ok(following.replace("limit=5&", "")) == (await api.ok(path))[5:]


async def test_the_link_repeats_the_filters(api: Api) -> None:
    await api.ok("/v1/cookies", [make_cookie(domain=d, name=n) for d in ("a.example", "b.example") for n in "xyz"])
    pages = await walk(api, "/v1/cookies?domain=b.example&active=true&limit=1")
    assert [(page[0]["domain"], page[0]["name"]) for page in pages] == [("b.example", n) for n in "xyz"]


async def test_what_is_deleted_between_two_pages_disturbs_nothing(api: Api) -> None:
    await api.ok("/v1/cookies", [make_cookie(name=f"n{n}") for n in range(9)])
    first = await api.get("/v1/cookies?limit=3")
    await api.request("DELETE", "/v1/cookies?name=n2")
    following = await api.ok(next_page(first) or "")
    assert [cookie["name"] for cookie in following] == ["n3", "n4", "n5"]


@pytest.mark.slow
async def test_a_group_that_changes_while_a_page_is_read_pushes_no_other_out(api: Api, store: Store) -> None:
    for name in "abcde":
        await api.ok(f"/v1/outputs/{name}", [make_output()])
    page = await store.groups.listing(api.organization_id, "", 2, None)
    await api.ok("/v1/outputs/a", [make_output(2)])
    first = [group["group_id"] async for chunk in page.chunks for group in chunk.open()]
    rest = await store.groups.listing(api.organization_id, "", None, page.next_key)
    assert first == ["a", "e", "d"]
    assert [group["group_id"] async for chunk in rest.chunks for group in chunk.open()] == ["c", "b"]


async def test_a_job_that_is_reviewed_while_a_page_is_read_pushes_no_other_out(api: Api, store: Store) -> None:
    for name in "abcde":
        await api.ok("/v1/reviews/g", [make_review(job_id=name)])
    group = Group(api.organization_id, "g")
    page = await store.reviews.latest(group, 2, None)
    await api.ok("/v1/reviews/g", [make_review(job_id="a")])
    first = [review["job_id"] async for chunk in page.chunks for review in chunk.open()]
    rest = await store.reviews.latest(group, None, page.next_key)
    assert first == ["a", "e", "d"]
    assert [review["job_id"] async for chunk in rest.chunks for review in chunk.open()] == ["c", "b"]


@pytest.mark.slow
async def test_names_of_many_kilobytes_do_not_make_the_link_longer_than_clients_take(api: Api) -> None:
    await api.ok("/v1/local-storage", [make_entry(key=f"{n}" + "ü" * 8000) for n in range(5)])
    response = await api.get("/v1/local-storage?limit=2")
    assert len(response.headers["Link"]) < 1000
    assert [len(page) for page in await walk(api, "/v1/local-storage?limit=2")] == [2, 2, 1]
    await api.request("DELETE", "/v1/local-storage?all=true")
    gone = await api.get(next_page(response) or "")
    assert (gone.status, gone.problems()) == (410, [(["query", "cursor"], "cursor_expired")])


def encoded(*parts: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


MADE_UP = [
    *("x", "!!", "bnVsbA", "e30", "WzEuNV0", "W10", "w7w"),
    *(encoded(*parts) for parts in (["a"], ["a", "a"], ["a"] * 5, [1, 1], [True, "a"], [None, "a"], [[], "a"])),
    *(encoded(number, "g") for number in (2**63, 2**64 - 1, -(2**63), 10**18, -(10**17))),
    *(encoded(date, 1) for date in ("9999", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "\x00")),
    *(encoded("2026-01-31T12:00:00+00:00", order) for order in (2**63, "1", 10**30)),
]


@pytest.mark.parametrize("path", [*LISTS, "/v1/groups"])
async def test_a_cursor_that_no_page_gave_is_refused(api: Api, path: str) -> None:
    for cursor in MADE_UP:
        response = await api.get(f"{path}?limit=2&cursor={cursor}")
        assert (response.status, response.problems()) == (422, [(["query", "cursor"], "value_error")]), cursor


@pytest.mark.parametrize("path", LISTS)
async def test_a_limit_out_of_bounds_is_refused(api: Api, path: str) -> None:
    await api.ok(path, [make(path, "a")])
    for limit in ("0", "-1", "10001", "x", "1.5"):
        response = await api.get(f"{path}?limit={limit}")
        assert response.status == 422 and response.problems()[0][0] == ["query", "limit"], limit


class TestBaseUrl:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(mongo_database="test", base_url="https://data.example/scraping/")

    async def test_the_link_starts_with_it(self, api: Api) -> None:
        await api.ok("/v1/cookies", [make_cookie(name=n) for n in "ab"])
        response = await api.get("/v1/cookies?limit=1")
        assert response.headers["Link"].startswith("<https://data.example/scraping/v1/cookies?limit=1&cursor=")


async def test_every_page_says_up_to_where_its_filters_were_applied(api: Api) -> None:
    await api.ok("/v1/outputs/shop", [make_output(n, root_job_id="b" if n == 2 else "a") for n in range(10)])
    for query, expected in (("limit=4", "4"), ("job_id=b", "10"), ("job_id=none", "10"), ("cursor=10", "10")):
        assert (await api.get(f"/v1/outputs/shop?{query}")).headers["X-Cursor"] == expected
    assert "X-Cursor" not in (await api.get("/v1/outputs/shop?order=desc")).headers


@pytest.mark.parametrize("walk", ["x", "1.2", "1e3"])
async def test_a_made_up_walk_is_refused(api: Api, walk: str) -> None:
    response = await api.get(f"/v1/outputs/shop?deleted=true&walk={walk}")
    assert (response.status, response.problems()) == (422, [(["query", "walk"], "int_type")])
