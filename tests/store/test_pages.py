"""Reading: filters, bounded windows, long runs of deletions, newest first, and what a one-shot reader gets."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from schemas.paths import Condition
from service.settings import Settings
from service.store import CursorExpired, Patch, Query, Store
from tests.support.api import make_output
from tests.support.commands import Commands
from tests.support.connections import make_indexes_once
from tests.support.fault_proxy import FaultProxy
from tests.support.groups import Group, at, open_batch, stopped_at, version
from tests.support.limits import Small

TAGS: list[dict[str, Any]] = [
    {},
    {"country": "Germany"},
    {"country": "Germany", "region": "DE-BE"},
    {"country": ["Germany", "France"], "region": {"code": "DE-BE"}},
]
FILTERS: dict[str, Any] = {
    "job_id": "job-1",
    "url": "https://shop.example/p/1",
    "country": "Germany",
    "region": "DE-BE",
    "is_approved": True,
    "key_hash": "key-7",
    "scraped_before": datetime(2026, 1, 2, tzinfo=UTC),
}


@pytest.fixture
def small_windows(small: Small) -> None:
    small(first_window=2, window=3)


def some_output(number: int) -> dict[str, Any]:
    return make_output(
        number,
        source_url=f"https://shop.example/p/{number % 3}",
        root_job_id=f"job-{number % 2}",
        tags=TAGS[number % 4],
        is_approved=number % 5 < 2,
        last_scraped_date=f"2026-01-0{1 + number % 3}",
        files=[],
    )


def matches(item: dict[str, Any], query: dict[str, Any]) -> bool:
    values = {
        "job_id": item["root_job_id"],
        "url": item["source_url"],
        "country": item["tags"].get("country"),
        "region": item["tags"].get("region"),
        "is_approved": item["is_approved"],
        "key_hash": item["key_hash"],
    }
    return all(
        item["last_scraped_date"].replace(tzinfo=UTC) < value if name == "scraped_before" else values[name] == value
        for name, value in query.items()
    )


def pairs() -> Iterator[dict[str, Any]]:
    for count in (0, 1, 2, 3):
        for names in itertools.combinations(FILTERS, count):
            yield {name: FILTERS[name] for name in names}


async def test_a_crawl_that_changes_nothing_does_not_keep_a_walk_from_ending(store: Store, group: Group) -> None:
    await group.write(store, *(make_output(number) for number in range(10)))
    await open_batch(store, group, 10_000)  # more ids than the end of a walk looks at
    page = await store.outputs.page(group.key, Query(limit=1000))
    assert (len(page.documents), page.next_cursor) == (10, None)


@pytest.mark.slow
async def test_every_combination_of_filters_finds_what_it_says_in_both_orders(store: Store, group: Group) -> None:
    written = await group.write(store, *(some_output(n) for n in range(30)))
    await group.delete(store, *written[3::7])
    everything = await group.walk(store)
    assert len(everything) == 26
    for query in pairs():
        expected = [item["id"] for item in everything if matches(item, query)]
        found = await group.walk(store, limit=4, **query)
        assert [item["id"] for item in found] == expected, query
        found = await group.walk(store, limit=10, newest_first=True, **query)
        assert [item["id"] for item in found] == expected[::-1], query


async def test_a_tag_that_is_no_text_matches_no_filter(store: Store, group: Group) -> None:
    await group.write(store, make_output(1, tags={"country": ["Germany"], "region": 7}), make_output(2))
    assert [item["key_hash"] for item in await group.read(store, country="Germany")] == ["key-2"]
    (item, _) = await group.read(store)
    assert item["tags"] == {"country": ["Germany"], "region": 7}
    await group.write(store, make_output(2, tags={"country": ["Germany"]}))
    assert await group.read(store, country="Germany") == []


@pytest.mark.slow
@pytest.mark.usefixtures("small_windows")
async def test_a_page_in_windows_passes_nothing_while_items_move_away(
    wired: Store, wire: FaultProxy, other: Store, group: Group
) -> None:
    """Items that change leave a window while it is read: what comes after it is not to be taken for looked at."""
    await group.write(other, *(make_output(n) for n in range(40)))

    async def move_the_first() -> None:
        for item in await group.stored(other):
            if item["id"] > reads.bodies[-1]["filter"]["id"]["$gt"]:
                await group.write(other, make_output(int(item["key_hash"][4:]), data={"read": len(reads.bodies)}))
                return

    reads = wire.after("find", "outputs", move_the_first, times=30, where=lambda body: "id" in body["filter"])
    seen: dict[str, int] = {}
    cursor = 0
    while cursor < (await group.document(other))["last_id"]:
        page = await wired.outputs.page(group.key, Query(cursor=cursor, limit=5, is_approved=False))
        seen |= {item["key_hash"]: item["id"] for item in page.items()}
        cursor = page.next_cursor or max([cursor, *(item["id"] for item in page.items())])
    assert len(reads.bodies) == 30
    assert seen == {item["key_hash"]: item["id"] for item in await group.walk(other)}


async def test_a_page_in_windows_ends_early_with_the_place_to_go_on(store: Store, group: Group, small: Small) -> None:
    await group.write(store, *(make_output(n, is_approved=n == 19) for n in range(20)))
    small(first_window=2, window=3, search_seconds=0.0)
    pages, keys = 0, []
    query = Query(scraped_before=datetime(2200, 1, 1, tzinfo=UTC), is_approved=True, limit=5, job_id="job-1")
    while True:
        page = await store.outputs.page(group.key, query)
        pages += 1
        keys += [item["key_hash"] for item in page.items()]
        if page.next_cursor is None:
            break
        assert page.next_cursor > query.cursor
        query = query._replace(cursor=page.next_cursor)
    assert keys == ["key-19"]
    assert pages > 5


@pytest.mark.slow
async def test_a_window_is_as_large_as_the_time_that_is_left_allows(
    wired: Store, wire: FaultProxy, group: Group, small: Small
) -> None:
    """Items of a megabyte that are not in memory take a second per few hundred."""
    await group.write(wired, *(make_output(n) for n in range(60)))
    small(first_window=4)
    query = Query(limit=1000, where=(Condition("currency", ":", "USD"),))

    async def sizes() -> list[int]:
        ends = wire.before("find", "outputs", instantly, times=2, where=lambda body: "skip" in body)
        await wired.outputs.page(group.key, query)
        return [body["skip"] + 1 for body in ends.bodies]

    async def instantly() -> None: ...

    async def slowly() -> None:
        await asyncio.sleep(0.2)

    assert await sizes() == [4, 40]
    wire.before("find", "outputs", slowly, times=9, where=lambda body: "skip" not in body)
    first, second = await sizes()
    assert first == 4 and second <= 16


async def test_a_page_in_windows_ends_early_when_it_is_many_bytes(
    settings: Settings, mongo_url: str, group: Group, small_windows: None
) -> None:
    store = Store.connect(replace(settings, max_page_bytes=250_000), mongo_url)
    await make_indexes_once(store, mongo_url)
    await group.write(store, *(make_output(n, data={"text": "x" * 100_000}) for n in range(12)))
    page = await store.outputs.page(group.key, Query(limit=1000, is_approved=False))
    assert 0 < len(page.documents) < 12 and page.next_cursor is not None
    assert len(await group.walk(store, is_approved=False)) == 12
    await store.close()


@pytest.mark.slow
async def test_a_long_run_of_deletions_is_read_in_windows(store: Store, group: Group, small: Small) -> None:
    small(hidden=5, first_window=4, window=4)
    written = await group.write(store, *(make_output(n) for n in range(30)))
    await group.delete(store, *written[1:-1])
    assert [item["key_hash"] for item in await group.walk(store, limit=1)] == ["key-0", "key-29"]
    (new,) = await group.write(store, make_output(99))
    assert [item["id"] for item in await group.walk(store, limit=1, cursor=30)] == [new["id"]]
    deletions = await group.walk(store, limit=3, cursor=30, deleted=True)
    assert [item.get("deleted", False) for item in deletions] == [True] * 28 + [False]


async def test_newest_first_goes_down_from_a_cursor(store: Store, group: Group) -> None:
    written = await group.write(store, *(make_output(n) for n in range(5)))
    ids = [r["id"] for r in written]
    page = await store.outputs.page(group.key, Query(limit=2, newest_first=True))
    assert [item["id"] for item in page.items()] == ids[:2:-1] and page.next_cursor == ids[3]
    assert [item["id"] for item in await group.read(store, newest_first=True, cursor=ids[2])] == ids[1::-1]
    assert await group.read(store, newest_first=True, cursor=ids[0]) == []


@pytest.mark.slow
async def test_created_after_is_a_lower_bound_with_every_filter_cursor_and_order(store: Store, group: Group) -> None:
    for number in range(6):
        await group.write(store, *(some_output(n) for n in range(5 * number, 5 * number + 5)))
        await asyncio.sleep(0.002)  # another millisecond, another date
    everything = await group.walk(store)
    moment = everything[12]["update_date"].replace(tzinfo=UTC)
    since = [item for item in everything if item["update_date"].replace(tzinfo=UTC) >= moment]
    assert 10 < len(since) < 30
    for query in pairs():
        expected = [item["id"] for item in since if matches(item, query)]
        for options in ({}, {"cursor": since[3]["id"]}, {"newest_first": True}):
            found = [item["id"] for item in await group.walk(store, limit=5, created_after=moment, **query, **options)]
            wanted = [id for id in expected if id > options.get("cursor", 0)]
            assert found == (wanted[::-1] if "newest_first" in options else wanted), (query, options)
    assert await group.read(store, created_after=datetime.now(UTC) + timedelta(hours=1)) == []


async def test_one_item_is_found_by_its_output_id_while_it_is_there(store: Store, group: Group) -> None:
    (written,) = await group.write(store, version(1))
    page = await store.outputs.one(group.key, written["output_id"])
    assert page is not None and page.items()[0]["data"] == {"version": 1} and page.version == written["id"]
    assert await store.outputs.one(Group(group.organization, "chairs").key, written["output_id"]) is None
    await group.delete(store, written)
    assert await store.outputs.one(group.key, written["output_id"]) is None


# -- deletions ------------------------------------------------------------------------------------


async def test_a_reader_of_deletions_that_comes_too_late_gets_an_error(store: Store, group: Group) -> None:
    written = await group.write(store, *(make_output(n) for n in range(4)))
    await group.delete(store, written[0])
    assert len(await group.read(store, deleted=True, cursor=4)) == 1
    await group.set(store, expired_id=5)
    with pytest.raises(CursorExpired):
        await group.read(store, deleted=True, cursor=4)
    assert len(await group.read(store, deleted=True, cursor=0)) == 4
    assert await group.read(store, deleted=True, cursor=5) == []
    assert await group.read(store, cursor=4) == []


# -- reading to the end ---------------------------------------------------------------------------


async def everything(store: Store, group: Group, **query: Any) -> list[str]:
    pages = store.outputs.pages(group.key, Query(**query))
    return [item["key_hash"] async for page in pages for item in page.items()]


async def test_a_walk_does_not_end_while_an_item_is_in_flight_that_it_has_not_offered(
    store: Store, other: Store, group: Group
) -> None:
    """Two items have left their places before the walk comes there: they would appear under neither id."""
    await group.write(store, *(make_output(n) for n in range(20)))
    await group.read(other)  # `other` remembers how far it may go
    moved = [make_output(n, data={"moved": True}) for n in (5, 15)]
    async with stopped_at(store, "written", group.write(store, *moved)):
        walking = asyncio.ensure_future(everything(other, group))
        await asyncio.wait([walking], timeout=0.3)
        assert not walking.done()
    keys = await asyncio.wait_for(walking, 60)
    assert sorted(keys) == sorted(f"key-{n}" for n in range(20))


@pytest.mark.parametrize("query", [{}, {"is_approved": False}, {"deleted": True}], ids=["plain", "windows", "deleted"])
async def test_a_walk_does_not_end_without_an_item_that_moves_just_before_the_page_is_read(
    store: Store, wired: Store, wire: FaultProxy, group: Group, query: dict[str, Any]
) -> None:
    """The watermark is read, then the item gets a new id, then the page is read, without it."""
    await group.write(store, *(make_output(n) for n in range(6)))
    await group.read(wired)  # it knows that all of them fit on one page
    wire.before("find", "outputs", lambda: group.write(store, make_output(3, data={"moved": True})))
    assert sorted(await everything(wired, group, **query)) == [f"key-{n}" for n in range(6)]


@pytest.mark.slow
async def test_a_walk_from_cursor_to_cursor_does_not_end_without_an_item_that_moved_before_it_came_there(
    store: Store, other: Store, group: Group
) -> None:
    """The item has left its place on the second page after the first one was read."""
    await group.write(store, *(make_output(n) for n in range(9)))
    assert [item["id"] for item in await group.read(other, limit=3)] == [1, 2, 3]
    pages = []
    async with stopped_at(store, "written", group.write(store, make_output(4, data={"moved": True}))):
        for cursor in (3, 7):
            page = await other.outputs.page(group.key, Query(limit=3, cursor=cursor))
            pages.append(([item["id"] for item in page.items()], page.next_cursor))
    # Not the end, and the cursor stands before the batch in flight.
    assert pages == [([4, 6, 7], 7), ([8, 9], 9)]
    page = await other.outputs.page(group.key, Query(limit=3, cursor=9))
    assert ([item["key_hash"] for item in page.items()], page.next_cursor) == (["key-4"], None)


async def test_the_last_page_waits_for_what_is_in_flight(
    store: Store, other: Store, group: Group, small: Small
) -> None:
    small(last_page_seconds=60.0)  # a busy disk takes its time
    await group.write(store, *(make_output(n) for n in range(4)))
    async with stopped_at(store, "written", group.write(store, make_output(1, data={"moved": True}))):
        reading = asyncio.ensure_future(other.outputs.page(group.key, Query(limit=4)))
        await asyncio.wait([reading], timeout=0.3)
        assert not reading.done()
    page = await reading
    assert ([item["key_hash"] for item in page.items()], page.next_cursor) == (
        ["key-0", "key-2", "key-3", "key-1"],
        None,
    )


@pytest.mark.parametrize("limit", [3, 10, 1000])
async def test_a_walk_ends_with_all_items_while_every_item_changes_again_and_again(
    store: Store, other: Store, group: Group, limit: int
) -> None:
    keys = {f"key-{n}" for n in range(30)}
    await group.write(store, *(make_output(n) for n in range(30)))

    async def change() -> None:
        for number in itertools.count():
            for first in range(0, 30, 10):
                await group.write(store, *(make_output(n, data={"v": number}) for n in range(first, first + 10)))

    changing = [asyncio.ensure_future(change()) for _ in range(2)]
    try:
        for _ in range(10):
            assert {item["key_hash"] for item in await asyncio.wait_for(group.walk(other, limit=limit), 30)} == keys
        assert not any(task.done() for task in changing), "the items did not change any more"
    finally:
        for task in changing:
            task.cancel()
        await asyncio.gather(*changing, return_exceptions=True)


async def test_a_full_page_goes_on_while_the_search_for_more_has_not_ended(
    store: Store, other: Store, group: Group, small: Small
) -> None:
    await group.write(store, *(make_output(n) for n in range(3)))
    assert len(await group.read(other, is_approved=False)) == 3
    await group.write(store, *(make_output(n, is_approved=True) for n in range(3, 30)))
    await group.write(store, make_output(30))
    small(first_window=5, search_seconds=0.0)  # a page ends after one window
    found = await group.walk(other, limit=3, is_approved=False)
    assert [item["key_hash"] for item in found] == ["key-0", "key-1", "key-2", "key-30"]


@pytest.mark.slow
async def test_a_walk_does_not_end_before_a_new_item_that_is_acknowledged(
    store: Store, other: Store, group: Group
) -> None:
    """It is not readable yet: an earlier batch is still in flight."""
    await group.write(store, make_output(0))
    async with stopped_at(store, "before write", group.write(store, make_output(1))):
        await group.write(other, make_output(2))
        page = await other.outputs.page(group.key, Query(limit=10))
        assert ([item["key_hash"] for item in page.items()], page.next_cursor) == (["key-0"], 1)
    assert {item["key_hash"] for item in await group.read(other)} == {"key-0", "key-1", "key-2"}


async def test_a_full_last_page_says_that_there_is_more(store: Store, other: Store, group: Group) -> None:
    """The reader's process remembers an earlier end, up to which the page is just full."""
    await group.write(store, *(make_output(n) for n in range(3)))
    assert len(await group.read(other)) == 3
    assert (await other.outputs.page(group.key, Query(limit=3))).next_cursor is None
    await group.write(store, make_output(3))
    page = await other.outputs.page(group.key, Query(limit=3))
    assert ([item["id"] for item in page.items()], page.next_cursor) == ([1, 2, 3], 3)


