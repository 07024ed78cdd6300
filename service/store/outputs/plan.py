"""The outcome of each change of a round: a row with an id, a touch, or nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import bson
import msgspec
from bson.raw_bson import RawBSONDocument

from service.store.decoding import RAW, decode, encoded
from service.store.outputs import documents
from service.store.outputs.counts import CREATED, Change, change_of, counted
from service.store.outputs.encode import (
    FILTER_TAGS,
    MAX_REASON_BYTES,
    REJECTED,
    Heads,
    Put,
    elements,
    file_dates,
    filter_tags,
    keep_file_dates,
    keep_rejection,
    mark_of,
    same_data,
    with_tags,
)
from service.store.outputs.ids import Batch
from service.store.outputs.missing import not_seen_since
from service.store.outputs.query import JUDGED, Query, still_matches

KNOWN_FIELDS = dict.fromkeys(
    (
        *("id", "seen", "first_id", "key_hash", "root_job_id", "content_hash", "is_approved", "deleted", "change"),
        *("create_date", "last_scraped_date", *FILTER_TAGS),
    ),
    1,
)
# What a write keeps of the item that it replaces. In the look-up of every item, the condition would cost the database
# half as much again.
_REASON = f"$tags.{REJECTED}"
_IS_SHORT = {"$lte": [{"$bsonSize": {"reason": _REASON}}, MAX_REASON_BYTES]}
KEPT_FIELDS = {
    **dict.fromkeys(("files.id", "files.create_date", *JUDGED), 1),
    f"tags.{REJECTED}": {"$cond": [_IS_SHORT, _REASON, "$$REMOVE"]},
}
# What the size of an item is made of.
CONTENT = ("source_url", "data", "tags", "files")
# The empty values of a deletion record, which has the shape of an item. Identity and filter fields stay.
_EMPTIED: dict[str, Any] = {"data": {}, "files": [], "value_hash": "", "is_approved": False, "content_hash": ""}
# The bytes that a patch of small tags counts for: a round takes 50 of them.
_TAGS_BYTES = 16 * 1024 * 1024 // 50

_ANY = Query()
# Each item of a statement is searched among its constants, so their number is bounded.
_TOUCHED_AT_ONCE = 100
# Pairs of jobs, before and after, that one batch counts in its group's document: each name may have 768 bytes.
_MAX_PAIRS = 50

Known = dict[str, Any]  # the fields of a stored document that a round reads
Result = dict[str, Any]  # the outcome of one change


@dataclass(frozen=True)
class Patch:
    """Change an item's approval, its tags (a JSON merge patch) or both, if it still has one of the ids `if_ids`."""

    by: str  # "output_id" or "key_hash"
    value: str
    is_approved: bool | None = None
    tags: dict[str, Any] | None = None
    if_ids: frozenset[int] | None = None
    stored_bytes: int = 0  # of the tags that are merged with these

    @property
    def size(self) -> int:
        return 0 if self.tags is None else max(_TAGS_BYTES, self.stored_bytes)


@dataclass(frozen=True)
class Delete:
    """Turn an item into a deletion record, if it still matches: its id alone does not show that it was seen again."""

    if_ids: frozenset[int] | None = None
    query: Query = _ANY
    until: int | None = None  # a later sight keeps the item
    size: int = 0

    def selects(self, known: Known) -> bool:
        if self.if_ids is not None and known["id"] not in self.if_ids:
            return False
        is_seen = self.until is not None and (known.get("seen") or 0) > self.until
        return not is_seen and still_matches(self.query, known)


# The fields of a document that its item does not bring: ids, dates and the owner, whose name may have 256 characters.
_HEAD_BYTES = 2048

Pending = Put | Patch | Delete


def result_of(result: str, id: int, output_id: str, key_hash: str) -> Result:
    """Return the outcome of one change, as it is served."""
    return {"id": id, "output_id": output_id, "key_hash": key_hash, "result": result}


