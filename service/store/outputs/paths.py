"""The paths that the items of a group have, and the nearest one to a path that none has."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from schemas.paths import below_data
from service.store.connection import MAJORITY, Collection, Database, opened
from service.store.contract import stored
from service.store.group import Group
from service.store.indexes import Indexes
from service.store.outputs.fields import is_unfilled, value_at
from service.store.outputs.query import LIVE, NO_TOMBSTONE

# The newest items that are asked for a path.
ASKED = 1000
# The names at each depth of `data` that may be proposed, how deep, and the occurrences that are counted.
_MAX_PROPOSED, _MAX_DEPTH, _MAX_COUNTED = 200, 4, 200_000
# Paths for which the nearest is looked for, and their length: each costs up to a few milliseconds.
_MAX_NEAREST, _MAX_CHARACTERS = 10, 200


class Paths:
    """The paths below `data` of the newest items of a group."""

    def __init__(self, database: Database, indexes: Indexes) -> None:
        self._outputs: Collection = database.get_collection("outputs", read_concern=MAJORITY)
        self._indexes = indexes

    @stored
    async def unknown(
        self, group: Group, paths: Iterable[str], *, into_arrays: bool = False
    ) -> Mapping[str, str | None]:
        """Return the paths that none of the newest 1000 items has, each with the nearest that exists.

        Empty for a group without items. With `into_arrays` a path also leads through the objects in arrays.
        """
        self._indexes.require("outputs")
        unique = list(dict.fromkeys(paths))
        if not unique:
            return {}
        has = _has_through_arrays if into_arrays else _has
        counted = {str(place): {"$max": has(path)} for place, path in enumerate(unique)}
        rows = await opened(self._outputs.aggregate([*_newest(group), {"$group": {"_id": None, **counted}}], hint="id"))
        unknown = [path for row in await rows.to_list(1) for place, path in enumerate(unique) if not row[str(place)]]
        if not unknown:
            return {}
        return await asyncio.to_thread(_with_nearest, unknown, await self._existing(group))

    async def _existing(self, group: Group) -> list[str]:
        """Return the most frequent paths of the newest items."""
        pipeline: list[dict[str, Any]] = [
            *_newest(group),
            *each_path(_MAX_DEPTH),
            {"$limit": _MAX_COUNTED},
            {"$group": {"_id": "$path", "count": {"$sum": 1}}},
            {"$match": {"_id": {"$regex": rf"\A[^$].{{0,{_MAX_CHARACTERS - 1}}}\z"}}},
            {"$sort": {"count": -1, "_id": 1}},
            {"$limit": _MAX_PROPOSED},
        ]
        rows = await opened(self._outputs.aggregate(pipeline, hint="id"))
        return [row["_id"] for row in await rows.to_list(None)]


def _newest(group: Group) -> list[dict[str, Any]]:
    """Return the stages that select the newest items of a group."""
    return [{"$match": {**group.owner, **LIVE, **NO_TOMBSTONE}}, {"$sort": {"id": -1}}, {"$limit": ASKED}]


def _has(path: str) -> dict[str, Any]:
    return {"$ne": [{"$type": value_at(path)}, "missing"]}


def _has_through_arrays(path: str) -> dict[str, Any]:
    # The values of a path through an array are an array, and empty where no entry has any.
    values = f"$data.{below_data(path)}"
    return {"$or": [_has(path), {"$and": [{"$isArray": values}, {"$ne": [values, []]}]}]}


def each_path(depth: int) -> list[dict[str, Any]]:
    """Return the stages that make a document of each path of an item, `path` and whether it is `filled`.

    One more has the path null. A path goes through objects only; names with a dot are left out.
    """
    filled = {"$ifNull": ["$member.filled", {"$not": [is_unfilled("$member.v")]}]}
    is_object = {"$eq": [{"$type": "$member.v"}, "object"]}
    inner = {"$cond": [is_object, _members("$member.v", {"$concat": ["$member.k", "."]}), []]}
    stages: list[dict[str, Any]] = [
        {"$project": {"member": {"$concatArrays": [[{"k": None, "filled": True}], _members("$data", "")]}}},
        {"$unwind": "$member"},
    ]
    for _ in range(depth - 1):
        stages += [
            {"$project": {"member": {"$concatArrays": [[{"k": "$member.k", "filled": filled}], inner]}}},
            {"$unwind": "$member"},
        ]
    return [*stages, {"$project": {"path": "$member.k", "filled": filled}}]


def _members(value: str, prefix: Any) -> dict[str, Any]:
    """Return the expression for the members of an object, named by their paths."""
    without_dot = {"$eq": [{"$indexOfCP": ["$$this.k", "."]}, -1]}
    plain = {"$filter": {"input": {"$objectToArray": value}, "as": "this", "cond": without_dot}}
    return {"$map": {"input": plain, "in": {"k": {"$concat": [prefix, "$$this.k"]}, "v": "$$this.v"}}}


def _with_nearest(unknown: list[str], existing: list[str]) -> dict[str, str | None]:
    """Return each path with the nearest of those that exist, in the form in which it was written."""
    nearest: dict[str, str | None] = dict.fromkeys(unknown)
    for path in [path for path in unknown if len(path) <= _MAX_CHARACTERS][:_MAX_NEAREST]:
        below = below_data(path)
        for match in difflib.get_close_matches(below, existing, 1):
            nearest[path] = match if path == below else f"data.{match}"
    return nearest
