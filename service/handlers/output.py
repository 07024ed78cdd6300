"""GET, PATCH and DELETE /v1/outputs/{group_id}/{output_id}."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from aiohttp import web

from schemas.outputs import (
    Output,
    OutputDeleted,
    OutputPatch,
    OutputResult,
    OutputsWritten,
    RestoreInput,
    VersionsPage,
    VersionsQuery,
)
from service.handlers.outputs import CACHING, COPIES, PATCH_SIZES
from service.http.endpoint import endpoint
from service.http.errors import ApiError, invalid, not_found, problem
from service.http.input.json_input import read_object
from service.http.input.query import QueryLoader, path_group, path_id
from service.http.keys import SETTINGS, STORE
from service.http.middleware.limits import ADMISSION
from service.http.offload import off_loop
from service.http.output.etags import is_known, required_tags
from service.http.output.paging import url_with_cursor
from service.http.output.responses import bytes_response, json_response
from service.store import ItemExists, Patch

_PATCH = OutputPatch()
_RESTORE = RestoreInput()
_VERSIONS = QueryLoader(VersionsQuery())
_ETAG = re.compile(r'"(\d{1,19})"')

_IF_MATCH = {"If-Match": "The ETag that the output must still have, or several with commas between"}
_PRECONDITION = {"412": {"description": "The output has changed since the ETag in If-Match"}}


def _if_match(request: web.Request) -> frozenset[int] | None:
    """Return the ids of which the output must still have one; None if any id is accepted."""
    tags = required_tags(request)
    return None if tags is None else frozenset(int(match[1]) for tag in tags if (match := _ETAG.fullmatch(tag)))


def _checked(result: dict[str, Any]) -> dict[str, Any]:
    match result["result"]:
        case "not_found":
            raise not_found("output", "output_id")
        case "conflict":
            message = "The output has changed meanwhile: read it again"
            raise ApiError(412, [problem("precondition_failed", message, "header", "If-Match")])
        case "too_large":
            raise invalid("too_large", "The tags would be too large", "body", "tags")
    return result


@endpoint(
    "Get one output",
    Output(),
    headers={"If-None-Match": "The ETag of the output that the client has, or several with commas between"},
    response_headers=["ETag"],
    not_found=True,
    responses={"304": {"description": "The output has not changed since an ETag in If-None-Match"}},
)
async def get(request: web.Request) -> web.StreamResponse:
    """Return one output; its ETag is its id."""
    group, output_id = path_group(request), path_id(request, "output_id")
    admission = request[ADMISSION]
    async with admission.beginning():  # an item of 1 MiB can be 6 MB in the database
        page = await request.app[STORE].outputs.one(group, output_id)
        if page is None:
            raise not_found("output", "output_id", await request.app[STORE].groups.similar(group))
        headers = {"ETag": f'"{page.version}"', **CACHING}
        if is_known(request, headers["ETag"]):
            return web.Response(status=304, headers=headers)
        held = COPIES * page.size
        admission.hold(held)
        body = await off_loop(page.work, page.array)
    del page
    admission.release(held)
    return await bytes_response(request, body, headers)


@endpoint("Get earlier versions of an output", VersionsPage(), query=VersionsQuery)
async def versions(request: web.Request) -> web.StreamResponse:
    """Return the versions that an output had before, newest first, each as it was served, and who replaced it when.

    A group keeps them for `history_days`, a setting of `PUT /v1/groups/{group_id}`; those of a deleted output too. A
    page may be shorter than `limit` and still have a next one.
    """
    group, output_id = path_group(request), path_id(request, "output_id")
    query = _VERSIONS.load(request)
    outputs = request.app[STORE].outputs
    admission, held = request[ADMISSION], COPIES * outputs.expected_bytes(group, query["limit"])
    admission.hold(held)
    async with admission.beginning():
        page = await outputs.versions(group, output_id, query["limit"], query["cursor"])
        more = max(0, COPIES * page.size - held)
        admission.hold(more)  # earlier versions may have been larger
        next_url = None if page.next_cursor is None else url_with_cursor(request, page.next_cursor)
        body = await off_loop(page.work, partial(page.body, next_url))
    del page
    admission.release(held + more)
    return await bytes_response(request, body, CACHING)


@endpoint(
    "Restore a version of an output",
    OutputsWritten(),
    body=RestoreInput(),
    not_found=True,
    responses={"409": {"description": "The output is not deleted and no id was given, or it changes meanwhile"}},
)
async def restore(request: web.Request) -> web.StreamResponse:
    """Write the newest version of a deleted output back, or with `id` that version of any output.

    It is a change like any other: the output gets a new id. Its approval is that of the version.
    """
    group, output_id = path_group(request), path_id(request, "output_id")
    id = (await read_object(request, _RESTORE)).get("id") if request.can_read_body else None
    try:
        result = await request.app[STORE].outputs.restore(group, output_id, id)
    except ItemExists:
        message = "The output is not deleted: give the id of one of its versions"
        raise ApiError(409, [problem("conflict", message, "body", "id")]) from None
    if result is None:
        raise not_found("version", "output_id")
    if result["result"] == "conflict":
        raise ApiError(409, [problem("conflict", "The output has changed meanwhile: try again", "path", "output_id")])
    counts = {kind: int(kind == result["result"]) for kind in ("created", "updated", "unchanged")}
    return await json_response(request, {**counts, "items": [result]})


@endpoint(
    "Change the approval or the tags of an output",
    OutputResult(),
    body=OutputPatch(),
    headers=_IF_MATCH,
    response_headers=["ETag"],
    not_found=True,
    responses=_PRECONDITION,
)
async def patch(request: web.Request) -> web.StreamResponse:
    """Change `is_approved` and `tags` (a JSON merge patch); the output gets a new id.

    Merged tags larger than `MAX_ITEM_BYTES` are refused as `too_large` and change nothing.
    """
    group, output_id = path_group(request), path_id(request, "output_id")
    loaded = await read_object(request, _PATCH, PATCH_SIZES * request.app[SETTINGS].max_item_bytes)
    change = Patch("output_id", output_id, loaded.get("is_approved"), loaded.get("tags"), _if_match(request))
    (result,) = await request.app[STORE].outputs.patch(group, [change])
    result = _checked(result)
    return await json_response(request, result, {"ETag": f'"{result["id"]}"'})


@endpoint("Delete an output", OutputDeleted(), headers=_IF_MATCH, not_found=True, responses=_PRECONDITION)
async def delete(request: web.Request) -> web.StreamResponse:
    """Delete one output; a deletion record stays in the change order for readers with deleted=true."""
    group, output_id = path_group(request), path_id(request, "output_id")
    outputs = request.app[STORE].outputs
    _checked(await outputs.delete(group, output_id, _if_match(request)))
    return await json_response(request, {"deleted": 1})
