"""The life of an item after it was written: patched, deleted, revived, expired; and deletion records that age out."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from service.store import CursorExpired, Patch, Query, Store
from tests.support.api import make_output
from tests.support.commands import Commands
from tests.support.groups import Group, at, groups_of, look_after, look_after_once, stopped_at, version
from tests.support.limits import Small

OLD = "2020-01-01"


async def test_a_patch_changes_approval_and_tags_and_is_a_change(store: Store, group: Group) -> None:
    (written,) = await group.write(store, version(1, tags={"country": "Germany", "shelf": {"row": 1, "box": 2}}))
    tags = {"country": None, "region": "FR-BRE", "shelf": {"box": None}}
    (result,) = await group.patch(store, Patch("key_hash", "key-1", is_approved=True, tags=tags))
    assert result["result"] == "updated" and result["id"] > written["id"]
    (item,) = await group.read(store, region="FR-BRE", is_approved=True)
    assert item["tags"] == {"region": "FR-BRE", "shelf": {"row": 1}}
    assert item["data"] == {"version": 1} and item["output_id"] == written["output_id"]
    assert await group.read(store, country="Germany") == []
    await group.assert_counts_are_exact(store)


async def test_a_patch_that_changes_nothing_is_no_change(store: Store, group: Group) -> None:
    (written,) = await group.write(store, version(1, is_approved=True))
    patches = [Patch("output_id", written["output_id"], is_approved=True), Patch("key_hash", "nothing", tags={})]
    assert [r["result"] for r in await group.patch(store, *patches)] == ["unchanged", "not_found"]
    assert await group.read(store, cursor=written["id"]) == []


async def test_a_patch_of_an_older_version_is_a_conflict(store: Store, group: Group) -> None:
    (first,) = await group.write(store, version(1))
    (second,) = await group.write(store, version(2))
    patch = Patch("output_id", first["output_id"], is_approved=True, if_ids=frozenset([first["id"]]))
    (result,) = await group.patch(store, patch)
    assert (result["result"], result["id"]) == ("conflict", second["id"])
    assert await group.delete(store, first, if_id=first["id"]) == ["conflict"]
    assert await group.delete(store, first, if_id=second["id"]) == ["updated"]


async def test_patches_of_one_item_by_both_its_names_are_both_done(store: Store, group: Group) -> None:
    (written,) = await group.write(store, version(1))
    patches = [Patch("output_id", written["output_id"], is_approved=True), Patch("key_hash", "key-1", tags={"a": 1})]
    assert [r["result"] for r in await group.patch(store, *patches)] == ["updated", "updated"]
    (item,) = await group.read(store)
    assert item["is_approved"] and item["tags"]["a"] == 1
    await group.assert_counts_are_exact(store)


async def test_an_approval_stays_while_the_data_is_the_same(store: Store, group: Group) -> None:
    (written,) = await group.write(store, version(1))
    await group.patch(store, Patch("output_id", written["output_id"], is_approved=True))
    assert (await group.write(store, version(1, root_job_id="job-2")))[0]["result"] == "unchanged"
    await group.write(store, version(1, source_url="https://shop.example/moved"))
    assert (await group.read(store))[0]["is_approved"]
    await group.write(store, version(2))
    assert not (await group.read(store))[0]["is_approved"]
    await group.assert_counts_are_exact(store)


# -- deletions ------------------------------------------------------------------------------------


async def test_a_deletion_is_a_change_that_leaves_identity_and_filters(store: Store, group: Group) -> None:
    (written,) = await group.write(store, version(1, tags={"country": "Germany", "note": "x"}, is_approved=True))
    assert await group.delete(store, written) == ["updated"]
    assert await group.read(store) == []
    (record,) = await group.read(store, deleted=True, cursor=written["id"], country="Germany")
    assert record["deleted"] is True and record["output_id"] == written["output_id"]
    assert (record["data"], record["files"], record["tags"]) == ({}, [], {"country": "Germany"})
    assert await group.delete(store, written) == ["not_found"]
    assert [r["result"] for r in await group.patch(store, Patch("key_hash", "key-1", is_approved=True))] == [
        "not_found"
    ]
    await group.assert_counts_are_exact(store)


async def test_writing_a_deleted_key_brings_the_item_back(store: Store, group: Group) -> None:
    (written,) = await group.write(store, version(1))
    await group.delete(store, written)
    (back,) = await group.write(store, version(1))
    assert (back["result"], back["output_id"]) == ("created", written["output_id"])
    (item,) = await group.read(store, deleted=True, cursor=written["id"])
    assert item["data"] == {"version": 1} and "deleted" not in item
    await group.assert_counts_are_exact(store)


@pytest.mark.slow
async def test_a_deletion_holds_readers_up_like_any_change(store: Store, other: Store, group: Group) -> None:
    (first, second) = await group.write(store, version(1), make_output(2))
    async with stopped_at(store, "written", group.delete(store, first)):
        await group.delete(other, second)
        assert await group.read(other, deleted=True, cursor=2) == []
    assert [item["key_hash"] for item in await group.read(other, deleted=True, cursor=2)] == ["key-1", "key-2"]


async def test_two_deletions_of_one_item_count_once(store: Store, other: Store, group: Group) -> None:
    (written,) = await group.write(store, version(1))
    start = asyncio.Barrier(2)
    for each in (store, other):
        each.outputs.ids.step = at("before write", start.wait)
    results = await asyncio.gather(group.delete(store, written), group.delete(other, written))
    assert sorted(result for (result,) in results) == ["not_found", "updated"]
    await group.assert_counts_are_exact(store)


FILTERED: list[dict[str, Any]] = [
    {},
    {"job_id": "job-1"},
    {"is_approved": True},
    {"country": "Germany", "is_approved": False},
    {"scraped_before": datetime(2021, 1, 1, tzinfo=UTC)},
]


@pytest.mark.parametrize("query", FILTERED, ids=lambda query: "-".join(query) or "all")
async def test_what_a_filter_selects_is_deleted_and_nothing_else(
    store: Store, group: Group, query: dict[str, Any]
) -> None:
    await group.write(
        store,
        *(
            make_output(
                n,
                root_job_id=f"job-{n % 2}",
                is_approved=n % 3 == 0,
                tags={"country": "Germany"} if n % 5 else {},
                **({"last_scraped_date": OLD} if n % 4 == 0 else {}),
            )
            for n in range(40)
        ),
    )
    selected = {item["key_hash"] for item in await group.walk(store, **query)}
    everything = {item["key_hash"] for item in await group.walk(store)}
    assert selected
    assert await group.delete_matching(store, **query) == len(selected)
    assert {item["key_hash"] for item in await group.walk(store)} == everything - selected
    assert await group.delete_matching(store, **query) == 0
    await group.assert_counts_are_exact(store)


async def test_a_deletion_in_several_calls_goes_on_at_its_place_in_another_process(
    store: Store, other: Store, group: Group, small: Small
) -> None:
    small(deleted_beside_others=3)
    await group.write(store, *(make_output(n, is_approved=n > 7) for n in range(10)))
    query, begin = Query(is_approved=False), await store.outputs.deletion.begin(group.key)
    items, place = await store.outputs.deletion.run(group.key, query, begin, seconds=0)
    assert items == 3 and place is not None and place.done > begin.done
    await group.write(other, make_output(20, is_approved=False), make_output(5, is_approved=False))  # new, and seen
    while place is not None:
        _, place = await other.outputs.deletion.run(group.key, query, place, seconds=0)
    left = {item["key_hash"] for item in await group.walk(store)}
    assert left == {"key-5", "key-8", "key-9", "key-20"}
    await group.assert_counts_are_exact(store)


@pytest.mark.parametrize(
    "query", [{"job_id": "job-1"}, {"scraped_before": datetime(2021, 1, 1, tzinfo=UTC)}], ids=["job", "date"]
)
@pytest.mark.parametrize("step", ["allocated", "before write"])
async def test_an_item_that_is_scraped_again_meanwhile_is_not_deleted(
    store: Store, other: Store, group: Group, query: dict[str, Any], step: str
) -> None:
    """The same content scraped again changes no id: the deletion has to look at what it was selected by."""
    old = [make_output(n, last_scraped_date=OLD) for n in range(3)]
    await group.write(store, *old)

    async def scrape_again() -> None:
        await group.write(other, dict(old[1], root_job_id="job-2", last_scraped_date="2026-01-01"))

    store.outputs.ids.step = at(step, scrape_again)
    assert await group.delete_matching(store, **query) == 2
    assert [item["key_hash"] for item in await group.read(store)] == ["key-1"]
    await group.assert_counts_are_exact(store)


async def test_a_job_that_moves_under_a_change_is_counted_once(store: Store, other: Store, group: Group) -> None:
    await group.write(store, version(1))

    async def touch() -> None:
        await group.write(other, version(1, root_job_id="job-2"))

    store.outputs.ids.step = at("before write", touch)
    await group.write(store, version(2, root_job_id="job-3"))
    await group.assert_counts_are_exact(store)


async def test_unchanged_items_keep_the_newest_of_their_own_dates_and_go_to_the_job_that_saw_them_last(
    listening: Store, group: Group, commands: Commands
) -> None:
    """However many dates there are, it takes a few statements."""

    def crawl(job: str, year: int) -> list[dict[str, Any]]:
        return [
            make_output(n, root_job_id=job, last_scraped_date=f"{year}-{1 + n % 12:02}-{1 + n % 28:02}")
            for n in range(250)
        ]

    await group.write(listening, *crawl("first", 2026)[:125], *crawl("second", 2028)[125:])
    commands.sent.clear()
    results = await group.write(listening, *crawl("third", 2027))
    assert {result["result"] for result in results} == {"unchanged"}
    assert [len(command.body["updates"]) for command in commands.sent if command.name == "update"] == [2, 2]
    found = {item["key_hash"]: item for item in await group.read(listening)}
    for n in range(250):
        year = 2027 if n < 125 else 2028
        item = found[f"key-{n}"]
        assert (item["root_job_id"], item["last_scraped_date"].date().isoformat()) == (
            "third",
            f"{year}-{1 + n % 12:02}-{1 + n % 28:02}",
        )
    await group.assert_counts_are_exact(listening)


async def test_two_jobs_that_touch_one_item_at_once_are_counted_right(store: Store, other: Store, group: Group) -> None:
    items = [make_output(n) for n in range(4)]
    await group.write(store, *items)

    async def touch() -> None:
        await group.write(other, *(dict(item, root_job_id="job-2") for item in items[:2]))
        await group.write(other, dict(items[0], root_job_id="job-3"))

    store.outputs.ids.step = at("before write", touch)
    results = await group.write(store, *(dict(item, root_job_id="job-2") for item in items))
    assert {r["result"] for r in results} == {"unchanged"}
    await look_after(store, group)
    await group.assert_counts_are_exact(store)


# -- retention and ageing -------------------------------------------------------------------------


async def test_items_that_were_not_scraped_for_the_retention_are_deleted(store: Store, group: Group) -> None:
    await group.write(store, *(make_output(n, **({"last_scraped_date": OLD} if n % 2 else {})) for n in range(10)))
    await store.groups.set(group.key, {"retention_days": 30})
    await look_after(store, group)
    assert [item["key_hash"] for item in await group.read(store)] == [f"key-{n}" for n in range(0, 10, 2)]
    assert len(await group.read(store, deleted=True, cursor=10)) == 5
    await group.assert_counts_are_exact(store)
    again = (await group.document(store))["retention_at"]
    assert timedelta(hours=5) < again - datetime.now(UTC) < timedelta(hours=7)


async def test_retention_goes_on_where_it_was(store: Store, group: Group, small: Small) -> None:
    small(deleted_beside_others=3, expiring_seconds=0.002)  # one round per pass
    await group.write(store, *(make_output(n, last_scraped_date=OLD) for n in range(8)))
    await store.groups.set(group.key, {"retention_days": 1})
    left = []
    for _ in range(3):
        await look_after_once(store, group)
        left.append(len(await group.read(store)))
    assert left == [5, 2, 0]


async def test_retention_that_has_more_to_delete_goes_on_at_once(store: Store, group: Group, small: Small) -> None:
    small(deleted_beside_others=3, expiring_seconds=0.002)  # one round per pass
    await group.write(store, *(make_output(n, last_scraped_date=OLD) for n in range(8)))
    await store.groups.set(group.key, {"retention_days": 1})
    await group.set(store, due=datetime(2020, 1, 1, tzinfo=UTC))
    await store.upkeep.inspect(await group.document(store))
    assert len(await group.read(store)) == 5
    assert (await group.document(store))["due"] <= datetime.now(UTC), "its own deletions must not put it off"


async def test_a_retention_that_is_lifted_during_its_pass_deletes_no_more(
    store: Store, group: Group, small: Small
) -> None:
    small(deleted_beside_others=3)
    await group.write(store, *(make_output(n, last_scraped_date=OLD) for n in range(8)))
    await store.groups.set(group.key, {"retention_days": 1})
    store.outputs.ids.step = at("before write", lambda: store.groups.set(group.key, {"retention_days": None}))
    await group.set(store, due=datetime(2020, 1, 1, tzinfo=UTC))
    await store.upkeep.inspect(await group.document(store))
    assert len(await group.read(store)) == 5


async def test_a_retention_that_was_just_changed_is_the_one_that_counts(store: Store, group: Group) -> None:
    await group.write(store, make_output(1, last_scraped_date=OLD))
    await store.groups.set(group.key, {"retention_days": 30})
    await group.set(store, due=datetime(2020, 1, 1, tzinfo=UTC))
    found_due = await group.document(store)
    await store.groups.set(group.key, {"retention_days": None})
    await store.upkeep.inspect(found_due)
    assert len(await group.read(store)) == 1


async def test_two_processes_do_not_look_after_one_group_at_once(store: Store, other: Store, group: Group) -> None:
    await group.write(store, make_output(1, last_scraped_date=OLD))
    await store.groups.set(group.key, {"retention_days": 30})
    document = await group.document(store)
    await asyncio.gather(store.upkeep.inspect(document), other.upkeep.inspect(document))
    await group.assert_counts_are_exact(store)
    assert (await group.document(store))["next"] == document["next"] + 1


async def test_deletion_records_age_out_and_late_readers_get_an_error(store: Store, group: Group) -> None:
    written = await group.write(store, *(make_output(n) for n in range(4)))
    await group.delete(store, *written[:2])
    await store.database["outputs"].update_many(
        {**group.owner, "deleted": True}, {"$set": {"update_date": datetime.now(UTC) - timedelta(days=31)}}
    )
    await look_after(store, group)
    # The newest one stays: a walk that finds nothing else ends there, and goes on from there.
    assert [d["key_hash"] for d in await group.stored(store)] == ["key-2", "key-3", "key-1"]
    with pytest.raises(CursorExpired):
        await group.read(store, deleted=True, cursor=4)
    assert [d["key_hash"] for d in await group.read(store, deleted=True, cursor=5)] == ["key-1"]
    await group.assert_counts_are_exact(store)
    (anew,) = await group.write(store, make_output(0))
    assert anew["result"] == "created" and anew["output_id"] == written[0]["output_id"]


async def test_a_key_whose_record_is_removed_under_a_writer_is_written_anew(
    store: Store, other: Store, group: Group
) -> None:
    (written,) = await group.write(store, version(1))
    await group.delete(store, written)

    async def remove() -> None:
        await other.database["outputs"].delete_many({**group.owner, "deleted": True})

    store.outputs.ids.step = at("before write", remove)
    (back,) = await group.write(store, version(1))
    assert back["result"] == "created"
    assert [item["id"] for item in await group.read(store)] == [back["id"]]


async def test_a_deleted_group_is_gone_and_its_ids_are_never_given_again(store: Store, group: Group) -> None:
    written = await group.write(store, *(make_output(n) for n in range(3)))
    await group.remove(store)
    assert await groups_of(store, group.organization) == []
    assert (await group.stats(store))["items"] == 0 and await group.jobs(store) == {}
    (new,) = await group.write(store, make_output(0))
    assert new["id"] > written[-1]["id"] + 3 and new["output_id"] == written[0]["output_id"]
    stats = await group.stats(store)
    assert (stats["items"], stats["jobs"], [day["created"] for day in stats["days"]]) == (1, 1, [1])
