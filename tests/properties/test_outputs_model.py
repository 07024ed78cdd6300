"""Outputs against a plain dict: whatever is written in whatever order, on the real engine."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.outputs import OutputInput
from service.settings import Settings
from service.store import Group as StoredGroup
from service.store import Query, Store
from tests.support.api import make_file

DAY = datetime(2026, 1, 1, tzinfo=UTC)
GIVEN = ("source_url", "data", "root_job_id", "is_approved", "tags")
_groups = itertools.count()

values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.sampled_from(["", "é", "a.b", "$x"]),
    lambda below: st.lists(below, max_size=2) | st.dictionaries(st.sampled_from(["a", "$b", "c.d", ""]), below),
    max_leaves=4,
)
items = st.fixed_dictionaries(
    {
        "key_hash": st.sampled_from(["k1", "k2", "k3", "k4", "k5"]),
        "source_url": st.sampled_from(["https://shop.example/1", "https://shop.example/2"]),
        "data": st.dictionaries(st.sampled_from(["title", "price"]), values, max_size=2),
        "root_job_id": st.sampled_from(["job-1", "job-2"]),
        "is_approved": st.booleans(),
        "tags": st.sampled_from(
            [{}, {"country": "Japan"}, {"country": "Peru", "region": "PE-LIM"}, {"region": "JP-13"}]
        ),
        "files": st.lists(st.sampled_from(["1.jpg", "2.jpg"]), max_size=2, unique=True).map(
            lambda names: [make_file(blob_key=name) for name in names]
        ),
    },
)
dates = st.integers(0, 3).map(lambda days: {"last_scraped_date": (DAY + timedelta(days=days)).isoformat()})
# From few items, so that what is written is often there already, as it is or otherwise.
histories = st.lists(items, min_size=1, max_size=6).flatmap(
    lambda few: st.lists(
        st.lists(st.builds(operator.or_, st.sampled_from(few), st.just({}) | dates), min_size=1, max_size=4),
        min_size=2,
        max_size=6,
    )
)
queries = st.fixed_dictionaries(
    {},
    optional={
        "job_id": st.sampled_from(["job-1", "job-2"]),
        "url": st.sampled_from(["https://shop.example/1", "https://shop.example/2"]),
        "country": st.sampled_from(["Japan", "Peru"]),
        "region": st.sampled_from(["PE-LIM", "JP-13"]),
    },
)


def content(item: dict[str, Any], *more: str) -> str:
    """Return what a client can change, so that 1, 1.0 and true are not the same."""
    return json.dumps({name: item[name] for name in (*GIVEN, *more)}, sort_keys=True)


@dataclass
class Model:
    """What the group should hold, by key."""

    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    created: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    scraped: dict[str, datetime] = field(default_factory=dict)
    last_id: int = 0

    def write(self, body: list[dict[str, Any]], results: list[dict[str, Any]]) -> None:
        """Check the results of a body against what it should do, and do it."""
        last = {item["key_hash"]: item for item in body}
        assert [r["key_hash"] for r in results] == [item["key_hash"] for item in body]
        by_key = {r["key_hash"]: r for r in results}
        before = self.last_id
        for key, item in last.items():
            result, known = by_key[key], self.items.get(key)
            if known is None:
                assert result["result"] == "created"
            elif content(known, "files") != content(item, "files"):
                assert result["result"] == "updated" and result["output_id"] == known["output_id"]
            else:
                assert result["result"] == "unchanged" and result["id"] == known["id"]
                continue
            assert result["id"] > before
            self.last_id = max(self.last_id, result["id"])
            self.items[key] = {**item, "id": result["id"], "output_id": result["output_id"]}
        changed = [r["id"] for r in by_key.values() if r["result"] != "unchanged"]
        assert len(set(changed)) == len(changed)
        assert all(a == b for a in results for b in results if a["key_hash"] == b["key_hash"])

    def holds(self, found: dict[str, Any]) -> None:
        """Check one item that was read."""
        key = found["key_hash"]
        item = self.items[key]
        assert content(found, "id", "output_id") == content(item, "id", "output_id")
        identity = self.created.setdefault(key, (found["output_id"], found["create_date"]))
        assert identity == (found["output_id"], found["create_date"])
        assert found["create_date"] <= found["update_date"]
        assert found["last_scraped_date"] >= self.scraped.get(key, found["last_scraped_date"])
        self.scraped[key] = found["last_scraped_date"]
        assert [f["blob_key"] for f in found["files"]] == [f["blob_key"] for f in item["files"]]

    def matching(self, cursor: int = 0, **query: str) -> list[int]:
        """Return the ids that a query should find, in order."""
        fields = {
            "job_id": lambda item: item["root_job_id"],
            "url": lambda item: item["source_url"],
            "country": lambda item: item["tags"].get("country"),
            "region": lambda item: item["tags"].get("region"),
        }
        return sorted(
            item["id"]
            for item in self.items.values()
            if item["id"] > cursor and all(fields[name](item) == value for name, value in query.items())
        )


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def model_store(runner: asyncio.Runner, mongo_url: str) -> Iterator[Store]:
    """One store for all examples: each has a group of its own."""

    async def connect() -> Store:
        store = Store.connect(Settings(mongo_database="model"), mongo_url)
        await store.ensure_indexes()
        return store

    store = runner.run(connect())
    yield store
    runner.run(store.close())


class Group:
    """A new group, read in pages."""

    def __init__(self, store: Store) -> None:
        self.store, self.name = store, f"group-{next(_groups)}"
        self.key = StoredGroup(1, self.name)

    async def write(self, body: list[dict[str, Any]]) -> list[dict[str, Any]]:
        loaded = OutputInput(many=True).load(copy.deepcopy(body))
        encode = await self.store.outputs.encoder(self.key)
        return await self.store.outputs.write(self.key, list(map(encode, loaded)))

    async def walk(self, limit: int = 1000, cursor: int = 0, **query: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            page = await self.store.outputs.page(self.key, Query(cursor=cursor, limit=limit, **query))
            found += page.items()
            assert len(page.documents) <= limit
            if page.next_cursor is None:
                return found
            assert len(page.documents) == limit and page.next_cursor == found[-1]["id"] > cursor
            cursor = page.next_cursor


on_the_engine = settings(
    max_examples=settings().max_examples * 3 // 10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@on_the_engine
@given(
    bodies=histories,
    query=queries,
    limit=st.integers(1, 4),
)
def test_any_writes_leave_what_a_dict_would_hold(
    runner: asyncio.Runner, model_store: Store, bodies: list[Any], query: dict[str, Any], limit: int
) -> None:
    async def check() -> None:
        group, model = Group(model_store), Model()
        for body in bodies:
            model.write(body, await group.write(body))
            found = await group.walk(limit)
            assert [item["id"] for item in found] == model.matching()
            dates = [item["update_date"] for item in found]
            assert dates == sorted(dates)
            for item in found:
                model.holds(item)
        assert [item["id"] for item in await group.walk(limit, **query)] == model.matching(**query)

    runner.run(check())


@on_the_engine
@given(bodies=histories, data=st.data())
def test_a_sync_from_any_remembered_place_returns_exactly_what_changed_since(
    runner: asyncio.Runner, model_store: Store, bodies: list[Any], data: st.DataObject
) -> None:
    async def check() -> None:
        group, model = Group(model_store), Model()
        marks: list[tuple[int, dict[str, int]]] = [(0, {})]
        for body in bodies:
            model.write(body, await group.write(body))
            marks.append((model.last_id, {key: item["id"] for key, item in model.items.items()}))
        cursor, known = data.draw(st.sampled_from(marks))
        changed = sorted(item["id"] for key, item in model.items.items() if known.get(key) != item["id"])
        found = await group.walk(data.draw(st.integers(1, 3)), cursor=cursor)
        assert [item["id"] for item in found] == changed == model.matching(cursor)

        everything = await group.walk()
        moment = data.draw(st.sampled_from([item["update_date"] for item in everything]))
        since = await group.walk(2, created_after=moment.replace(tzinfo=UTC))
        assert since == [item for item in everything if item["update_date"] >= moment]

    runner.run(check())


@on_the_engine
@given(body=st.lists(items, min_size=1, max_size=4), again=st.integers(1, 2))
def test_the_same_body_again_changes_nothing(
    runner: asyncio.Runner, model_store: Store, body: list[Any], again: int
) -> None:
    async def check() -> None:
        group = Group(model_store)
        first = await group.write(body)
        before = await group.walk()
        for _ in range(again):
            results = await group.write(body)
            assert {r["result"] for r in results} == {"unchanged"}
            assert [r["id"] for r in results] == [r["id"] for r in first]
        scraped = "last_scraped_date"
        after = await group.walk()
        assert [{**item, scraped: 0} for item in after] == [{**item, scraped: 0} for item in before]
        assert all(b[scraped] >= a[scraped] for a, b in zip(before, after, strict=True))

    runner.run(check())


@on_the_engine
@given(days=st.lists(st.integers(0, 9), min_size=2, max_size=5), changes=st.lists(st.booleans(), min_size=5))
def test_the_last_scraped_date_only_moves_forward(
    runner: asyncio.Runner, model_store: Store, days: list[int], changes: list[bool]
) -> None:
    async def check() -> None:
        group, price = Group(model_store), 0
        for number, (day, change) in enumerate(zip(days, changes, strict=False)):
            price += change
            item = {"source_url": "u", "data": {"price": price}, "root_job_id": "j", "key_hash": "k"}
            await group.write([{**item, "last_scraped_date": (DAY + timedelta(days=day)).isoformat()}])
            (found,) = await group.walk()
            assert found["last_scraped_date"].replace(tzinfo=UTC) == DAY + timedelta(days=max(days[: number + 1]))

    runner.run(check())


@on_the_engine
@given(names=st.lists(st.lists(st.sampled_from("abc"), max_size=3, unique=True), min_size=2, max_size=4))
def test_a_file_keeps_its_id_and_date_while_it_is_there(
    runner: asyncio.Runner, model_store: Store, names: list[list[str]]
) -> None:
    async def check() -> None:
        group = Group(model_store)
        known: dict[str, tuple[str, datetime]] = {}
        for files in names:
            item = {"source_url": "u", "data": {}, "root_job_id": "j", "key_hash": "k"}
            await group.write([{**item, "files": [make_file(blob_key=name) for name in files]}])
            (found,) = await group.walk()
            now = {f["blob_key"]: (f["id"], f["create_date"]) for f in found["files"]}
            assert list(now) == files and len({id for id, _ in now.values()}) == len(files)
            for name in now.keys() & known.keys():
                assert now[name] == known[name]
            known = now

    runner.run(check())
