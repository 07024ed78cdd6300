"""Writers: each a process of its own that writes, changes, approves and deletes items."""

from __future__ import annotations

import json
import pickle
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple

from scripts.checker.calls import Client
from scripts.checker.plan import COUNTRIES, GROUPS, JOBS, REGIONS, SHARED_KEYS, URLS, Plan
from scripts.processes import die_with_parent

# Items that a writer changes again, for each group.
_KNOWN = 2000
_LARGEST_PATCH = 30


class Content(NamedTuple):
    """What a writer may change of an item."""

    version: int
    is_approved: bool
    country: str | None
    region: str | None

    @classmethod
    def of(cls, item: dict[str, Any]) -> Content:
        tags = item["tags"]
        return cls(item["data"]["version"], item["is_approved"], tags.get("country"), tags.get("region"))


class Acknowledged(NamedTuple):
    """The state of a key by the last response: its id and content; None and None when deleted."""

    id: int | None
    content: Content | None


@dataclass
class Written:
    """The acknowledged writes, by group and key, and counts of what happened.

    `abandoned` are the versions in requests that it cut off: the service may do those later than
    the retry, even later than the next version, and then they are the last ones.
    """

    own: dict[tuple[str, str], Acknowledged] = field(default_factory=dict)
    shared: dict[tuple[str, str], int] = field(default_factory=dict)
    abandoned: set[tuple[str, str, int]] = field(default_factory=set)
    versions: int = 0
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


@dataclass
class _Known:
    """An item as this writer last sent it, and the service's result."""

    item: dict[str, Any]
    id: int = 0
    output_id: str = ""
    deleted: bool = False


