"""Fields of `data`: filters by what they hold, and items compared without some of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from schemas.paths import Condition, below_data

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_INT64 = 2**63
# What counts as unfilled, beside an absent value.
UNFILLED: list[Any] = [None, "", [], {}]


def value_at(path: str) -> Any:
    """Return the expression for the value of a field of `data`; it goes through objects only, never into arrays."""
    value: Any = "$data"
    for name in below_data(path).split("."):
        value = {"$getField": {"field": name, "input": value}}
    return value


def is_unfilled(value: Any) -> dict[str, Any]:
    """Return the expression for whether a value is absent, null, "", [] or {}."""
    return {"$in": [{"$ifNull": [value, None]}, UNFILLED]}


def is_filled(value: Any) -> bool:
    """Return whether a value that was read counts as filled."""
    return value not in UNFILLED


def is_missing(path: str) -> dict[str, Any]:
    """Return the filter for items where a field of `data` is unfilled."""
    return {"$expr": is_unfilled(value_at(path))}


def holds(condition: Condition) -> dict[str, Any]:
    """Return the filter for items for which a condition holds; of an array, for one of its values.

    A number compares with numbers only, any other value as text by code point. `12` equals the number too, and `true`
    the boolean. `!=` also finds items without the field.
    """
    path, operator, text = condition
    if operator == "~":
        test: dict[str, Any] = {"$regex": re.escape(text), "$options": "i"}
    elif operator in _EQUALITY:
        test = {_EQUALITY[operator]: _equal_to(text)}
    else:
        number = _number(text)
        test = {_ORDER[operator]: text if number is None else number}
    return {f"data.{below_data(path)}": test}


_EQUALITY = {":": "$in", "!=": "$nin"}
_ORDER = {">": "$gt", ">=": "$gte", "<": "$lt", "<=": "$lte"}


def _equal_to(text: str) -> list[Any]:
    """Return the values that a text stands for."""
    if text in ("true", "false"):
        return [text, text == "true"]
    number = _number(text)
    return [text] if number is None else [text, number]


def _number(text: str) -> int | float | None:
    """Return the number that a text stands for, if it is one."""
    if len(text) > 400 or not _NUMBER.fullmatch(text):
        return None
    number: int | float = int(text) if text.lstrip("-").isdigit() else float(text)
    if isinstance(number, int) and not -_INT64 <= number < _INT64:
        number = float(text)
    return number if math.isfinite(number) else None


Ignored = dict[str, "Ignored | None"]


def ignored(paths: Iterable[str]) -> Ignored:
    """Return paths as a tree of their names; None stands where one ends."""
    tree: Ignored = {}
    for path in paths:
        *above, last = below_data(path).split(".")
        node: Ignored | None = tree
        for name in above:
            below = node.setdefault(name, {}) if node is not None else None
            node = below
        if node is not None:
            node[last] = None
    return tree


def without(value: Any, tree: Ignored) -> Any:
    """Return a value without the paths of a tree, also inside arrays: items are compared by the rest.

    The value is not modified; parts without such paths are shared.
    """
    if not tree:
        return value
    if isinstance(value, dict):
        return {name: without(below, node) for name, below in value.items() if (node := tree.get(name, {})) is not None}
    if isinstance(value, list):
        return [without(below, tree) for below in value]
    return value
