"""The filters that cookies and local storage share."""

from typing import Any

from aiohttp import web

from schemas.cookies import StateQuery
from service.query import load_query
from service.store.browser_state import now

_QUERY = StateQuery()


def filters(request: web.Request) -> dict[str, Any]:
    """Return the store's filters for a request's query."""
    query = load_query(request, _QUERY)
    return {
        "domain": query["domain"],
        "active_at": now() if query["active"] else None,
    }
