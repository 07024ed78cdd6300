"""Crawls of two processes against a model of ten lines: nothing that a crawl saw is ever deleted."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import seed as hypothesis_seed
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from service.settings import Settings
from service.store import Patch, Store
from tests.support.api import make_output
from tests.support.connections import make_indexes_once
from tests.support.groups import LEASE, Group, killed_at, look_after, reap

pytestmark = pytest.mark.slow

_organizations = itertools.count(1_500_000_000 + os.getpid() * 1000)

keys = st.lists(st.integers(0, 11), min_size=1, max_size=6, unique=True)
names = st.sampled_from(["a", "b", "c", "d"])
series = st.sampled_from([None, "lamps"])
processes = st.integers(0, 1)


class Model:
    """Missing is what is of the series, not of the job, and not seen by anybody since the job began."""

    def __init__(self) -> None:
        self.clock = 0
        self.items: dict[int, tuple[str, int, int]] = {}  # key -> job, position of the last sight, content
        self.jobs: dict[str, dict[str, Any]] = {}

    def begin(self, job: str, series: str | None) -> None:
        new = {"begun": self.clock + 1, "seen": set(), "taken": set()}
        self.jobs.setdefault(job, new)
        self.jobs[job] |= {"series": series, "state": "running"}

    def see(self, job: str, keys: list[int], content: int) -> None:
        self.clock += 1
        for key in keys:
            if key in self.items and self.items[key][0] != job:
                self.jobs[job]["taken"].add(self.jobs[self.items[key][0]]["series"])
            self.items[key] = (job, self.clock, content)
            self.jobs[job]["seen"].add(key)

    def missing(self, job: str) -> set[int]:
        own = self.jobs[job]
        return {
            key
            for key, (held, seen, _) in self.items.items()
            if held != job and self.jobs[held]["series"] == own["series"] and seen < own["begun"]
        }

    def is_shared(self, job: str) -> bool:
        """Return whether a job that holds missing items has taken some over from another series."""
        holders = {self.items[key][0] for key in self.missing(job)}
        return any(self.jobs[held]["taken"] - {self.jobs[held]["series"]} for held in holders)


class Crawling(RuleBasedStateMachine):
    """Two stores on one database, as two processes have them."""

    loop: asyncio.AbstractEventLoop
    stores: tuple[Store, Store]
    differences = 0

    @initialize()
    def start(self) -> None:
        self.group, self.model = Group(next(_organizations)), Model()
        self.run(self.stores[0].groups.set(self.group.key, {"rules": [{"min_items": 2}], "history_days": 0}))

    def run(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(work)

    @rule(job=names, series=series, process=processes)
    def begin(self, job: str, series: str | None, process: int) -> None:
        if job in self.model.jobs:  # opened again: its series stays
            series = self.model.jobs[job]["series"]
        requested = {"state": "running", "series": series}
        assert self.run(self.stores[process].crawls.declare(self.group.key, job, requested))
        self.model.begin(job, series)

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), keys=keys, content=st.integers(0, 1), process=processes)
    def write(self, data: st.DataObject, keys: list[int], content: int, process: int) -> None:
        job = data.draw(st.sampled_from(sorted(self.model.jobs)))
        self.run(self.group.write(self.stores[process], *self.items(job, keys, content)))
        self.model.see(job, keys, content)

    @precondition(lambda self: self.model.jobs)
    @rule(
        data=st.data(),
        keys=keys,
        step=st.sampled_from(["before write", "written", "before finish"]),
        process=processes,
    )
    def die_and_write_again(self, data: st.DataObject, keys: list[int], step: str, process: int) -> None:
        """A process is killed in the middle of a batch, and its client sends the batch to the other one."""
        job = data.draw(st.sampled_from(sorted(self.model.jobs)))
        store, other = self.stores[process], self.stores[1 - process]
        items = self.items(job, keys, 0)
        self.run(killed_at(store, step, self.group.write(store, *items)))
        self.run(self.group.write(other, *items))
        self.run(reap(other, self.group))
        self.run(look_after(other, self.group))
        self.model.see(job, keys, 0)

    @precondition(lambda self: self.model.items)
    @rule(key=st.integers(0, 11), process=processes)
    def approve(self, key: int, process: int) -> None:
        """A person is no crawl."""
        self.run(self.group.patch(self.stores[process], Patch("key_hash", f"key-{key}", is_approved=True)))

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), process=processes, failed=st.booleans())
    def end(self, data: st.DataObject, process: int, failed: bool) -> None:
        job = data.draw(st.sampled_from(sorted(self.model.jobs)))
        state = "failed" if failed else "finished"
        store, own = self.stores[process], self.model.jobs[job]
        before = own["state"]
        document = self.run(store.crawls.declare(self.group.key, job, {"state": state}))
        if state == "finished" and document.get("state") != "finished":
            document = self.run(store.crawls.finish(self.group.key, job))
        if state == "failed":
            own["state"] = "failed"
        elif before != "finished":
            if before == "failed":
                assert document["state"] == "finished"
            own |= {"state": "finished", "verdict": document["verdict"], "missing": self.model.missing(job)}
            own["deleted"] = 0
            assert document["missing"] == len(own["missing"]), (job, own)
            alive = sum(1 for key, (_, seen, _) in self.model.items.items() if self.is_judged(job, key, seen))
            assert document["verdict"] == ("failed" if min(alive, self.seen_by(document)) < 2 else "passed")

    def is_judged(self, job: str, key: int, seen: int) -> bool:
        own, held = self.model.jobs[job], self.model.items[key][0]
        return bool(self.model.jobs[held]["series"] == own["series"] and seen >= own["begun"])

    def seen_by(self, document: dict[str, Any]) -> int:
        return sum(document.get(kind, 0) for kind in ("created", "changed", "unchanged"))

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), process=processes)
    def delete_missing(self, data: st.DataObject, process: int) -> None:
        job = data.draw(st.sampled_from(sorted(self.model.jobs)))
        own, missing = self.model.jobs[job], self.model.missing(job)
        more = True
        while more:
            held_back, more = self.run(self.stores[process].missing.delete(self.group.key, job))
        allowed = (
            own["state"] == "finished"
            and own["verdict"] == "passed"
            and bool(own["seen"])
            and not self.model.is_shared(job)
            and len(missing) <= len(own["missing"]) - own["deleted"]
        )
        assert (held_back is None) == allowed, (job, held_back, own, missing)
        if allowed:
            own["deleted"] += len(missing)
            for key in missing:
                del self.model.items[key]
        self.compare()

    @precondition(lambda self: self.model.jobs)
    @rule(process=processes)
    def compare_all(self, process: int = 0) -> None:
        self.compare(process)

    def compare(self, process: int = 0) -> None:
        store = self.stores[process]
        items = self.run(self.group.walk(store))
        assert {number(item): item["root_job_id"] for item in items} == {
            key: held for key, (held, _, _) in self.model.items.items()
        }
        for job in self.model.jobs:
            missing = self.run(store.missing.of(self.group.key, job))
            listed = {number(item) for item in self.run(self.group.walk(store, missing_from=missing))}
            assert listed == self.model.missing(job), (job, self.model.jobs[job])
            many = missing._replace(holders=None)
            assert {number(item) for item in self.run(self.group.walk(store, missing_from=many))} == listed

    @staticmethod
    def items(job: str, keys: list[int], content: int) -> list[dict[str, Any]]:
        return [make_output(key, root_job_id=job, data={"content": content}) for key in keys]


def number(item: dict[str, Any]) -> int:
    return int(item["key_hash"].removeprefix("key-"))


@pytest.fixture
def machine(mongo_url: str) -> Iterator[type[Crawling]]:
    Crawling.loop = asyncio.new_event_loop()

    async def opened() -> tuple[Store, Store]:
        stores = []
        for _ in range(2):
            stores.append(Store.connect(Settings(mongo_database="crawls", lease_seconds=LEASE), mongo_url))
            await make_indexes_once(stores[-1], mongo_url)
        return stores[0], stores[1]

    Crawling.stores = Crawling.loop.run_until_complete(opened())
    yield Crawling
    for store in Crawling.stores:
        Crawling.loop.run_until_complete(store.close())
    Crawling.loop.close()


def test_crawls_delete_what_the_model_says_and_nothing_else(machine: type[Crawling]) -> None:
    seed = int(os.environ.get("SEED") or random.randrange(2**32))
    print(f"seed {seed}: repeat with SEED={seed}")
    run_state_machine_as_test(
        hypothesis_seed(seed)(machine),
        settings=hypothesis_settings(
            max_examples=int(os.environ.get("WALKS", "300")),
            stateful_step_count=20,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
