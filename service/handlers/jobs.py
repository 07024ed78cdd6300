"""GET and PUT /v1/groups/{group_id}/jobs/{job_id}."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from schemas.groups import Job, JobInput, JobPut
from service.http.endpoint import endpoint
from service.http.errors import not_found
from service.http.input.json_input import read_object
from service.http.input.query import path_group, path_id
from service.http.keys import STORE
from service.http.middleware.auth import require_scope
from service.http.output.responses import json_response
from service.store import Group

_INPUT = JobInput()


@endpoint("Get a job", Job(), not_found=True)
async def get(request: web.Request) -> web.StreamResponse:
    """Return one job, as in the list of jobs."""
    return await json_response(request, await _job(request, path_group(request), path_id(request, "job_id")))


@endpoint("Begin or finish a job", JobPut(), body=JobInput(), not_found=True)
async def put(request: web.Request) -> web.StreamResponse:
    """Set the state of a job to running, finished or failed; repeating a request changes nothing.

    When a job is finished, `missing` counts the items of its series that it did not see, `fields` has the fill rates
    of up to 1000 of its items, and the rules of the group, compared with up to 100,000 of them, give the `verdict`.
    `"missing": "delete"` deletes the missing items unless the verdict is `failed`; if that takes long, `more` is true:
    repeat the request.
    """
    group, job_id = path_group(request), path_id(request, "job_id")
    said = await read_object(request, _INPUT)
    if said["missing"] == "delete":
        require_scope(request, "delete")
    crawls, more = request.app[STORE].crawls, False
    job = await crawls.declare(group, job_id, said)
    if said["state"] == "finished" and job.get("state") != "finished":
        job = await crawls.finish(group, job_id)
    await crawls.tell(group, job)
    if said["state"] == "finished" and said["missing"] == "delete":
        more = await crawls.delete_missing(group, job_id)
    return await json_response(request, {**await _job(request, group, job_id), "more": more})


async def _job(request: web.Request, group: Group, job_id: str) -> dict[str, Any]:
    store = request.app[STORE]
    job = await store.crawls.one(group, job_id)
    if job is None:  # or no longer: its group was deleted meanwhile
        raise not_found("job", "job_id", await store.groups.similar(group))
    reviews = await store.reviews.latest_of(group, [job_id])
    return {**job, "review": reviews.get(job_id)}
