"""What its job has done to an item: `created`, `changed` or `unchanged`; kept as `change` in its document.

Of an item that one job writes several times, the first word stays: one that it created is created, whatever it
did to it later. So the counts of a job are numbers of items, and `change=` lists exactly those.
"""

from __future__ import annotations

CREATED, CHANGED, UNCHANGED = "created", "changed", "unchanged"


def change_of(job_id: str, changed: bool, job_before: str | None, change_before: str) -> str:
    """Return what a job has done to an item by now; `job_before` is None where there was none, or a deleted one."""
    if job_before is None:
        return CREATED
    if job_before != job_id:
        return CHANGED if changed else UNCHANGED
    return CHANGED if changed and change_before == UNCHANGED else change_before


def counted(change: str, change_before: str | None, times: int) -> dict[str, int]:
    """Return what to add to a job's counts; `change_before` is what it had done before, None if another job had it."""
    if change_before == change:
        return {change: 0}
    return {change: times} if change_before is None else {change: times, change_before: -times}
