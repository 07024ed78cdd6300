"""Statistics of the fields of many JSON objects: how often they occur, their types and their range."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from service.capacity import cpu
from service.http.output.flattening import Room, is_open, type_of
from service.store import Group, Outputs, Page, Query, is_filled

# Objects may have any number of keys: limits of the paths that are described, in number and characters.
_MAX_PATHS, _MAX_CHARACTERS = 500, 128 * 1024
_MAX_EXAMPLES = 3
_MAX_TEXT = 200


@dataclass
class _Field:
    count: int = 0
    _last: int = 0  # the last item that was counted
    types: Counter[str] = field(default_factory=Counter)
    min: Any = None
    max: Any = None
    examples: list[Any] = field(default_factory=list)

    def add(self, value: Any, item: int) -> None:
        """Add a value of an item; a key with a dot may give it another one of the same path."""
        kind = type_of(value)
        self.types[kind] += 1
        if not is_filled(value):
            return
        self.count += self._last != item
        self._last = item
        shown = value[:_MAX_TEXT] if isinstance(value, str) else value
        if kind in ("integer", "number", "string"):
            self._bound(shown)
        if kind in ("array", "object") or len(self.examples) == _MAX_EXAMPLES:
            return
        if not any(type(known) is type(shown) and known == shown for known in self.examples):
            self.examples.append(shown)

    def _bound(self, value: Any) -> None:
        """Keep the smallest and the largest number; of texts only if there are no numbers."""
        is_text = isinstance(value, str)
        if self.min is None or (isinstance(self.min, str) and not is_text):
            self.min = self.max = value
        elif isinstance(self.min, str) == is_text:
            self.min, self.max = min(self.min, value), max(self.max, value)


class FieldStatistics:
    """Collects values path by path; a path goes through objects, not into arrays."""

    def __init__(self) -> None:
        self._items = 0
        self._fields: dict[str, _Field] = {}
        self._room = Room(_MAX_PATHS, _MAX_CHARACTERS)

    def add(self, items: list[dict[str, Any]]) -> None:
        """Add the data of some items."""
        for item in items:
            self._items += 1
            data = item.get("data") or {}
            if is_open(data, ""):
                self._add(data, "")

    def _add(self, data: dict[str, Any], prefix: str) -> None:
        for name, value in data.items():
            path = f"{prefix}{name}"
            statistics = self._fields.get(path)
            if statistics is None:
                if not self._room.take(path):
                    continue
                statistics = self._fields[path] = _Field()
            statistics.add(value, self._items)
            if is_open(value, path):
                self._add(value, f"{path}.")

    def result(self) -> dict[str, Any]:
        """Return the statistics, the fullest fields first."""
        order = sorted(self._fields, key=lambda path: (-self._fields[path].count, path))
        return {
            "items": self._items,
            "fields": [
                {
                    "path": path,
                    "count": statistics.count,
                    "fill_rate": round(statistics.count / self._items, 4) if self._items else 0.0,
                    "types": dict(statistics.types),
                    "min": statistics.min,
                    "max": statistics.max,
                    "examples": statistics.examples,
                }
                for path in order
                for statistics in [self._fields[path]]
            ],
        }


async def describe_fields(
    outputs: Outputs, group: Group, job_id: str | None, limit: int, seconds: float
) -> dict[str, Any]:
    """Return the statistics of the fields of a group or of one job, over its newest `limit` items.

    After some seconds the items read so far are enough.
    """
    query = Query(job_id=job_id, newest_first=True, fields=("data",))
    statistics, end = FieldStatistics(), time.monotonic() + seconds

    def add(page: Page) -> None:
        statistics.add(page.items())

    async with aclosing(outputs.pages(group, query, limit)) as pages:
        async for page in pages:
            await cpu.run(page.size, partial(add, page))
            if time.monotonic() > end:
                break
    return statistics.result()