async def test_an_export_ends_when_what_is_in_flight_changes_nothing(store: Store, other: Store, group: Group) -> None:
    await group.write(store, make_output(1), make_output(2))
    async with stopped_at(store, "before write", group.write(store, make_output(1), make_output(2))):
        assert await asyncio.wait_for(everything(other, group), 60) == ["key-1", "key-2"]


async def test_every_page_has_the_id_up_to_which_its_filters_were_applied(store: Store, group: Group) -> None:
    await group.write(store, *(make_output(n, root_job_id="b" if n == 3 else "a") for n in range(10)))
    positions = []
    for query in (Query(job_id="b", limit=5), Query(limit=4), Query(cursor=4, limit=100), Query(job_id="c")):
        positions.append((await store.outputs.page(group.key, query)).position)
    assert positions == [10, 4, 10, 10]


@pytest.mark.parametrize("change", [{}, {"is_approved": False}, {"newest_first": True}])
async def test_a_page_of_items_larger_than_those_before_is_cut_and_nothing_is_passed(
    store: Store, group: Group, change: dict[str, Any]
) -> None:
    """A thousand items of 100 bytes were taken for as many of a megabyte: 92 MB of JSON in one piece."""
    for first in range(0, 16, 4):
        await group.write(store, *(make_output(n, data={"text": "x" * 200_000}) for n in range(first, first + 4)))
    await group.write(store, *(make_output(n) for n in range(16, 21)))
    await group.write(store, *(make_output(n, data={"new": 1}) for n in (2, 1)))
    await store.outputs.page(group.key, Query(cursor=20, limit=2))  # small ones only
    assert store.outputs.fitting(group.key) > 100
    sizes, ids = [], []
    async for page in store.outputs.pages(group.key, Query(**change)):
        sizes.append(page.size)
        ids += [item["id"] for item in page.items()]
    assert max(sizes) < 1_600_000
    assert ids == sorted(set(ids), reverse=bool(change.get("newest_first"))) and len(ids) == 21


