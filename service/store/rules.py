"""Judges a finished job by the rules of its group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from schemas.paths import below_data

Rule = Mapping[str, Any]
# A row of the statistics of `data`: see `field_statistics.py`.
Field = Mapping[str, Any]


class Facts(NamedTuple):
    """The facts by which a job is judged: its counts, and its fields by path."""

    items: int  # that it holds: other jobs may have taken some, or they were deleted
    seen: int
    changed: int
    missing: int
    fields: Mapping[str, Field]
    # The fill rates of the finished job before; None where there is none.
    fill_before: Mapping[str, float] | None = None


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
        found = _CHECKS[check](rule, facts)
        if found is not None:
            problems.append({"rule": dict(rule), "found": found[0], "msg": found[1]})
    return Verdict("failed" if problems else "passed", problems)


# A field has dropped if it is filled less than before by more than this share; some are named with the group.
_DROP = 0.1
_MAX_DROPPED = 5


def dropped(facts: Facts) -> list[str]:
    """Return fields filled clearly less than in the job before, largest drop first; of an object, those inside it."""
    before = facts.fill_before or {}
    drops = {
        path: drop for path, fill in before.items() if (drop := round(fill - _fill(f"data.{path}", facts), 4)) > _DROP
    }
    inner = [path for path in drops if not any(other.startswith(f"{path}.") for other in drops)]
    return sorted(inner, key=lambda path: -drops[path])[:_MAX_DROPPED]


# The value that a rule found and its message; None if the rule passes.
Found = tuple[Any, str] | None


def _fill(path: str, facts: Facts) -> float:
    field = facts.fields.get(below_data(path))
    return float(field["fill_rate"]) if field else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def _min_fill(rule: Rule, facts: Facts) -> Found:
    path, wanted, fill = rule["path"], rule["min_fill"], _fill(rule["path"], facts)
    if fill >= round(wanted, 4):  # fill rates have four digits
        return None
    return fill, f"{path} is filled in {_percent(fill)} of the items; at least {_percent(wanted)} is required"


def _max_drop(rule: Rule, facts: Facts) -> Found:
    if facts.fill_before is None:
        return None
    path, allowed, fill = rule["path"], rule["max_drop"], _fill(rule["path"], facts)
    before = facts.fill_before.get(below_data(path), 0.0)
    drop = round(before - fill, 4)
    if drop <= allowed:
        return None
    change = f"from {_percent(before)} to {_percent(fill)}"
    return drop, f"{path} is filled less than in the job before: {change}; a drop of {_percent(allowed)} is allowed"


def _type(rule: Rule, facts: Facts) -> Found:
    path, wanted = rule["path"], rule["type"]
    allowed = {"null", wanted, "integer"} if wanted == "number" else {"null", wanted}
    types = {
        kind: count
        for kind, count in facts.fields.get(below_data(path), _NO_FIELD)["types"].items()
        if kind not in allowed
    }
    if not types:
        return None
    others = ", ".join(f"{count} {kind}" for kind, count in sorted(types.items()))
    return types, f"{path} must be of type {wanted}, but has values of other types: {others}"


def _bound(rule: Rule, facts: Facts, name: str) -> Found:
    path, bound = rule["path"], rule[name]
    value = facts.fields.get(below_data(path), _NO_FIELD)[name]
    if value is None:
        return None
    if isinstance(value, str):
        return value, f"{path} holds text, where numbers {_BOUNDS[name]} {bound:g} are required"
    if value >= bound if name == "min" else value <= bound:
        return None
    return value, f"{path} is {value:g} in one item; numbers {_BOUNDS[name]} {bound:g} are required"


_BOUNDS = {"min": "from", "max": "up to"}


def _min_items(rule: Rule, facts: Facts) -> Found:
    if facts.items >= rule["min_items"]:
        return None
    return facts.items, f"The job has {facts.items} items; at least {rule['min_items']} are required"


def _max_missing(rule: Rule, facts: Facts) -> Found:
    total, allowed = facts.items + facts.missing, rule["max_missing"]
    share = _share(facts.missing, total)
    if share <= allowed:
        return None
    found = f"{facts.missing} of the series' {total} items were not seen ({_percent(share)})"
    return share, f"{found}; {_percent(allowed)} is allowed"


def _max_changed(rule: Rule, facts: Facts) -> Found:
    share, allowed = _share(facts.changed, facts.seen), rule["max_changed"]
    if share <= allowed:
        return None
    found = f"{facts.changed} of the {facts.seen} items that the job saw have changed ({_percent(share)})"
    return share, f"{found}; {_percent(allowed)} is allowed"


def _share(part: int, whole: int) -> float:
    return part / whole if whole > 0 else 0.0


_NO_FIELD: Field = {"types": {}, "min": None, "max": None}
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
