"""The updates of a session, as pipelines: the database evaluates them atomically, on its own clock.

Stored states are those that are served, and `shared` for a session with shared leases, which is served as `leased`.
`due` is when the earliest lease, the rest or the block ends.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

Expression = Any
Stage = dict[str, Any]
Settings = dict[str, Any]

NOW = "$$NOW"
# Sorts before every date of a use: a session that was never used is taken first.
NEVER = datetime(1970, 1, 1, tzinfo=UTC)
LEASED = ("leased", "shared")
MAX_SHARED = 100

_SECOND = 1000
_DAY = 86_400 * _SECOND
_LEASES = {"$ifNull": ["$leases", []]}
_IS_OVERRIDDEN = {"$eq": ["$overridden", True]}
_HAS_LEASES = {"$gt": [{"$size": "$leases"}, 0]}

# Half an error is what a good use takes off.
_ERRORS = {"good": {"$max": [0.0, {"$subtract": ["$errors", 0.5]}]}, "bad": {"$add": ["$errors", 1]}}
SAVING = ("good", "bad")
DUE = {"due": {"$gt": NEVER}, "$expr": {"$lte": ["$due", NOW]}}


def literal(value: Any) -> Expression:
    """Return a client's value as an expression: a text may begin with a dollar sign."""
    return {"$literal": value}


def after(moment: Expression, seconds: float) -> Expression:
    """Return the moment some seconds later."""
    return {"$add": [moment, int(seconds * _SECOND)]}


def is_live(lease_id: str) -> Expression:
    """Return the condition that a session has a lease that has not ended."""
    is_it = {"$and": [{"$eq": ["$$this.id", literal(lease_id)]}, {"$gt": ["$$this.until", NOW]}]}
    return {"$gt": [{"$size": {"$filter": {"input": _LEASES, "cond": is_it}}}, 0]}


def take(settings: Settings, lease: dict[str, Any], seconds: int | None, *, shared: bool) -> list[Stage]:
    """Return the update that adds a lease; `lease` has its id, its owner and the request that asks for it."""
    seconds = min(seconds or settings["lease_seconds"], settings["max_lease_seconds"])
    until = after(NOW, seconds)
    new = {**{name: literal(value) for name, value in lease.items()}, "since": NOW, "at": NOW, "until": until}
    return [
        {
            "$set": {
                "state": "shared" if shared else "leased",
                "leases": {"$concatArrays": [_LEASES, [new]]},
                "due": {"$min": [{"$cond": [{"$eq": ["$state", "shared"]}, "$due", until]}, until]},
            }
        }
    ]


def claim(lease_id: str) -> list[Stage]:
    """Return the update after which no copy of its request undoes a lease: one of them may have delivered it."""
    return [{"$set": {"leases": _changed(lease_id, {"request": None, "at": NOW})}}]


def renew(settings: Settings, lease_id: str, seconds: int | None) -> list[Stage]:
    """Return the update that renews a lease; it never ends earlier than before."""
    limit = after("$$this.since", settings["max_lease_seconds"])
    wanted = {"$min": [after(NOW, seconds or settings["lease_seconds"]), limit]}
    leases = _changed(lease_id, {"at": NOW, "until": {"$max": ["$$this.until", wanted]}})
    return [{"$set": {"leases": leases}}, {"$set": {"due": {"$min": "$leases.until"}}}]


def saved(sizes: dict[str, int]) -> Stage:
    """Return the stage that counts a new version, with the bytes of the secrets that come with it."""
    version = {"$add": ["$version", 1]}
    return {"$set": {"version": version, "update_date": NOW, **{f"bytes.{kind}": n for kind, n in sizes.items()}}}


def _changed(lease_id: str, fields: dict[str, Expression]) -> Expression:
    changed = {"$mergeObjects": ["$$this", fields]}
    return {"$map": {"input": "$leases", "in": {"$cond": [_is(lease_id), changed, "$$this"]}}}


def _is(lease_id: str) -> Expression:
    return {"$eq": ["$$this.id", literal(lease_id)]}


