"""Crawlers: each a process of its own that crawls its part of a group, job after job, and finishes every job.

Only one crawler writes the keys and the jobs of its series, and it sends each request again until it is acknowledged.
So the items, counts of jobs and versions that must exist at the end follow from what it sent, whatever failed.
"""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, cycle
from multiprocessing.synchronize import Event
from typing import Any

from scripts.checker.calls import Client
from scripts.checker.plan import COUNTRIES, CRAWLED, REGIONS, Plan
from scripts.checker.writer import Acknowledged, Content, Written
from scripts.processes import die_with_parent

CRAWLERS = 4
_KEYS = 300
# A crawl that loses more of its series has failed, and deletes nothing.
MAX_MISSING = 0.5
_SETTINGS = {"history_days": 30, "rules": [{"max_missing": MAX_MISSING}]}
# In turn, so that twelve crawls meet every pair: how much of its series a crawl sees, and what becomes of the rest.
_SEEN = (1.0, 0.2, 0.7, 0.9)
_MISSING = ("delete", "delete", "keep")


@dataclass
class Crawled(Written):
    """What a crawler has done: the stock of each job, and by output_id the earlier versions, each with its last job."""

    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    earlier: dict[str, list[tuple[int, str]]] = field(default_factory=dict)


@dataclass
class _Item:
    """An item as the crawler last sent it."""

    version: int
    job: str
    output_id: str


class Crawler:
    """Crawls one series until it is told to stop."""

    def __init__(self, plan: Plan, number: int, total: Any, stop: Event) -> None:
        random.seed(f"{plan.seed} crawler {number}")
        self._plan, self._number, self._total, self._stop = plan, number, total, stop
        self._series = f"part-{number}" if number else None
        self._client = Client(plan.ports, plan.token)
        self._crawled = Crawled()
        self._version = 0
        self._live: dict[str, _Item] = {}

    def run(self) -> None:
        die_with_parent()
        self._client.done("PUT", f"/v1/groups/{CRAWLED}", _SETTINGS)
        for number, seen, missing_items in zip(count(1), cycle(_SEEN), cycle(_MISSING), strict=False):
            if self._stop.is_set():
                break
            self._crawl(f"crawl-{self._number}-{number}", seen, missing_items)
        for job_id, stock in self._crawled.jobs.items():
            stock["items"] = sum(item.job == job_id for item in self._live.values())
        self._crawled.counts += self._client.counts
        (self._plan.folder / f"writer-crawler-{self._number}").write_bytes(pickle.dumps(self._crawled))

    def _crawl(self, job_id: str, seen: float, missing_items: str) -> None:
        """Send a share of the series' items, and finish the job."""
        path = f"/v1/groups/{CRAWLED}/jobs/{job_id}"
        self._client.done("PUT", path, {"state": "running", "series": self._series})
        keys = [f"{CRAWLED}-{self._number}-{key}" for key in range(_KEYS) if random.random() < seen]
        keys += random.sample(keys, len(keys) // 10)  # some pages are crawled twice
        done: dict[str, str] = {}
        while keys and not self._stop.is_set():
            size = random.randint(1, self._plan.largest)
            self._send(job_id, dict.fromkeys(keys[:size]), done)
            keys = keys[size:]
        missing = [key for key, item in self._live.items() if item.job != job_id]
        share = round(len(missing) / len(self._live), 4) if self._live else 0
        verdict = "failed" if share > MAX_MISSING else "passed"
        kinds = Counter(done.values())
        stock: dict[str, Any] = {kind: kinds[kind] for kind in ("created", "changed", "unchanged")}
        stock |= {"items": len(done), "missing": len(missing), "verdict": verdict, "series": self._series}
        self._finish(path, stock, missing_items)
        self._crawled.jobs[job_id] = stock
        self._crawled.counts[f"crawls {verdict}"] += 1

    def _send(self, job_id: str, keys: dict[str, None], done: dict[str, str]) -> None:
        """Write some items, and note what the job has done to each by now."""
        sent = []
        for key in keys:
            known = self._live.get(key)
            self._version += 1
            version = self._version if known is None or random.random() < 0.3 else known.version
            sent.append(self._item(key, job_id, version))
        response = self._client.done("POST", f"/v1/outputs/{CRAWLED}", sent)
        versions = self._crawled.versions
        for item, result in zip(sent, response.json["items"], strict=True):
            key, version = item["key_hash"], item["data"]["version"]
            known = self._live.get(key)
            kind = "created" if known is None else "unchanged" if known.version == version else "changed"
            # `created` and `changed` stay for a job; `unchanged` may still become `changed`.
            if done.get(key, "unchanged") == "unchanged":
                done[key] = kind
            if known is not None and kind == "changed":
                self._crawled.earlier[known.output_id].append((known.version, known.job))
            self._live[key] = _Item(version, job_id, result["output_id"])
            self._crawled.earlier.setdefault(result["output_id"], [])
            self._crawled.own[CRAWLED, key] = Acknowledged(result["id"], Content.of(item))
            self._crawled.versions += kind != "unchanged"
        with self._total.get_lock():
            self._total.value += self._crawled.versions - versions

    def _item(self, key: str, job_id: str, version: int) -> dict[str, Any]:
        place = len(key) % len(COUNTRIES)
        return {
            "source_url": f"https://shop.example/p/{len(key)}",
            "data": {"version": version, "writer": f"crawler {self._number}"},
            "root_job_id": job_id,
            "key_hash": key,
            "is_approved": False,
            "tags": {"country": COUNTRIES[place], "region": REGIONS[place]},
        }

    def _finish(self, path: str, stock: dict[str, Any], missing: str) -> None:
        """Finish a job, some of them twice at once, and note what that deletes."""
        said = {"state": "finished", "missing": missing}
        if random.random() < self._plan.cut * 5:
            self._client.cut("PUT", path, json.dumps(said).encode())
            self._crawled.counts["cut"] += 1
        more = True
        while more:
            job = self._client.done("PUT", path, said).json
            more = job["more"]
        self._crawled.wrong += differences(job, stock)
        if missing == "keep" or stock["verdict"] == "failed" or not stock["items"]:
            return
        for key, item in list(self._live.items()):
            if item.job != job["job_id"]:
                self._crawled.earlier[item.output_id].append((item.version, item.job))
                self._crawled.own[CRAWLED, key] = Acknowledged(None, None)
                self._crawled.counts["missing and deleted"] += 1
                del self._live[key]


def differences(job: dict[str, Any], stock: dict[str, Any]) -> list[str]:
    """Return how a job differs from what it should be."""
    return [
        f"{job['job_id']} has {name} {job[name]}, not {value}" for name, value in stock.items() if job[name] != value
    ]


def check(plan: Plan, crawled: Crawled) -> Iterator[str]:
    """Yield how the service's jobs and earlier versions differ from what the crawler did."""
    client = Client(plan.ports, plan.token)
    for job_id, stock in crawled.jobs.items():
        yield from differences(client.done("GET", f"/v1/groups/{CRAWLED}/jobs/{job_id}").json, stock)
    for output_id, earlier in crawled.earlier.items():
        found, cursor = [], 0
        while cursor is not None:
            path = f"/v1/outputs/{CRAWLED}/{output_id}/versions?limit=100&cursor={cursor}"
            page = client.done("GET", path).json
            found += [(item["data"]["version"], item["root_job_id"]) for item in page["items"]]
            cursor = page["metadata"]["next_cursor"]
        if found != earlier[::-1]:
            yield f"{output_id} has the versions {found}, not {earlier[::-1]}"
