"""POST /v1/sessions/{pool}/lease; PUT and POST release of /v1/leases/{lease_id}."""

from __future__ import annotations

import math
import re
from typing import Any

from aiohttp import web

from schemas.sessions import LEASE_ID, Lease, LeaseInput, LeaseRelease, LeaseRenewal, LeaseRenewed, SessionReleased
from service.handlers.session_secrets import find_pool, with_secrets
from service.http.endpoint import endpoint
from service.http.errors import ApiError, invalid, not_found, problem
from service.http.input.json_input import read_object
from service.http.input.query import path_id
from service.http.input.sessions import read_with_secrets
from service.http.keys import ORGANIZATION, STORE
from service.http.metrics import METRICS
from service.http.reply import Json, end_with_client, parked
from service.store import (
    SESSION_SECRETS,
    LeaseInUse,
    LeaseLost,
    PoolDeleted,
    Release,
    SessionLease,
    SessionPool,
    VaultError,
    Wanted,
    wanted,
)

_LEASE, _RENEWAL, _RELEASE = LeaseInput(), LeaseRenewal(), LeaseRelease()
_NO_SESSION = {"409": {"description": "No session is ready; Retry-After where a lease or a rest ends some time"}}
_LOST = {"409": {"description": "The lease has ended: nothing was saved"}}


@endpoint("Lease a session", Lease(), body=LeaseInput(), responses=_NO_SESSION, not_found=True)
async def post(request: web.Request) -> Json:
    """Lease the ready session that was used longest ago, and return it with its secrets.

    With `wait`, respond as soon as one is ready. Until the lease is released or ends, nobody else gets this session.
    """
    pool, body = await find_pool(request), await read_object(request, _LEASE)
    seconds = body.pop("wait")
    wish = wanted(**body)
    try:
        lease = await _take(request, pool, wish, seconds)
        response = None if lease is None else await _delivered(request, pool, lease)
    except LeaseLost:
        raise _lost("body") from None
    except LeaseInUse:
        message = "Another request has a lease of this id: choose ids at random"
        raise ApiError(409, [problem("lease_in_use", message, "body", "lease_id")]) from None
    except PoolDeleted:
        raise not_found("pool", "pool") from None
    except BaseException as error:
        # It may have a lease that its client will not get. A session whose secrets do not open is not always the next.
        request.app[STORE].sessions.queue.undo(pool, wish, last=isinstance(error, VaultError))
        raise
    if response is None:
        raise await _no_session(request, pool, wish)
    return response


async def _take(request: web.Request, pool: SessionPool, asked: Wanted, seconds: int) -> SessionLease | None:
    """Return a lease, after a wait of some seconds if it must be; None if no session is ready."""
    queue = request.app[STORE].sessions.queue
    lease = await queue.take(pool, asked)
    if lease is None and seconds and await _exists(request, pool, asked):
        lease = await parked(request, queue.wait(pool, asked, seconds))
    return lease


async def _delivered(request: web.Request, pool: SessionPool, lease: SessionLease) -> dict[str, Any]:
    """Return the response with a lease. Raises ConnectionResetError if the client has left."""
    session = await with_secrets(request, pool, lease.session)
    if request.transport is None:
        raise ConnectionResetError
    return {"lease_id": lease.lease_id, "seconds": lease.seconds, "expires": lease.expires, "session": session}


async def _exists(request: web.Request, pool: SessionPool, asked: Wanted) -> bool:
    """Return whether there is the session that a request names, or any if it names none."""
    return asked.name is None or await request.app[STORE].sessions.records.find(pool, asked.name) is not None


async def _no_session(request: web.Request, pool: SessionPool, asked: Wanted) -> ApiError:
    """Return the response to a request that got no lease, with the time until another attempt makes sense."""
    if not await _exists(request, pool, asked):
        return ApiError(404, [problem("not_found", "There is no such session", "body", "name")])
    request.app[METRICS].count_own("sds_no_session_total")
    store = request.app[STORE]
    if (before := await store.sessions.pools.empty_notice(pool)) is not None:
        await store.webhooks.pool_empty(pool.organization_id, pool.name, before)
        await store.sessions.pools.note_empty(pool, before)
    seconds = await store.sessions.pools.seconds_until_due(pool, asked.name)
    headers = {} if seconds is None else {"Retry-After": str(max(1, math.ceil(seconds)))}
    return ApiError(409, [problem("no_session", "No session is ready", "path", "pool")], headers)


@endpoint("Renew a lease", LeaseRenewed(), body=LeaseRenewal(), responses=_LOST)
async def put(request: web.Request) -> Json:
    """Renew a lease, and save the state of its session; a lease never ends earlier than before."""
    lease_id, body = _path_lease(request), await read_with_secrets(request, _RENEWAL)
    leases, secrets = request.app[STORE].sessions.leases, _secrets(body)
    if secrets:  # a client that has given this request up may have sent it again, and saved something newer since
        end_with_client(request)
    try:
        lease, saved = await leases.renew(request[ORGANIZATION], lease_id, body.get("seconds"), secrets)
    except LeaseLost:
        raise _lost("path") from None
    return {"seconds": lease.seconds, "expires": lease.expires, "saved": saved}


@endpoint("Release a lease", SessionReleased(), body=LeaseRelease(), responses=_LOST)
async def release(request: web.Request) -> Json:
    """End a lease with its outcome, and return the session without its secrets.

    `good` and `bad` save what is sent. A release that is repeated word for word gets the same response again.
    """
    lease_id, body = _path_lease(request), await read_with_secrets(request, _RELEASE)
    ends = Release(body["outcome"], _secrets(body), body.get("rest_seconds"), body.get("note"))
    store, organization_id = request.app[STORE], request[ORGANIZATION]
    try:
        session = await store.sessions.leases.release(organization_id, lease_id, ends)
    except LeaseLost:
        raise _lost("path") from None
    if session["state"] in ("needs_login", "blocked"):
        await store.webhooks.session_changed(organization_id, session)
    return session


def _path_lease(request: web.Request) -> str:
    """Return the lease id in the path."""
    lease_id = path_id(request, "lease_id")
    if not re.fullmatch(LEASE_ID, lease_id):
        raise invalid("value_error", "A lease id has 22 to 64 of A-Z a-z 0-9 _ -", "path", "lease_id")
    return lease_id


def _secrets(body: dict[str, Any]) -> dict[str, str]:
    return {kind: body[kind] for kind in SESSION_SECRETS if kind in body}


def _lost(place: str) -> ApiError:
    message = "The lease has ended, or never was: stop using its session. Nothing was saved"
    return ApiError(409, [problem("lease_lost", message, place, "lease_id")])