def undo(settings: Settings, lease_id: str, *, last: bool) -> list[Stage]:
    """Return the update that removes a lease as if it had never been given; with `last`, all others come first then."""
    leases = {"$filter": {"input": _LEASES, "cond": {"$not": [_is(lease_id)]}}}
    ready = {"$cond": [_HAS_LEASES, "$state", {"$ifNull": ["$mark", "ready"]}]}
    return [
        {"$set": {"leases": leases, **({"turn": NOW} if last else {})}},
        {"$set": {"state": ready}},
        _due(NOW, 0, settings["blocked_rest_seconds"]),
        _TIDY,
    ]


def settle(settings: Settings) -> list[Stage]:
    """Return the update of a session whose earliest lease, rest or block has ended."""
    is_over = {"$lte": ["$$this.until", NOW]}
    over = {"$filter": {"input": _LEASES, "cond": is_over}}
    leases = {"$filter": {"input": _LEASES, "cond": {"$not": [is_over]}}}
    # Of shared leases the last one counts, which may have been released.
    ends = {"$concatArrays": [["$due", "$last_used"], {"$map": {"input": over, "in": "$$this.until"}}]}
    date = {"$cond": [{"$gt": ["$ended", 0]}, NOW, "$update_date"]}
    return [
        {"$set": {"ended": {"$size": over}, "at": {"$max": ends}, "leases": leases}},
        {"$set": {"update_date": date}},
        *_end(
            settings,
            "$at",
            "$ended",
            {"$add": ["$errors", "$ended"]},
            rest_seconds=settings["rest_seconds"],
            state=None,
        ),
    ]


def release(
    settings: Settings, lease_id: str, outcome: str, *, shared: bool, rest_seconds: int | None, note: str | None
) -> list[Stage]:
    """Return the update that ends a lease with an outcome."""
    leases = {"$filter": {"input": _LEASES, "cond": {"$not": [_is(lease_id)]}}}
    uses, rest = int(outcome != "unused"), settings["rest_seconds"] if rest_seconds is None else rest_seconds
    fields: dict[str, Expression] = {"leases": leases, "ended": 1, "update_date": NOW}
    if note is not None and not shared:
        fields["note"] = {"$cond": [_IS_OVERRIDDEN, "$note", literal(note)]}
    state = None if shared else {"blocked": _blocked(settings), "logged_out": "needs_login"}.get(outcome)
    errors = "$errors" if shared else _ERRORS.get(outcome, "$errors")
    block = rest_seconds if outcome == "blocked" else None
    return [
        {"$set": fields},
        *_end(settings, NOW, uses, errors, rest_seconds=rest if uses else 0, state=state, block_seconds=block),
    ]


def put(settings: Settings, name: str, given: dict[str, Any]) -> list[Stage]:
    """Return the update that creates a session or changes it; a leased one keeps its lease."""
    is_new_state = "storage_state" in given
    state = given.get("state", "ready" if is_new_state else None)
    state = _blocked(settings) if state == "blocked" else state
    restart = is_new_state or state == "ready"
    is_leased = {"$in": [{"$ifNull": ["$state", ""]}, list(LEASED)]}
    fields: dict[str, Expression] = {
        "name": literal(name),
        "create_date": {"$ifNull": ["$create_date", NOW]},
        "update_date": NOW,
        "version": {"$add": [{"$ifNull": ["$version", 0]}, 1]},
        "note": literal(given["note"]) if "note" in given else {"$ifNull": ["$note", ""]},
        "uses": 0 if is_new_state else {"$ifNull": ["$uses", 0]},
        "errors": 0.0 if restart else {"$ifNull": ["$errors", 0.0]},
        "begun": NOW if is_new_state else {"$ifNull": ["$begun", NOW]},
        "last_used": {"$ifNull": ["$last_used", None]},
        "turn": {"$ifNull": ["$turn", NEVER]},
        "is_leased": is_leased,
    }
    stages: list[Stage] = [{"$set": fields}]
    if {"storage_state", "user_data", "state"} & given.keys():
        stages.append({"$set": {"overridden": {"$cond": ["$is_leased", True, "$$REMOVE"]}}})
    if state is None:
        stages.append({"$set": {"state": {"$ifNull": ["$state", "ready"]}}})
    else:
        due = after(NOW, settings["blocked_rest_seconds"]) if state == "blocked" else "$$REMOVE"
        marked = {
            "mark": {"$cond": ["$is_leased", state, "$$REMOVE"]},
            "state": {"$cond": ["$is_leased", "$state", state]},
            "due": {"$cond": ["$is_leased", "$due", due]},
        }
        stages.append({"$set": marked})
    return [*stages, {"$unset": "is_leased"}]


