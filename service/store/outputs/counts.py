"""What a batch changes in the counts of its group, its jobs and its day.

The field `change` of an item says what its job did: `created`, `changed` or `unchanged`. When the job writes the item
again, only `unchanged` can become `changed`. So a job's counts are numbers of items, and `change=` lists exactly these,
unless overlapping jobs write the same items.

A sight is the write of an item by a job, changed or not. A job keeps where its sights begin and end, as positions in
the group's ids: `beginning`, the first id of its first batch, and `last_position`, the last id of its last one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any


def plus(name: str, amount: int) -> dict[str, Any]:
    """Return the expression for a field that may be missing, plus an amount."""
    return {"$add": [{"$ifNull": [f"${name}", 0]}, amount]}


# The largest reply of the database: no item is larger.
MAX_REPLY = 16 * 1024 * 1024
# Whether no item is larger than `largest`. Missing where items were written before `largest` was kept; False when the
# upkeep has asked for the recount that makes it True.
_HAS_LARGEST = {"$ifNull": ["$has_largest", {"$cond": ["$last_id", "$$REMOVE", True]}]}
KINDS = CREATED, CHANGED, UNCHANGED = "created", "changed", "unchanged"
# How long after a change the upkeep looks at its group: counts of jobs and days collect meanwhile.
UPKEEP_DELAY = timedelta(seconds=10)
# Bytes of counts that wait in a group's document, of which 16 MB is the limit; above, no batch begins.
MAX_WAITING_BYTES = 2 * 1024 * 1024
# The bytes of the counts in a group's document, those that are being moved included.
WAITING_BYTES = {"$bsonSize": {"pending": "$pending", "moving": "$moving"}}
# Fields of a group that request a recount, and make one that is running invalid.
RECOUNT = {"recount": plus("recount", 1), "recounts": plus("recounts", 1), "due": {"$min": ["$due", "$$NOW"]}}


@dataclass
class Change:
    """What one batch changed: added to the counts when the batch is finished, exactly once."""

    last_id: int = 0
    items: int = 0
    approved: int = 0
    created: int = 0
    changed: int = 0
    deleted: int = 0
    tombstones: int = 0
    largest: int = 0  # bytes of its largest item
    recount: bool = False
    jobs: dict[str, dict[str, int]] = field(default_factory=dict)
    taken: dict[tuple[str, str], int] = field(default_factory=dict)  # by job, and by the job that held them before

    def job(self, job_id: str, **counts: int) -> None:
        """Add to the counts of a job."""
        kept = self.jobs.setdefault(job_id, {})
        for name, count in counts.items():
            kept[name] = kept.get(name, 0) + count

    def sight(self, job_id: str, first: int, last: int) -> None:
        """Note that a job has seen items in a batch of ids."""
        counts = self.jobs.setdefault(job_id, {})
        counts["beginning"] = min(first, counts.get("beginning", first))
        counts["last_position"] = max(last, counts.get("last_position", last))

    def take(self, job_before: str, job_id: str, count: int) -> None:
        """Note that a job has taken items over from another one."""
        self.taken[job_id, job_before] = self.taken.get((job_id, job_before), 0) + count

    def update(self, date: datetime) -> dict[str, Any]:
        """Return the fields of the group's document that add this change, made at `date`.

        Counts of jobs and days wait in `pending`, one entry per batch: `jobs.py` moves them to documents of their own.
        """
        names = ("items", "approved", "deleted", "tombstones")
        update: dict[str, Any] = {name: plus(name, amount) for name in names if (amount := getattr(self, name))}
        if self.last_id:
            update["last_id"] = {"$max": ["$last_id", self.last_id]}
            update["last_change"] = {"$max": ["$last_change", date]}
            update["has_largest"] = _HAS_LARGEST
        if self.largest:
            update["largest"] = {"$max": ["$largest", self.largest]}
        if self.jobs or self.created or self.changed:
            jobs: list[dict[str, Any]] = [{"job_id": job_id, **counts} for job_id, counts in self.jobs.items()]
            for job in jobs:
                taken = [
                    {"from": one, "items": n} for (job_id, one), n in self.taken.items() if job_id == job["job_id"]
                ]
                if taken:
                    job["taken"] = taken
            entry = {"date": date, "created": self.created, "changed": self.changed, "jobs": jobs}
            update["pending"] = {"$concatArrays": [{"$ifNull": ["$pending", []]}, {"$literal": [entry]}]}
        if self.recount:
            update["recount"] = plus("recount", 1)
        if "pending" in update or self.deleted or self.tombstones or self.recount:
            delay = int(UPKEEP_DELAY.total_seconds() * 1000)
            update["due"] = {"$min": ["$due", {"$add": ["$$NOW", delay]}]}
        return update


def change_of(job_id: str, job_before: str | None, change_before: str) -> str:
    """Return what a job has done to an item that it changes; `job_before` is None if it is new or was deleted."""
    if job_before is None:
        return CREATED
    return change_before if job_before == job_id and change_before != UNCHANGED else CHANGED


def counted(change: str, change_before: str | None, times: int) -> dict[str, int]:
    """Return what to add to a job's counts; `change_before` is what it had done to the item before, None if nothing."""
    if change_before == change:
        return {change: 0}
    return {change: times} if change_before is None else {change: times, change_before: -times}
