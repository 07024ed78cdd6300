"""GET and POST /v1/outputs/{group_id}."""

from collections import Counter
from collections.abc import AsyncIterator
from urllib.parse import unquote

from aiohttp import web

from schemas.outputs import OutputInput, OutputsPage, OutputsPart, OutputsQuery, OutputsWritten
from service.http import exports
from service.http.body import JSON, NDJSON
from service.http.endpoint import endpoint
from service.http.keys import ORGANIZATION, SETTINGS, STORE
from service.http.metrics import METRICS
from service.http.offload import off_loop
from service.http.query import QueryLoader, path_id
from service.http.records import Records
from service.http.responses import bytes_response, json_response, stream_response
from service.store import Page, Query, documents, prepare

INPUT = Records(OutputInput)
_QUERY = QueryLoader(OutputsQuery())
# A page may be kept by the client, but is asked for again each time.
_CACHING = {"Cache-Control": "private, no-cache"}


@endpoint(
    "Get outputs for a scraping group",
    OutputsPage(),
    query=OutputsQuery,
    partial=OutputsPart(),
    gives=[exports.NDJSON, exports.CSV],
    responses={"304": {"description": "Nothing has changed since the ETag in If-None-Match"}},
)
async def get(request: web.Request) -> web.StreamResponse:
    """Return one page of the group's outputs, in the order in which they were last changed.

    Pass `next_cursor` as `cursor` for the next page, or follow `next_url`; both are null when there
    is no further page. Keep the last `id` seen as `cursor` for later: it returns exactly what is new
    or changed since. `Accept: application/x-ndjson` or `text/csv` streams everything from the cursor on.
    """
    group_id = path_id(request, "group_id")
    loaded = _QUERY.load(request)
    query = Query(fields=loaded.pop("kept"), **loaded)
    accept = request.headers.get("Accept", "")
    if exports.NDJSON in accept or exports.CSV in accept:
        return await _export(request, group_id, query)
    outputs = request.app[STORE].outputs
    seen = request.headers.get("If-None-Match")
    if seen:
        current = _etag(request, await outputs.version(request[ORGANIZATION], group_id))
        if current in map(str.strip, seen.split(",")):
            return web.Response(status=304, headers={"ETag": current, **_CACHING})
    page = await outputs.page(request[ORGANIZATION], group_id, query)
    request.app[METRICS].items_out.inc(len(page.documents))
    next_url = None if page.next_cursor is None else _next_url(request, page.next_cursor)
    # A quarter of what reading in would take: 256 KB are about 3 ms.
    body = await off_loop(documents.size(page.documents) // 4, lambda: _body(page, next_url))
    return await bytes_response(request, body, {"ETag": _etag(request, page.version), **_CACHING})


@endpoint(
    "Write outputs to a scraping group",
    OutputsWritten(),
    body=OutputInput(many=True),
    takes=[NDJSON],
)
async def post(request: web.Request) -> web.StreamResponse:
    """Create, update or leave each output by its key_hash; answered when all of it is durable.

    Also takes `application/x-ndjson`, one output a line.
    """
    group_id = path_id(request, "group_id")
    limit = request.app[SETTINGS].max_item_bytes
    items = await INPUT.read(request, (JSON, NDJSON), lambda items: prepare(items, limit))
    results = await request.app[STORE].outputs.write(request[ORGANIZATION], group_id, items)
    # One of several items with one key counts once: what became of the group.
    counts = Counter({r["key_hash"]: r["result"] for r in results}.values())
    kinds = ("created", "updated", "unchanged")
    for kind in kinds:
        request.app[METRICS].items_in.labels(kind).inc(counts[kind])
    return await json_response(request, {**{k: counts[k] for k in kinds}, "items": results})


async def _export(request: web.Request, group_id: str, query: Query) -> web.StreamResponse:
    """Stream the items as lines; `limit`, when given, is the most of them."""
    most = query.limit if "limit" in request.query else None
    pages = _counted(request, request.app[STORE].outputs.pages(request[ORGANIZATION], group_id, query, most))
    if exports.NDJSON in request.headers["Accept"]:
        return await stream_response(request, exports.ndjson(pages), exports.NDJSON)
    return await stream_response(request, exports.table(pages, query.fields), exports.CSV)


async def _counted(request: web.Request, pages: AsyncIterator[Page]) -> AsyncIterator[Page]:
    async for page in pages:
        request.app[METRICS].items_out.inc(len(page.documents))
        yield page


def _etag(request: web.Request, version: int) -> str:
    # Weak: last_scraped_date may have moved, which is not a change. With the organization: a browser's
    # cache does not know tokens, and must not show one organization's page for another's.
    return f'W/"{request[ORGANIZATION]}-{version}"'


def _body(page: Page, next_url: str | None) -> bytes:
    metadata = documents.dump({"next_url": next_url, "next_cursor": page.next_cursor})
    items = b",".join(documents.dump_documents(page.documents))
    return b'{"metadata":%b,"items":[%b]}' % (metadata, items)


def _next_url(request: web.Request, cursor: int) -> str:
    """Return the absolute URL that repeats the request with another cursor."""
    base = request.app[SETTINGS].base_url.rstrip("/")
    if not base:
        # The header, if there is one: aiohttp takes the host of an absolute target, without its port.
        base = f"{request.scheme}://{request.headers.get('Host', request.host)}"
    query = request.rel_url.raw_query_string.split("&")
    kept = [part for part in query if part and unquote(part.partition("=")[0]) != "cursor"]
    return f"{base}{request.rel_url.raw_path}?{'&'.join([*kept, f'cursor={cursor}'])}"
