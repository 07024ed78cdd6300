"""What a crawl saw is never deleted: the orders of events in which it once was, each with two processes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.store import Patch, Store
from tests.store.test_crawls import begin, finish
from tests.support.api import make_output
from tests.support.fault_proxy import FaultProxy, refuse
from tests.support.groups import Group, at, killed_at, look_after, reap, stopped_at
from tests.support.limits import Small

MAX_TIME_EXPIRED = 50


def crawl(job: str, *numbers: int) -> list[dict[str, Any]]:
    return [make_output(number, root_job_id=job) for number in numbers]


async def missing_of(store: Store, group: Group, job: str) -> set[int]:
    """Return what is listed as missing from a job."""
    missing = await store.missing.of(group.key, job)
    assert missing is not None
    return {number(item) for item in await group.walk(store, missing_from=missing)}


def number(item: dict[str, Any]) -> int:
    return int(item["key_hash"].removeprefix("key-"))


async def left(store: Store, group: Group) -> set[int]:
    return {number(item) for item in await group.walk(store)}


async def finish_and_delete(store: Store, group: Group, job: str) -> dict[str, Any]:
    """Finish a job and delete what is missing from it; return the job."""
    finished = await finish(store, group, job)
    assert finished["missing"] == len(await missing_of(store, group, job))
    more = True
    while more:
        held_back, more = await store.missing.delete(group.key, job)
        assert held_back is None
    found = await store.crawls.one(group.key, job)
    assert found is not None
    return found


async def test_what_an_overlapping_crawl_sees_after_a_job_is_not_missing_from_it(
    store: Store, other: Store, group: Group
) -> None:
    await group.write(store, *crawl("a", 0, 1, 2, 3))
    await begin(store, group, "b")
    await group.write(store, *crawl("b", 0, 1))
    await group.write(other, *crawl("a", 1, 2))  # the older crawl goes on: both belong to it
    done = await finish_and_delete(store, group, "b")
    assert (done["missing"], done["deleted"]) == (1, 1)
    assert await left(store, group) == {0, 1, 2}


async def test_a_batch_that_was_begun_before_a_job_and_lands_after_its_sight_takes_nothing_back(
    store: Store, other: Store, group: Group
) -> None:
    await group.write(store, *crawl("z", 0, 1))
    async with stopped_at(store, "before write", group.write(store, *crawl("a", 0, 1))):
        await group.write(other, *crawl("b", 0))  # which begins job b: no `running` was sent
    items = {number(item): item for item in await group.stored(store)}
    assert [items[0]["root_job_id"], items[1]["root_job_id"]] == ["b", "a"]
    assert items[0]["seen"] > items[1]["seen"]
    assert await missing_of(store, group, "b") == {1}  # seen at a position before its beginning
    await finish_and_delete(store, group, "b")
    assert await left(store, group) == {0}


async def test_what_is_in_flight_when_a_job_begins_counts_as_seen_since(
    store: Store, other: Store, group: Group
) -> None:
    await group.write(store, *crawl("z", 0, 1, 2))
    async with stopped_at(store, "before write", group.write(store, *crawl("a", 0, 1))):
        await begin(other, group, "b")
    await group.write(other, *crawl("b", 0))
    await finish_and_delete(other, group, "b")
    assert await left(store, group) == {0, 1}


async def test_the_losing_one_of_two_touches_around_a_beginning_is_not_done(
    store: Store, other: Store, group: Group
) -> None:
    """Both processes of the crawl have looked the item up; the earlier batch is written first, at a lower position."""
    await group.write(store, *crawl("z", 0, 1))
    gate = asyncio.Event()
    looked_up = asyncio.Event()

    async def wait() -> None:
        looked_up.set()
        await gate.wait()

    store.outputs.ids.step = at("before write", wait)
    early = asyncio.ensure_future(group.write(store, *crawl("a", 0)))
    await asyncio.wait_for(looked_up.wait(), 60)

    async def between() -> None:
        gate.set()
        await early

    await group.write(other, *crawl("b", 1))
    other.outputs.ids.step = at("before write", between)
    await group.write(other, *crawl("a", 0))
    await finish_and_delete(other, group, "b")
    assert await left(other, group) == {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize("is_new", [True, False], ids=["its first batch", "a later one"])
async def test_a_batch_of_touches_whose_writer_died_counts_once_it_is_recounted(
    store: Store, other: Store, group: Group, is_new: bool
) -> None:
    await group.write(store, *crawl("z", 0, 1, 2, 3))
    await begin(other, group, "b")
    if not is_new:
        await group.write(store, *crawl("a", 3))
    await killed_at(store, "written", group.write(store, *crawl("a", 0, 1)))
    await group.write(other, *crawl("b", 2))
    await reap(other, group)
    await look_after(other, group)
    done = await finish_and_delete(other, group, "b")
    assert done["missing"] == (1 if is_new else 0)
    assert await left(other, group) == ({0, 1, 2} if is_new else {0, 1, 2, 3})
    await group.assert_counts_are_exact(other)


@pytest.mark.slow
async def test_what_a_held_up_process_sees_after_its_batch_was_ended_is_not_missing(
    store: Store, other: Store, group: Group
) -> None:
    """Its position is from before job b began, and what it saw landed after."""
    await group.write(store, *crawl("z", 0, 1, 2))
    async with stopped_at(store, "before write", group.write(store, *crawl("a", 0, 1))) as late:
        await reap(other, group)
        await look_after(other, group)
        await begin(other, group, "b")
    assert [result["result"] for result in late.result()] == ["unchanged"] * 2
    await group.write(other, *crawl("b", 2))
    await look_after(other, group)
    assert (await group.jobs(other))["a"]["unchanged"] == 2
    await group.assert_counts_are_exact(other)
    assert (await finish_and_delete(other, group, "b"))["missing"] == 0
    assert await left(other, group) == {0, 1, 2}


async def test_approving_everything_while_a_broken_crawl_runs_is_no_sight(
    store: Store, other: Store, group: Group
) -> None:
    await store.groups.set(group.key, {"rules": [{"min_items": 5}]})
    await group.write(store, *crawl("a", *range(10)))
    await begin(store, group, "b")
    await group.write(store, *crawl("b", 0))
    await group.patch(other, *(Patch("key_hash", f"key-{n}", is_approved=True) for n in range(10)))
    job = await finish(store, group, "b")
    assert (job["missing"], job["verdict"]) == (9, "failed")
    assert await missing_of(store, group, "b") == set(range(1, 10))


@pytest.mark.slow
async def test_one_item_of_a_broken_crawl_beside_sixty_of_another_does_not_pass(
    store: Store, other: Store, group: Group
) -> None:
    await store.groups.set(group.key, {"rules": [{"min_items": 50}]})
    await group.write(store, *crawl("z", *range(80)))
    await begin(store, group, "b")
    await begin(other, group, "a")
    await group.write(store, *crawl("b", 0))
    await group.write(other, *crawl("a", *range(20, 80)))
    broken, good = await finish(store, group, "b"), await finish(other, group, "a")
    assert (broken["verdict"], broken["judged"]) == ("failed", 61)
    assert broken["problems"][0]["found"] == 1
    assert good["verdict"] == "passed"
    assert (await store.missing.delete(group.key, "b"))[0] is not None
    assert len(await left(store, group)) == 80


async def test_a_good_crawl_is_not_failed_because_another_took_its_items_over(
    store: Store, other: Store, group: Group
) -> None:
    await store.groups.set(group.key, {"rules": [{"min_items": 50}, {"path": "title", "min_fill": 1}]})
    await begin(store, group, "b")
    await group.write(store, *crawl("b", *range(60)))
    await group.write(other, *crawl("late", *range(60)))
    job = await finish(store, group, "b")
    assert (job["verdict"], job["items"], job["judged"]) == ("passed", 0, 60)


async def test_of_very_many_overlapping_jobs_the_items_of_all_are_judged(
    store: Store, group: Group, small: Small
) -> None:
    small(judged_jobs=2)
    await store.groups.set(group.key, {"rules": [{"path": "title", "type": "string"}]})
    await begin(store, group, "other", series="other")
    await group.write(store, make_output(50, root_job_id="other", data={"title": 1}))
    await begin(store, group, "b")
    for number in range(4):
        await group.write(store, *crawl(f"a-{number}", number))
    assert (await finish(store, group, "b"))["verdict"] == "passed"
    await group.write(store, make_output(9, root_job_id="late", data={"title": 1}))
    await begin(store, group, "b")
    job = await finish(store, group, "b")
    assert (job["judged"], job["verdict"]) == (5, "failed")


@pytest.mark.slow
async def test_a_job_that_is_opened_again_keeps_its_beginning(store: Store, other: Store, group: Group) -> None:
    await group.write(store, *crawl("z", 0, 1, 2))
    await begin(store, group, "b")
    await group.write(store, *crawl("b", 0))
    await group.write(other, *crawl("a", 1))
    await finish(store, group, "b")
    await begin(other, group, "b")
    await finish_and_delete(store, group, "b")
    assert await left(store, group) == {0, 1}


async def test_a_job_whose_first_batch_is_in_flight_exists_once_that_is_settled(
    store: Store, other: Store, group: Group
) -> None:
    await group.write(store, *crawl("a", 0))
    async with stopped_at(store, "written", group.write(store, *crawl("b", 0, 1))):
        finishing = asyncio.ensure_future(finish(other, group, "b"))
        await asyncio.wait([finishing], timeout=0.1)
        assert not finishing.done()
    job = await finishing
    assert (job["state"], job["created"], job["unchanged"]) == ("finished", 1, 1)


async def test_a_deletion_stops_when_its_job_is_opened_again(
    store: Store, other: Store, group: Group, small: Small
) -> None:
    small(deleted_beside_others=2)
    await group.write(store, *crawl("a", *range(9)))
    await group.write(store, *crawl("b", 8))
    await finish(store, group, "b")
    store.outputs.ids.step = at("before write", lambda: begin(other, group, "b"))
    held_back, more = await store.missing.delete(group.key, "b")
    assert held_back is not None and "opened again" in held_back and not more, "something is left"
    assert len(await left(store, group)) == 7  # one round was under way
    await store.missing.continue_deletions()
    assert len(await left(store, group)) == 7


async def test_a_job_that_is_judged_again_before_its_deletion_begins_deletes_nothing(
    store: Store, wired: Store, wire: FaultProxy, group: Group
) -> None:
    await group.write(store, *crawl("a", *range(9)))
    await group.write(store, *crawl("b", 8))
    await finish(store, group, "b")

    async def judge_again() -> None:
        await begin(store, group, "b")
        await store.groups.set(group.key, {"rules": [{"min_items": 5}]})
        assert (await finish(store, group, "b"))["verdict"] == "failed"

    wire.before("findAndModify", "jobs", judge_again)
    held_back, _ = await wired.missing.delete(group.key, "b")
    assert held_back is not None and "opened again" in held_back
    assert len(await left(store, group)) == 9


async def test_a_deletion_that_was_interrupted_before_its_job_failed_begins_anew(
    store: Store, group: Group, small: Small
) -> None:
    small(deleted_beside_others=3, missing_deletion_seconds=0.0)
    await begin(store, group, "lamps", series="lamps")
    await group.write(store, *crawl("lamps", 20, 21))
    await group.write(store, *crawl("a", *range(9)))
    await group.write(store, *crawl("b", 8))
    await finish(store, group, "b")
    assert await store.missing.delete(group.key, "b") == (None, True)
    await store.crawls.declare(group.key, "b", {"state": "failed"})
    await begin(store, group, "lamps", series=None)
    done = await finish_and_delete(store, group, "b")
    assert (done["missing"], done["deleted"]) == (7, 7), "items of lower ids have become missing"
    assert await left(store, group) == {8}


async def test_a_series_that_is_renamed_after_the_verdict_is_judged_again(
    store: Store, other: Store, group: Group
) -> None:
    await begin(store, group, "a", series="lamps")
    await group.write(store, *crawl("a", *range(9)))
    await group.write(store, *crawl("b", 20))
    assert (await finish(store, group, "b"))["missing"] == 0
    await store.crawls.declare(group.key, "a", {"state": "running", "series": None})
    held_back, _ = await other.missing.delete(group.key, "b")
    assert held_back is not None and "judged again" in held_back
    assert len(await left(store, group)) == 10
    await begin(other, group, "b")
    assert (await finish(other, group, "b"))["missing"] == 9
    assert await other.missing.delete(group.key, "b") == (None, False)
    assert await left(store, group) == {20}


async def test_a_group_that_is_deleted_between_the_beginning_and_the_first_write_keeps_the_series(
    store: Store, other: Store, group: Group
) -> None:
    await group.write(store, *crawl("own", 0, 1, 2))
    await begin(store, group, "b", series="lamps")
    await group.remove(other)
    assert await group.jobs(other) == {}
    await group.write(store, *crawl("b", 5, 6))
    assert (await group.jobs(other))["b"]["series"] == "lamps"
    await group.write(other, *crawl("next", 7))
    await look_after(other, group)
    job = await finish_and_delete(other, group, "next")  # of the group's own series
    assert (job["missing"], job["deleted"]) == (0, 0)
    assert await left(store, group) == {5, 6, 7}


@pytest.mark.slow
async def test_items_that_two_series_list_hold_a_deletion_back(store: Store, group: Group) -> None:
    for series in ("lamps", "sale"):
        await begin(store, group, f"{series}-1", series=series)
        await group.write(store, *crawl(f"{series}-1", *(range(5) if series == "lamps" else range(3, 8))))
        await finish(store, group, f"{series}-1")
    await begin(store, group, "sale-2", series="sale")
    await group.write(store, *crawl("sale-2", 5, 6, 7))  # the lamps 3 and 4 are no longer on sale
    job = await finish(store, group, "sale-2")
    assert job["missing"] == 2
    held_back, _ = await store.missing.delete(group.key, "sale-2")
    assert held_back is not None and "shared" in held_back
    assert await left(store, group) == set(range(8))
    assert (await group.jobs(store))["sale-1"]["shared"] == 2


@pytest.mark.slow
async def test_a_job_from_before_beginnings_were_stored_deletes_nothing(store: Store, group: Group) -> None:
    await group.write(store, *crawl("a", 0, 1))
    await group.write(store, *crawl("b", 0))
    await store.jobs.collect(group.key)
    await store.database["jobs"].update_many(group.owner, {"$unset": {"beginning": "", "last_position": ""}})
    await store.database["outputs"].update_many(group.owner, {"$unset": {"seen": "", "changed_by": ""}})
    await group.write(store, *crawl("b", 0))
    job = await finish(store, group, "b")
    assert job["missing"] == 0
    held_back, _ = await store.missing.delete(group.key, "b")
    assert held_back is not None and "beginning" in held_back
    await group.write(store, *crawl("c", 0))  # the next crawl has one
    assert (await finish_and_delete(store, group, "c"))["deleted"] == 1


@pytest.mark.slow
async def test_an_interrupted_deletion_is_completed_by_the_upkeep_of_another_process(
    store: Store, other: Store, group: Group, small: Small
) -> None:
    small(deleted_beside_others=3)
    await group.write(store, *crawl("a", *range(20)))
    await group.write(store, *crawl("b", 0))
    await finish(store, group, "b")
    await killed_at(store, "before write", store.missing.delete(group.key, "b"))
    await reap(other, group)
    await look_after(other, group)
    assert len(await left(other, group)) == 20
    await other.missing.continue_deletions()  # it may still be under way
    assert len(await left(other, group)) == 20
    await group.write(other, *crawl("late", 7))
    await age_deletion(other, group, "b")
    await other.missing.continue_deletions()
    assert await left(other, group) == {0, 7}
    job = await other.crawls.one(group.key, "b")
    assert job is not None and job["deleted"] == 18


@pytest.mark.slow
async def test_a_deletion_that_fails_again_and_again_does_not_stop_the_others(
    store: Store, wired: Store, wire: FaultProxy, group: Group
) -> None:
    second = Group(group.organization, "second")
    for each in (group, second):
        await each.write(store, *crawl("a", 0, 1))
        await each.write(store, *crawl("b", 2))
        await finish(store, each, "b")
        await killed_at(store, "before write", store.missing.delete(each.key, "b"))
        await reap(store, each)
        await look_after(store, each)
        await age_deletion(store, each, "b")
    too_long = refuse(MAX_TIME_EXPIRED)
    wire.before("aggregate", "jobs", too_long, times=10, where=lambda body: group.group_id in str(body["pipeline"]))
    for _ in range(2):
        await wired.missing.continue_deletions()
    assert [len(await left(store, each)) for each in (group, second)] == [3, 1]


async def age_deletion(store: Store, group: Group, job: str) -> None:
    """Let the last step of a deletion be long ago."""
    where = {**group.owner, "job_id": job, "deleting.date": {"$exists": True}}
    long_ago = {"deleting.date": (await group.document(store))["now"].replace(year=2020)}
    assert (await store.database["jobs"].update_one(where, {"$set": long_ago})).modified_count


async def test_changes_say_which_job_made_them(store: Store, group: Group) -> None:
    await group.write(store, *crawl("a", 0, 1, 2))
    await group.write(store, *crawl("b", 0), make_output(1, root_job_id="b", data={"new": 1}))
    await group.patch(store, Patch("key_hash", "key-2", is_approved=True))
    items = {number(item): item for item in await group.stored(store)}
    assert [items[n].get("changed_by") for n in range(3)] == ["a", "b", None]
    job = await store.database["jobs"].find_one({**group.owner, "job_id": "b"})
    if job is None:
        await store.jobs.collect(group.key)
        job = await store.database["jobs"].find_one({**group.owner, "job_id": "b"})
    assert job is not None
    assert job["beginning"] <= items[1]["id"] <= job["last_position"]
    assert items[0]["seen"] == job["beginning"]


@pytest.mark.slow
async def test_a_body_that_names_a_thousand_jobs_is_counted_a_few_at_a_time(store: Store, group: Group) -> None:
    sizes: list[int] = []

    async def measure(_: str) -> None:
        sizes.append(len(str((await group.document(store)).get("pending", []))))

    store.outputs.ids.step = measure
    written = await group.write(store, *(make_output(n, root_job_id=f"job-{n}-{'x' * 200}") for n in range(1000)))
    assert {result["result"] for result in written} == {"created"}
    assert max(sizes) < 200_000
    stats = await group.stats(store)
    assert (stats["items"], stats["jobs"]) == (1000, 1000)


async def test_no_batch_begins_while_too_many_counts_wait(store: Store, other: Store, group: Group) -> None:
    await let_counts_wait(store, group)
    written = await group.write(other, *crawl("b", 1))  # which moves them first
    assert written[0]["result"] == "created"
    assert len(str((await group.document(store)).get("pending", []))) < 10_000


@pytest.mark.slow
async def test_a_job_begins_although_another_process_lets_too_many_counts_wait(
    store: Store, wired: Store, wire: FaultProxy, group: Group
) -> None:
    wire.before("update", "groups", lambda: let_counts_wait(store, group))
    await begin(wired, group, "b", series="lamps")
    assert (await group.jobs(store))["b"]["series"] == "lamps"


async def let_counts_wait(store: Store, group: Group) -> None:
    """Let as many counts wait in the group's document as fit there."""
    await group.write(store, *crawl("a", 0))
    entry = {"date": (await group.document(store))["now"], "created": 0, "changed": 0, "jobs": []}
    entry["jobs"] = [{"job_id": f"old-{n}" + "x" * 40_000, "items": 0} for n in range(60)]
    await store.database["groups"].update_one(group.owner, {"$push": {"pending": entry}})