class Writer:
    """Writes new, changed and unchanged items, single and in batches, until it is told to stop.

    Adds what is acknowledged to `total`, which all writers share.
    """

    def __init__(self, plan: Plan, number: int, total: Any, stop: Event) -> None:
        random.seed(f"{plan.seed} writer {number}")
        self._plan, self._number, self._total, self._stop = plan, number, total, stop
        self._client = Client(plan.ports, plan.token)
        self._written = Written()
        self._version = 0
        self._known: dict[str, dict[str, _Known]] = {group: {} for group in GROUPS}

    def run(self) -> None:
        die_with_parent()
        actions = (self._write, self._patch, self._delete_one, self._delete_by_filter)
        while not self._stop.is_set():
            random.choices(actions, (1, 0.25, 0.15, 0.05))[0](random.choice(GROUPS))
        self._written.counts += self._client.counts
        (self._plan.folder / f"writer-{self._number}").write_bytes(pickle.dumps(self._written))

    # -- writing ------------------------------------------------------------------------------

    def _write(self, group: str) -> None:
        size = 1 if random.random() < 0.2 else random.randint(1, self._plan.largest)
        self._send(group, [self._item(group) for _ in range(size)])

    def _send(self, group: str, sent: list[dict[str, Any]]) -> None:
        items = {item["key_hash"]: item for item in sent}
        path, value = f"/v1/outputs/{group}", list(items.values())
        abandoned = {(group, key, item["data"]["version"]) for key, item in items.items()}
        if random.random() < self._plan.cut:
            self._client.cut("POST", path, json.dumps(value).encode())
            self._written.counts["cut"] += 1
            self._written.abandoned |= abandoned
        response = self._client.done("POST", path, value)
        if response.timeouts:
            self._written.abandoned |= abandoned
        before = self._written.versions
        for result in response.json["items"]:
            self._take(group, items[result["key_hash"]], result)
        with self._total.get_lock():
            self._total.value += self._written.versions - before
        for kind in ("created", "updated", "unchanged"):
            self._written.counts[kind] += response.json[kind]

    def _take(self, group: str, item: dict[str, Any], result: dict[str, Any]) -> None:
        """Note that an item is stored with the id of a result."""
        written, key = self._written, item["key_hash"]
        known = self._known[group].get(key)
        if known is None or known.item["data"]["version"] != item["data"]["version"]:
            written.versions += 1
        if key.startswith("shared"):
            written.shared[group, key] = max(result["id"], written.shared.get((group, key), 0))
            return
        if known is not None:
            written.counts["revived"] += known.deleted
            if known.output_id != result["output_id"]:
                written.wrong.append(f"{group} {key} has another output_id than before")
        self._known[group][key] = _Known(item, result["id"], result["output_id"])
        written.own[group, key] = Acknowledged(result["id"], Content.of(item))
        if len(self._known[group]) > _KNOWN:
            del self._known[group][random.choice(list(self._known[group]))]

    def _item(self, group: str) -> dict[str, Any]:
        """Return a new item, or one of the last few thousand, changed or as it was."""
        dice = random.random()
        self._version += 1
        if dice < 0.02:
            return self._make(f"shared-{random.randrange(SHARED_KEYS)}")
        if dice < 0.45 or not self._known[group]:
            return self._make(f"{self._number}-{self._version}")
        known = random.choice(list(self._known[group].values()))
        return self._make(known.item["key_hash"]) if dice < 0.9 else known.item

    def _make(self, key: str, **changes: Any) -> dict[str, Any]:
        return {
            "source_url": f"https://shop.example/p/{random.randrange(URLS)}",
            "data": {"version": self._version, "writer": self._number},
            "root_job_id": random.choice(JOBS),
            "key_hash": key,
            "is_approved": random.random() < 0.3,
            "tags": {"country": random.choice(COUNTRIES), "region": random.choice(REGIONS)},
        } | changes

    # -- approving and changing tags ----------------------------------------------------------

    def _patch(self, group: str) -> None:
        """Change approvals and tags, of some items only if they are (or are not) at an id."""
        live = self._live(group)
        if not live:
            return
        chosen = random.sample(live, random.randint(1, min(_LARGEST_PATCH, len(live))))
        patches, stale = [], set()
        for known in chosen:
            key = known.item["key_hash"]
            by = {"key_hash": key} if random.random() < 0.5 else {"output_id": known.output_id}
            change: dict[str, Any] = {}
            if random.random() < 0.7:
                change["is_approved"] = random.random() < 0.5
            if random.random() < 0.5 or not change:
                change["tags"] = {"country": random.choice((*COUNTRIES, None))}
            dice = random.random()
            if dice < 0.3:
                by["if_id"] = known.id if dice < 0.2 else known.id - 1  # type: ignore[assignment]
                if dice >= 0.2:
                    stale.add(key)
            patches.append({**by, **change})
        response = self._client.done("PATCH", f"/v1/outputs/{group}", patches)
        unclear = []
        for known, patch, result in zip(chosen, patches, response.json["items"], strict=True):
            kind, key = result["result"], known.item["key_hash"]
            self._written.counts[f"patch {kind}"] += 1
            if key in stale and kind != "conflict":
                self._written.wrong.append(f"{group} {key} was patched in spite of a stale if_id: {kind}")
            elif kind in ("updated", "unchanged"):
                self._patched(group, known, patch, result)
            elif kind == "conflict" and key not in stale:
                # An earlier try, or a request that was cut off, came first: once more, without condition.
                unclear.append((known, {name: value for name, value in patch.items() if name != "if_id"}))
            elif kind != "conflict":
                self._written.wrong.append(f"{group} {key}: patch {kind}")
        if unclear:
            response = self._client.done("PATCH", f"/v1/outputs/{group}", [patch for _, patch in unclear])
            for (known, patch), result in zip(unclear, response.json["items"], strict=True):
                self._patched(group, known, patch, result)

    def _patched(self, group: str, known: _Known, patch: dict[str, Any], result: dict[str, Any]) -> None:
        item = dict(known.item)
        if "is_approved" in patch:
            item["is_approved"] = patch["is_approved"]
        if "tags" in patch:
            merged = {**item["tags"], **patch["tags"]}
            item["tags"] = {name: value for name, value in merged.items() if value is not None}
        key = item["key_hash"]
        self._known[group][key] = _Known(item, result["id"], known.output_id)
        self._written.own[group, key] = Acknowledged(result["id"], Content.of(item))

    # -- deleting -----------------------------------------------------------------------------

    def _delete_one(self, group: str) -> None:
        live = self._live(group)
        if not live:
            return
        known = random.choice(live)
        response = self._client.done("DELETE", f"/v1/outputs/{group}/{known.output_id}", also=(404,))
        if response.status == 404 and response.tries == 1:
            self._written.wrong.append(f"{group} {known.item['key_hash']}: not there to be deleted")
        self._deleted(group, known)

    def _delete_by_filter(self, group: str) -> None:
        """Write items with a job or a URL that nobody else uses, and delete them by it."""
        self._version += 1
        mark = f"once-{self._number}-{self._version}"
        name, by = random.choice((("root_job_id", "job_id"), ("source_url", "url")))
        value = f"https://shop.example/{mark}" if by == "url" else mark
        keys = [f"{mark}-{number}" for number in range(random.randint(1, 20))]
        self._send(group, [self._make(key, **{name: value}) for key in keys])
        more, began = True, time.monotonic()
        while more:
            self._client.give_up_after(began, f"DELETE {by}={value}", ["more"])
            more = self._client.done("DELETE", f"/v1/outputs/{group}?{by}={value}").json["more"]
        for key in keys:
            if key in self._known[group]:
                self._deleted(group, self._known[group][key])
            else:
                self._written.own[group, key] = Acknowledged(None, None)

    def _deleted(self, group: str, known: _Known) -> None:
        known.deleted = True
        self._written.counts["deleted"] += 1
        self._written.own[group, known.item["key_hash"]] = Acknowledged(None, None)

    def _live(self, group: str) -> list[_Known]:
        return [known for known in self._known[group].values() if not known.deleted]
