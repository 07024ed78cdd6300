"""The filters that cookies and local storage share."""

from typing import Any

from aiohttp import web

from schemas.cookies import StateQuery
from service.http.errors import invalid
from service.http.input.query import QueryLoader
from service.http.keys import ORGANIZATION
from service.http.output.paging import decode_cursor
from service.store import BrowserState, Listing, Selection, now

_QUERY = QueryLoader(StateQuery())
# The further responses of the two lists: a long key is not in its cursor, which names the record instead.
LISTED = {"410": {"description": "The record that this cursor names was deleted: start again without a cursor"}}


async def listing(request: web.Request, records: BrowserState) -> Listing:
    """Return the records that a request asks for: all of them, or the page that `limit` and `cursor` name."""
    query = _QUERY.load(request)
    selection = Selection(domain=query["domain"], active_at=now() if query["active"] else None)
    return await records.page(request[ORGANIZATION], selection, query["limit"], decode_cursor(query["cursor"]))


async def delete(request: web.Request, records: BrowserState, query: dict[str, Any]) -> dict[str, int]:
    """Delete the records that match a request's filters, at least one of which is required; return their number."""
    selection = Selection(
        domain=query["domain"],
        path=query["path"],
        name=query[records.name_field],
        expired_at=now() if query["expired"] else None,
    )
    if not query["every"] and selection == Selection():
        message = f"Give at least one of domain, path, {records.name_field}, expired=true, or all=true"
        raise invalid("missing", message, "query")
    return {"deleted": await records.delete(request[ORGANIZATION], selection)}
