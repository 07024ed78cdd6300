"""Jobs of two processes: counts and missing items against an independent model, and finishing at once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from service.store import Patch, Store, StoreUnavailable, now
from service.store.outputs.counts import Change
from tests.support.api import make_output
from tests.support.commands import Commands
from tests.support.fault_proxy import FaultProxy
from tests.support.groups import Group, at, killed_at, look_after, open_batch, reap
from tests.support.limits import MachineClock, Small

KINDS = ("created", "changed", "unchanged")


class Model:
    """What a group holds and what each job did, kept in plain dictionaries."""

    def __init__(self) -> None:
        self.items: dict[int, tuple[str, int]] = {}  # key -> job that saw it last, content
        self.done: dict[str, dict[int, str]] = {}  # job -> key -> what it did

    def write(self, job: str, key: int, content: int) -> None:
        done = self.done.setdefault(job, {})
        if key not in self.items:
            done[key] = "created"
        elif self.items[key][1] != content:
            done[key] = done[key] if done.get(key) in ("created", "changed") else "changed"
        else:
            done.setdefault(key, "unchanged")
        self.items[key] = (job, content)

    def counts(self, job: str) -> dict[str, int]:
        found = Counter(self.done.get(job, {}).values())
        return {kind: found[kind] for kind in KINDS}

    def missing(self, job: str, series: dict[str, str | None]) -> set[int]:
        """Each crawl ends before the next begins: what another one holds was not seen since."""
        return {key for key, (held, _) in self.items.items() if held != job and series[held] == series[job]}


async def begin(store: Store, group: Group, job: str, **said: Any) -> None:
    assert await store.crawls.declare(group.key, job, {"state": "running", **said})


async def finish(store: Store, group: Group, job: str, **said: Any) -> dict[str, Any]:
    assert await store.crawls.declare(group.key, job, {"state": "finished", **said})
    return await store.crawls.finish(group.key, job)


async def test_a_job_that_runs_again_before_it_is_told_of_shows_no_verdict(store: Store, group: Group) -> None:
    await store.groups.set(group.key, {"rules": [{"min_items": 5}]})
    await group.write(store, make_output(root_job_id="job"))
    job = await finish(store, group, "job")
    await store.crawls.declare(group.key, "job", {"state": "running"})
    await store.crawls.notify(group.key, job)
    found = await store.database["groups"].find_one(group.key.owner)
    assert found is not None and "verdict" not in found
    job = await finish(store, group, "job")
    await store.crawls.notify(group.key, job)
    found = await store.database["groups"].find_one(group.key.owner)
    assert found is not None and found["verdict"]["verdict"] == "failed"


async def test_a_job_whose_series_is_changed_while_it_is_judged_is_not_finished_with_the_old_one(
    store: Store, wired: Store, wire: FaultProxy, group: Group
) -> None:
    await group.write(store, make_output(root_job_id="job"))
    renamed = {"state": "finished", "series": "lamps"}
    wire.before("aggregate", "outputs", lambda: store.crawls.declare(group.key, "job", renamed))
    with pytest.raises(StoreUnavailable):
        await wired.crawls.finish(group.key, "job")
    assert (await finish(store, group, "job"))["series"] == "lamps"


async def test_a_job_that_was_reopened_while_it_was_judged_is_not_finished_with_old_counts(
    store: Store, wired: Store, wire: FaultProxy, group: Group
) -> None:
    await group.write(store, make_output(root_job_id="job"))

    async def end_and_open_again() -> None:
        await finish(store, group, "job")
        await store.crawls.declare(group.key, "job", {"state": "running"})

    wire.before("aggregate", "outputs", end_and_open_again)
    with pytest.raises(StoreUnavailable):
        await wired.crawls.finish(group.key, "job")
    job = await store.crawls.one(group.key, "job")
    assert job is not None and job["state"] == "running"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
async def test_counts_and_missing_items_are_those_of_a_model(
    store: Store, other: Store, group: Group, seed: int
) -> None:
    dice, model = random.Random(seed), Model()
    series: dict[str, str | None] = {}
    for number in range(8):
        job = f"job-{number}"
        series[job] = dice.choice(["chairs", "tables", None])
        said = {"state": "running"} | ({} if series[job] is None else {"series": series[job]})
        await store.crawls.declare(group.key, job, said)
        for _ in range(dice.randrange(1, 5)):
            keys = dice.sample(range(30), dice.randrange(1, 15))
            content = dice.randrange(2)
            written = [make_output(key, data={"content": content}, root_job_id=job) for key in keys]
            await group.write(dice.choice([store, other]), *written)
            for key in keys:
                model.write(job, key, content)
        found = await finish(dice.choice([store, other]), group, job)
        missing = model.missing(job, series)
        assert {kind: found[kind] for kind in KINDS} == model.counts(job)
        assert found["missing"] == len(missing)
        assert found["items"] == sum(held == job for held, _ in model.items.values())
        if dice.random() < 0.4:
            held_back, more = await store.missing.delete(group.key, job)
            assert not more
            for key in missing if held_back is None else ():
                del model.items[key]
        left = {int(item["key_hash"].removeprefix("key-")) for item in await group.read(other)}
        assert left == set(model.items)
    await group.assert_counts_are_exact(store)


async def test_jobs_that_finish_at_once_in_two_processes_agree(store: Store, other: Store, group: Group) -> None:
    await group.write(store, *(make_output(n, root_job_id="a") for n in range(10)))
    await group.write(store, *(make_output(n, root_job_id="b") for n in range(6)))
    found = await asyncio.gather(*(finish(one, group, job) for one in (store, other) for job in "ab" for _ in range(3)))
    by_job: dict[str, set[Any]] = {"a": set(), "b": set()}
    for job in found:
        by_job[job["job_id"]].add((job["finish_date"], job["missing"], job["items"]))
    assert [(missing, items) for ((_, missing, items),) in by_job.values()] == [(0, 4), (4, 6)]


@pytest.mark.slow
async def test_two_processes_that_delete_what_is_missing_delete_it_once(
    store: Store, other: Store, group: Group
) -> None:
    await group.write(store, *(make_output(n, root_job_id="a") for n in range(300)))
    await group.write(store, *(make_output(n, root_job_id="b") for n in range(10)))
    await finish(store, group, "b")
    more = True
    while more:
        done = await asyncio.gather(*(one.missing.delete(group.key, "b") for one in (store, other)))
        more = any(more for _, more in done)
    job = await store.crawls.one(group.key, "b")
    assert job is not None
    assert (job["missing"], job["deleted"], job["items"]) == (290, 290, 10)
    assert len(await group.read(store)) == 10
    await group.assert_counts_are_exact(store)


async def test_a_deletion_of_missing_items_that_is_interrupted_has_counted_what_it_deleted(
    store: Store, other: Store, group: Group, small: Small
) -> None:
    small(deleted_beside_others=3, missing_deletion_seconds=0.0)
    await group.write(store, *(make_output(n, root_job_id="a") for n in range(10)))
    await group.write(store, make_output(0, root_job_id="b"))
    await finish(store, group, "b")
    assert await store.missing.delete(group.key, "b") == (None, True)
    await killed_at(store, "before write", store.missing.delete(group.key, "b"))
    await reap(other, group)
    await look_after(other, group)
    while (await other.missing.delete(group.key, "b"))[1]:
        pass
    job = await other.crawls.one(group.key, "b")
    assert job is not None and job["deleted"] == 9
    assert len(await group.read(other)) == 1


@pytest.mark.parametrize("job", ["a", "c"], ids=["the crawl before", "another crawl"])
async def test_an_item_that_is_seen_during_the_deletion_stays(
    store: Store, other: Store, group: Group, job: str
) -> None:
    await group.write(store, *(make_output(n, root_job_id="a") for n in range(10)))
    await group.write(store, *(make_output(n, root_job_id="b") for n in range(5)))
    await finish(store, group, "b")
    store.outputs.ids.step = at("before write", lambda: group.write(other, make_output(9, root_job_id=job)))
    await store.missing.delete(group.key, "b")
    assert {item["key_hash"] for item in await group.read(store)} == {*(f"key-{n}" for n in range(5)), "key-9"}


async def test_an_item_that_a_person_changes_during_the_deletion_stays(
    store: Store, other: Store, group: Group, small: Small
) -> None:
    """It is still missing, but was written after the deletion began."""
    small(deleted_beside_others=2)
    await group.write(store, *(make_output(n, root_job_id="a") for n in range(10)))
    await group.write(store, *(make_output(n, root_job_id="b") for n in range(5)))
    await finish(store, group, "b")
    approval = Patch("key_hash", "key-9", is_approved=True)
    store.outputs.ids.step = at("before write", lambda: group.patch(other, approval))
    while (await store.missing.delete(group.key, "b"))[1]:
        pass
    assert {item["key_hash"] for item in await group.read(store)} == {*(f"key-{n}" for n in range(5)), "key-9"}


async def test_a_finished_job_whose_process_died_before_it_told_anybody_is_told_by_the_next(
    store: Store, other: Store, group: Group
) -> None:
    webhook = {"url": "https://hooks.example/", "events": ["job.finished"], "group_id": None, "label": ""}
    webhook_id = (await store.webhooks.create(group.organization, webhook))["webhook_id"]
    await group.write(store, make_output(1, root_job_id="a"))
    await finish(store, group, "a")  # and is killed
    job = await finish(other, group, "a")
    await other.crawls.notify(group.key, job)
    assert len(await other.webhooks.deliveries.recent(group.organization, webhook_id)) == 1
    again = await finish(other, group, "a")
    assert "untold" not in again


@pytest.mark.usefixtures("nothing_due")
async def test_a_finished_job_whose_process_died_is_told_by_the_upkeep_although_nobody_asks_again(
    store: Store, other: Store, group: Group
) -> None:
    webhook = {"url": "https://hooks.example/", "events": ["job.finished"], "group_id": None, "label": ""}
    webhook_id = (await store.webhooks.create(group.organization, webhook))["webhook_id"]
    await group.write(store, make_output(1, root_job_id="a"))
    await finish(store, group, "a")  # and is killed
    await other.upkeep.run()
    assert await other.webhooks.deliveries.recent(group.organization, webhook_id) == []  # it may live
    long_ago = {"finish_date": now() - timedelta(minutes=5)}
    await store.database["jobs"].update_one(group.owner, {"$set": long_ago})
    for _ in range(2):
        await other.upkeep.run()
        assert len(await other.webhooks.deliveries.recent(group.organization, webhook_id)) == 1
    assert "untold" not in await finish(other, group, "a")


async def test_the_fill_rates_that_are_kept_are_bounded_and_begin_with_those_that_rules_name(
    store: Store, group: Group
) -> None:
    names = [f"{n}-" + "x" * 900 for n in range(500)]
    await group.write(store, make_output(root_job_id="a", data=dict.fromkeys(names, 1)))
    await store.groups.set(group.key, {"rules": [{"path": names[-1], "max_drop": 0.5}]})
    kept = (await finish(store, group, "a"))["fields"]
    assert names[-1] in [field["path"] for field in kept]
    assert sum(len(field["path"]) for field in kept) <= 8 * 1024


async def test_what_other_jobs_hold_is_found_by_an_index(listening: Store, commands: Commands, group: Group) -> None:
    store = listening
    jobs = [{**group.owner, "job_id": f"job-{n}", "items": int(n % 100 == 0)} for n in range(1000)]
    jobs[0] |= {"first_move": 1, "beginning": 5}
    await store.database["jobs"].insert_many(jobs)
    await store.missing.of(group.key, "job-0")
    where = next(command.body["filter"] for command in commands.sent if command.body.get("hint") == "held")
    plan = await store.database.command({"explain": {"find": "jobs", "filter": where}, "verbosity": "executionStats"})
    assert plan["executionStats"]["totalDocsExamined"] <= 10
    assert plan["executionStats"]["totalKeysExamined"] <= 11


@pytest.mark.parametrize("step", ["before write", "written", "before finish"])
async def test_a_job_finishes_with_exact_counts_when_one_of_its_writers_has_died(
    store: Store, other: Store, group: Group, step: str, small: Small
) -> None:
    small(settle_seconds=0.1)
    await group.write(store, *(make_output(n, root_job_id="monday") for n in range(10)))
    crawl = [make_output(n, root_job_id="tuesday") for n in range(4)]  # unchanged
    crawl += [make_output(n, root_job_id="tuesday", data={"new": n}) for n in (4, 5, 20)]  # changed, changed, created
    await killed_at(store, step, group.write(store, *crawl))
    await group.write(other, *crawl)  # as its client sends it again
    with pytest.raises(StoreUnavailable):  # the batch of the dead process is in flight, then not counted
        await finish(other, group, "tuesday")
    await reap(other, group)
    with pytest.raises(StoreUnavailable):
        await finish(other, group, "tuesday")
    await look_after(other, group)
    job = await finish(other, group, "tuesday")
    assert {kind: job[kind] for kind in ("items", *KINDS, "missing")} == {
        "items": 7,
        "created": 1,
        "changed": 2,
        "unchanged": 4,
        "missing": 4,
    }


async def test_the_fields_of_a_job_are_not_read_before_its_writes_can_be_seen(
    store: Store, other: Store, group: Group, small: Small
) -> None:
    small(settle_seconds=0.1)
    batch = await open_batch(other, group, 10)  # what is written later is not readable
    await group.write(store, *(make_output(n, root_job_id="a") for n in range(5)))
    with pytest.raises(StoreUnavailable):
        await store.crawls.finish(group.key, "a")
    await other.outputs.ids.turn(group.key, (batch, Change()), 0)
    assert (await store.crawls.finish(group.key, "a"))["judged"] == 5


async def test_a_body_with_an_older_date_sent_twice_counts_its_items_once(store: Store, group: Group) -> None:
    await group.write(store, *(make_output(n, root_job_id="a") for n in range(10)))
    older = [make_output(n, root_job_id="b", last_scraped_date="2020-01-01T00:00:00Z") for n in range(10)]
    for _ in range(2):
        assert {result["result"] for result in await group.write(store, *older)} == {"unchanged"}
    jobs = await group.jobs(store)
    assert [(jobs[job]["items"], jobs[job]["unchanged"]) for job in "ab"] == [(0, 0), (10, 10)]


async def test_items_that_a_finished_job_has_sent_late_with_an_older_date_are_not_deleted(
    store: Store, group: Group
) -> None:
    await group.write(store, *(make_output(n, root_job_id="a") for n in range(3)))
    await finish(store, group, "a")
    await group.write(store, make_output(0, root_job_id="b"))
    await finish(store, group, "b")
    await group.write(store, make_output(1, root_job_id="b", last_scraped_date="2020-01-01T00:00:00Z"))
    assert await store.missing.delete(group.key, "b") == (None, False)
    assert {item["key_hash"] for item in await group.read(store)} == {"key-0", "key-1"}


async def test_unchanged_items_that_two_processes_write_for_one_job_at_once_are_counted_once(
    store: Store, other: Store, group: Group
) -> None:
    await group.write(store, *(make_output(n, root_job_id="a") for n in range(10)))
    again = [make_output(n, root_job_id="b") for n in range(10)]
    # Both have looked the items up; the other process writes some of them first.
    store.outputs.ids.step = at("before write", lambda: group.write(other, *again[:4]))
    assert {result["result"] for result in await group.write(store, *again)} == {"unchanged"}
    await look_after(store, group)
    job = await finish(store, group, "b")
    assert [job[name] for name in ("items", *KINDS, "missing")] == [10, 0, 0, 10, 0]
    await group.assert_counts_are_exact(store)


async def test_the_dates_of_a_job_come_from_one_clock(store: Store, group: Group, machine_clock: MachineClock) -> None:
    ahead = now() + timedelta(hours=1)
    machine_clock(timedelta(hours=1))
    await store.crawls.declare(group.key, "job", {"state": "running"})
    await group.write(store, make_output(root_job_id="job"))
    job = await store.crawls.one(group.key, "job")
    assert job is not None and job["last_write"] == job["first_write"] < ahead


async def test_jobs_are_listed_a_few_at_a_time(store: Store, group: Group) -> None:
    """50 of 140 KB at once, for 40 readers that did not read, were 760 MB."""
    job = {**group.owner, "first_move": 1, "problems": [{"message": "x" * 50_000}]}
    await store.database["jobs"].insert_many([{**job, "job_id": f"{n}"} for n in range(60)])
    counts = [len(some) async for some in store.jobs.batches(group.key, 1000)]
    assert sum(counts) == 60
    assert max(counts) * 50_000 < 1_500_000
