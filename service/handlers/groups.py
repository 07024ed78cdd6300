"""GET /v1/groups and GET /v1/groups/{group_id}/stats."""

from datetime import timedelta

from aiohttp import web

from schemas.groups import Group
from service.http.endpoint import endpoint
from service.http.keys import ORGANIZATION, STORE
from service.http.query import path_id
from service.http.responses import json_response
from service.store import now

_LISTED_DAYS = timedelta(days=30)


@endpoint("List groups", Group(many=True))
async def get(request: web.Request) -> web.StreamResponse:
    """Return the organization's groups, newest change first, each with its last 30 days."""
    since = (now() - _LISTED_DAYS).strftime("%Y-%m-%d")
    return await json_response(request, await request.app[STORE].groups.all(request[ORGANIZATION], since))


@endpoint("Get the counts of a group", Group())
async def stats(request: web.Request) -> web.StreamResponse:
    """Return what a group holds, and its items created and changed by day (UTC)."""
    group_id = path_id(request, "group_id")
    return await json_response(request, await request.app[STORE].groups.one(request[ORGANIZATION], group_id))
