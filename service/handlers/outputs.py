"""GET, POST, PATCH and DELETE /v1/outputs/{group_id}."""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

from aiohttp import web

from schemas.outputs import (
    DeleteQuery,
    OutputInput,
    OutputPatchOf,
    OutputsDeleted,
    OutputsPage,
    OutputsPatched,
    OutputsQuery,
    OutputsWritten,
)
from service.http.deletion_cursor import cursor_of, place_of
from service.http.endpoint import endpoint
from service.http.errors import MAX_PROBLEMS, ApiError, invalid, problem, unknown_path
from service.http.input.body import JSON, NDJSON
from service.http.input.query import QueryLoader, path_group
from service.http.input.records import Records
from service.http.keys import ORGANIZATION, SETTINGS, STORE
from service.http.metrics import METRICS
from service.http.middleware.auth import while_valid
from service.http.middleware.limits import ADMISSION, LIMITS, TailGate, end_with_client
from service.http.offload import off_loop
from service.http.output.etags import is_known
from service.http.output.paging import url_with_cursor
from service.http.output.responses import WHOLE, bytes_response, json_response, stream_response
from service.store import (
    Behind,
    Form,
    Group,
    Missing,
    Page,
    PageText,
    Part,
    Patch,
    Query,
    Searching,
    is_search,
    render_page,
)

INPUT = Records(OutputInput)
# The most bytes of one patch, as a multiple of MAX_ITEM_BYTES: tags that are removed, and as many that are added.
PATCH_SIZES = 2
PATCHES = Records(OutputPatchOf, PATCH_SIZES)
_QUERY = QueryLoader(OutputsQuery())
_DELETE = QueryLoader(DeleteQuery(), refuse_empty=True)
# A client may cache a page, but must revalidate it each time.
CACHING = {"Cache-Control": "private, no-cache"}
# Copies of a page in memory while it is read: the reply, its documents, the rendered text.
COPIES = 3
# Bytes held for a page; larger ones are read a few at a time.
_LARGE = 1024 * 1024
_KINDS = ("created", "updated", "unchanged")
_PATCH_KINDS = ("updated", "unchanged", "not_found", "conflict", "too_large")


async def query_of(request: web.Request, group: Group, loaded: dict[str, Any]) -> Query:
    """Return the store's query for loaded parameters."""
    newest_first, kept = loaded.pop("order") == "desc", loaded.pop("kept")
    return Query(fields=kept, newest_first=newest_first, **await select_jobs(request, group, loaded))


async def select_jobs(request: web.Request, group: Group, loaded: dict[str, Any]) -> dict[str, Any]:
    """Return loaded filters with `change=missing` as what is missing from the job: nothing, for an unknown one."""
    if loaded["change"] is None:
        return loaded
    if loaded["job_id"] is None:
        raise invalid("missing", "change needs job_id", "query", "job_id")
    if loaded["change"] != "missing":
        return loaded
    missing = await request.app[STORE].crawls.missing(group, loaded["job_id"])
    return {**loaded, "job_id": None, "change": None, "missing_from": missing or Missing(loaded["job_id"], None, 0, ())}


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
async def get(request: web.Request) -> web.StreamResponse:
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
    outputs = request.app[STORE].outputs
    if "If-None-Match" in request.headers and has_version and not wait:
        current = _etag(request, (await outputs.watermark(group)).version)
        if is_known(request, current):
            return web.Response(status=304, headers={"ETag": current, **CACHING})
    if wait and query.newest_first:
        raise invalid("value_error", "wait needs order=asc: what is new comes last", "query", "wait")
    admission = request[ADMISSION]
    part = query._replace(limit=min(query.limit, outputs.fitting(group, query.fields)))
    held = COPIES * outputs.expected_bytes(group, part.limit, query.fields)
    admission.hold(held)
    in_turn = admission.beginning if held > _LARGE else _searching(request, group, query)
    async with in_turn():
        page = await outputs.page(group, part)
    found: Page | Part = page
    if wait and not page.documents and page.next_cursor is None:
        async with while_valid(request):
            found = await _wait(request, group, query, page, held, wait)
    if isinstance(found, Part):
        admission.pause()  # what is shared is counted already
        return await _shared(request, found, has_version)
    page = found
    del found  # a slow reader holds only the rendered text
    more = max(0, COPIES * page.size - held)
    admission.hold(more)
    headers = _caching(request, page.version, has_version)
    if not query.newest_first:
        headers["X-Cursor"] = str(page.checkpoint)
    if page.next_cursor is not None and (page.cut or len(page.documents) == part.limit < query.limit):
        admission.release(held)
        parts = _parts(request, group, query, page, headers)
        del page  # a slow reader holds only the rendered text
        return await stream_response(request, parts, headers=headers)
    request.app[METRICS].count_read(len(page.documents))
    next_url = None if page.next_cursor is None else url_with_cursor(request, page.next_cursor, page.walk)
    body = await off_loop(page.work, partial(page.body, next_url))
    del page
    admission.release(held + more)
    return await bytes_response(request, body, headers)


