"""Walks through many outputs by next_url, and pages that are large or unchanged."""

from __future__ import annotations

import asyncio
import itertools
import json
import uuid
from urllib.parse import urlencode

import pytest

from service.settings import Settings
from service.store import Group, Store
from tests.conftest import MakeApi
from tests.support.api import Api, make_output, walk
from tests.support.contract import HeldApi
from tests.support.limits import Small
from tests.support.outputs import PATH, items


@pytest.fixture
def api(api: Api) -> Api:
    return HeldApi(api.client, api.token, api.organization_id)


MANY = 25_000
FILTERS = ("job_id", "created_after", "url", "country", "region")


class Loaded:
    """25,000 outputs of an organization of their own, and what a filter should find."""

    def __init__(self, mongo_url: str) -> None:
        self.organization_id = 7_000_000_000 + uuid.uuid4().int % 10**9
        self.outputs = [
            make_output(
                n,
                source_url=f"https://shop.example/p/{n % 7}",
                root_job_id=f"job-{n % 3}",
                tags={"country": f"Country {n % 4}", "region": f"R-{n % 5}"},
                data={"n": n},
                files=[],
            )
            for n in range(MANY)
        ]
        self.dates: dict[str, str] = {}
        asyncio.run(self._load(mongo_url))
        self.moment = sorted(self.dates.values())[MANY * 2 // 5]

    async def _load(self, mongo_url: str) -> None:
        settings = Settings(mongo_database="test")
        store = Store.connect(settings, mongo_url)
        await store.ensure_indexes()
        for start in range(0, MANY, 1000):
            batch = [{"is_approved": False, **output} for output in self.outputs[start : start + 1000]]
            group = Group(self.organization_id, "group-1")
            encode = await store.outputs.encoder(group)
            await store.outputs.write(group, list(map(encode, batch)))
        found = store.database["outputs"].find({"organization_id": self.organization_id})
        async for document in found:
            self.dates[document["key_hash"]] = document["update_date"].isoformat(timespec="milliseconds")
        await store.close()

    def query(self, names: tuple[str, ...]) -> dict[str, str]:
        values = {
            "job_id": "job-1",
            "created_after": self.moment,
            "url": "https://shop.example/p/3",
            "country": "Country 2",
            "region": "R-4",
        }
        return {name: values[name] for name in names}

    def expected(self, query: dict[str, str]) -> list[str]:
        fields = {
            "job_id": lambda output: output["root_job_id"],
            "url": lambda output: output["source_url"],
            "country": lambda output: output["tags"]["country"],
            "region": lambda output: output["tags"]["region"],
        }
        return [
            output["key_hash"]
            for output in self.outputs
            if all(name == "created_after" or fields[name](output) == value for name, value in query.items())
            and self.dates[output["key_hash"]] >= query.get("created_after", "")
        ]


@pytest.mark.slow
async def test_a_walk_by_next_url_returns_each_of_25000_exactly_once_with_any_filters(
    make_api: MakeApi, mongo_url: str
) -> None:
    loaded = await asyncio.to_thread(Loaded, mongo_url)
    api = await make_api(loaded.organization_id)
    subsets = [names for count in range(len(FILTERS) + 1) for names in itertools.combinations(FILTERS, count)]
    assert len(subsets) == 32
    for names in subsets:
        query = loaded.query(names)
        found = await walk(api, f"{PATH}?{urlencode({**query, 'limit': '1000'})}")
        assert [item["key_hash"] for item in found] == loaded.expected(query), names
        assert found, names


async def test_short_and_long_pages_show_the_same_items(api: Api) -> None:
    odd = {"$ref": "x", "$id": 1, "": None, "a.b": 1.5, "create_date": "no date", "deep": [{"files": [{}]}]}
    await api.ok(PATH, [make_output(n, data={**odd, "n": n}) for n in range(130)])
    whole = await items(api)
    assert len(whole) == 130
    assert whole[7]["data"] == {**odd, "n": 7}
    for limit in (1, 10, 16, 17, 128, 129):
        assert await items(api, f"limit={limit}") == whole[:limit]


class TestVeryLargePages:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(mongo_database="test", max_page_bytes=100_000)

    async def test_a_page_of_too_many_bytes_ends_early_and_goes_on_at_its_cursor(self, api: Api, small: Small) -> None:
        small(first_streamed=10, streamed=10)
        await api.ok(PATH, [make_output(n, data={"n": n, "text": "x" * 20_000}) for n in range(40)])
        first = await api.ok(f"{PATH}?limit=1000")
        assert 0 < len(first["items"]) < 40
        assert first["metadata"]["next_cursor"] == first["items"][-1]["id"]
        found = await walk(api, f"{PATH}?limit=1000")
        assert [item["data"]["n"] for item in found] == list(range(40))
        lines = await api.get(f"{PATH}/export?format=ndjson")
        assert [json.loads(line)["data"]["n"] for line in lines.body.splitlines()] == list(range(40))


# -- content -----------------------------------------------------------------------------------


async def test_a_page_is_not_read_again_while_nothing_changes(api: Api) -> None:
    await api.ok(PATH, [make_output()])
    first = await api.get(PATH)
    same = await api.get(PATH, headers={"If-None-Match": first.headers["ETag"]})
    assert (same.status, same.body) == (304, b"")
    await api.ok(PATH, [make_output(is_approved=True)])
    assert (await api.get(PATH, headers={"If-None-Match": first.headers["ETag"]})).status == 200


async def test_the_etag_of_a_page_is_not_that_of_the_next(api: Api) -> None:
    await api.ok(PATH, [make_output(number) for number in range(3)])
    first = await api.get(f"{PATH}?limit=2")
    path = f"{PATH}?limit=2&cursor={first.json['metadata']['next_cursor']}"
    last = await api.get(path, headers={"If-None-Match": first.headers["ETag"]})
    assert (last.status, len(last.json["items"])) == (200, 1)
    assert (await api.get(path, headers={"If-None-Match": last.headers["ETag"]})).status == 304


@pytest.mark.parametrize("format", ["ndjson", "csv", "json"])
async def test_an_export_names_the_id_from_which_a_copy_goes_on(api: Api, format: str) -> None:
    await api.ok(PATH, [make_output(number, tags={"country": "Germany"}) for number in range(3)])
    await api.ok(PATH, [make_output(3, tags={"country": "France"})])
    response = await api.get(f"{PATH}/export?format={format}&country=Germany")
    assert response.headers["X-Cursor"] == "4"
    for query in ("order=desc", "limit=1"):
        assert "X-Cursor" not in (await api.get(f"{PATH}/export?format={format}&{query}")).headers


async def test_an_etag_of_one_organization_says_nothing_about_another(api: Api, stranger: Api) -> None:
    await api.ok(PATH, [make_output(1)])
    await stranger.ok(PATH, [make_output(2)])
    tag = (await api.get(PATH)).headers["ETag"]
    assert (await stranger.get(PATH)).headers["ETag"] != tag
    assert (await stranger.get(PATH, headers={"If-None-Match": tag})).status == 200


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_page_whose_filter_no_index_serves_alone_keeps_to_its_limit(api: Api, order: str) -> None:
    await api.ok("/v1/outputs/g", [make_output(number, is_approved=number % 2 == 0) for number in range(60)])
    pages, cursor = [], 0
    while cursor is not None:
        page = await api.ok(f"/v1/outputs/g?is_approved=false&limit=7&order={order}&cursor={cursor}")
        pages.append([item["key_hash"] for item in page["items"]])
        cursor = page["metadata"]["next_cursor"]
    assert [len(page) for page in pages] == [7, 7, 7, 7, 2]
    assert len({key for page in pages for key in page}) == 30


async def test_a_page_is_as_long_as_requested_although_its_items_are_larger_than_those_before(api: Api) -> None:
    for first in range(0, 40, 10):
        text = "x" if first < 20 else "x" * 200_000
        await api.ok(PATH, [make_output(n, data={"text": text}) for n in range(first, first + 10)])
    for query, count in (("limit=10", 10), ("limit=10&cursor=15", 10), ("limit=10&cursor=20", 10), ("limit=40", 40)):
        await api.ok(f"{PATH}?limit=2")  # small ones only
        assert len((await api.ok(f"{PATH}?{query}"))["items"]) == count


async def test_a_cursor_that_the_group_never_had_shows_in_the_checkpoint(api: Api) -> None:
    await api.ok(PATH, [make_output(n) for n in range(3)])
    last = (await api.ok(PATH))["items"][-1]["id"]
    for cursor, checkpoint in ((0, last), (last, last), (last + 1000, last)):
        response = await api.get(f"{PATH}?cursor={cursor}")
        assert (response.status, response.headers["X-Cursor"]) == (200, str(checkpoint))