async def test_an_export_does_not_wait_for_what_came_after_it_began(store: Store, other: Store, group: Group) -> None:
    await group.write(store, make_output(1))
    slow: list[asyncio.Task[Any]] = []
    go_on = asyncio.Event()
    store.outputs.ids.step = at("written", go_on.wait)
    keys = []
    async for page in other.outputs.pages(group.key, Query()):
        keys += [item["key_hash"] for item in page.items()]
        if not slow:
            slow.append(asyncio.ensure_future(group.write(store, make_output(2))))
            while not await group.in_flight(other):
                await asyncio.sleep(0.005)
    assert keys == ["key-1"]
    go_on.set()
    await slow[0]


async def test_an_export_ends_after_as_many_items_as_wanted(store: Store, group: Group) -> None:
    await group.write(store, *(make_output(n) for n in range(120)))
    pages = store.outputs.pages(group.key, Query(newest_first=True), 70)
    keys = [item["key_hash"] async for page in pages for item in page.items()]
    assert keys == [f"key-{n}" for n in range(119, 49, -1)]


async def test_deletions_are_part_of_an_export_that_asks_for_them(store: Store, group: Group) -> None:
    written = await group.write(store, make_output(1), make_output(2))
    await group.delete(store, written[0])
    assert await everything(store, group) == ["key-2"]
    assert await everything(store, group, deleted=True) == ["key-2", "key-1"]


