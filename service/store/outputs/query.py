"""Which outputs a reader asks for, and by which index they are found."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from schemas.paths import Condition
from service.store.group import Group
from service.store.outputs.fields import holds, is_missing
from service.store.outputs.missing import Missing, not_seen_since

# Hidden records (`Watermark.hidden`) that one plain read may skip; a group with more of them is read in windows.
_MAX_HIDDEN = 1000

SERVED = (
    *("source_url", "data", "id", "output_id", "root_job_id", "create_date", "update_date", "last_scraped_date"),
    *("key_hash", "value_hash", "is_approved", "tags", "files"),
)
# Who approved or rejected an item, and when; who replaced a version, and when.
JUDGED = ("approved_by", "approved_date")
REPLACED = ("by", "replaced_date")
WHOLE = {"_id": 0, **dict.fromkeys(SERVED, 1), "deleted": 1}
# Filter -> name of its index and the field after (group), the narrowest first.
INDEXED = {
    "url": ("url", "source_url"),
    "region": ("region", "region"),
    "country": ("country", "country"),
    "job_id": ("job", "root_job_id"),
}
HINTS = {field: name for name, field in INDEXED.values()}
LIVE = {"deleted": {"$exists": False}}
NO_TOMBSTONE = {"tombstone": {"$exists": False}}


class Query(NamedTuple):
    """The parameters of a page: which outputs of a group, and which of their fields."""

    cursor: int = 0
    limit: int = 10
    created_after: datetime | None = None
    job_id: str | None = None
    url: str | None = None
    country: str | None = None
    region: str | None = None
    is_approved: bool | None = None
    key_hash: str | None = None
    scraped_before: datetime | None = None
    max_id: int | None = None
    change: str | None = None  # what the job did: created, changed or unchanged
    missing: str | None = None  # a path below `data`
    where: tuple[Condition, ...] = ()  # all of them hold
    rejected: bool | None = None
    missing_from: Missing | None = None  # only what is missing from a job
    walk: int | None = None  # the newest id when a walk with deletions began
    newest_first: bool = False
    deleted: bool | str = False  # "only": nothing but deletion records
    fields: tuple[str, ...] = ()  # paths to keep; empty keeps all

    @property
    def projection(self) -> dict[str, int]:
        """The fields that are read of each document."""
        if not self.fields:
            return WHOLE
        return {"_id": 0, "id": 1, **dict.fromkeys(self.fields, 1), **({"deleted": 1} if self.deleted else {})}


def still_matches(query: Query, known: dict[str, Any]) -> bool:
    """Return whether an item with the same id as before still matches: seeing it again changes its job and date."""
    before = query.scraped_before
    return (
        query.job_id in (None, known["root_job_id"])
        and (query.missing_from is None or query.missing_from.includes(known))
        and (before is None or known["last_scraped_date"] < before.replace(tzinfo=None))
    )


class Selection(NamedTuple):
    """How a query is read: by which index, and which filters are compared with each document found."""

    hint: str
    indexed: dict[str, Any]
    residual: dict[str, Any]
    choices: tuple[str, ...] = ()  # the fields of several filters, of which one is to be the index

    @property
    def is_search(self) -> bool:
        """Whether it may read many documents and return few: it has filters that no index serves."""
        return bool(self.residual or self.choices)

    def by(self, field: str) -> Selection:
        """Return the selection that uses the index of one of its filters and compares the others."""
        filters = {name: value for name, value in self.indexed.items() if name != field}
        return Selection(HINTS[field], {field: self.indexed[field]}, {**filters, **self.residual})


def select(group: Group, query: Query, hidden: int) -> Selection:
    """Return how a query is read, as far as this is known without the database."""
    indexed = {field: value for name, (_, field) in INDEXED.items() if (value := getattr(query, name)) is not None}
    if query.missing_from is not None and query.missing_from.holders is not None:
        indexed["root_job_id"] = {"$in": list(query.missing_from.holders)}
    residual: dict[str, Any] = {}
    passed_over = {} if query.deleted else dict(LIVE)
    if not indexed:
        passed_over |= NO_TOMBSTONE
        hint = "id"
    else:
        hint = HINTS[next(iter(indexed))]
    if query.deleted == "only" and not indexed and query.key_hash is None:
        indexed, hint, passed_over = {"deleted": True}, "removed", {}
    elif query.deleted == "only":
        residual["deleted"] = True
    if query.is_approved is True and not indexed and query.key_hash is None and not query.deleted:
        indexed, hint, passed_over = {"is_approved": True}, "approved", {}
    elif query.is_approved is not None and not query.deleted:
        residual["is_approved"] = query.is_approved
    if query.scraped_before is not None:
        residual["last_scraped_date"] = {"$lt": query.scraped_before}
    if conditions := _conditions(query):
        residual["$and"] = conditions
    if query.key_hash is not None:  # one item at most: the other filters are compared
        identity = {"_id": group.output_id(query.key_hash)}
        return Selection("_id_", {**identity, **indexed, **residual, **passed_over}, {})
    choices = tuple(indexed) if len(indexed) > 1 else ()
    if hidden > _MAX_HIDDEN or residual or choices:
        residual |= passed_over
    else:
        indexed = {**indexed, **passed_over}
    return Selection(hint, indexed, residual, choices)


def _conditions(query: Query) -> list[dict[str, Any]]:
    """Return the filters that no index serves. A deletion record has no data, tags and approval: it always passes."""
    of_content: list[dict[str, Any]] = []
    if query.missing is not None:
        of_content.append(is_missing(query.missing))
    of_content += map(holds, query.where)
    if query.rejected is not None:
        of_content.append({"tags.rejected": {"$exists": query.rejected}})
    if query.deleted:
        if query.is_approved is not None:
            of_content.append({"is_approved": query.is_approved})
        of_content = [{"$or": [{"deleted": True}, condition]} for condition in of_content]
    of_jobs: list[dict[str, Any]] = []
    if query.change is not None:
        of_jobs.append({"change": query.change})
    if query.missing_from is not None:
        of_jobs.append(not_seen_since(query.missing_from.beginning))
    of_ids = [] if query.max_id is None else [{"id": {"$lte": query.max_id}}]
    return of_content + of_jobs + of_ids