async def _parts(
    request: web.Request, group: Group, query: Query, page: Page, headers: dict[str, str]
) -> AsyncGenerator[bytes, None]:
    """Yield a page of many bytes about a megabyte at a time, beginning with its first part.

    `X-Cursor` is the checkpoint of the last part if the response is complete before it is sent, else of an earlier one.
    """
    outputs = request.app[STORE].outputs
    rendered, left, size = PageText(), query.limit, 0
    while True:
        left, size, next_cursor, walk = left - len(page.documents), size + page.size, page.next_cursor, page.walk
        request.app[METRICS].count_read(len(page.documents))
        text = rendered.part(await off_loop(page.size, page.array)) if page.documents else b""
        del page
        if text:
            yield text
        del text
        if next_cursor is None or not left or size > request.app[SETTINGS].max_page_bytes:
            break
        limit = min(left, outputs.fitting(group, query.fields))
        part = query._replace(cursor=next_cursor, limit=limit, walk=walk)
        page = await outputs.page(group, part)
        if "X-Cursor" in headers:
            headers["X-Cursor"] = str(page.checkpoint)
        if len(page.documents) < part.limit and not page.cut:
            left = len(page.documents)  # a search that ended early ends the whole page
    next_url = None if next_cursor is None else url_with_cursor(request, next_cursor, walk)
    yield rendered.end(next_url, next_cursor)


async def _array(page: Page) -> bytes:
    return await off_loop(page.work, page.array)


_ITEMS = Form(_array)


async def _wait(request: web.Request, group: Group, query: Query, page: Page, held: int, seconds: float) -> Page | Part:
    """Return the page that the query's tail rendered for all its readers, or an empty one after some seconds."""
    outputs, admission = request.app[STORE].outputs, request[ADMISSION]
    gate, deadline = TailGate(request.app[LIMITS], group.organization_id), time.monotonic() + seconds
    unknown = page if page.checkpoint < query.cursor else None  # the group never had an id as high as this cursor
    query = query._replace(cursor=max(query.cursor, page.checkpoint))
    admission.stay(request)
    end_with_client(request)
    with outputs.tail(group, query, _ITEMS, gate) as reader:
        while True:
            admission.pause()  # waiting readers hold no memory
            with suppress(Behind):
                part = await reader.next(deadline - time.monotonic())
                if part is None or len(part.text) > WHOLE:
                    await admission.resume(held)
                return part or unknown or page._replace(version=reader.position, checkpoint=reader.position)
            await admission.resume(held)
            limit = min(query.limit, outputs.fitting(group, query.fields))
            page = await outputs.page(group, query._replace(cursor=reader.position, limit=limit))
            if page.documents or page.next_cursor is not None:
                return page
            reader.position = page.checkpoint


async def _shared(request: web.Request, part: Part, has_version: bool) -> web.StreamResponse:
    """Respond with a page that was rendered for several requests."""
    request.app[METRICS].count_read(part.items)
    next_url = None if part.next_cursor is None else url_with_cursor(request, part.next_cursor)
    body = render_page(part.text, next_url, part.next_cursor)
    headers = {**_caching(request, part.version, has_version), "X-Cursor": str(part.next_cursor or part.version)}
    return await bytes_response(request, body, headers)


@endpoint("Write outputs to a scraping group", OutputsWritten(), body=OutputInput(many=True), takes=[NDJSON])
async def post(request: web.Request) -> web.StreamResponse:
    """Create, update or leave unchanged each output by its key_hash; responds when all of it is durable.

    Also takes `application/x-ndjson`, one output per line.
    """
    group = path_group(request)
    outputs = request.app[STORE].outputs
    encode = await outputs.door(group)
    items = await INPUT.read(request, (JSON, NDJSON), encode)
    results = await outputs.write(group, items)
    # Several items with one key count once: by what they changed in the group.
    done = list({r["key_hash"]: r["result"] for r in results}.values())
    counts = {kind: done.count(kind) for kind in _KINDS}
    request.app[METRICS].count_written(counts)
    return await json_response(request, {**counts, "items": results})