async def test_patches_and_writes_of_one_item_are_each_one_change(store: Store, group: Group) -> None:
    (written,) = await group.write(store, version(1))
    patched = await group.patch(store, Patch("output_id", written["output_id"], is_approved=True))
    (found,) = await group.read(store, cursor=written["id"])
    assert (found["id"], found["is_approved"]) == (patched[0]["id"], True)


async def test_a_few_fields_of_items_are_read_many_at_once(store: Store, group: Group) -> None:
    await group.write(store, *(make_output(n) for n in range(500)))
    query = Query(fields=("source_url",))
    pages = [len(page.documents) async for page in store.outputs.pages(group.key, query)]
    assert sum(pages) == 500
    assert len(pages) <= 3


@pytest.mark.slow
async def test_the_end_of_a_walk_does_not_read_all_that_is_beyond_the_watermark(
    listening: Store, group: Group, commands: Commands
) -> None:
    """A slow writer may hold back the readers of a group in which others go on."""

    def looks_beyond() -> int:
        return sum("$and" in command.body.get("filter", {}) for command in commands.sent)

    await group.write(listening, make_output(1))
    await open_batch(listening, group, 1)
    await group.write(listening, make_output(2))
    assert (await listening.outputs.page(group.key, Query(cursor=1))).next_cursor is not None and looks_beyond()
    commands.clear()
    await open_batch(listening, group, 5000)
    await group.write(listening, make_output(3))
    assert (await listening.outputs.page(group.key, Query(cursor=1))).next_cursor is not None and not looks_beyond()