def _blocked(settings: Settings) -> str:
    return "retired" if settings["blocked_rest_seconds"] is None else "blocked"


def _end(
    settings: Settings,
    at: Expression,
    uses: Expression,
    errors: Expression,
    *,
    rest_seconds: int,
    state: str | None,
    block_seconds: int | None = None,
) -> list[Stage]:
    """Return the stages after some leases, `ended` of them, are gone: counts, then the state that follows from them.

    `state` is what the outcome asks for, `block_seconds` for how long, instead of the pool's time. With no lease that
    ended, a rest or a block is over.
    """
    has_ended = {"$gt": ["$ended", 0]}
    counts = {
        "uses": {"$cond": [_IS_OVERRIDDEN, "$uses", {"$add": ["$uses", uses]}]},
        "errors": {"$cond": [_IS_OVERRIDDEN, "$errors", errors]},
        "last_used": {"$cond": [{"$gt": [uses, 0]}, at, "$last_used"]},
        "turn": {"$cond": [has_ended, NOW, "$turn"]},
    }
    is_worn = []
    if settings["max_uses"] is not None:
        is_worn.append({"$gte": ["$uses", settings["max_uses"]]})
    if settings["max_age_days"] is not None:
        is_worn.append({"$gte": [{"$subtract": [NOW, "$begun"]}, settings["max_age_days"] * _DAY]})
    marked: list[tuple[Expression, Expression]] = []
    if state is not None:
        marked.append(({"$not": [_IS_OVERRIDDEN]}, state))
    worn: list[tuple[Expression, Expression]] = [({"$or": is_worn}, "retired")] if is_worn else []
    next_state = _switch(
        "resting" if rest_seconds else "ready",
        (_HAS_LEASES, "$state"),
        ({"$not": [has_ended]}, "ready"),
        ({"$gt": ["$mark", None]}, "$mark"),
        # A new login revives a session that is worn out too: to say that it is needed says more.
        *(marked + worn if state == "needs_login" else worn + marked),
        ({"$gte": ["$errors", settings["max_errors"]]}, _blocked(settings)),
    )
    is_unblocked = {"$and": [{"$eq": ["$state", "blocked"]}, {"$not": [has_ended]}]}
    return [
        {"$set": counts},
        {"$set": {"state": next_state, "errors": {"$cond": [is_unblocked, 0.0, "$errors"]}}},
        _due(at, rest_seconds, settings["blocked_rest_seconds"] if block_seconds is None else block_seconds),
        _TIDY,
    ]


def _due(at: Expression, rest_seconds: int, blocked_rest_seconds: int | None) -> Stage:
    due = _switch(
        "$$REMOVE",
        (_HAS_LEASES, {"$min": "$leases.until"}),
        ({"$eq": ["$state", "resting"]}, after(at, rest_seconds)),
        ({"$eq": ["$state", "blocked"]}, after(at, blocked_rest_seconds or 0)),
    )
    return {"$set": {"due": due}}


_TIDY: Stage = {
    "$set": {
        "ended": "$$REMOVE",
        "at": "$$REMOVE",
        **{name: {"$cond": [_HAS_LEASES, f"${name}", "$$REMOVE"]} for name in ("leases", "mark", "overridden")},
    }
}


def _switch(default: Expression, *branches: tuple[Expression, Expression]) -> Expression:
    return {"$switch": {"branches": [{"case": case, "then": then} for case, then in branches], "default": default}}
