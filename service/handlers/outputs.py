"""GET and POST /v1/outputs/{group_id}."""

from __future__ import annotations

import time

from aiohttp import web

from schemas.outputs import OutputInput, OutputsPage, OutputsQuery, OutputsWritten
from service.http.endpoint import endpoint
from service.http.errors import invalid
from service.http.input.body import JSON, NDJSON
from service.http.input.output_query import query_of
from service.http.input.query import QueryLoader, path_group
from service.http.input.records import Records
from service.http.keys import STORE
from service.http.metrics import METRICS
from service.http.output import pages
from service.http.output.etags import CACHING, is_known
from service.http.reply import Json, Reply, parked
from service.store import Behind, Group, Page, Part, Query

INPUT = Records(OutputInput)
_QUERY = QueryLoader(OutputsQuery())
_KINDS = ("created", "updated", "unchanged")


@endpoint(
    "Get outputs for a scraping group",
    OutputsPage(),
    query=OutputsQuery,
    headers={"If-None-Match": "The ETag of a page that the client has"},
    response_headers=["ETag", "X-Cursor"],
    responses={
        "304": {"description": "Nothing has changed since the ETag in If-None-Match"},
        "410": {"description": "Deletion records after this cursor were removed: start again from cursor 0"},
    },
)
async def get(request: web.Request) -> Reply:
    """Return one page of the group's outputs, in the order in which they were last changed.

    Follow `next_url`, or pass `next_cursor` as `cursor` (not with `deleted=true`); both are null when there
    is no further page. Keep the last `id` seen as `cursor` for later: it returns exactly what is new
    or changed since. With filters, keep the header `X-Cursor` of the last page instead, which also moves where
    nothing matched. A page may be shorter than `limit`, even empty, and still have a next one.
    """
    group, loaded = path_group(request), _QUERY.load(request)
    wait = loaded.pop("wait")
    query = await query_of(request, group, loaded)
    if wait and query.newest_first:
        raise invalid("value_error", "wait needs order=asc: what is new comes last", "query", "wait")
    outputs = request.app[STORE].outputs
    if "If-None-Match" in request.headers and not wait:
        etag = pages.etag(request, query, (await outputs.watermark(group)).position)
        if etag and is_known(request, etag["ETag"]):
            return Reply(b"", CACHING | etag, 304)
    page = await outputs.part(group, query)
    if wait and page.is_end:
        return await _wait(request, group, query, page, time.monotonic() + wait)
    return await pages.reply(request, group, query, page)


async def _wait(request: web.Request, group: Group, query: Query, page: Page, deadline: float) -> Reply:
    """Wait for the page that the query's live page renders for all its readers."""
    outputs = request.app[STORE].outputs

    async def next_part(start: int) -> Part | int:
        """Return the next part; at the deadline, the id up to which there is nothing."""
        with outputs.live_page(group, query._replace(cursor=start), pages.ITEMS) as reader:
            return await reader.next(deadline - time.monotonic()) or reader.position

    while page.is_end:
        try:
            result = await parked(request, next_part(max(query.cursor, page.position)))
        except Behind as behind:
            query = query._replace(cursor=behind.position)
            page = await outputs.part(group, query)
            continue
        if isinstance(result, Part):
            return pages.shared_reply(request, query, result)
        if page.position >= query.cursor:  # else the group never had an id as high as this cursor
            page = page._replace(version=result, position=result)
        break
    return await pages.reply(request, group, query, page)


@endpoint("Write outputs to a scraping group", OutputsWritten(), body=OutputInput(many=True), takes=[NDJSON])
async def post(request: web.Request) -> Json:
    """Create, update or leave unchanged each output by its key_hash; responds when all of it is durable.

    Also takes `application/x-ndjson`, one output per line.
    """
    group = path_group(request)
    outputs = request.app[STORE].outputs
    items = await INPUT.read(request, (JSON, NDJSON), await outputs.encoder(group))
    results = await outputs.write(group, items)
    # Several items with one key count once: by what they changed in the group.
    results_by_key = list({r["key_hash"]: r["result"] for r in results}.values())
    counts = {kind: results_by_key.count(kind) for kind in _KINDS}
    for kind, count in counts.items():
        if count:
            request.app[METRICS].count_own("sds_items_in_total", kind, amount=count)
    return {**counts, "items": results}
