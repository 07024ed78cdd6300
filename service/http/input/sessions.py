"""Reads the bodies that hold the secrets of a session: checked, then kept as JSON texts."""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson
from aiohttp import web
from marshmallow import Schema

from service.http.errors import invalid
from service.http.input.json_input import load, read_value, unstorable
from service.http.input.storage_state import parse_state
from service.settings import Settings
from service.store import SESSION_SECRETS

_MAX_BYTES = {"storage_state": 4 * 1024 * 1024, "user_data": 64 * 1024}
# White space and escapes may make a body larger than what is kept of it.
_MAX_BODY = 8 * 1024 * 1024


async def read_with_secrets(request: web.Request, schema: Schema) -> dict[str, Any]:
    """Return the object in a request's body, its secrets as JSON texts. Raises with all that is wrong with it."""
    parse = partial(parse_state, name="storage_state")
    return await read_value(request, parse, partial(_load, schema), _MAX_BODY)


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
