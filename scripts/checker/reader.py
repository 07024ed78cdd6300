"""Readers: each a process of its own that follows all groups from the start."""

from __future__ import annotations

import pickle
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from typing import Any
from urllib.parse import urlencode

from scripts.checker.calls import Client
from scripts.checker.plan import ALL_GROUPS, FILTERS, Plan, fingerprint, matches
from scripts.processes import die_with_parent

_WAIT_SECONDS = 1
_WALKS = 0.3  # of the visits of the reader that walks: they take many requests


@dataclass
class Read:
    """What a reader saw: the last of each group and key, and what was wrong.

    `seen` holds id, writer and version; `copy`, of a reader that keeps one, the digest of each item; `left_out` what a
    walk did not return although the reader knew it, with the newest id before the walk.
    """

    kind: str
    seen: dict[tuple[str, str], tuple[int, int, int]] = field(default_factory=dict)
    copy: dict[tuple[str, str], bytes] = field(default_factory=dict)
    left_out: list[tuple[tuple[str, str], int]] = field(default_factory=list)
    items: int = 0
    deletions: int = 0
    backwards: int = 0
    foreign: int = 0
    longest_stall: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)


class Reader:
    """Follows the groups from the start until told that the end is reached."""

    def __init__(self, plan: Plan, number: int, kind: str, writing: Event, end: Event) -> None:
        random.seed(f"{plan.seed} reader {number}")
        self._plan, self._number, self._writing, self._end = plan, number, writing, end
        self._client = Client(plan.ports, plan.token)
        self._read = Read(kind)
        self._query: dict[str, Any] = dict(FILTERS.get(kind, {}))
        if kind in ("copy", "walk"):
            self._query["deleted"] = "true"
        if kind == "wait":
            self._query["wait"] = _WAIT_SECONDS
        self._cursors = dict.fromkeys(ALL_GROUPS, 0)
        self._dates = dict.fromkeys(ALL_GROUPS, "2000-01-01T00:00:00Z")
        self._etags = dict.fromkeys(ALL_GROUPS, "")
        self._moved = dict.fromkeys(ALL_GROUPS, time.monotonic())

    def run(self) -> None:
        die_with_parent()
        ways: dict[str, Callable[[str], None]] = {"created_after": self._sync, "walk": self._walk}
        follow = ways.get(self._read.kind, self._follow)
        while True:
            last = self._end.is_set()
            before = self._read.items
            for group in ALL_GROUPS:
                follow(group)
            if last:
                break
            if self._read.items == before:
                time.sleep(0.3)
        self._read.counts = self._client.counts
        (self._plan.folder / f"reader-{self._number}").write_bytes(pickle.dumps(self._read))

    def _follow(self, group: str) -> None:
        """Read on from the cursor to the present end."""
        more = True
        while more:
            items, next_cursor = self._page(group, cursor=self._cursors[group])
            self._cursors[group] = self._take(group, items, self._cursors[group], next_cursor)
            more = next_cursor is not None

    def _walk(self, group: str) -> None:
        """Read on; then walk from the beginning to the end, which must return all that is known by now."""
        self._follow(group)
        if random.random() > _WALKS:
            return
        known, newest = {key for key in self._read.seen if key[0] == group}, self._cursors[group]
        start, by_cursor = f"/v1/outputs/{group}?limit=1000", random.random() < 0.5
        path: str | None = start
        while path:
            page = self._client.done("GET", path).json
            known -= {(group, item["key_hash"]) for item in page["items"]}
            cursor, url = page["metadata"]["next_cursor"], page["metadata"]["next_url"]
            path = url and (f"{start}&cursor={cursor}" if by_cursor else url[url.index("/v1/") :])
        self._read.left_out += [(key, newest) for key in known]

    def _sync(self, group: str) -> None:
        """Read what is dated since the newest date seen, as a client does that keeps a date only."""
        since, cursor, more = self._dates[group], 0, True
        while more:
            items, next_cursor = self._page(group, cursor=cursor, created_after=since)
            cursor = self._take(group, items, cursor, next_cursor)
            self._dates[group] = max([self._dates[group], *(item["update_date"] for item in items)])
            more = next_cursor is not None

    def _page(self, group: str, **query: Any) -> tuple[list[dict[str, Any]], int | None]:
        limit = random.choice((10, 300, 1000, 1000, 1000))
        path = f"/v1/outputs/{group}?{urlencode({**self._query, **query, 'limit': limit})}"
        etag = self._etags[group] if self._read.kind == "etag" else ""
        response = self._client.done("GET", path, also=(304,) if etag else (), etag=etag)
        if response.status == 304:
            return [], None
        page = response.json
        # Of use again only where the same question is asked again: at the end.
        self._etags[group] = "" if page["items"] else response.etag
        return page["items"], page["metadata"]["next_cursor"]

    def _take(self, group: str, items: list[dict[str, Any]], cursor: int, next_cursor: int | None) -> int:
        """Note a page; return the cursor after it, which a page without items may move too."""
        read = self._read
        for item in items:
            read.backwards += item["id"] <= cursor
            cursor = item["id"]
            self._note((group, item["key_hash"]), item)
        read.items += len(items)
        if next_cursor is not None:
            read.backwards += next_cursor < cursor
            cursor = next_cursor
        now = time.monotonic()
        if items and self._writing.is_set():
            read.longest_stall = max(read.longest_stall, now - self._moved[group])
        if items or not self._writing.is_set():
            self._moved[group] = now
        return cursor

    def _note(self, key: tuple[str, str], item: dict[str, Any]) -> None:
        read = self._read
        if item.get("deleted"):
            read.foreign += "deleted" not in self._query
            read.deletions += 1
            read.copy.pop(key, None)
            read.seen.pop(key, None)
            return
        read.foreign += not matches(read.kind, item) or "tombstone" in item
        data = item["data"]
        read.seen[key] = item["id"], data["writer"], data["version"]
        if read.kind == "copy":
            read.copy[key] = fingerprint(item)
