"""The steps that every request passes, in their order."""

from __future__ import annotations

import time

from aiohttp import web
from aiohttp.typedefs import Handler

from service.capacity.gate import Holder
from service.capacity.work import Work
from service.http.errors import respond_to_error
from service.http.input.query import check_framing, check_parameters, check_target
from service.http.keys import GATES, REQUEST_ID, SETTINGS, TOKEN
from service.http.middleware.access_log import observe, request_id
from service.http.middleware.auth import authenticate
from service.http.middleware.cors import preflight
from service.http.middleware.rate import check_rate
from service.http.reply import send
from service.store import time_budget


@web.middleware
async def serve(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Respond to a request, to an exception with an error in the one shape; log and count it."""
    request[REQUEST_ID] = request_id(request)
    began, status = time.perf_counter(), 499  # the client has gone, or the process stops
    try:
        response = await _respond(request, handler)
        status = response.status
        return response
    finally:
        observe(request, status, time.perf_counter() - began)


async def _respond(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return preflight(request) or await _checked(request, handler)
    except Exception as error:
        response = respond_to_error(request, error)
    if response is None:
        raise ConnectionResetError  # without the error, whose frames hold what was about to be sent
    return response


async def _checked(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Check a request, call its handler, and send what that returns; all store calls share the time of `mongo_timeout`.

    A request without a token, such as a health check, is in no limit of capacity.
    """
    check_framing(request)
    check_target(request)
    seconds = request.app[SETTINGS].mongo_timeout
    with time_budget(seconds):
        await authenticate(request)
        token = request.get(TOKEN)
        if token is None:
            check_parameters(request)
            return await send(request, await handler(request), None)
        check_rate(request)
        check_parameters(request)
        gates, holder = request.app[GATES], Holder(token.organization_id, token.id)
        with gates.connections.hold(holder), Work(gates, holder, seconds) as work:
            if not request.body_exists:  # otherwise `read_body` begins the work
                await work.begin()
            return await send(request, await handler(request), work)