class Row(msgspec.Struct, gc=False):
    """One change of a batch: the item before, the item after, and the document or update statement that stores it."""

    output_id: str
    result: Result
    id: int
    known: Known | None
    kind: str  # created, changed, patched, deleted
    job: str
    is_approved: bool
    stored: RawBSONDocument | dict[str, Any]  # of a new item its document, else an update statement
    size: int
    actor: str | None

    @property
    def counted_as(self) -> tuple[str, str, bool, str | None, bool, bool, str]:
        """A key by which rows are counted together: what the row does, its job and approval, and the item before."""
        known = self.known
        if known is None:
            return self.kind, self.job, self.is_approved, None, False, False, CREATED
        deleted = "deleted" in known
        before = None if deleted else known["root_job_id"]
        return self.kind, self.job, self.is_approved, before, known["is_approved"], deleted, known["change"]


class Touch(NamedTuple):
    """An unchanged item that was seen again, by which job and when."""

    known: Known
    job: str
    scraped: datetime
    is_moved: bool = True  # whether the item belongs to the job from then on; a later sight may have been faster


@dataclass
class Plan:
    """The plan of a round: what to write for its changes, given the stored items."""

    batch: Batch
    max_item_bytes: int
    rows: list[Row] = field(default_factory=list)
    touches: dict[str, Touch] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    recount: bool = False  # whether a race made the counts uncertain
    largest: int = 0  # bytes of the largest item
    lost: set[str] = field(default_factory=set)  # rows of items that another process changed meanwhile
    actor: str | None = None  # whose changes are being added

    def __post_init__(self) -> None:
        self._heads = Heads(self.batch.group, self.batch.date)
        self._pairs: set[tuple[str | None, str | None]] = set()
        self._approvals: dict[str | None, bytes] = {}

    def has_room(self, change: Pending, known: Known | None) -> bool:
        """Return whether a change can be part of this batch; if not, it waits for the next one.

        That one has higher ids than an item which a later batch than this one has written or seen.
        """
        if known is not None and max(known["id"], known.get("seen") or 0) >= self.batch.first:
            return False
        before = None if known is None else known["root_job_id"]
        pair = (before, change.root_job_id if isinstance(change, Put) else None)
        if pair not in self._pairs:
            if len(self._pairs) >= _MAX_PAIRS:
                return False
            self._pairs.add(pair)
        return True

    def add(self, output_id: str, change: Pending, known: Known | None) -> None:
        """Decide what becomes of one change."""
        match change:
            case Put():
                restored = change.restored
                if restored is not None and restored.if_id != (None if known is None else known["id"]):
                    self.results[output_id] = {"result": "conflict"}
                elif known is None:
                    self._create(change)
                elif is_changed(change, known):
                    self._replace(change, known)
                else:
                    self._touch(change, known)
            case _ if known is None or "deleted" in known:
                self.results[output_id] = {"result": "not_found"}
            case Patch():
                self._patch(change, known)
            case Delete() if change.selects(known):
                self._delete(known)
            case _:
                self.leave(known, "conflict")

    @property
    def _id(self) -> int:
        return self.batch.first + len(self.rows)

    def leave(self, known: Known, result: str) -> None:
        """Enter the result of a change that gives its item no new id."""
        self.results[known["_id"]] = result_of(result, known["id"], known["_id"], known["key_hash"])

    def _create(self, put: Put) -> None:
        batch, id, job, approved = self.batch, self._id, put.root_job_id, bool(put.is_approved)
        judged, changed_by = self._approval_elements() if approved else b"", None if put.restored else job
        if put.restored is not None:
            judged = elements(put.restored.judged)
        rest = (batch.date, put.scraped or batch.date, approved, "created", batch.first, changed_by)
        document = self._heads.document(put.output_id, put.content, id, id, rest, judged)
        if put.size + _HEAD_BYTES > self.largest:
            self.largest = put.size + _HEAD_BYTES
        result = result_of("created", id, put.output_id, put.key_hash)
        row = Row(put.output_id, result, id, None, "created", job, approved, document, put.size, self.actor)
        self.rows.append(row)

    def _replace(self, put: Put, known: Known) -> None:
        output_id, id, date, content = put.output_id, self._id, self.batch.date, put.content
        self.largest = max(self.largest, put.size + _HEAD_BYTES)
        scraped = put.scraped or date
        changed_by = put.root_job_id if put.restored is None else None
        if put.undated and "files" in known:
            content = keep_file_dates(put, file_dates(known["files"]))
        reason = known.get("tags", {}).get(REJECTED)
        if reason is not None and same_data(known["content_hash"], put.content_hash):
            content = keep_rejection(content, reason)
        approved = _approval(put, known)
        judged = elements(self._judged(put, known, approved))
        kind, first_id = ("created", id) if "deleted" in known else ("changed", known["first_id"])
        newest = max(scraped, known["last_scraped_date"])
        job_before = None if "deleted" in known else known["root_job_id"]
        change = change_of(put.root_job_id, job_before, known["change"])
        head = (known["create_date"], newest, approved, change, self.batch.first, changed_by, known["id"])
        document = self._heads.document(output_id, content, id, first_id, head, judged)
        self._update(known, kind, put.root_job_id, approved, document, put.size)

    def _judged(self, put: Put, known: Known, approved: bool) -> dict[str, Any]:
        """Return who approved or rejected an item, as a write leaves it, and when."""
        if put.restored is not None:
            return put.restored.judged
        same = "deleted" not in known and same_data(known["content_hash"], put.content_hash)
        if same and (not approved or known["is_approved"]):
            return {name: known[name] for name in JUDGED if name in known} if approved or _is_rejected(known) else {}
        return self._by_actor() if approved else {}

    def _by_actor(self) -> dict[str, Any]:
        return dict(zip(JUDGED, (self.actor, self.batch.date), strict=True))

    def _approval_elements(self) -> bytes:
        """Return `_by_actor` encoded, once for all items of an actor."""
        approval = self._approvals.get(self.actor)
        if approval is None:
            approval = self._approvals[self.actor] = elements(self._by_actor())
        return approval

    def _patch(self, patch: Patch, known: Known) -> None:
        if patch.if_ids is not None and known["id"] not in patch.if_ids:
            self.leave(known, "conflict")
            return
        approved = known["is_approved"] if patch.is_approved is None else patch.is_approved
        changes: dict[str, Any] = {"is_approved": approved}
        unset: dict[str, Any] = {}
        size, is_judged, is_rejected = 0, approved != known["is_approved"], False
        if patch.tags is not None:
            stored = decode(known.pop("tags", {}))
            tags = _merge_patch(stored, patch.tags)
            text, before = documents.canonical(tags), documents.canonical(stored)
            if len(text) > len(before) and len(text) + known["rest"] > self.max_item_bytes:
                self.leave(known, "too_large")
                return
            is_rejected = REJECTED in tags
            is_judged |= tags.get(REJECTED) != stored.get(REJECTED)
            if text != before:
                copies = filter_tags(tags)
                raw = RawBSONDocument(bson.encode(tags), RAW)  # takes less memory than many small objects
                size = len(raw.raw)
                self.largest = max(self.largest, known["bytes"] + size)
                changes |= {"tags": raw, "content_hash": with_tags(known["content_hash"], tags), **copies}
                unset = dict.fromkeys(set(FILTER_TAGS) - set(copies), "")
        if approved == known["is_approved"] and "tags" not in changes:
            self.leave(known, "unchanged")
            return
        if is_judged and (approved or is_rejected):
            changes |= self._by_actor()
        elif is_judged:
            unset |= dict.fromkeys(JUDGED, "")
        self._set(known, "patched", changes, unset, size)

    def _delete(self, known: Known) -> None:
        filters = {name: known[name] for name in FILTER_TAGS if name in known}
        self._set(known, "deleted", {**_EMPTIED, "deleted": True, "tags": filters}, dict.fromkeys(JUDGED, ""), 0)

    def _set(self, known: Known, kind: str, changes: dict[str, Any], unset: dict[str, Any], size: int) -> None:
        newer = {"id": self._id, "prev_id": known["id"], "update_date": self.batch.date}
        # A change by a person: it is no sight, and made by no job.
        update = {"$set": {**newer, **changes}, "$unset": {**unset, "changed_by": ""}}
        self._update(known, kind, known["root_job_id"], changes["is_approved"], update, size)

    def _update(self, known: Known, kind: str, job: str, approved: bool, update: Any, size: int) -> None:
        """Add an update that does nothing if the item was changed or seen meanwhile."""
        state = {"id": known["id"], "root_job_id": known["root_job_id"], "seen": known.get("seen")}
        statement = {"q": {**self.batch.group.owner, "_id": known["_id"], **state}, "u": update, "hint": "_id_"}
        output_id, id = known["_id"], self._id
        result = result_of("created" if kind == "created" else "updated", id, output_id, known["key_hash"])
        row = Row(output_id, result, id, known, kind, job, approved, statement, size, self.actor)
        self.rows.append(row)

    def _touch(self, put: Put, known: Known) -> None:
        self.touches[put.output_id] = Touch(known, put.root_job_id, put.scraped or self.batch.date)

    def touch_statements(self) -> list[dict[str, Any]]:
        """Return the statements that store the touches: a few, however many dates they have.

        They match no item that was changed meanwhile, which has another id, and none that a later batch has seen.
        """
        alike: dict[tuple[str, str], list[Touch]] = {}
        for touch in self.touches.values():
            alike.setdefault((touch.known["root_job_id"], touch.job), []).append(touch)
        return [
            self._touch_statement(before, job, touches[start : start + _TOUCHED_AT_ONCE])
            for (before, job), touches in alike.items()
            for start in range(0, len(touches), _TOUCHED_AT_ONCE)
        ]

    def _touch_statement(self, before: str, job: str, touches: list[Touch]) -> dict[str, Any]:
        ids = [touch.known["id"] for touch in touches]
        statement = {"multi": True, "hint": "id"}
        position = self.batch.first
        earlier = {"root_job_id": before, **not_seen_since(position)}
        statement["q"] = {**self.batch.group.owner, "id": {"$in": ids}, **earlier}
        changes: dict[str, Any] = {} if before == job else {"root_job_id": job, "change": "unchanged"}
        scraped = touches[0].scraped
        if all(touch.scraped == scraped and "is_rehashed" not in touch.known for touch in touches):
            update = {"$max": {"last_scraped_date": scraped, "seen": position}}
            return {**statement, "u": update | ({"$set": changes} if changes else {})}
        # Each item finds its values among the constants: one statement per item would cost the database twice as much.
        dates = [touch.scraped for touch in touches]
        hashes = [touch.known["content_hash"] for touch in touches]
        place = {"$indexOfArray": ["$$ids", "$id"]}
        changes = {name: {"$literal": value} for name, value in changes.items()} | {"seen": position}
        changes["last_scraped_date"] = {"$max": ["$last_scraped_date", {"$arrayElemAt": ["$$dates", place]}]}
        changes["content_hash"] = {"$arrayElemAt": ["$$hashes", place]}
        return {**statement, "u": [{"$set": changes}], "c": {"ids": ids, "dates": dates, "hashes": hashes}}

    def settle_touches(self, stored_items: dict[str, Known], matched: int) -> None:
        """Keep the touches that are done, given the items as they are stored after it and how many have matched.

        One is done when the item carries its sight or a later one. An item that changed goes to another round, and so
        does one whose later sight has an earlier date.
        """
        position, own = self.batch.first, 0
        touches: dict[str, Touch] = {}
        for key, touch in self.touches.items():
            stored = stored_items.get(key)
            if stored is None or stored["id"] != touch.known["id"]:
                continue
            stored_seen = stored.get("seen", 0)
            if stored_seen == position:
                own += 1
                touches[key] = touch
            elif stored_seen > position and stored["last_scraped_date"] >= touch.scraped:
                # If the same job has seen it later, that sight is counted.
                known = {**touch.known, "root_job_id": stored["root_job_id"]}
                touches[key] = touch._replace(known=known, is_moved=False)
        # Others were touched too, and then seen or changed again: which of them is unknown.
        self.recount |= matched > own
        self.touches = touches

    def count(self, made: list[Row]) -> Change:
        """Return how the written rows and the touches change the counts."""
        change = Change(recount=self.recount, last_id=made[-1].id if made else 0, largest=self.largest)
        first, last = self.batch.first, self.batch.first + self.batch.size - 1
        # Most rows of a round are alike.
        for (kind, job, approved, job_before, approved_before, deleted_before, change_before), count in Counter(
            row.counted_as for row in made
        ).items():
            deleted = kind == "deleted"
            change.items += count * ((not deleted) - (job_before is not None))
            change.approved += count * (approved - approved_before)
            change.deleted += count * (deleted - deleted_before)
            if job_before is not None:
                change.job(job_before, items=-count)
            if not deleted:
                change.job(job, items=count)
                change.created += count * (kind == "created")
                change.changed += count * (kind != "created")
            if kind in ("created", "changed"):
                done = change_of(job, job_before, change_before)
                change.job(job, **counted(done, change_before if job_before == job else None, count))
                change.sight(job, first, last)
                if job_before not in (None, job):
                    change.take(job_before, job, count)
        for (before, job, is_moved), count in Counter(
            (touch.known["root_job_id"], touch.job, touch.is_moved) for touch in self.touches.values()
        ).items():
            change.job(job, unchanged=count if job != before else 0)  # else the job has counted it before
            change.sight(job, first, last)
            if job != before and is_moved:
                change.job(before, items=-count)
                change.job(job, items=count)
                change.take(before, job, count)
        return change


