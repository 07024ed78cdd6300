"""GET /healthz and GET /readyz, without a token."""

from aiohttp import web

from schemas.health import Health
from service.http.endpoint import endpoint
from service.http.errors import http_error
from service.http.keys import READINESS, STORE
from service.http.responses import json_response


@endpoint("Is the process alive?", Health())
async def healthz(request: web.Request) -> web.StreamResponse:
    """Say that the process lives."""
    return await json_response(request, {"status": "ok"})


@endpoint("Is the service ready?", Health())
async def readyz(request: web.Request) -> web.StreamResponse:
    """Tell whether the database responds and takes writes; 503 while it does not."""
    if not await request.app[STORE].ping() or not await request.app[READINESS].check():
        raise http_error(503, {"Retry-After": "1"})
    return await json_response(request, {"status": "ok"})
