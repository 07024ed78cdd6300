"""GET /v1/outputs/{group_id}/{output_id}, its earlier versions, and their restoring."""

from __future__ import annotations

from aiohttp import web

from schemas.outputs import Output, OutputsWritten, RestoreInput, VersionsPage, VersionsQuery
from service.http.endpoint import endpoint
from service.http.errors import ApiError, not_found, problem
from service.http.input.json_input import read_object
from service.http.input.query import QueryLoader, path_group, path_id
from service.http.keys import STORE
from service.http.output import pages
from service.http.output.etags import CACHING
from service.http.reply import Json, Reply
from service.store import ItemExists

_RESTORE = RestoreInput()
_VERSIONS = QueryLoader(VersionsQuery())


@endpoint(
    "Get one output",
    Output(),
    headers={"If-None-Match": "The ETag of the output that the client has, or several with commas between"},
    response_headers=["ETag"],
    not_found=True,
    responses={"304": {"description": "The output has not changed since an ETag in If-None-Match"}},
)
async def get(request: web.Request) -> Reply:
    """Return one output; its ETag is its id."""
    group, output_id = path_group(request), path_id(request, "output_id")
    page = await request.app[STORE].outputs.one(group, output_id)
    if page is None:
        raise not_found("output", "output_id", await request.app[STORE].groups.similar(group))
    return Reply(await pages.array(page), {"ETag": f'"{page.version}"', **CACHING})


@endpoint("Get earlier versions of an output", VersionsPage(), query=VersionsQuery)
async def versions(request: web.Request) -> Reply:
    """Return the versions that an output had before, newest first, each as it was served, and who replaced it when.

    A group keeps them for `history_days`, a setting of `PUT /v1/groups/{group_id}`; those of a deleted output too. A
    page may be shorter than `limit` and still have a next one.
    """
    group, output_id = path_group(request), path_id(request, "output_id")
    query = _VERSIONS.load(request)
    page = await request.app[STORE].outputs.versions(group, output_id, query["limit"], query["cursor"])
    return Reply(await pages.body(request, page), CACHING)


@endpoint(
    "Restore a version of an output",
    OutputsWritten(),
    body=RestoreInput(),
    not_found=True,
    responses={"409": {"description": "The output is not deleted and no id was given, or it changes meanwhile"}},
)
async def restore(request: web.Request) -> Json:
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
    return {**counts, "items": [result]}
