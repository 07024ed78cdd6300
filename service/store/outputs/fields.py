"""Fields of `data`: filters by what they hold, and items compared without some of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_INT64 = 2**63
_EMPTY: list[Any] = [None, "", []]


def is_missing(path: str) -> dict[str, Any]:
    """Return the filter for items where a field of `data` is absent, null, "" or [].

    An expression: a plain comparison would also find an array that has an empty text among others.
    """
    return {"$expr": {"$in": [{"$ifNull": [f"$data.{path}", None]}, _EMPTY]}}


def has_value(path: str, text: str) -> dict[str, Any]:
    """Return the filter for items where a field of `data`, or one value of an array in it, equals a text.

    `12` also finds the number, and `true` the boolean.
    """
    wanted: list[Any] = [text]
    if text in ("true", "false"):
        wanted.append(text == "true")
    elif len(text) <= 400 and _NUMBER.fullmatch(text):
        number: int | float = int(text) if text.lstrip("-").isdigit() else float(text)
        if isinstance(number, int) and not -_INT64 <= number < _INT64:
            number = float(text)
        if math.isfinite(number):
            wanted.append(number)
    return {f"data.{path}": {"$in": wanted}}


Ignored = dict[str, "Ignored | None"]


def ignored(paths: Iterable[str]) -> Ignored:
    """Return paths as a tree of their names; None stands where one ends."""
    tree: Ignored = {}
    for path in paths:
        *above, last = path.split(".")
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
