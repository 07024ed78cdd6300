"""What is missing from a job: one rule for the count, the list and the deletion; what is judged is its complement.

Each item carries `seen`, the first id of the batch that last saw it, and `root_job_id`, the job of that sight. A job
has a `beginning` of the same kind. Positions are compared, never dates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# Other jobs of a series up to which their items are found by the index on jobs; of more, all ids are looked through.
MAX_HOLDERS = 100


def not_seen_since(position: int) -> dict[str, Any]:
    """Return the filter for items that nobody has seen at a position or later, also those without any sight."""
    return {"seen": {"$not": {"$gte": position}}}


class Missing(NamedTuple):
    """The items of a job's series that belong to another job, and that nobody has seen since the job began.

    `holders` are the other jobs of the series that may hold such items; None if there are too many of them.
    """

    job_id: str
    series: str | None
    beginning: int
    holders: tuple[str, ...] | None = None

    def includes(self, item: dict[str, Any]) -> bool:
        """Return whether a stored item is missing, if its job is of the series."""
        return item["root_job_id"] != self.job_id and (item.get("seen") or 0) < self.beginning