@endpoint("Change approvals and tags of outputs", OutputsPatched(), body=OutputPatchOf(many=True))
async def patch(request: web.Request) -> web.StreamResponse:
    """Change `is_approved` and `tags` of outputs, each named by its output_id or its key_hash.

    `tags` is a JSON merge patch. With `if_id`, an output that has changed since is not changed. Of
    several patches of one output the last wins. A patch that fails does not stop the others: its result is `conflict`,
    `not_found`, or `too_large` if the merged tags would be larger than `MAX_ITEM_BYTES`.
    """
    group = path_group(request)
    loaded = await PATCHES.read(request)
    patches = _patches(loaded)
    results = await request.app[STORE].outputs.patch(group, patches)
    items = [
        {"id": None, "output_id": entry.get("output_id"), "key_hash": entry.get("key_hash"), **result}
        for entry, result in zip(loaded, results, strict=True)
    ]
    counts = Counter({(p.by, p.value): item["result"] for p, item in zip(patches, items, strict=True)}.values())
    return await json_response(request, {**{k: counts[k] for k in _PATCH_KINDS}, "items": items})


def _patches(entries: list[dict[str, Any]]) -> list[Patch]:
    """Return the patches in a body. Raises with every entry that does not name one output."""
    patches, problems = [], []
    for index, entry in enumerate(entries):
        names = [name for name in ("output_id", "key_hash") if name in entry]
        if len(names) == 1:
            by = names[0]
            if_ids = frozenset([entry["if_id"]]) if "if_id" in entry else None
            patches.append(Patch(by, entry[by], entry.get("is_approved"), entry.get("tags"), if_ids))
        else:
            kind = "value_error" if names else "missing"
            problems.append(problem(kind, "Give either output_id or key_hash", "body", str(index)))
    if problems:
        raise ApiError(422, problems[:MAX_PROBLEMS])
    return patches


@endpoint(
    "Delete outputs of a scraping group",
    OutputsDeleted(),
    query=DeleteQuery,
    not_found=True,
    responses={"409": {"description": "With change=missing: what is missing from the job must not be deleted"}},
)
async def delete(request: web.Request) -> web.StreamResponse:
    """Delete the outputs that match the filters, of which there must be one; `all=true` deletes every output.

    A large deletion ends after some seconds with `more`: send the same request again with the `cursor` of the response.
    What was written or seen after the first call began stays. `dry_run=true` counts what matches, and deletes nothing.
    """
    group, store = path_group(request), request.app[STORE]
    loaded = _DELETE.load(request)
    everything, dry_run = loaded.pop("all"), loaded.pop("dry_run")
    place = place_of(request, loaded.pop("cursor"))
    if not everything and all(value in (None, ()) for value in loaded.values()):
        raise invalid("missing", "Give at least one filter, or all=true", "query")
    if loaded["missing"] is not None and not everything and place is None:
        for path, nearest in (await store.paths.unknown(group, [loaded["missing"]])).items():
            raise ApiError(422, [unknown_path(path, nearest, "query", "missing")])
    query = Query(**await select_jobs(request, group, loaded))
    if query.missing_from is not None:
        await _check_missing(request, group, query.missing_from.job_id)
    place = place or await store.outputs.deletion.begin(group)
    searching = _searching(request, group, query)
    done = await store.outputs.deletion.run(group, query, place, dry_run=dry_run, searching=searching)
    count = {"matched" if dry_run else "deleted": done.items}
    return await json_response(
        request, {**count, "more": done.place is not None, "cursor": cursor_of(request, done.place)}
    )


async def _check_missing(request: web.Request, group: Group, job_id: str) -> None:
    """Refuse to delete what is missing from a job that does not exist, or that is no basis for a deletion."""
    missing, held_back = await request.app[STORE].crawls.to_delete(group, job_id)
    if missing is None:
        raise ApiError(404, [problem("not_found", "No such job", "query", "job_id")])
    if held_back is not None:
        raise ApiError(409, [problem("held_back", held_back, "query", "job_id")])


def _searching(request: web.Request, group: Group, query: Query) -> Searching:
    """Return what holds a place among the searches, if a query is one."""
    return request[ADMISSION].searching if is_search(group, query) else nullcontext


def _caching(request: web.Request, version: int, has_version: bool) -> dict[str, str]:
    return {"ETag": _etag(request, version), **CACHING} if has_version else dict(CACHING)


def _etag(request: web.Request, version: int) -> str:
    # Weak: last_scraped_date may differ, which is not a change. With the organization: a browser's
    # cache does not know tokens, and must not show one organization's page for another's. With the query: the ETag of
    # one page must not make the next one 304.
    query = zlib.crc32(request.rel_url.raw_query_string.encode())
    return f'W/"{request[ORGANIZATION]}-{version}-{query:x}"'
