"""Reads a storage state: Playwright's file, split into the records that are stored."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import urlsplit

import orjson
from aiohttp import web

from schemas.storage_state import StorageStateInput
from service.http.errors import invalid
from service.http.input.json_input import load, parse_tree, read_value, unstorable
from service.settings import Settings

_INPUT = StorageStateInput()
_MAX_EXTRA = 64 * 1024  # as a cookie's value
HTTP_PORT = 80


class State(NamedTuple):
    """The records of a storage state; `origins` are what an origin has besides local storage, each as one JSON text."""

    cookies: list[dict[str, Any]]
    local_storage: list[dict[str, Any]]
    origins: list[dict[str, Any]]


async def read_state(request: web.Request) -> State:
    """Return the storage state in a request's body. Raises with what is wrong with it."""
    return await read_value(request, parse_state, _records)


def domain_of(origin: str) -> str:
    """Return the domain under which an origin's entries are kept: with its port unless it is plain https."""
    parts = urlsplit(origin)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    if parts.scheme == "http":
        return f"{host}:{parts.port or HTTP_PORT}"
    return f"{host}" if parts.port in (None, 443) else f"{host}:{parts.port}"


def _records(value: Any, settings: Settings) -> State:
    state = _load(value, settings)
    entries, local_storage = [], []
    for origin in state["origins"]:
        domain = domain_of(origin["origin"])
        for item in origin.pop("localStorage"):
            entry = {"domain": domain, "path": "/", "key": item["name"], "value": item["value"]}
            entries.append({**entry, "expires": None, "extra": {"origin": origin["origin"]}})
        name = origin.pop("origin")
        if origin:
            local_storage.append({"origin": name, "domain": domain, "value": orjson.dumps(origin).decode()})
    return State(state["cookies"], entries, local_storage)


def parse_state(raw: bytes, settings: Settings, name: str | None = None) -> Any:
    """Return the value of a body that is a storage state, or has one under a name."""
    value = state = parse_tree(raw, settings)
    if name is not None:
        state = value.get(name) if isinstance(value, dict) else None
    # A browser may have some thousand cookies: ten times the records of other bodies.
    max_records = 10 * settings.max_records
    if _count_records(state) > max_records:
        raise invalid("too_many", f"Must have at most {max_records} records", "body", *filter(None, [name]))
    return value


def _load(value: Any, settings: Settings) -> dict[str, Any]:
    # Long keys of a browser are allowed.
    problems = unstorable(value, settings.max_depth, levels_above=1, max_key=settings.max_item_bytes)
    state: dict[str, Any] = load(_INPUT, value, problems)
    for index, cookie in enumerate(state["cookies"]):
        if len(orjson.dumps(cookie["extra"])) > _MAX_EXTRA:
            raise invalid(
                "too_large",
                f"The cookie's unknown members must be at most {_MAX_EXTRA} bytes in all",
                "body",
                "cookies",
                str(index),
            )
    for index, origin in enumerate(state["origins"]):
        if len(orjson.dumps({**origin, "localStorage": None})) > settings.max_item_bytes:
            raise invalid("too_large", "The origin is too large", "body", "origins", str(index))
    return state


def _count_records(state: Any) -> int:
    """Return how many records there are to check, whatever else is wrong with them."""
    if not isinstance(state, dict):
        return 0
    cookies, origins = (part if isinstance(part := state.get(name), list) else [] for name in ("cookies", "origins"))
    entries = [origin.get("localStorage") for origin in origins if isinstance(origin, dict)]
    return len(cookies) + len(origins) + sum(len(part) for part in entries if isinstance(part, list))
