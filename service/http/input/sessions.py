"""Reads the bodies that hold the secrets of a session: checked, then kept as JSON texts."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web
from marshmallow import Schema

from service.capacity import cpu
from service.http.errors import invalid
from service.http.input.body import read_body
from service.http.input.json_input import load, parse_tree, unstorable, work_of
from service.http.input.storage_state import count_records
from service.http.keys import SETTINGS
from service.settings import Settings
from service.store import SESSION_SECRETS

_MAX_BYTES = {"storage_state": 4 * 1024 * 1024, "user_data": 64 * 1024}
# White space and escapes may make a body larger than what is kept of it.
_MAX_BODY = 8 * 1024 * 1024


async def read_with_secrets(request: web.Request, schema: Schema) -> dict[str, Any]:
    """Return the object in a request's body, its secrets as JSON texts. Raises with all that is wrong with it."""
    raw = await read_body(request, max_bytes=_MAX_BODY, as_values=True)
    settings, size = request.app[SETTINGS], work_of(raw)
    # In two steps, so that others can have the thread between them.
    value = await cpu.run(size, lambda: _parse(raw, settings))
    return await cpu.run(size, lambda: _load(schema, value, settings))


def _parse(raw: bytes, settings: Settings) -> Any:
    """Return the value of a body."""
    value = parse_tree(raw, settings)
    max_records = 10 * settings.max_records
    if isinstance(value, dict) and count_records(value.get("storage_state")) > max_records:
        raise invalid("too_many", f"Must have at most {max_records} records", "body", "storage_state")
    return value


def _load(schema: Schema, value: Any, settings: Settings) -> dict[str, Any]:
    # Long keys of a browser are allowed.
    problems = unstorable(value, settings.max_depth, levels_above=2, max_key=settings.max_item_bytes)
    loaded: dict[str, Any] = load(schema, value, problems)
    for kind in loaded.keys() & set(SESSION_SECRETS):
        text = orjson.dumps(loaded[kind])
        if len(text) > _MAX_BYTES[kind]:
            raise invalid("too_large", f"Must be at most {_MAX_BYTES[kind]} bytes of JSON", "body", kind)
        loaded[kind] = text.decode()
    return loaded
