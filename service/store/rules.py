"""Judges a finished job by the rules of its group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from schemas.paths import below_data

Rule = Mapping[str, Any]
# What was measured of a field, as its rules need it: `fill_rate`, `lowest`, `highest`, and for each type of a rule
# `wrong_TYPE`, the number of values of other types, and `types_TYPE`, which these are.
Field = Mapping[str, Any]


class Facts(NamedTuple):
    """The facts by which a job is judged; fields by their path below `data`."""

    items: int  # of its series, seen since it began, by whoever
    seen: int  # by the job itself
    changed: int
    missing: int
    fields: Mapping[str, Field]  # those that rules name
    rates: Mapping[str, float] = {}  # the fill rates of all fields, over a sample
    # The fill rates of the finished job before; None where there is none.
    rates_before: Mapping[str, float] | None = None


class Verdict(NamedTuple):
    """`passed` or `failed`, None without rules, and each rule that was broken."""

    verdict: str | None
    problems: list[dict[str, Any]]


def judge(rules: Sequence[Rule], facts: Facts) -> Verdict:
    """Return the verdict on a job. A rule that cannot be applied, such as `min` without values, passes."""
    if not rules:
        return Verdict(None, [])
    problems = []
    for rule in rules:
        (check,) = rule.keys() - {"path"}
        value = _CHECKS[check](rule, facts)
        if value is not None:
            problems.append({"rule": dict(rule), "found": value[0], "msg": value[1]})
    return Verdict("failed" if problems else "passed", problems)


# A field has dropped if it is filled less than before by more than this share; some are named with the group.
_DROP = 0.1
_MAX_DROPPED = 5


def dropped(facts: Facts) -> list[str]:
    """Return fields filled clearly less than in the job before, largest drop first; of an object, those inside it."""
    before = facts.rates_before or {}
    drops = {path: drop for path, rate in before.items() if (drop := round(rate - facts.rates.get(path, 0), 4)) > _DROP}
    inner = [path for path in drops if not any(other.startswith(f"{path}.") for other in drops)]
    return sorted(inner, key=lambda path: -drops[path])[:_MAX_DROPPED]


# The value that a rule found and its message; None if the rule passes.
Found = tuple[Any, str] | None


def _measured(path: str, facts: Facts) -> Field:
    return facts.fields.get(below_data(path), {})


def _percent(share: float) -> str:
    return f"{100 * share:.6g} %"


def _min_fill(rule: Rule, facts: Facts) -> Found:
    path, limit = rule["path"], rule["min_fill"]
    fill = _measured(path, facts).get("fill_rate", 0.0)
    if fill >= round(limit, 6):  # fill rates have six digits
        return None
    return fill, f"{path} is filled in {_percent(fill)} of the items; at least {_percent(limit)} is required"


def _max_drop(rule: Rule, facts: Facts) -> Found:
    if facts.rates_before is None:
        return None
    path, allowed = rule["path"], rule["max_drop"]
    fill, before = _measured(path, facts).get("fill_rate", 0.0), facts.rates_before.get(below_data(path), 0.0)
    drop = round(before - fill, 4)
    if drop <= allowed:
        return None
    change = f"from {_percent(before)} to {_percent(fill)}"
    return drop, f"{path} is filled less than in the job before: {change}; a drop of {_percent(allowed)} is allowed"


# The names of the types of BSON.
_TYPES = {"bool": "boolean", "int": "integer", "long": "integer", "double": "number"}


def _type(rule: Rule, facts: Facts) -> Found:
    path, expected = rule["path"], rule["type"]
    field = _measured(path, facts)
    count = field.get(f"wrong_{expected}", 0)
    if not count:
        return None
    types = sorted({_TYPES.get(kind, kind) for kind in field[f"types_{expected}"]})
    found = {"values": count, "types": types}
    return found, f"{path} must be of type {expected}, but {count} items have another type: {', '.join(types)}"


def _bound(rule: Rule, facts: Facts, name: str) -> Found:
    path, bound, field = rule["path"], rule[name], _measured(rule["path"], facts)
    value = field.get("lowest")
    if isinstance(value, str):
        return value, f"{path} holds text, where numbers {_BOUNDS[name]} {bound:g} are required"
    if name == "max":
        value = field.get("highest")
    if value is None or (value >= bound if name == "min" else value <= bound):
        return None
    return value, f"{path} is {value:g} in one item; numbers {_BOUNDS[name]} {bound:g} are required"


_BOUNDS = {"min": "from", "max": "up to"}


def _min_items(rule: Rule, facts: Facts) -> Found:
    # A broken crawl must not pass on what another one has seen.
    items = min(facts.items, facts.seen)
    if items >= rule["min_items"]:
        return None
    return items, f"The job has {items} items; at least {rule['min_items']} are required"


def _max_missing(rule: Rule, facts: Facts) -> Found:
    total, allowed = facts.items + facts.missing, rule["max_missing"]
    share = _share(facts.missing, total)
    if share <= allowed:
        return None
    text = f"{facts.missing} of the series' {total} items were not seen ({_percent(share)})"
    return share, f"{text}; {_percent(allowed)} is allowed"


def _max_changed(rule: Rule, facts: Facts) -> Found:
    share, allowed = _share(facts.changed, facts.seen), rule["max_changed"]
    if share <= allowed:
        return None
    text = f"{facts.changed} of the {facts.seen} items that the job saw have changed ({_percent(share)})"
    return share, f"{text}; {_percent(allowed)} is allowed"


def _share(part: int, whole: int) -> float:
    return part / whole if whole > 0 else 0.0


_CHECKS = {
    "min_fill": _min_fill,
    "max_drop": _max_drop,
    "type": _type,
    "min": lambda rule, facts: _bound(rule, facts, "min"),
    "max": lambda rule, facts: _bound(rule, facts, "max"),
    "min_items": _min_items,
    "max_missing": _max_missing,
    "max_changed": _max_changed,
}
