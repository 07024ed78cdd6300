"""What one job changed: the items as it left them beside what they were before, from the versions that are kept.

A state of an item is its document in `outputs` or in `versions`. One that a job made carries `changed_by`, which later
sights do not overwrite, so the list stays complete. Of several changes of an item by one job, the state before the
first is compared with the state after the last.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, NamedTuple

from service.store.connection import Database, read_committed
from service.store.contract import patient, stored
from service.store.decoding import NAIVE
from service.store.group import Group
from service.store.indexes import Indexes
from service.store.listing import Record
from service.store.outputs import documents
from service.store.outputs.comparing import ComparingCache
from service.store.outputs.encode import REJECTED
from service.store.outputs.fields import Ignored, without
from service.store.outputs.ids import Ids
from service.store.time_budget import refill_budget

# States that one step looks at, and items whose states are read at once: each may be two documents of a megabyte.
_WINDOW, _AT_ONCE = 1000, 20
# A page ends after so many bytes of changed values, and after this time; a summary after this time.
_PAGE_BYTES = 1024 * 1024
_PAGE_SECONDS, _SUMMARY_SECONDS = 1.5, 3.0
# Paths that a summary counts: items may have keys of their own.
_MAX_PATHS = 1000
_SEEN_AS = {"id": 1, "output_id": 1, "prev_id": 1, "changed_by": 1}
_COMPARED = {"id": 1, "output_id": 1, "key_hash": 1, "source_url": 1, "data": 1, "tags": 1}


class Span(NamedTuple):
    """The positions in a group's ids between which a job made its changes, the first one left out."""

    job_id: str
    low: int
    high: int


class ChangesPage(NamedTuple):
    """Changed items as they are served, and the cursor of the next page."""

    items: list[Record]
    next_cursor: int | None


class _Changed(NamedTuple):
    """An item that a job changed: the id before its first change and the id after its last."""

    output_id: str
    before: int
    after: int


