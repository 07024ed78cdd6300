"""GET and PUT /v1/groups/{group_id}/jobs/{job_id}."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from schemas.groups import Job, JobChanges, JobChangesQuery, JobInput, JobPut
from service.http.endpoint import endpoint
from service.http.errors import Problem, invalid, not_found, problem
from service.http.input.json_input import read_object
from service.http.input.query import QueryLoader, path_group, path_id
from service.http.keys import STORE
from service.http.middleware.auth import require_scope
from service.http.output.paging import url_with_cursor
from service.http.reply import Json
from service.store import Crawls, Group

_INPUT = JobInput()
_CHANGES = QueryLoader(JobChangesQuery())


@endpoint("Get a job", Job(), not_found=True)
async def get(request: web.Request) -> Json:
    """Return one job, as in the list of jobs."""
    return await _job(request, path_group(request), path_id(request, "job_id"))


@endpoint("Get what a job changed", JobChanges(), query=JobChangesQuery, not_found=True)
async def changes(request: web.Request) -> Json:
    """Return the items that a job changed, each field with its value before and after, from the versions kept.

    The list stays complete when later jobs have seen or changed the items. With `summary=true`, return how many items
    changed and in which fields; `more` says that the time was not enough for all of them.
    """
    group, job_id = path_group(request), path_id(request, "job_id")
    query, store = _CHANGES.load(request), request.app[STORE]
    span = await store.crawls.span(group, job_id)
    if span is None:
        raise not_found("job", "job_id", await store.groups.similar(group))
    if query["summary"]:
        return await store.outputs.job_changes.summary(group, span, query["path"])
    span = span._replace(low=max(span.low, query["cursor"]))
    page = await store.outputs.job_changes.page(group, span, query["limit"], query["path"])
    next_url = None if page.next_cursor is None else url_with_cursor(request, page.next_cursor)
    metadata = {"next_url": next_url, "next_cursor": page.next_cursor}
    return {"metadata": metadata, "items": page.items}


@endpoint("Begin or finish a job", JobPut(), body=JobInput(), not_found=True)
async def put(request: web.Request) -> Json:
    """Set the state of a job to running, finished or failed; repeating a request changes nothing.

    When a job is finished, `missing` counts the items of its series that it did not see, `fields` has the fill rates
    of up to 1000 of its items, and the rules of the group, compared with up to 100,000 of them, give the `verdict`.
    `"missing": "delete"` deletes the missing items unless the verdict is `failed`, or for another reason that
    `held_back` gives. If that takes long, `more` is true: repeat the request; otherwise the service continues it. Only
    `running` creates a job.
    """
    group, job_id = path_group(request), path_id(request, "job_id")
    body = await read_object(request, _INPUT)
    if body["missing"] == "delete":
        if body["state"] != "finished":
            raise invalid("value_error", "Only a finished job can delete what is missing", "body", "missing")
        require_scope(request, "delete")
    store, held_back, more = request.app[STORE], None, False
    warnings = await _warnings(store.crawls, group, job_id, body.get("series"))
    job = await store.crawls.declare(group, job_id, body)
    if not job:
        raise not_found("job", "job_id")
    if body["state"] == "finished" and job.get("state") != "finished":
        job = await store.crawls.finish(group, job_id)
    await store.crawls.notify(group, job)
    if body["state"] == "finished" and body["missing"] == "delete":
        held_back, more = await store.missing.delete(group, job_id)
    added = {"more": more, "held_back": held_back, "warnings": warnings}
    return {**await _job(request, group, job_id), **added}


async def _warnings(crawls: Crawls, group: Group, job_id: str, series: str | None) -> list[Problem]:
    """Return a warning if no job of the group has had a series."""
    if series is None or (nearest := await crawls.unknown_series(group, job_id, series)) is None:
        return []
    hint = f": did you mean {nearest[0]}?" if nearest else ""
    return [problem("unknown_series", f"No job of the group has had the series {series}{hint}", "body", "series")]


async def _job(request: web.Request, group: Group, job_id: str) -> dict[str, Any]:
    store = request.app[STORE]
    job = await store.crawls.one(group, job_id)
    if job is None:  # or no longer: its group was deleted meanwhile
        raise not_found("job", "job_id", await store.groups.similar(group))
    reviews = await store.reviews.latest_of(group, [job_id])
    return {**job, "review": reviews.get(job_id)}