def measure(document: RawBSONDocument) -> Known:
    """Return a stored item with its size, and that of what a patch of its tags leaves; its tags stay encoded."""
    item = dict(document)
    if "tags" in item:
        item["tags"] = encoded(item["tags"])
    url, data = item.pop("source_url"), decode(encoded(item.pop("data")))
    files = [decode(encoded(file)) for file in item.pop("files")]
    # Without what the service may have added.
    bare_files = [{name: value for name, value in file.items() if name not in ("id", "create_date")} for file in files]
    item["bytes"] = len(document.raw) + _HEAD_BYTES
    item["rest"] = len(url.encode()) + len(documents.canonical(data)) + len(documents.canonical(bare_files))
    return item


def is_changed(put: Put, known: Known) -> bool:
    """Return whether an item differs from what is stored under its key."""
    return (
        "deleted" in known
        or known["content_hash"] != put.content_hash
        or (put.is_approved is not None and put.is_approved != known["is_approved"])
    )


def keeps(put: Put, known: Known) -> bool:
    """Return whether an item that replaces another one may keep file dates or the reason for a rejection."""
    stored_hash, new_hash = known["content_hash"], put.content_hash
    same = same_data(stored_hash, new_hash) or mark_of(stored_hash) != mark_of(new_hash)
    return is_changed(put, known) and bool(put.undated or same)


def _is_rejected(known: Known) -> bool:
    return REJECTED in known.get("tags", {})


def _approval(put: Put, known: Known) -> bool:
    """Return the approval that was sent; else the stored one, if the data are the same."""
    if put.is_approved is not None:
        return put.is_approved
    return bool(known["is_approved"]) and same_data(known["content_hash"], put.content_hash)


def _merge_patch(target: Any, patch: Any) -> Any:
    """Return the target with a JSON merge patch (RFC 7396) applied: null removes a member, objects are merged."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merge_patch(result.get(name), value)
    return result
