"""GET /v1/groups; PUT and DELETE /v1/groups/{group_id}; its stats, jobs and fields."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from aiohttp import web

from schemas.base import PageQuery
from schemas.groups import FieldsQuery, GroupFields, GroupSet, GroupSettings, GroupWithSettings, Job
from schemas.groups import Group as GroupCounts
from schemas.outputs import DeletionQuery, OutputsDeleted
from service.http.deletion_cursor import cursor_of, place_of
from service.http.endpoint import endpoint
from service.http.errors import Problem, unknown_path
from service.http.input.json_input import read_object
from service.http.input.query import QueryLoader, path_group
from service.http.keys import ORGANIZATION, STORE
from service.http.middleware.auth import require_scope
from service.http.output.field_statistics import describe_fields
from service.http.output.paging import decode_cursor, json_array, list_reply
from service.http.reply import Json, Reply
from service.store import Group, Query, Store, StoreUnavailable, now, time_budget

_LISTED_DAYS = timedelta(days=30)
_GROUPS = QueryLoader(PageQuery())
_FIELDS = QueryLoader(FieldsQuery())
_DELETION = QueryLoader(DeletionQuery(), refuse_empty=True)
_SETTINGS = GroupSettings()
_MAX_JOBS = 1000
# How long the newest items are searched for the paths that settings name.
_WARNING_SECONDS = 2.0
# Items may be a megabyte each, and behind a million deletion records.
_FIELDS_SECONDS = 10.0


@endpoint("List groups", GroupCounts(many=True), query=PageQuery)
async def get(request: web.Request) -> Reply:
    """Return the organization's groups, newest change first, each with its last 30 days.

    With `limit`, return a page with that many records and a `Link` header to the next page.
    """
    query, groups = _GROUPS.load(request), request.app[STORE].groups
    cursor = decode_cursor(query["cursor"])
    since = (now() - _LISTED_DAYS).strftime("%Y-%m-%d")
    return list_reply(request, await groups.listing(request[ORGANIZATION], since, query["limit"], cursor))


@endpoint("Get the counts of a group", GroupCounts())
async def stats(request: web.Request) -> Json:
    """Return the counts of a group, and its items created, changed and gained per day (UTC)."""
    group = path_group(request)
    return await request.app[STORE].groups.one(group)


@endpoint("Get a group", GroupWithSettings())
async def one(request: web.Request) -> Json:
    """Return the settings and counts of a group; a group that does not exist has the defaults and counts of 0."""
    return await _group(request, path_group(request))


@endpoint("Set up a group", GroupSet(), body=GroupSettings())
async def put(request: web.Request) -> Json:
    """Change settings of a group, also before its first item; those left out stay unchanged.

    `retention_days` lets the service delete items that were not scraped for that long; it needs the scope `delete`.
    `history_days` keeps earlier versions; to lower it needs `delete` too. `ignore` names paths that are not content.
    `rules` judge finished jobs. `warnings` lists the paths of this request that none of the newest 1000 items has.
    """
    group = path_group(request)
    settings = await read_object(request, _SETTINGS)
    groups = request.app[STORE].groups
    lowers_history = (
        "history_days" in settings and (await groups.settings(group))["history_days"] > settings["history_days"]
    )
    if "retention_days" in settings or lowers_history:  # both remove data
        require_scope(request, "delete")
    await groups.set(group, settings)
    warnings = await _warnings(request.app[STORE], group, settings)
    return {**await _group(request, group), "warnings": warnings}


async def _warnings(store: Store, group: Group, settings: dict[str, Any]) -> list[Problem]:
    """Return a warning for each path that none of the newest items has; none if the database takes too long."""
    ignore = settings.get("ignore", [])
    rules = {place: rule["path"] for place, rule in enumerate(settings.get("rules", [])) if "path" in rule}
    try:
        with time_budget(_WARNING_SECONDS):
            ignored = await store.paths.unknown(group, ignore, into_arrays=True)
            ruled = await store.paths.unknown(group, rules.values())
    except StoreUnavailable:
        return []
    paths = [(path, ignored, ["ignore", str(at)]) for at, path in enumerate(ignore)]
    paths += [(path, ruled, ["rules", str(at), "path"]) for at, path in rules.items()]
    return [unknown_path(path, nearest[path], "body", *loc) for path, nearest, loc in paths if path in nearest]


async def _group(request: web.Request, group: Group) -> dict[str, Any]:
    groups = request.app[STORE].groups
    return {**await groups.one(group), **await groups.settings(group)}


@endpoint("Delete a group", OutputsDeleted(), query=DeletionQuery)
async def delete(request: web.Request) -> Json:
    """Delete all outputs, reviews and jobs of a group; its ids are never used again, and its settings stay.

    A large deletion ends after some seconds with `more`: send the same request again with the `cursor` of the response.
    What was written or seen after the first call began stays, with its jobs.
    """
    group, store = path_group(request), request.app[STORE]
    place = place_of(request, _DELETION.load(request)["cursor"])
    if place is None:
        place = await store.outputs.deletion.begin(group)
        await store.reviews.remove(group)
    progress = await store.outputs.deletion.run(group, Query(), place)
    if progress.place is None:
        counts = await store.groups.one(group)
        if counts["last_change"] is not None and counts["last_id"]:  # it had items, and was not deleted before
            await store.webhooks.group_removed(group, counts["last_id"])
        await store.groups.remove(group, place.until)
    cursor = cursor_of(request, progress.place)
    return {"deleted": progress.items, "more": progress.place is not None, "cursor": cursor}


@endpoint("List the jobs of a group", Job(many=True))
async def jobs(request: web.Request) -> Reply:
    """Return the newest 1000 jobs of a group: items now held, created, changed, unchanged, latest review.

    The comment of a review is cut after 1000 characters; `/v1/reviews/{group_id}` has all of it.
    """
    group = path_group(request)
    store = request.app[STORE]
    return Reply(json_array(_reviewed(store, group)))


async def _reviewed(store: Store, group: Group) -> AsyncIterator[list[Any]]:
    """Yield the jobs with their latest reviews, some at a time."""
    async for part in store.jobs.batches(group, _MAX_JOBS):
        reviews = await store.reviews.latest_of(group, [job["job_id"] for job in part])
        yield [{**job, "review": reviews.get(job["job_id"])} for job in part]


@endpoint("Describe the fields of a group's data", GroupFields(), query=FieldsQuery)
async def fields(request: web.Request) -> Json:
    """Return fill rate, types, smallest, largest and example values for each path in `data`.

    Looks at the newest `limit` items that match, for some seconds.
    """
    group = path_group(request)
    loaded = _FIELDS.load(request)
    outputs = request.app[STORE].outputs
    return await describe_fields(outputs, group, loaded["job_id"], loaded["limit"], _FIELDS_SECONDS)
