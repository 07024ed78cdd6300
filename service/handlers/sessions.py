"""GET /v1/sessions; GET, PUT and DELETE of its pools and of their sessions."""

from __future__ import annotations

from aiohttp import web

from schemas.sessions import (
    NAME_LENGTH,
    Pool,
    PoolSettings,
    Session,
    SessionInput,
    SessionsDeleted,
    SessionsQuery,
    SessionWithSecrets,
)
from service.handlers.session_secrets import find_pool, with_secrets
from service.http.endpoint import endpoint
from service.http.errors import ApiError, invalid, not_found, problem
from service.http.input.json_input import read_object
from service.http.input.query import QueryLoader, path_id
from service.http.input.sessions import read_with_secrets
from service.http.keys import ORGANIZATION, STORE
from service.http.output.paging import decode_cursor, list_reply
from service.http.reply import Json, Reply
from service.store import TooManySessions, VersionConflict

_QUERY = QueryLoader(SessionsQuery())
_SETTINGS, _SESSION = PoolSettings(), SessionInput()
_CONFLICT = {"412": {"description": "The session has another version than if_version"}}


@endpoint("List the pools", Pool(many=True))
async def get(request: web.Request) -> Json:
    """Return the organization's pools by name: settings, and the number of sessions by state."""
    return await request.app[STORE].sessions.pools.list(request[ORGANIZATION])


@endpoint("Set up a pool", Pool(), body=PoolSettings())
async def put_pool(request: web.Request) -> Json:
    """Change settings of a pool, which is created if there is none; those left out stay unchanged."""
    name, pools = path_id(request, "pool", NAME_LENGTH), request.app[STORE].sessions.pools
    settings = await read_object(request, _SETTINGS)
    try:
        await pools.set(request[ORGANIZATION], name, settings)
    except TooManySessions as error:
        raise invalid("too_many", str(error), "path", "pool") from None
    listed = await pools.list(request[ORGANIZATION], name)
    if not listed:  # it was deleted meanwhile
        raise not_found("pool", "pool")
    return listed[0]


@endpoint("Delete a pool", SessionsDeleted(), not_found=True)
async def delete_pool(request: web.Request) -> Json:
    """Delete a pool with its sessions and end their leases; return the number of sessions."""
    name = path_id(request, "pool", NAME_LENGTH)
    deleted = await request.app[STORE].sessions.pools.delete(request[ORGANIZATION], name)
    if deleted is None:
        raise not_found("pool", "pool")
    return {"deleted": deleted}


@endpoint("List the sessions of a pool", Session(many=True), query=SessionsQuery, not_found=True)
async def list_pool(request: web.Request) -> Reply:
    """Return the sessions of a pool by name, without their secrets.

    With `limit`, return a page with that many records and a `Link` header to the next page.
    """
    query, pool = _QUERY.load(request), await find_pool(request)
    cursor = decode_cursor(query["cursor"])
    records = request.app[STORE].sessions.records
    return list_reply(request, await records.listing(pool, query["state"], query["limit"], cursor))


@endpoint("Get a session", SessionWithSecrets(), not_found=True)
async def one(request: web.Request) -> Json:
    """Return a session with its secrets."""
    pool, name = await find_pool(request), path_id(request, "name", NAME_LENGTH)
    session = await request.app[STORE].sessions.records.find(pool, name)
    if session is None:
        raise not_found("session", "name")
    return await with_secrets(request, pool, session)


@endpoint("Put a session", Session(), body=SessionInput(), responses=_CONFLICT)
async def put(request: web.Request) -> Json:
    """Create a session or change it, and return it without its secrets; a pool that does not exist is created.

    A new `storage_state` sets `ready` and restarts uses, age, errors and rest, unless `state` says otherwise. A leased
    session keeps its lease, whose release then saves and marks nothing.
    """
    pool, name = path_id(request, "pool", NAME_LENGTH), path_id(request, "name", NAME_LENGTH)
    body = await read_with_secrets(request, _SESSION)
    if_version = body.pop("if_version", None)
    records = request.app[STORE].sessions.records
    try:
        session = await records.put(request[ORGANIZATION], pool, name, body, if_version)
    except TooManySessions as error:
        raise invalid("too_many", str(error), "path", "pool") from None
    except VersionConflict:
        message = "The session has another version: read it again"
        raise ApiError(412, [problem("precondition_failed", message, "body", "if_version")]) from None
    return session


@endpoint("Delete a session", SessionsDeleted(), not_found=True)
async def delete(request: web.Request) -> Json:
    """Delete a session with its secrets, and end its lease."""
    pool, name = await find_pool(request), path_id(request, "name", NAME_LENGTH)
    if not await request.app[STORE].sessions.records.delete(pool, name):
        raise not_found("session", "name")
    return {"deleted": 1}
