"""The filters that cookies and local storage share."""

from typing import Any

from aiohttp import web

from schemas.cookies import StateQuery
from service.http.query import QueryLoader
from service.store import now

_QUERY = QueryLoader(StateQuery())


def filters(request: web.Request) -> dict[str, Any]:
    """Return the store's filters for a request's query."""
    query = _QUERY.load(request)
    return {
        "domain": query["domain"],
        "active_at": now() if query["active"] else None,
    }
