"""Writers and readers: each a process of its own that talks HTTP to the services."""

from __future__ import annotations

import http.client
import json
import pickle
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

GROUPS = ("lamps", "chairs", "tables")
COUNTRIES = ("Germany", "France", "Japan", "Brazil")
REGIONS = ("DE-BE", "FR-IDF", "JP-13", "BR-SP")
JOBS = ("job-1", "job-2", "job-3")
URLS = 40
# Keys that every writer changes.
SHARED_KEYS = 30
TIMEOUT = 60.0

FILTERS: dict[str, dict[str, str]] = {
    "job_id": {"job_id": JOBS[0]},
    "url": {"url": "https://shop.example/p/7"},
    "country": {"country": COUNTRIES[0]},
    "region": {"region": REGIONS[1]},
}
KINDS = ("plain", "etag", *FILTERS, "created_after")


def matches(kind: str, item: dict[str, Any]) -> bool:
    """Return whether a reader of this kind has to see an item."""
    values = {
        "job_id": item["root_job_id"],
        "url": item["source_url"],
        "country": item["tags"]["country"],
        "region": item["tags"]["region"],
    }
    return all(values[name] == value for name, value in FILTERS.get(kind, {}).items())


class Client:
    """Calls any of the services, another one after each failure."""

    def __init__(self, ports: list[int], token: str) -> None:
        self._ports = ports
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._connection: http.client.HTTPConnection | None = None

    def call(self, method: str, path: str, body: bytes | None = None, etag: str = "") -> tuple[int, str, Any] | None:
        """Return status, ETag and JSON; None when the connection was lost. Raises TimeoutError."""
        headers = {**self._headers, "If-None-Match": etag} if etag else self._headers
        try:
            self._connect().request(method, path, body, headers)
            response = self._connect().getresponse()
            raw = response.read()
            if random.random() < 0.1:
                self.close()
            return response.status, response.headers.get("ETag", ""), json.loads(raw) if raw else None
        except TimeoutError:
            self.close()
            raise
        except (OSError, http.client.HTTPException):
            self.close()
            return None

    def cut(self, method: str, path: str, body: bytes) -> None:
        """Send a request, or a part of it, and be gone before it is answered."""
        part = len(body) if random.random() < 0.7 else random.randrange(len(body))
        try:
            connection = self._connect()
            connection.putrequest(method, path)
            for name, value in {**self._headers, "Content-Length": str(len(body))}.items():
                connection.putheader(name, value)
            connection.endheaders(body[:part])
            time.sleep(random.uniform(0, 0.3))
        except (OSError, http.client.HTTPException):
            pass
        self.close()

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", random.choice(self._ports), timeout=TIMEOUT)
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass
class Written:
    """What a writer was told is done: group and key -> id and version, and how often what happened.

    `abandoned` are the versions in requests that it cut off: the service may do those later than
    the retry, even later than the next version, and then they are the last ones.
    """

    own: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    shared: dict[tuple[str, str], int] = field(default_factory=dict)
    abandoned: set[tuple[str, str, int]] = field(default_factory=set)
    versions: int = 0
    counts: Counter[str] = field(default_factory=Counter)


@dataclass
class Plan:
    """What all clients of one run have in common."""

    ports: list[int]
    token: str
    folder: Path
    largest: int
    cut: float
    seed: int


class Writer:
    """Writes new, changed and unchanged items, single and in batches, until there are enough versions."""

    def __init__(self, plan: Plan, number: int, versions: int, stop: Event) -> None:
        random.seed(f"{plan.seed} writer {number}")
        self._plan, self._number, self._left, self._stop = plan, number, versions, stop
        self._client = Client(plan.ports, plan.token)
        self._written = Written()
        self._version = 0
        self._items: dict[str, list[dict[str, Any]]] = {group: [] for group in GROUPS}

    def run(self) -> None:
        while self._left > 0 and not self._stop.is_set():
            self._write(random.choice(GROUPS))
        (self._plan.folder / f"writer-{self._number}").write_bytes(pickle.dumps(self._written))

    def _write(self, group: str) -> None:
        size = 1 if random.random() < 0.2 else random.randint(1, min(self._plan.largest, max(1, self._left)))
        before = self._version
        items = {item["key_hash"]: item for item in (self._item(group) for _ in range(size))}
        path, body = f"/v1/outputs/{group}", json.dumps(list(items.values())).encode()
        if random.random() < self._plan.cut:
            self._client.cut("POST", path, body)
            self._abandon(group, items, "cut")
        while True:
            try:
                answer = self._client.call("POST", path, body)
            except TimeoutError:
                self._abandon(group, items, "timeout")
                continue
            if answer is not None and answer[0] == 200:
                break
            if answer is not None and answer[0] != 503:
                raise SystemExit(f"writer {self._number}: {answer[0]} {answer[2]}")
            self._written.counts["connection lost" if answer is None else "503"] += 1
            time.sleep(random.uniform(0.05, 0.5))
        fresh = sum(item["data"]["version"] > before for item in items.values())
        self._left -= fresh
        self._written.versions += fresh
        self._acknowledged(group, items, answer[2])

    def _abandon(self, group: str, items: dict[str, dict[str, Any]], how: str) -> None:
        self._written.counts[how] += 1
        self._written.abandoned |= {(group, key, item["data"]["version"]) for key, item in items.items()}

    def _acknowledged(self, group: str, items: dict[str, dict[str, Any]], answer: dict[str, Any]) -> None:
        written = self._written
        for result in answer["items"]:
            key = result["key_hash"]
            if key.startswith("shared"):
                written.shared[group, key] = max(result["id"], written.shared.get((group, key), 0))
            else:
                written.own[group, key] = result["id"], items[key]["data"]["version"]
        for result in ("created", "updated", "unchanged"):
            written.counts[result] += answer[result]

    def _item(self, group: str) -> dict[str, Any]:
        """Return a new item, or one of the last few thousand, changed or as it was."""
        dice = random.random()
        known = self._items[group]
        self._version += 1
        if dice < 0.02:
            return self._make(f"shared-{random.randrange(SHARED_KEYS)}")
        if dice < 0.45 or not known:
            item = self._make(f"{self._number}-{self._version}")
            if len(known) < 2000:
                known.append(item)
            else:
                known[random.randrange(2000)] = item
            return item
        place = random.randrange(len(known))
        if dice < 0.9:
            known[place] = self._make(known[place]["key_hash"])
        return known[place]

    def _make(self, key: str) -> dict[str, Any]:
        return {
            "source_url": f"https://shop.example/p/{random.randrange(URLS)}",
            "data": {"version": self._version, "writer": self._number},
            "root_job_id": random.choice(JOBS),
            "key_hash": key,
            "is_approved": random.random() < 0.3,
            "tags": {"country": random.choice(COUNTRIES), "region": random.choice(REGIONS)},
        }


