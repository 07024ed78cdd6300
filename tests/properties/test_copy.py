"""Copies that follow a group against a plain dict: whatever is written, patched and deleted, each equals the group."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from sds_client import Client
from tests.support.processes import ServiceProcess, make_token

pytestmark = pytest.mark.slow

_groups = itertools.count()
CONTENT = ("source_url", "data", "is_approved", "tags")
END = "end"

# Few keys and values, so that steps meet: what is written is often there already, as it is, otherwise, or deleted.
keys = st.sampled_from([f"k{n}" for n in range(6)])
tags = st.fixed_dictionaries({}, optional={"country": st.sampled_from(["Peru", "Japan"]), "x": st.sampled_from([1, 2])})
items = st.fixed_dictionaries(
    {
        "key_hash": keys,
        "source_url": st.sampled_from(["https://a.example/1", "https://a.example/2"]),
        "data": st.fixed_dictionaries({"price": st.integers(1, 3)}),
        "root_job_id": st.sampled_from(["job-1", "job-2"]),
        "tags": tags,
    },
    optional={"is_approved": st.booleans()},
)
changes = st.fixed_dictionaries(
    {},
    optional={
        "is_approved": st.booleans(),
        "tags": st.fixed_dictionaries(
            {}, optional={"country": st.sampled_from(["Peru", "Japan", None]), "x": st.sampled_from([1, 2, None])}
        ),
    },
)
filters = st.fixed_dictionaries(
    {},
    optional={
        "job_id": st.sampled_from(["job-1", "job-2"]),
        "url": st.sampled_from(["https://a.example/1", "https://a.example/2"]),
        "country": st.sampled_from(["Peru", "Japan"]),
        "is_approved": st.booleans(),
    },
).filter(bool) | st.just({"all": True})


class Model:
    """What the group should hold, by key."""

    def __init__(self) -> None:
        self.items: dict[str, dict[str, Any]] = {}

    def write(self, item: dict[str, Any]) -> None:
        known = self.items.get(item["key_hash"])
        kept = known is not None and known["data"] == item["data"] and known["is_approved"]
        self.items[item["key_hash"]] = {"is_approved": kept, **item}

    def patch(self, key: str, change: dict[str, Any]) -> None:
        if item := self.items.get(key):
            merged = {**item["tags"], **change.get("tags", {})}
            merged = {name: value for name, value in merged.items() if value is not None}
            self.items[key] = {**item, **change, "tags": merged}

    def delete(self, filters: dict[str, Any]) -> int:
        matching = [key for key, item in self.items.items() if self._matches(item, filters)]
        for key in matching:
            del self.items[key]
        return len(matching)

    @staticmethod
    def _matches(item: dict[str, Any], filters: dict[str, Any]) -> bool:
        has = {
            "job_id": item["root_job_id"],
            "url": item["source_url"],
            "country": item["tags"].get("country"),
            "is_approved": item["is_approved"],
            "all": True,
        }
        return all(has[name] == value for name, value in filters.items())

    def contents(self) -> dict[str, Any]:
        return {key: {name: item[name] for name in CONTENT} for key, item in self.items.items()}


class Copy:
    """A copy of a group, by output_id."""

    def __init__(self, found: list[Any] | None = None) -> None:
        self.items = {item["output_id"]: item for item in found or []}

    def apply(self, change: Any) -> None:
        if "deleted" in change:
            self.items.pop(change["output_id"], None)
        else:
            self.items[change["output_id"]] = change

    def contents(self) -> dict[str, Any]:
        return {item["key_hash"]: {name: item[name] for name in CONTENT} for item in self.items.values()}


class Kept(Copy):
    """A copy with its cursor in a file, which begins with what the group holds, or with nothing."""

    def __init__(self, client: Client, group: str, file: Path, from_the_start: bool) -> None:
        found = [] if from_the_start else list(client.outputs(group))
        super().__init__(found)
        self._client, self._group, self._file = client, group, file
        self._cursor = max((item["id"] for item in found), default=0)

    def catch_up(self, page_size: int, stop_after: int | None = None) -> None:
        """Apply what is new, to the end or until the consumer stops in the middle of an item."""
        following = self._client.follow(
            self._group, deleted=True, live=False, cursor_file=self._file, cursor=self._cursor, page_size=page_size
        )
        for number, change in enumerate(following):
            if number == stop_after:
                break
            self.apply(change)


class Live(Copy):
    """A copy that a thread of its own keeps up to date until the item `END` arrives."""

    def __init__(self, client: Client, group: str) -> None:
        super().__init__()
        self._changes = client.follow(group, deleted=True)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for change in self._changes:
            self.apply(change)
            if change["key_hash"] == END:
                return

    def wait(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive(), "the last item did not arrive"


class Life(RuleBasedStateMachine):
    """Writers and copies of one group."""

    client: Client

    @initialize()
    def begin(self) -> None:
        self.group, self.model = f"group-{next(_groups)}", Model()
        self.folder = Path(tempfile.mkdtemp(prefix="copies-"))
        self.copies: list[Kept] = []
        self.live = Live(self.client, self.group)

    @rule(written=st.lists(items, min_size=1, max_size=4))
    def write(self, written: list[dict[str, Any]]) -> None:
        self.client.push(self.group, written)
        for item in {item["key_hash"]: item for item in written}.values():
            self.model.write(item)

    @rule(key=keys, change=changes)
    def patch(self, key: str, change: dict[str, Any]) -> None:
        for item in self.client.outputs(self.group, key_hash=key):
            self.client.patch(self.group, item["output_id"], **change)
        self.model.patch(key, change)

    @rule(patches=st.dictionaries(keys, changes, min_size=1, max_size=3))
    def patch_many(self, patches: dict[str, dict[str, Any]]) -> None:
        self.client.patch_many(self.group, [{"key_hash": key, **change} for key, change in patches.items()])
        for key, change in patches.items():
            self.model.patch(key, change)

    @rule(key=keys)
    def delete(self, key: str) -> None:
        for item in self.client.outputs(self.group, key_hash=key):
            assert self.client.delete(self.group, item["output_id"])
        self.model.items.pop(key, None)

    @rule(filters=filters)
    def delete_many(self, filters: dict[str, Any]) -> None:
        assert self.client.delete_many(self.group, **filters) == self.model.delete(filters)

    @rule()
    def delete_group(self) -> None:
        self.client.delete_group(self.group)
        self.model.items.clear()

    @rule(from_the_start=st.booleans())
    def start_a_copy(self, from_the_start: bool) -> None:
        file = self.folder / f"{len(self.copies)}.cursor"
        self.copies.append(Kept(self.client, self.group, file, from_the_start))

    @rule(data=st.data(), page_size=st.integers(1, 5), stop_after=st.none() | st.integers(0, 5))
    def catch_up(self, data: st.DataObject, page_size: int, stop_after: int | None) -> None:
        if self.copies:
            data.draw(st.sampled_from(self.copies)).catch_up(page_size, stop_after)

    def teardown(self) -> None:
        if not hasattr(self, "live"):
            return
        last = {"key_hash": END, "source_url": "u", "root_job_id": "j", "data": {}, "tags": {}}
        self.client.push(self.group, [last])
        self.model.write(last)
        self.live.wait()
        assert Copy(list(self.client.outputs(self.group))).contents() == self.model.contents()
        assert self.live.contents() == self.model.contents()
        for copy in self.copies:
            copy.catch_up(page_size=3)
            assert copy.contents() == self.model.contents()
        shutil.rmtree(self.folder)


@pytest.fixture
def client(mongo_url: str, organization: int) -> Iterator[Client]:
    token = make_token(mongo_url, organization, "read", "write", "delete", "state")
    with ServiceProcess(mongo_url) as process, Client(process.wait_until_ready().url, token) as client:
        yield client


def test_every_copy_equals_the_group(client: Client) -> None:
    machine = type("LifeOfThis", (Life,), {"client": client})
    run_state_machine_as_test(
        machine,
        settings=hypothesis_settings(
            max_examples=int(os.environ.get("WALKS", "40")),
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
