"""GET /v1/outputs/{group_id}/export."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress

from aiohttp import web

from schemas.outputs import ExportQuery, Output
from service.http.endpoint import endpoint
from service.http.errors import invalid
from service.http.input.output_query import query_of
from service.http.input.query import QueryLoader, path_group
from service.http.keys import STOPPING, STORE
from service.http.metrics import ITEMS_OUT, METRICS
from service.http.output import exports, parquet
from service.http.reply import Reply, Texts
from service.store import Behind, Group, Page, Query

_QUERY = QueryLoader(ExportQuery())
_HEARTBEAT_SECONDS = 15.0


@endpoint(
    "Export outputs of a scraping group",
    Output(many=True),
    query=ExportQuery,
    headers={"Last-Event-ID": "format=sse: the id of the last event received, instead of cursor"},
    response_headers=["X-Cursor"],
    gives=[exports.NDJSON, exports.CSV, exports.EVENTS, parquet.PARQUET],
    responses={"410": {"description": "Deletion records after this cursor were removed: start again from cursor 0"}},
)
async def get(request: web.Request) -> Reply:
    """Stream the outputs from the cursor on, as NDJSON, CSV, Parquet, one JSON array or server-sent events.

    `follow=true` keeps an NDJSON export open and sends what comes, with an empty line every 15 seconds.
    `format=sse` always does; a client that comes back sends `Last-Event-ID`.
    """
    group = path_group(request)
    loaded = _QUERY.load(request)
    format, follow = loaded.pop("format"), loaded.pop("follow")
    limit, safe = loaded.pop("limit"), loaded.pop("safe")
    query = await query_of(request, group, loaded)
    if format == "sse":
        follow, query = True, query._replace(cursor=_last_event(request) or query.cursor)
    if follow and (format in ("csv", "json", "parquet") or query.newest_first):
        raise invalid("value_error", "follow=true needs format=ndjson or sse, and order=asc", "query", "follow")
    if follow:
        live = exports.LIVE[format]
        return Reply(_follow(request, group, query, limit, live), content_type=live.content_type, follows=True)
    outputs, headers = request.app[STORE].outputs, {}
    if limit is None and not query.newest_first:  # the export contains all up to this id
        headers["X-Cursor"] = str(max(query.cursor, (await outputs.watermark(group)).position))
    pages = _counted(request, outputs.pages(group, query, limit))
    match format:
        case "ndjson":
            pieces, content_type = exports.ndjson(pages), exports.NDJSON
        case "csv":
            pieces, content_type = exports.table(pages, query.fields, safe), exports.CSV
        case "parquet":
            if not parquet.is_available():
                raise invalid("value_error", "This service has no pyarrow: ask for ndjson or csv", "query", "format")
            pieces, content_type = parquet.rows(pages, query.fields, bool(query.deleted)), parquet.PARQUET
        case _:
            pieces, content_type = exports.array(pages), exports.JSON
    return Reply(pieces, headers=headers, content_type=content_type)


def _last_event(request: web.Request) -> int:
    text = request.headers.get("Last-Event-ID", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


async def _follow(
    request: web.Request, group: Group, query: Query, left: int | None, live: exports.Live
) -> AsyncGenerator[bytes | Texts, None]:
    """Yield the present items, like an export, and then the texts of the query's live page.

    The first piece is yielded at once, even if empty, so that an expired cursor is an error, not a broken stream.
    """
    outputs, metrics, stopping = request.app[STORE].outputs, request.app[METRICS], request.app[STOPPING]
    begun, sent, is_over = False, time.monotonic(), False

    async def shared() -> Texts:
        nonlocal left, is_over
        with suppress(Behind):
            while not stopping.is_set():
                part = await reader.next(_HEARTBEAT_SECONDS, left)
                if part is None:
                    if not stopping.is_set():
                        yield live.beat(reader.position)
                    continue
                yield part.text
                metrics.count_own(ITEMS_OUT, amount=part.items)
                left = None if left is None else left - part.items
                if left == 0:
                    break
            is_over = True

    with outputs.live_page(group, query._replace(limit=0), live.form) as reader:
        while not is_over:
            query = query._replace(cursor=reader.position)
            async for page in outputs.pages(group, query, left):
                position, count = page.position, len(page.documents)
                text = await live.form.render(page)
                if begun and not text and time.monotonic() >= sent + _HEARTBEAT_SECONDS:
                    text = live.beat(position)
                if text or not begun:
                    yield text
                    begun, sent = True, time.monotonic()
                metrics.count_own(ITEMS_OUT, amount=count)
                reader.position = max(reader.position, position)
                left = None if left is None else left - count
                if left == 0 or stopping.is_set():
                    return
            yield shared()


async def _counted(request: web.Request, pages: AsyncIterator[Page]) -> AsyncIterator[Page]:
    async for page in pages:
        request.app[METRICS].count_own(ITEMS_OUT, amount=len(page.documents))
        yield page