@dataclass
class Read:
    """What a reader saw: group and key -> id and version of the last one, and what was wrong."""

    kind: str
    seen: dict[tuple[str, str], tuple[int, int, int]] = field(default_factory=dict)
    items: int = 0
    backwards: int = 0
    foreign: int = 0
    longest_stall: float = 0.0


class Reader:
    """Follows the groups from the start until told that the end is reached."""

    def __init__(self, plan: Plan, number: int, kind: str, writing: Event, end: Event) -> None:
        random.seed(f"{plan.seed} reader {number}")
        self._plan, self._number, self._writing, self._end = plan, number, writing, end
        self._client = Client(plan.ports, plan.token)
        self._read = Read(kind)
        self._cursors = dict.fromkeys(GROUPS, 0)
        self._dates = dict.fromkeys(GROUPS, "2000-01-01T00:00:00Z")
        self._etags = dict.fromkeys(GROUPS, "")
        self._moved = dict.fromkeys(GROUPS, time.monotonic())

    def run(self) -> None:
        follow: Callable[[str], None] = self._sync if self._read.kind == "created_after" else self._follow
        while True:
            last = self._end.is_set()
            before = self._read.items
            for group in GROUPS:
                follow(group)
            if last:
                break
            if self._read.items == before:
                time.sleep(0.3)
        (self._plan.folder / f"reader-{self._number}").write_bytes(pickle.dumps(self._read))

    def _follow(self, group: str) -> None:
        """Read on from the cursor to the present end."""
        more = True
        while more:
            items, more = self._page(group, cursor=self._cursors[group])
            self._cursors[group] = self._take(group, items, self._cursors[group])

    def _sync(self, group: str) -> None:
        """Read what is dated since the newest date seen, as a client does that keeps a date only."""
        since, cursor, more = self._dates[group], 0, True
        while more:
            items, more = self._page(group, cursor=cursor, created_after=since)
            cursor = self._take(group, items, cursor)
            self._dates[group] = max([self._dates[group], *(item["update_date"] for item in items)])

    def _page(self, group: str, **query: Any) -> tuple[list[dict[str, Any]], bool]:
        limit = random.choice((10, 300, 1000, 1000, 1000))
        path = f"/v1/outputs/{group}?{urlencode({**FILTERS.get(self._read.kind, {}), **query, 'limit': limit})}"
        etag = self._etags[group] if self._read.kind == "etag" else ""
        while True:
            answer = self._client.call("GET", path, etag=etag)
            if answer is not None and answer[0] == 304:
                return [], False
            if answer is not None and answer[0] == 200:
                page = answer[2]
                # Of use again only where the same question is asked again: at the end.
                self._etags[group] = "" if page["items"] else answer[1]
                return page["items"], page["metadata"]["next_cursor"] is not None
            if answer is not None and answer[0] != 503:
                raise SystemExit(f"reader {self._number}: {answer[0]} {answer[2]}")
            time.sleep(random.uniform(0.05, 0.2))

    def _take(self, group: str, items: list[dict[str, Any]], cursor: int) -> int:
        read = self._read
        for item in items:
            read.backwards += item["id"] <= cursor
            read.foreign += not matches(read.kind, item) or "tombstone" in item
            cursor = item["id"]
            data = item["data"]
            read.seen[group, item["key_hash"]] = item["id"], data["writer"], data["version"]
        read.items += len(items)
        now = time.monotonic()
        if items and self._writing.is_set():
            read.longest_stall = max(read.longest_stall, now - self._moved[group])
        if items or not self._writing.is_set():
            self._moved[group] = now
        return cursor
