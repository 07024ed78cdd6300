"""What a page costs the database, by explain() of the very commands that the service sends."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import pytest

from service.settings import Settings
from service.store import Group, Store
from tests.support.api import Api, make_output
from tests.support.commands import Commands, Cost, explained
from tests.support.groups import DATABASE
from tests.support.limits import Small

pytestmark = pytest.mark.xdist_group("index_use")  # one process fills the group
ITEMS, BATCH = 3000, 500
GROUP = "large"
ORGANIZATION = 71
COUNTED = 2000  # index entries that are counted to choose between two filters
COUNTRIES = {"Germany": ["DE-BE", "DE-BY", "DE-HH"], "France": ["FR-IDF", "FR-BRE"]}
LISTING = "https://shop.example/listing"

# Each is true of at least 150 items, each pair of at least 50.
VALUES = {"url": LISTING, "job_id": "job-1", "region": "DE-BY", "country": "Germany"}
ALONE: list[tuple[str, ...]] = [(), *((name,) for name in VALUES)]
PAIRS = list(itertools.combinations(VALUES, 2))


@dataclass
class Filled:
    """A group of thousands, another one between its items, and the dates of its batches."""

    ids: list[int]
    items: list[dict[str, Any]]
    dates: list[datetime]

    def matching(self, names: tuple[str, ...], after: int) -> list[int]:
        """Return the ids above `after` that some filters keep."""
        values = {
            "url": lambda item: item["source_url"],
            "job_id": lambda item: item["root_job_id"],
            "region": lambda item: item["tags"].get("region"),
            "country": lambda item: item["tags"].get("country"),
        }
        return [
            id
            for id, item in zip(self.ids, self.items, strict=True)
            if id > after and all(values[name](item) == VALUES[name] for name in names)
        ]


def _output(number: int) -> dict[str, Any]:
    country = list(COUNTRIES)[number % 2]
    regions = COUNTRIES[country]
    listed = number % 20 == 0
    tags = {"country": country, "region": "DE-BY" if listed else regions[number // 2 % len(regions)]}
    return make_output(
        number,
        source_url=LISTING if listed else f"https://shop.example/p/{number}",
        root_job_id=f"job-{number // 3 % 5}",
        tags={} if number % 31 == 30 and not listed else tags,
        is_approved=False,
        files=[],
    )


@pytest.fixture(scope="module")
def filled(mongo_url: str) -> Filled:
    async def fill() -> Filled:
        settings = Settings(mongo_database=f"{DATABASE}_index_use")
        store = Store.connect(settings, mongo_url)
        await store.ensure_indexes()
        items = [_output(number) for number in range(ITEMS)]
        ids: list[int] = []
        for first in range(0, ITEMS, BATCH):
            for group_id, size in ((GROUP, BATCH), ("beside", BATCH // 2)):
                group = Group(ORGANIZATION, group_id)
                encode = await store.outputs.encoder(group)
                written = await store.outputs.write(group, list(map(encode, items[first : first + size])))
                ids += [result["id"] for result in written] if group_id == GROUP else []
        firsts = store.database["outputs"].find(
            {"organization_id": ORGANIZATION, "group_id": GROUP, "id": {"$in": ids[::BATCH]}}, sort=[("id", 1)]
        )
        dates = [document["update_date"] async for document in firsts]
        await store.close()
        return Filled(ids, items, dates)

    return asyncio.run(fill())


@pytest.fixture
def settings() -> Settings:
    return Settings(mongo_database=f"{DATABASE}_index_use")


@pytest.fixture
def organization(filled: Filled) -> int:
    return ORGANIZATION


@pytest.fixture
def store(listening: Store) -> Store:
    return listening


async def read(api: Api, store: Store, commands: Commands, **query: Any) -> tuple[list[int], list[Cost]]:
    """Read a page; return its ids and what each of its reads of outputs costs."""
    commands.clear()
    page = await api.ok(f"/v1/outputs/{GROUP}?{urlencode(query)}")
    costs = [await explained(store, command) for command in list(commands.sent) if command.collection == "outputs"]
    return [item["id"] for item in page["items"]], costs


def _depths(filled: Filled, names: tuple[str, ...]) -> list[int]:
    """Return cursors at the start, in the middle, near the end and on the last item."""
    ids = filled.matching(names, 0)
    return [0, ids[len(ids) // 2], ids[int(len(ids) * 0.95)], ids[-2], ids[-1]]


def _name(names: tuple[str, ...]) -> str:
    return "-".join(names) or "none"


@pytest.mark.slow
@pytest.mark.parametrize("names", ALONE, ids=_name)
async def test_a_page_examines_no_more_than_it_needs_at_any_depth(
    api: Api, store: Store, commands: Commands, filled: Filled, names: tuple[str, ...]
) -> None:
    for limit in [1, 10, 100]:
        for cursor in _depths(filled, names):
            query = {name: VALUES[name] for name in names}
            ids, costs = await read(api, store, commands, cursor=cursor, limit=limit, **query)
            assert ids == filled.matching(names, cursor)[:limit], (limit, cursor)
            # The last page may be read with a remembered watermark and again with a new one.
            assert len(costs) <= 2 and (costs or not ids), (limit, cursor)  # the end is known without a look
            for cost in costs:
                assert cost.documents <= limit + 1, (limit, cursor)
                assert cost.keys <= limit + 2, (limit, cursor)
                assert not cost.stages & {"SORT", "COLLSCAN"}, (limit, cursor)


@pytest.mark.parametrize("names", PAIRS, ids=_name)
async def test_a_page_with_two_filters_walks_the_narrower_index_in_order(
    api: Api, store: Store, commands: Commands, filled: Filled, names: tuple[str, ...]
) -> None:
    limit = 10
    for cursor in _depths(filled, names):
        query = {name: VALUES[name] for name in names}
        ids, costs = await read(api, store, commands, cursor=cursor, limit=limit, **query)
        assert ids == filled.matching(names, cursor)[:limit]
        narrower = min(len(filled.matching((name,), cursor)) for name in names)
        for cost in costs:
            assert cost.documents <= narrower
            assert cost.keys <= COUNTED
            assert not cost.stages & {"SORT", "COLLSCAN"}


@pytest.mark.parametrize(
    "query", [{"is_approved": "false"}, {"is_approved": "true"}, {"is_approved": "true", "job_id": "job-1"}]
)
async def test_a_page_in_windows_looks_at_no_more_than_a_window_at_a_time(
    api: Api, store: Store, commands: Commands, query: dict[str, str], small: Small
) -> None:
    small(first_window=50, window=200)
    ids, costs = await read(api, store, commands, limit=10, **query)
    assert bool(ids) == (query["is_approved"] == "false")
    for cost in costs:
        assert cost.documents <= 200 and cost.keys <= 201
        assert not cost.stages & {"SORT", "COLLSCAN"}


async def test_one_item_and_one_key_are_looked_up_by_their_own_index(
    api: Api, store: Store, commands: Commands, filled: Filled
) -> None:
    page = await api.ok(f"/v1/outputs/{GROUP}?limit=1")
    ids, costs = await read(api, store, commands, key_hash=page["items"][0]["key_hash"])
    assert ids == [page["items"][0]["id"]]
    assert max(cost.documents for cost in costs) == 1
    commands.clear()
    await api.ok(f"/v1/outputs/{GROUP}/{page['items'][0]['output_id']}")
    (found,) = [command for command in commands.sent if command.collection == "outputs"]
    assert found.body["hint"] == "_id_"


@pytest.mark.parametrize("names", ALONE, ids=_name)
async def test_created_after_costs_one_look_up_however_far_back(
    api: Api, store: Store, commands: Commands, filled: Filled, names: tuple[str, ...]
) -> None:
    limit = 10
    query = {name: VALUES[name] for name in names}
    for number, date in enumerate(filled.dates):
        ids, costs = await read(api, store, commands, created_after=date.isoformat(), limit=limit, **query)
        assert ids == filled.matching(names, filled.ids[number * BATCH] - 1)[:limit]
        assert sum(cost.documents for cost in costs) <= limit + 2
        assert not set().union(*(cost.stages for cost in costs)) & {"SORT", "COLLSCAN"}


async def test_created_after_everything_examines_nothing(api: Api, store: Store, commands: Commands) -> None:
    ids, costs = await read(api, store, commands, created_after="2200-01-01")
    assert ids == []
    assert sum(cost.documents for cost in costs) == 0


async def test_filters_that_match_nothing_together_give_an_empty_page(
    api: Api, store: Store, commands: Commands
) -> None:
    ids, costs = await read(api, store, commands, country="Germany", region="FR-BRE")
    assert ids == []
    assert costs and not set().union(*(cost.stages for cost in costs)) & {"SORT", "COLLSCAN"}
