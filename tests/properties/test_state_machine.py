"""Random walks over cookies, local storage and outputs through HTTP, each step held against plain models."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from service.settings import Settings
from service.store import Store
from tests.support.processes import ServiceProcess

pytestmark = pytest.mark.slow

_organizations = itertools.count(2_000_000_000 + os.getpid() * 1000)

# Few names, so that steps meet; odd ones among them.
domains = st.sampled_from(["a.example", ".a.example", "é"])
paths = st.sampled_from(["", "/", "/p"])
names = st.sampled_from(["n", "", "$gt"])
values = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
dates = st.sampled_from([None, "2020-01-01", "2100-01-01T00:00:00+02:00", "1960-05-05"])
cookies = st.fixed_dictionaries(
    {"domain": domains, "name": names, "value": values},
    optional={"path": paths, "secure": st.booleans(), "http_only": st.booleans(), "expires": dates},
)
entries = st.fixed_dictionaries(
    {"domain": domains, "key": names, "value": values}, optional={"path": paths, "expires": dates}
)
keys = st.sampled_from(["k1", "k2", "k3", "", "$k", "k.4"])
jobs = st.sampled_from(["job-1", "job-2"])
outputs = st.fixed_dictionaries(
    {
        "source_url": st.sampled_from(["https://a/1", "https://a/2?x=%20", ""]),
        "data": st.dictionaries(
            st.sampled_from(["a", "$b", "c.d", ""]), st.integers(-5, 5) | values | st.none(), max_size=2
        ),
        "root_job_id": jobs,
        "key_hash": keys,
    },
    optional={
        "is_approved": st.booleans(),
        "tags": st.fixed_dictionaries({}, optional={"country": st.sampled_from(["Italy", "", "é"]), "x": values}),
    },
)
groups = st.sampled_from(["g", "a/b", "%"])


def quoted(text: str) -> str:
    return urllib.request.quote(text, safe="")  # type: ignore[attr-defined,no-any-return]


class Walk(RuleBasedStateMachine):
    url: str
    tokens: Iterator[str]

    @initialize()
    def begin(self) -> None:
        self.headers = {"Authorization": f"Bearer {next(Walk.tokens)}", "Content-Type": "application/json"}
        self.cookies: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.entries: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.entry_ids: dict[tuple[str, str, str], int] = {}
        self.outputs: dict[str, dict[str, dict[str, Any]]] = {}
        self.output_ids: dict[tuple[str, str], str] = {}
        self.followers: dict[str, tuple[int, dict[str, dict[str, Any]]]] = {}

    def call(self, method: str, path: str, value: Any = None) -> Any:
        body = None if value is None else json.dumps(value).encode()
        request = urllib.request.Request(f"{self.url}{path}", body, self.headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    # -- cookies and local storage -------------------------------------------------------------------

    @rule(batch=st.lists(cookies, max_size=4))
    def set_cookies(self, batch: list[dict[str, Any]]) -> None:
        seen = {(c["domain"], c.get("path") or "/", c["name"]) for c in batch}
        new = {key for key in seen if key not in self.cookies}
        for cookie in batch:
            self.cookies[cookie["domain"], cookie.get("path") or "/", cookie["name"]] = cookie
        assert self.call("POST", "/v1/cookies", batch) == {"created": len(new), "updated": len(seen) - len(new)}

    @rule(batch=st.lists(entries, max_size=4))
    def set_entries(self, batch: list[dict[str, Any]]) -> None:
        seen = {(e["domain"], e.get("path", "/"), e["key"]) for e in batch}
        new = {key for key in seen if key not in self.entries}
        for entry in batch:
            self.entries[entry["domain"], entry.get("path", "/"), entry["key"]] = entry
        assert self.call("POST", "/v1/local-storage", batch) == {"created": len(new), "updated": len(seen) - len(new)}

    @rule()
    def cookies_are_as_set(self) -> None:
        listed = self.call("GET", "/v1/cookies")
        assert {(c["domain"], c["path"] or "/", c["name"]): c["value"] for c in listed} == {
            key: cookie["value"] for key, cookie in self.cookies.items()
        }
        assert len(listed) == len(self.cookies)
        for cookie in listed:
            sent = self.cookies[cookie["domain"], cookie["path"] or "/", cookie["name"]]
            assert cookie["path"] == sent.get("path", "")
            assert cookie["secure"] == sent.get("secure", False)
            assert cookie["http_only"] == sent.get("http_only", False)
            assert (cookie["expires"] == -1) == (sent.get("expires") is None)

    @rule(domain=domains)
    def filter_cookies(self, domain: str) -> None:
        listed = self.call("GET", f"/v1/cookies?domain={quoted(domain)}")
        assert len(listed) == sum(key[0] == domain for key in self.cookies)

    @rule()
    def entries_are_as_set(self) -> None:
        listed = self.call("GET", "/v1/local-storage")
        found = {(e["domain"], e["path"], e["key"]): e for e in listed}
        assert len(found) == len(listed)
        assert {key: e["value"] for key, e in found.items()} == {key: e["value"] for key, e in self.entries.items()}
        assert len({e["id"] for e in listed}) == len(listed)
        for key, entry in found.items():
            assert self.entry_ids.setdefault(key, entry["id"]) == entry["id"]
            assert entry["create_date"] <= entry["update_date"]

    # -- outputs -------------------------------------------------------------------------------------

    @staticmethod
    def filled(item: dict[str, Any], known: dict[str, Any] | None) -> dict[str, Any]:
        """Return what an item becomes: without an approval of its own, it keeps the one that its data had."""
        approved = known is not None and known["is_approved"] and known["data"] == item["data"]
        return {"is_approved": approved, "tags": {}, **item}

    @staticmethod
    def content(item: dict[str, Any]) -> dict[str, Any]:
        """Return what counts as a change: a new job that finds the same changes nothing."""
        return {name: value for name, value in item.items() if name != "root_job_id"}

    @rule(group=groups, batch=st.lists(outputs, max_size=5))
    def write(self, group: str, batch: list[dict[str, Any]]) -> None:
        stored = self.outputs.setdefault(group, {})
        last = {item["key_hash"]: self.filled(item, stored.get(item["key_hash"])) for item in batch}
        expected = {
            key: "created"
            if key not in stored
            else "unchanged"
            if self.content(stored[key]) == self.content(item)
            else "updated"
            for key, item in last.items()
        }
        stored.update(last)
        response = self.call("POST", f"/v1/outputs/{quoted(group)}", batch)
        assert [r["key_hash"] for r in response["items"]] == [item["key_hash"] for item in batch]
        assert {r["key_hash"]: r["result"] for r in response["items"]} == expected
        for kind in ("created", "updated", "unchanged"):
            assert response[kind] == sum(value == kind for value in expected.values())
        for result in response["items"]:
            known = self.output_ids.setdefault((group, result["key_hash"]), result["output_id"])
            assert known == result["output_id"]

    def walk(self, group: str, query: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        cursor: int | None = 0
        while cursor is not None:
            page = self.call("GET", f"/v1/outputs/{quoted(group)}?cursor={cursor}&{query}")
            items += page["items"]
            cursor = page["metadata"]["next_cursor"]
        return items

    @rule(group=groups, limit=st.sampled_from([1, 2, 1000]))
    def read(self, group: str, limit: int) -> None:
        items = self.walk(group, f"limit={limit}")
        stored = self.outputs.get(group, {})
        assert [item["id"] for item in items] == sorted({item["id"] for item in items})
        assert {item["key_hash"] for item in items} == set(stored)
        for item in items:
            for name, value in stored[item["key_hash"]].items():
                assert item[name] == value
            assert item["output_id"] == self.output_ids[group, item["key_hash"]]

    @rule(group=groups, job=jobs, country=st.sampled_from(["Italy", "é", "Nowhere"]))
    def read_some(self, group: str, job: str, country: str) -> None:
        stored = self.outputs.get(group, {})
        of_job = self.walk(group, f"limit=2&job_id={quoted(job)}")
        assert {i["key_hash"] for i in of_job} == {k for k, item in stored.items() if item["root_job_id"] == job}
        of_country = self.walk(group, f"limit=2&country={quoted(country)}")
        expected = {k for k, item in stored.items() if item["tags"].get("country") == country}
        assert {i["key_hash"] for i in of_country} == expected

    @rule(group=groups)
    def follow(self, group: str) -> None:
        """A reader who keeps its cursor has, after each visit, exactly what is stored."""
        cursor, copy = self.followers.get(group, (0, {}))
        while True:
            page = self.call("GET", f"/v1/outputs/{quoted(group)}?cursor={cursor}&limit=3")
            for item in page["items"]:
                assert item["id"] > cursor
                cursor = item["id"]
                copy[item["key_hash"]] = item
            if page["metadata"]["next_cursor"] is None:
                break
        self.followers[group] = (cursor, copy)
        stored = self.outputs.get(group, {})
        assert set(copy) == set(stored)
        for key, item in stored.items():
            assert copy[key]["data"] == item["data"]
            assert copy[key]["is_approved"] == item["is_approved"]

    @rule()
    def count(self) -> None:
        counted = {g["group_id"]: g for g in self.call("GET", "/v1/groups")}
        assert set(counted) == {group for group, stored in self.outputs.items() if stored}
        for group, stored in self.outputs.items():
            if stored:
                assert counted[group]["items"] == len(stored)
                assert counted[group]["approved"] == sum(item["is_approved"] for item in stored.values())


@pytest.fixture
def service(mongo_url: str) -> Iterator[ServiceProcess]:
    with ServiceProcess(mongo_url, log_level="INFO", secret_keys="") as service:
        yield service.wait_until_ready()


def new_tokens(mongo_url: str) -> Iterator[str]:
    """Yield tokens of new organizations, one for each walk."""

    async def make() -> list[str]:
        store = Store.connect(Settings(mongo_database="test"), mongo_url)
        tokens = [await store.tokens.create(next(_organizations), ["read", "write", "state"]) for _ in range(100)]
        await store.close()
        return tokens

    while True:
        yield from asyncio.run(make())


def test_every_walk_ends_where_the_models_say(mongo_url: str, service: ServiceProcess) -> None:
    walks = int(os.environ.get("WALKS", "60"))
    Walk.url, Walk.tokens = service.url, new_tokens(mongo_url)
    run_state_machine_as_test(
        Walk,
        settings=hypothesis_settings(
            max_examples=walks,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
