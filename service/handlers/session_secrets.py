"""What the routes of sessions and leases share: the pool in the path, and a session with its secrets."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from schemas.sessions import NAME_LENGTH
from service.http.errors import not_found
from service.http.input.query import path_id
from service.http.keys import ORGANIZATION, STORE
from service.store import SESSION_SECRETS, SessionPool, served_session


async def find_pool(request: web.Request) -> SessionPool:
    """Return the pool in the path. Raises 404."""
    pool = await request.app[STORE].sessions.pools.find(request[ORGANIZATION], path_id(request, "pool", NAME_LENGTH))
    if pool is None:
        raise not_found("pool", "pool")
    return pool


async def with_secrets(request: web.Request, pool: SessionPool, session: dict[str, Any]) -> dict[str, Any]:
    """Return a session as it is served, with its secrets as fragments of JSON."""
    texts = await request.app[STORE].sessions.secrets.read(pool.organization_id, session)
    secrets = {kind: orjson.Fragment(texts[kind]) if kind in texts else None for kind in SESSION_SECRETS}
    return {**served_session(pool, session), **secrets}
