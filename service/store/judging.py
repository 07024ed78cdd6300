"""What the database computes about the items by which a job is judged: fill rates, types and bounds.

All of them are measured up to a number, a size and a time. Of more, as many are, spread evenly over their ids: short
ranges of ids that begin at places chosen by a hash of the id. Every k-th id would not do: where each batch changes its
first item only, the ids have the rhythm of the batches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import pymongo
from pymongo.errors import PyMongoError

from schemas.paths import below_data
from service.store.connection import MAJORITY, Collection, Database, opened
from service.store.errors import StoreUnavailable
from service.store.listing import Record
from service.store.outputs.fields import is_unfilled, value_at
from service.store.outputs.paths import each_path
from service.store.rules import Field, Rule

MAX_JUDGED, _MAX_BYTES = 100_000, 256 * 1024 * 1024
# The first look, which says how large the items are, and what is measured without a turn.
_FIRST = 20
_QUICK, _QUICK_BYTES = 1000, 16 * 1024 * 1024
# The shares of the time of a request for all of it and for the places; of what then remains, those for which the large
# sample is planned and tried.
_SHARE, _PLACES_SHARE, _PLANNED, _TRIED = 0.6, 0.3, 0.6, 0.8
# Fewer items than this say little about the time that one takes.
_TIMED = 100
# A large sample that took too long is made this many times smaller.
_SMALLER = 8
# Places at which ranges of ids begin: fewer of few items, since the database plans each range, and of many jobs, since
# it looks each range up for each job.
_PLACES, _FEWEST, _IN_RANGE, _LOOK_UPS = 1000, 20, 10, 10_000
# The hash of an id: its square, modulo a prime. Multiples would keep the rhythm of ids that lie equally far apart.
_FACTOR, _PRIME = 618_034, 1_000_003
_MAX_TEXT = 200
# Fill rates are kept of this many fields, of this many names.
_MAX_RATES, _DEPTH = 1000, 8
# The types of BSON that a field may have where a rule names a type.
_ABSENT = ["missing", "null"]
_ALLOWED = {
    "string": [*_ABSENT, "string"],
    "number": [*_ABSENT, "int", "long", "double"],
    "integer": [*_ABSENT, "int", "long"],
    "boolean": [*_ABSENT, "bool"],
    "array": [*_ABSENT, "array"],
    "object": [*_ABSENT, "object"],
}


class Measured(NamedTuple):
    """What rules compare: the number of items measured, the fields that rules name, the fill rates of all fields."""

    judged: int
    fields: Mapping[str, Field]
    rates: Mapping[str, float]


class Judged(NamedTuple):
    """The items by which a job is judged: a filter that begins with the group, an index that ends with the id."""

    match: Record
    hint: str  # "job", for items of some jobs, or "id"
    number: int  # about

    @property
    def keys(self) -> Record:
        """The part of the filter that the index serves."""
        names = ("organization_id", "group_id", *(["root_job_id"] if self.hint == "job" else []))
        return {name: self.match[name] for name in names}

    def part(self, places: Sequence[int], wanted: int) -> Record:
        """Return the filter for about so many of the items: ranges of ids, each at the beginning of an interval."""
        if wanted >= self.number:
            return self.match
        job = self.keys.get("root_job_id")
        jobs = len(job["$in"]) if isinstance(job, dict) else 1
        last = len(places) - 1
        count = min(last, wanted, _FEWEST + wanted // _IN_RANGE, _PLACES, max(_FEWEST, _LOOK_UPS // jobs))
        ends = pairwise(places[last * place // count] for place in range(count + 1))
        share = wanted / self.number
        return {**self.match, "$or": [{"id": {"$gte": a, "$lt": a + max(1, round(share * (b - a)))}} for a, b in ends]}


class _Sample(NamedTuple):
    items: int
    bytes: int
    seconds: float
    fields: Mapping[str, Field]

    def fitting(self, size: int) -> int:
        """Return how many such items have this size, at least one."""
        return max(1, size * self.items // self.bytes) if self.bytes else size


class Judging:
    """Measures the items of crawls: one large sample at a time per process, of each organization in turn."""

    def __init__(self, database: Database, request_seconds: float) -> None:
        self._outputs: Collection = database.get_collection("outputs", read_concern=MAJORITY)
        self._seconds = request_seconds * _SHARE
        self._large = asyncio.Lock()
        self._organizations: dict[int, asyncio.Lock] = {}

    async def measure(self, judged: Judged, rules: Iterable[Rule]) -> Measured:
        """Measure the items by which a job is judged, for a limited time. Raises StoreUnavailable after it."""
        checks = _checks(rules)
        end = time.monotonic() + self._seconds
        places = await self._places(judged, time.monotonic() + self._seconds * _PLACES_SHARE)
        first = await self._sample(judged, places, _FIRST, checks, end)
        if first is None:
            raise StoreUnavailable("the items of a job could not be judged in time")
        wanted = min(_QUICK, first.fitting(_QUICK_BYTES))
        sample = await self._sample(judged, places, wanted, checks, end)
        if sample is None:
            raise StoreUnavailable("the items of a job could not be judged in time")
        rates = await self._rates(judged, places, wanted, end)
        if wanted < judged.number and checks:
            async with self._turn(judged.match["organization_id"], end) as has_turn:
                if has_turn:
                    sample = await self._large_sample(judged, places, checks, first, sample, end)
        if judged.number and not sample.items:
            raise StoreUnavailable("none of the items of a job was found")
        return Measured(sample.items, sample.fields, rates)

    async def _large_sample(
        self,
        judged: Judged,
        places: Sequence[int],
        checks: Mapping[str, set[str]],
        first: _Sample,
        quick: _Sample,
        end: float,
    ) -> _Sample:
        """Return the largest sample that fits the limits and the time; the quick one if none does."""
        per_item = max(1e-6, (quick.seconds - first.seconds) / max(_TIMED, quick.items - first.items))
        fitting = min(quick.fitting(_MAX_BYTES), int(_PLANNED * (end - time.monotonic()) / per_item))
        size = min(judged.number, MAX_JUDGED, fitting)
        while size > quick.items:
            now = time.monotonic()
            sample = await self._sample(judged, places, size, checks, now + _TRIED * (end - now))
            if sample is not None:
                return sample if sample.items > quick.items else quick
            size //= _SMALLER
        return quick

    @asynccontextmanager
    async def _turn(self, organization_id: int, end: float) -> AsyncIterator[bool]:
        """Wait for the turn of an organization; yield whether it came in time."""
        own = self._organizations.setdefault(organization_id, asyncio.Lock())
        locks: list[asyncio.Lock] = []
        try:
            async with asyncio.timeout(max(0.0, end - time.monotonic())):
                for lock in (own, self._large):
                    await lock.acquire()
                    locks.append(lock)
        except TimeoutError:
            pass
        try:
            yield len(locks) == 2
        finally:
            for lock in locks:
                lock.release()
            if not own.locked() and self._organizations.get(organization_id) is own:
                del self._organizations[organization_id]

    async def _places(self, judged: Judged, end: float) -> Sequence[int]:
        """Return ids that are spread evenly over the judged items: the lowest, some places, and the end of the last.

        Reads keys of the index only. If even that takes too long, the places lie equally far apart.
        """
        rest = {"$mod": ["$id", _PRIME]}
        hashed = {"$mod": [{"$multiply": [rest, rest, _FACTOR]}, _PRIME]}
        is_place = {"$lt": ["$hash", _PRIME * _PLACES // max(1, judged.number)]}
        places = {"$push": {"$cond": [is_place, "$id", "$$REMOVE"]}}
        pipeline: list[Record] = [
            {"$match": judged.keys},
            {"$project": {"_id": 0, "id": 1, "hash": hashed}},
            {"$group": {"_id": None, "lowest": {"$min": "$id"}, "highest": {"$max": "$id"}, "places": places}},
        ]
        rows = await self._rows(judged, pipeline, end)
        if rows is None:
            lowest, highest = await self._ends(judged)
            return [lowest + (highest + 1 - lowest) * place // _PLACES for place in range(_PLACES + 1)]
        if not rows:
            return [0, 1]
        (row,) = rows
        return sorted({row["lowest"], *row["places"], row["highest"] + 1})

    async def _ends(self, judged: Judged) -> tuple[int, int]:
        """Return the lowest and the highest id of the judged items, of several jobs those of the group."""
        hint, keys = judged.hint, judged.keys
        if isinstance(keys.get("root_job_id"), dict):
            hint = "id"
            del keys["root_job_id"]
        ends = [self._outputs.find_one(keys, ["id"], sort=[("id", order)], hint=hint) for order in (1, -1)]
        lowest, highest = await asyncio.gather(*ends)
        return (lowest or highest or {"id": 0})["id"], (highest or {"id": 0})["id"]

    async def _sample(
        self, judged: Judged, places: Sequence[int], wanted: int, checks: Mapping[str, set[str]], end: float
    ) -> _Sample | None:
        """Measure about so many items; return None if it takes too long."""
        accumulators: Record = {"items": {"$sum": 1}}
        if wanted <= _QUICK:
            accumulators["bytes"] = {"$sum": {"$bsonSize": "$$ROOT"}}
        for place, (path, names) in enumerate(checks.items()):
            accumulators |= _accumulators(place, value_at(path), names)
        started = time.monotonic()
        pipeline = [{"$match": judged.part(places, wanted)}, {"$group": {"_id": None, **accumulators}}]
        rows = await self._rows(judged, pipeline, end)
        if rows is None:
            return None
        row = rows[0] if rows else {"items": 0}
        fields = {path: _field(place, row) for place, path in enumerate(checks)} if rows else {}
        return _Sample(row["items"], row.get("bytes", 0), time.monotonic() - started, fields)

    async def _rates(self, judged: Judged, places: Sequence[int], wanted: int, end: float) -> Mapping[str, float]:
        """Return the fill rates of all fields over about so many items, fullest first; none if it takes too long."""
        counted = {"_id": "$path", "filled": {"$sum": {"$cond": ["$filled", 1, 0]}}}
        stages: list[Record] = [{"$group": counted}, {"$sort": {"filled": -1, "_id": 1}}, {"$limit": _MAX_RATES}]
        rows = await self._rows(judged, [{"$match": judged.part(places, wanted)}, *each_path(_DEPTH), *stages], end)
        items = next((row["filled"] for row in rows or () if row["_id"] is None), 0)
        return {row["_id"]: round(row["filled"] / items, 4) for row in rows or () if items and row["_id"] is not None}

    async def _rows(self, judged: Judged, pipeline: list[Record], end: float) -> list[Record] | None:
        seconds = end - time.monotonic()
        if seconds <= 0:
            return None
        try:
            with pymongo.timeout(seconds):
                cursor = await opened(self._outputs.aggregate(pipeline, hint=judged.hint))
                rows: list[Record] = await cursor.to_list(None)
                return rows
        except PyMongoError as error:
            if error.timeout:
                return None
            raise


def _checks(rules: Iterable[Rule]) -> dict[str, set[str]]:
    """Return what must be measured of each field that rules name; of a type, which type."""
    checks: dict[str, set[str]] = {}
    for rule in rules:
        if "path" in rule:
            (name,) = rule.keys() - {"path"}
            checks.setdefault(below_data(rule["path"]), set()).add(f"type {rule[name]}" if name == "type" else name)
    return checks


_NUMBER = {"$cond": [{"$isNumber": "$$value"}, "$$value", None]}
_IS_TEXT = {"$and": [{"$eq": [{"$type": "$$value"}, "string"]}, {"$ne": ["$$value", ""]}]}
# Numbers come before texts, so that the lowest is a text only where there is no number.
_NUMBER_OR_TEXT = {
    "$cond": [
        {"$isNumber": "$$value"},
        "$$value",
        {"$cond": [_IS_TEXT, {"$substrCP": ["$$value", 0, _MAX_TEXT]}, None]},
    ]
}


def _accumulators(place: int, value: Any, checks: set[str]) -> Record:
    """Return what is computed of one field, under names that end with its place."""
    computed: Record = {}
    for check in checks:
        match check.split():
            case ["min_fill" | "max_drop"]:
                computed["filled"] = "$sum", {"$cond": [is_unfilled("$$value"), 0, 1]}
            case ["min"]:
                computed["lowest"] = "$min", _NUMBER_OR_TEXT
            case ["max"]:
                computed["lowest"] = "$min", _NUMBER_OR_TEXT
                computed["highest"] = "$max", _NUMBER
            case ["type", wanted]:
                is_wrong = {"$not": [{"$in": [{"$type": "$$value"}, _ALLOWED[wanted]]}]}
                computed[f"wrong_{wanted}"] = "$sum", {"$cond": [is_wrong, 1, 0]}
                computed[f"types_{wanted}"] = "$addToSet", {"$cond": [is_wrong, {"$type": "$$value"}, "$$REMOVE"]}
    return {
        f"{name}_{place}": {operator: {"$let": {"vars": {"value": value}, "in": expression}}}
        for name, (operator, expression) in computed.items()
    }


def _field(place: int, row: Record) -> Field:
    """Return what was computed of one field."""
    end = f"_{place}"
    field = {name.removesuffix(end): value for name, value in row.items() if name.endswith(end)}
    if "filled" in field:
        field["fill_rate"] = round(field["filled"] / row["items"], 6)
    return field


# Limits of the fill rates stored with a job, in number and bytes: a list has up to 1000 jobs.
_MAX_FIELDS, _MAX_FIELD_BYTES = 100, 8 * 1024


def kept_rates(measured: Measured) -> Record:
    """Return what is stored of the fill rates: `fields`, which are served, and `exact` ones of fields with rules."""
    fields: list[Record] = []
    room = _MAX_FIELD_BYTES
    for path, rate in sorted(measured.rates.items(), key=lambda rate: (rate[0] not in measured.fields, -rate[1])):
        room -= len(path.encode()) + 16
        if len(fields) == _MAX_FIELDS or room < 0:
            break
        fields.append({"path": path, "fill_rate": rate})
    exact = {path: field["fill_rate"] for path, field in measured.fields.items() if "fill_rate" in field}
    return {
        "fields": sorted(fields, key=lambda field: (-field["fill_rate"], field["path"])),
        "exact": [{"path": path, "fill_rate": rate} for path, rate in exact.items()],
    }


def rates_of(job: Record) -> dict[str, float]:
    """Return the fill rates stored with a job, the exact ones where there are any."""
    return {field["path"]: field["fill_rate"] for name in ("fields", "exact") for field in job.get(name, ())}
