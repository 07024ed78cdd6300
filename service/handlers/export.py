"""GET /v1/outputs/{group_id}/export."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiohttp import web

from schemas.outputs import ExportQuery, Output
from service.handlers.outputs import query_of
from service.http import exports, parquet
from service.http.endpoint import endpoint
from service.http.errors import invalid
from service.http.keys import ORGANIZATION, STOPPING, STORE
from service.http.limits import idle
from service.http.metrics import METRICS
from service.http.query import QueryLoader, path_id
from service.http.responses import stream_response
from service.store import Page, Query

_QUERY = QueryLoader(ExportQuery())
_HEARTBEAT_SECONDS = 15.0


@endpoint(
    "Export outputs of a scraping group",
    Output(many=True),
    query=ExportQuery,
    headers={"Last-Event-ID": "format=sse: the id of the last event received, instead of cursor"},
    gives=[exports.NDJSON, exports.CSV, exports.EVENTS, parquet.PARQUET],
    responses={"410": {"description": "Deletion records after this cursor were removed: start again from cursor 0"}},
)
async def get(request: web.Request) -> web.StreamResponse:
    """Stream the outputs from the cursor on, as NDJSON, CSV, Parquet, one JSON array or server-sent events.

    `follow=true` keeps an NDJSON export open and sends what comes, with an empty line every 15 seconds.
    `format=sse` always does; a client that comes back sends `Last-Event-ID`.
    """
    group_id = path_id(request, "group_id")
    loaded = _QUERY.load(request)
    format, follow = loaded.pop("format"), loaded.pop("follow")
    limit, safe = loaded.pop("limit"), loaded.pop("safe")
    query = await query_of(request, group_id, loaded)
    if format == "sse":
        follow, query = True, query._replace(cursor=_last_event(request) or query.cursor)
    if follow and (format in ("csv", "json", "parquet") or query.newest_first):
        raise invalid("value_error", "follow=true needs format=ndjson or sse, and order=asc", "query", "follow")
    found = request.app[STORE].outputs.pages(request[ORGANIZATION], group_id, query, limit)
    pages: AsyncIterator[Page | None] = _follow(request, group_id, query, limit) if follow else found
    pages = _counted(request, pages)
    match format:
        case "ndjson":
            return await stream_response(request, exports.ndjson(pages), exports.NDJSON, at_once=follow)
        case "csv":
            return await stream_response(request, exports.table(pages, query.fields, safe), exports.CSV)
        case "parquet":
            if not parquet.is_available():
                raise invalid("value_error", "This service has no pyarrow: ask for ndjson or csv", "query", "format")
            stream = parquet.rows(pages, query.fields, query.deleted)
            return await stream_response(request, stream, parquet.PARQUET)
        case "json":
            return await stream_response(request, exports.array(pages), exports.JSON)
        case _:
            return await stream_response(request, exports.events(pages), exports.EVENTS, at_once=True)


def _last_event(request: web.Request) -> int:
    text = request.headers.get("Last-Event-ID", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


async def _follow(request: web.Request, group_id: str, query: Query, limit: int | None) -> AsyncIterator[Page | None]:
    """Yield pages as they become readable, and None now and then where there is nothing.

    The first page comes at once, even if it is empty: a cursor that has expired is an error, not a broken stream.
    """
    outputs, organization_id = request.app[STORE].outputs, request[ORGANIZATION]
    stopping, left, begun = request.app[STOPPING], limit, False
    while not stopping.is_set():
        page: Page | None = None
        async for page in outputs.pages(organization_id, group_id, query, left):
            if page.documents or not begun:
                yield page
                begun = True
            if page.documents:
                left = None if left is None else left - len(page.documents)
                query = query._replace(cursor=page.last_id)
            if left == 0 or stopping.is_set():
                return
        version = max(query.cursor, page.version if page else 0)
        async with idle(request):
            nothing = await _idle(request, group_id, version)
        if nothing:
            yield None


async def _idle(request: web.Request, group_id: str, version: int) -> bool:
    """Wait for something new; return whether nothing came for so long that the client should hear of it."""
    outputs, organization_id = request.app[STORE].outputs, request[ORGANIZATION]
    await outputs.wait(organization_id, group_id, version, _HEARTBEAT_SECONDS)
    if request.app[STOPPING].is_set():
        return False
    return await outputs.version(organization_id, group_id) <= version


async def _counted(request: web.Request, pages: AsyncIterator[Page | None]) -> AsyncIterator[Page | None]:
    async for page in pages:
        if page is not None:
            request.app[METRICS].items_out.inc(len(page.documents))
        counted = [page]
        del page
        yield counted.pop()  # a slow reader holds what is rendered only
