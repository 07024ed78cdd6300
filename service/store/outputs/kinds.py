"""What a job has done to an item: `created`, `changed` or `unchanged`; stored as `change` in its document.

If one job writes an item several times, `created` and `changed` stay, and `unchanged` may become `changed`. So the
counts of a job are numbers of items, and `change=` lists exactly those items, unless another job that runs at the same
time takes items from it and back.
"""

from __future__ import annotations

KINDS = CREATED, CHANGED, UNCHANGED = "created", "changed", "unchanged"


def change_of(job_id: str, job_before: str | None, change_before: str) -> str:
    """Return what a job has done to an item that it changes; `job_before` is None if it is new or was deleted."""
    if job_before is None:
        return CREATED
    return change_before if job_before == job_id and change_before != UNCHANGED else CHANGED


def counted(change: str, change_before: str | None, times: int) -> dict[str, int]:
    """Return what to add to a job's counts; `change_before` is its word before, None if it had none."""
    if change_before == change:
        return {change: 0}
    return {change: times} if change_before is None else {change: times, change_before: -times}
