"""Keeps the requests of `fuzz.py` from waiting: schemathesis reads every response to its end."""

from __future__ import annotations

from typing import Any

import schemathesis

# What makes a valid request stay open, and what is sent in its place. Waiting and following have tests of their own.
_IN_PLACE = {("follow", "true"): "false", ("format", "sse"): "ndjson"}
_MAX_WAIT_SECONDS = 60


@schemathesis.hook
def map_case(context: Any, case: Any) -> Any:
    """Return a case without following and with a wait of at most one second; everything else stays as generated."""
    if case.method == "GET" and isinstance(case.query, dict):
        case.query = {name: _bounded(name, value) for name, value in case.query.items()}
    return case


def _bounded(name: str, value: Any) -> Any:
    text = str(value).lower() if isinstance(value, bool | int | str) else ""
    if name == "wait" and text.isdecimal() and 1 < int(text) <= _MAX_WAIT_SECONDS:
        return "1"
    return _IN_PLACE.get((name, text), value)