class JobChanges:
    """Reads what jobs changed."""

    def __init__(self, database: Database, ids: Ids, comparing: ComparingCache, indexes: Indexes) -> None:
        self._database, self._ids, self._comparing, self._indexes = database, ids, comparing, indexes

    @patient
    @stored
    async def page(self, group: Group, span: Span, limit: int, path: str | None) -> ChangesPage:
        """Return up to `limit` changed items, in the order of their ids, with the values that differ."""
        self._indexes.require("outputs", "versions", "groups")
        items: list[Record] = []
        deadline, size = time.monotonic() + _PAGE_SECONDS, 0
        async for reached, changes in self._changes(group, span, path):
            for item in changes:
                items.append(item)
                size += len(documents.canonical(item["fields"]))
                if len(items) == limit or size > _PAGE_BYTES:
                    return ChangesPage(items, item["id"])
            if time.monotonic() > deadline and reached < span.high:
                return ChangesPage(items, reached)
        return ChangesPage(items, None)

    @patient
    @stored
    async def summary(self, group: Group, span: Span, path: str | None) -> Record:
        """Return how many items a job changed and in which fields, `more` if the time was not enough for all."""
        self._indexes.require("outputs", "versions", "groups")
        counts: Counter[str] = Counter()
        deadline, items, more = time.monotonic() + _SUMMARY_SECONDS, 0, False
        async for reached, changes in self._changes(group, span, path):
            items += len(changes)
            for item in changes:
                paths = [field["path"] for field in item["fields"]]
                counts.update(path for path in paths if path in counts or len(counts) < _MAX_PATHS)
            if time.monotonic() > deadline and reached < span.high:
                more = True
                break
        fields = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
        return {"items": items, "fields": [{"path": path, "changed": count} for path, count in fields], "more": more}

    async def _changes(self, group: Group, span: Span, path: str | None) -> AsyncIterator[tuple[int, list[Record]]]:
        """Yield how far a span is read, and the changed items up to there."""
        watermark = await self._ids.watermark(group)
        tree = (await self._comparing.of(group)).tree
        high, low = min(span.high, watermark.position), span.low
        whole = span._replace(low=0, high=high)
        while low < high:
            reached, states = await self._window(group, low, high, watermark.time)
            own = [state for state in states if state.get("changed_by") == span.job_id and state["id"] <= reached]
            changed = await self._changed(group, whole, own, watermark.time)
            for start in range(0, len(changed), _AT_ONCE):
                part = changed[start : start + _AT_ONCE]
                before = await self._states(group, [one.before for one in part], (), watermark.time)
                after = await self._states(
                    group, [one.after for one in part], [one.output_id for one in part], watermark.time
                )
                items = await asyncio.to_thread(_compare, part, before, after, tree, path)
                refill_budget()
                yield part[-1].after, items
            low = reached
            yield reached, []

    async def _window(self, group: Group, low: int, high: int, since: Any) -> tuple[int, list[Record]]:
        """Return the next states of a range of ids, and the id up to which they are all."""
        owner = group.owner
        now = {
            "find": "outputs",
            "filter": {**owner, "id": {"$gt": low, "$lte": high}},
            "sort": {"id": 1},
            "hint": "id",
        }
        between = {"$gt": {**owner, "id": low}, "$lte": {**owner, "id": high}}
        then = {"find": "versions", "filter": {**owner, "_id": between}, "sort": {"_id": 1}, "hint": "_id_"}
        reached, in_window = high, []
        for states in await asyncio.gather(
            *(self._find(read | {"limit": _WINDOW}, _SEEN_AS, since) for read in (now, then))
        ):
            if len(states) == _WINDOW:
                reached = min(reached, states[-1]["id"])
            in_window += states
        return reached, sorted(in_window, key=lambda state: int(state["id"]))

    async def _changed(self, group: Group, whole: Span, made: list[Record], since: Any) -> list[_Changed]:
        """Return the items of which some states are the last that the job made, and that existed before the first."""
        if not made:
            return []
        owner, outputs = group.owner, list({state["output_id"] for state in made})
        by_job = {**owner, "changed_by": whole.job_id, "id": {"$lte": whole.high}}
        span = {"first": {"$min": {"id": "$id", "prev_id": "$prev_id"}}, "last": {"$max": "$id"}}
        first: dict[str, Record] = {}
        last: dict[str, int] = {}
        for name, field, hint in (("outputs", "_id", "_id_"), ("versions", "output_id", "version")):
            where = {**by_job, field: {"$in": outputs}}
            pipeline = [{"$match": where}, {"$group": {"_id": "$output_id", **span}}]
            command = {"aggregate": name, "pipeline": pipeline, "hint": hint, "cursor": {"batchSize": 2 * _WINDOW}}
            reply = await read_committed(self._database, command, since, codec_options=NAIVE)
            for item in reply["cursor"]["firstBatch"]:
                first_id = first.setdefault(item["_id"], item["first"])
                first[item["_id"]] = min(first_id, item["first"], key=lambda state: int(state["id"]))
                last[item["_id"]] = max(last.get(item["_id"], 0), item["last"])
        return [
            _Changed(state["output_id"], first[state["output_id"]]["prev_id"], state["id"])
            for state in made
            if last.get(state["output_id"]) == state["id"] and "prev_id" in first[state["output_id"]]
        ]

    async def _states(self, group: Group, ids: list[int], outputs: Iterable[str], since: Any) -> dict[int, Record]:
        """Return states by their ids: kept versions, and of some items the present ones."""
        owner, states = group.owner, dict[int, Record]()
        present = list(outputs)
        while missing := [id for id in ids if id not in states]:
            if present:
                here = {**owner, "_id": {"$in": present}, "id": {"$in": missing}}
                read = {"find": "outputs", "filter": here, "hint": "_id_"}
            else:
                identities = [{**owner, "id": id} for id in missing]
                read = {"find": "versions", "filter": {**owner, "_id": {"$in": identities}}, "hint": "_id_"}
            items = await self._find(read, _COMPARED, since)  # one reply holds 16 MB
            states |= {state["id"]: state for state in items}
            if not items and not present:
                return states
            present = present if items else []
        return states

    async def _find(self, command: Record, fields: dict[str, int], since: Any) -> list[Record]:
        find = {**command, "projection": {"_id": 0, **fields}, "batchSize": _WINDOW, "singleBatch": True}
        reply = await read_committed(self._database, find, since, codec_options=NAIVE)
        items: list[Record] = reply["cursor"]["firstBatch"]
        return items


def _compare(
    changed: list[_Changed], before: dict[int, Record], after: dict[int, Record], tree: Ignored, path: str | None
) -> list[Record]:
    """Return the items with what differs; those of which the version before is not kept are left out."""
    items = []
    for one in changed:
        old, new = before.get(one.before), after.get(one.after)
        if old is None or new is None:
            continue
        fields = [field for field in _differences(old, new, tree) if path is None or is_within(field["path"], path)]
        if fields:
            items.append(
                {name: new[name] for name in ("id", "output_id", "key_hash", "source_url")} | {"fields": fields}
            )
    return items


def is_within(path: str, wanted: str) -> bool:
    """Return whether a path is the wanted one or below it; the wanted one may leave out `data`."""
    return any(path == full or path.startswith(f"{full}.") for full in (wanted, f"data.{wanted}"))


def _differences(old: Record, new: Record, tree: Ignored) -> Iterator[Record]:
    """Yield each field that differs, with the value that it had and the one that it has; an absent one is left out."""
    values = [dict(_leaves(state, tree)) for state in (old, new)]
    for path in dict.fromkeys([*values[1], *values[0]]):
        texts = [documents.canonical(value[path]) if path in value else None for value in values]
        if texts[0] != texts[1]:
            names = ("before", "after")
            yield {"path": path} | {
                name: value[path] for name, value in zip(names, values, strict=True) if path in value
            }


def _leaves(state: Record, tree: Ignored) -> Iterator[tuple[str, Any]]:
    yield "source_url", state["source_url"]
    yield from _below("data", without(state["data"], tree))
    yield from _below("tags", {name: value for name, value in state["tags"].items() if name != REJECTED})


def _below(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _below(f"{path}.{name}", member)
    else:
        yield path, value
