"""DELETE /v1/outputs/{group_id} and /v1/outputs/{group_id}/{output_id}."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from schemas.outputs import DeleteQuery, OutputDeleted, OutputsDeleted
from service.http.deletion_cursor import cursor_of, place_of
from service.http.endpoint import endpoint
from service.http.errors import ApiError, invalid, problem, unknown_path
from service.http.input.output_query import select_jobs
from service.http.input.query import QueryLoader, path_group, path_id
from service.http.keys import STORE
from service.http.output.etags import IF_MATCH, PRECONDITION, check_precondition, required_ids
from service.http.reply import Json
from service.store import Deletable, Group, Query

_QUERY = QueryLoader(DeleteQuery(), refuse_empty=True)


@endpoint(
    "Delete outputs of a scraping group",
    OutputsDeleted(),
    query=DeleteQuery,
    not_found=True,
    operation="outputs_delete",
    responses={"409": {"description": "With change=missing: what is missing from the job must not be deleted"}},
)
async def delete(request: web.Request) -> Json:
    """Delete the outputs that match the filters, of which there must be one; `all=true` deletes every output.

    A large deletion ends after some seconds with `more`: send the same request again with the `cursor` of the response.
    What was written or seen after the first call began stays. `dry_run=true` counts what matches, and deletes nothing.
    """
    group, store = path_group(request), request.app[STORE]
    loaded = _QUERY.load(request)
    everything, dry_run = loaded.pop("all"), loaded.pop("dry_run")
    place = place_of(request, loaded.pop("cursor"))
    if not everything and all(value in (None, ()) for value in loaded.values()):
        raise invalid("missing", "Give at least one filter, or all=true", "query")
    if not everything and place is None:
        await _check_paths(request, group, loaded)
    query = Query(**await select_jobs(request, group, loaded))
    report = None
    if query.missing_from is not None:
        deletable = await _deletable(request, group, query.missing_from.job_id)
        query, report = query._replace(missing_from=deletable.missing), store.missing.report(group, deletable)
    place = place or await store.outputs.deletion.begin(group)
    progress = await store.outputs.deletion.run(group, query, place, dry_run=dry_run, report=report)
    count = {"matched" if dry_run else "deleted": progress.items}
    return {**count, "more": progress.place is not None, "cursor": cursor_of(request, progress.place)}


async def _check_paths(request: web.Request, group: Group, filters: dict[str, Any]) -> None:
    """Refuse filters that match every item because they name a path that none has: a typo must not empty a group."""
    paths = request.app[STORE].paths
    missing = [] if filters["missing"] is None else [filters["missing"]]
    other = [condition.path for condition in filters["where"] if condition.operator == "!="]
    unknown = [
        *(("missing", path) for path in (await paths.unknown(group, missing)).items()),
        *(("where", path) for path in (await paths.unknown(group, other, into_arrays=True)).items()),
    ]
    if unknown:
        raise ApiError(422, [unknown_path(*path, "query", parameter) for parameter, path in unknown])


async def _deletable(request: web.Request, group: Group, job_id: str) -> Deletable:
    """Return what is missing from a job; refuse one that does not exist, or that is no basis for a deletion."""
    deletable = await request.app[STORE].missing.deletable(group, job_id)
    if deletable is None:
        raise ApiError(404, [problem("not_found", "No such job", "query", "job_id")])
    if deletable.held_back is not None:
        raise ApiError(409, [problem("held_back", deletable.held_back, "query", "job_id")])
    return deletable


@endpoint(
    "Delete an output",
    OutputDeleted(),
    headers=IF_MATCH,
    not_found=True,
    responses=PRECONDITION,
    operation="output_delete",
)
async def delete_one(request: web.Request) -> Json:
    """Delete one output; a deletion record stays in the change order for readers with deleted=true."""
    group, output_id = path_group(request), path_id(request, "output_id")
    outputs = request.app[STORE].outputs
    check_precondition(await outputs.delete(group, output_id, required_ids(request)))
    return {"deleted": 1}
