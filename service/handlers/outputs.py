"""GET and POST /v1/outputs/{group_id}."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from functools import partial

from aiohttp import web

from schemas.outputs import OutputInput, OutputsPage, OutputsQuery, OutputsWritten
from service.capacity import cpu
from service.http.endpoint import endpoint
from service.http.errors import invalid
from service.http.input.body import JSON, NDJSON
from service.http.input.output_query import query_of
from service.http.input.query import QueryLoader, path_group
from service.http.input.records import Records
from service.http.keys import SETTINGS, STORE
from service.http.metrics import METRICS
from service.http.output.etags import CACHING, is_known, page_etag
from service.http.output.paging import url_with_cursor
from service.http.reply import Json, Reply, parked
from service.store import Behind, Form, Group, Page, PageText, Part, Query, render_page

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
    group = path_group(request)
    loaded = _QUERY.load(request)
    wait = loaded.pop("wait")
    # An unchanged item that a newer job scraped again moves to that job without a new version.
    has_version = loaded["job_id"] is None
    query = await query_of(request, group, loaded)
    if wait and query.newest_first:
        raise invalid("value_error", "wait needs order=asc: what is new comes last", "query", "wait")
    reading = _Reading(request, group, query, has_version)
    if "If-None-Match" in request.headers and has_version and not wait:
        etag = page_etag(request, (await reading.outputs.watermark(group)).version)
        if is_known(request, etag):
            return Reply(b"", {"ETag": etag, **CACHING}, 304)
    page, has_more = await reading.first()
    if wait and page.is_end:
        return await reading.wait(page, time.monotonic() + wait)
    return await reading.reply(page, has_more)


class _Reading:
    """One request for a page."""

    def __init__(self, request: web.Request, group: Group, query: Query, has_version: bool) -> None:
        self._request, self._group, self._query, self._has_version = request, group, query, has_version
        self.outputs = request.app[STORE].outputs

    async def first(self) -> tuple[Page, bool]:
        """Return the first part of the page, about a megabyte, and whether more of it follows."""
        query = self._query
        part = query._replace(limit=min(query.limit, self.outputs.fitting(self._group, query.fields)))
        page = await self.outputs.page(self._group, part)
        return page, page.next_cursor is not None and (page.cut or len(page.documents) == part.limit < query.limit)

    async def reply(self, page: Page, has_more: bool) -> Reply:
        """Return a page, or all parts of the page that begins with this one."""
        headers = self._headers(page.version, None if self._query.newest_first else page.checkpoint)
        if has_more:
            return Reply(self._parts(page, headers), headers)
        self._request.app[METRICS].count_read(len(page.documents))
        return Reply(await cpu.run(page.work, partial(page.body, self._next_url(page))), headers)

    async def _parts(self, page: Page, headers: dict[str, str]) -> AsyncGenerator[bytes, None]:
        """Yield a page of many bytes about a megabyte at a time, beginning with its first part.

        `X-Cursor` is the checkpoint of the last part if the response is complete before it is sent, else of an earlier
        one.
        """
        text, remaining, size = PageText(), self._query.limit, 0
        while True:
            remaining, size = remaining - len(page.documents), size + page.size
            self._request.app[METRICS].count_read(len(page.documents))
            if page.documents:
                yield text.part(await cpu.run(page.size, page.array))
            if page.next_cursor is None or not remaining or size > self._request.app[SETTINGS].max_page_bytes:
                break
            limit = min(remaining, self.outputs.fitting(self._group, self._query.fields))
            part = self._query._replace(cursor=page.next_cursor, limit=limit, walk=page.walk)
            page = await self.outputs.page(self._group, part)
            if "X-Cursor" in headers:
                headers["X-Cursor"] = str(page.checkpoint)
            if len(page.documents) < part.limit and not page.cut:
                remaining = len(page.documents)  # a search that ended early ends the whole page
        yield text.end(self._next_url(page), page.next_cursor)

    async def wait(self, page: Page, deadline: float) -> Reply:
        """Wait for the page that the query's live page renders for all its readers."""
        while True:
            try:
                start = max(self._query.cursor, page.checkpoint)
                result = await parked(self._request, self._next(start, deadline))
            except Behind as behind:
                self._query = self._query._replace(cursor=behind.position)
                page, has_more = await self.first()
                if page.is_end:
                    continue
                return await self.reply(page, has_more)
            if isinstance(result, Part):
                return self._shared(result)
            if page.checkpoint >= self._query.cursor:  # else the group never had an id as high as this cursor
                page = page._replace(version=result, checkpoint=result)
            return await self.reply(page, False)

    async def _next(self, start: int, deadline: float) -> Part | int:
        """Return the next part; at the deadline, the id up to which there is nothing."""
        with self.outputs.live_page(self._group, self._query._replace(cursor=start), _ITEMS) as reader:
            return await reader.next(deadline - time.monotonic()) or reader.position

    def _shared(self, part: Part) -> Reply:
        """Return a page that was rendered for several requests."""
        next_url = None if part.next_cursor is None else url_with_cursor(self._request, part.next_cursor)
        self._request.app[METRICS].count_read(part.items)
        body = render_page(part.text, next_url, part.next_cursor)
        return Reply(body, self._headers(part.version, part.next_cursor or part.version))

    def _headers(self, version: int, checkpoint: int | None) -> dict[str, str]:
        etag = {"ETag": page_etag(self._request, version)} if self._has_version else {}
        return CACHING | etag | ({} if checkpoint is None else {"X-Cursor": str(checkpoint)})

    def _next_url(self, page: Page) -> str | None:
        if page.next_cursor is None:
            return None
        return url_with_cursor(self._request, page.next_cursor, page.walk)


async def _array(page: Page) -> bytes:
    return await cpu.run(page.work, page.array)


_ITEMS = Form(_array)


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
    request.app[METRICS].count_written(counts)
    return {**counts, "items": results}
