"""GET /healthz and GET /readyz, without a token."""

from aiohttp import web

from schemas.health import Health
from service.http.endpoint import endpoint
from service.http.errors import http_error
from service.http.keys import READINESS, STOPPING, STORE
from service.http.responses import json_response


@endpoint("Is the process alive?", Health())
async def healthz(request: web.Request) -> web.StreamResponse:
    """Say that the process lives."""
    return await json_response(request, {"status": "ok"})


@endpoint("Is the service ready?", Health())
async def readyz(request: web.Request) -> web.StreamResponse:
    """Tell whether the database responds and takes writes; 503 while it does not, and once the process stops."""
    app = request.app
    if app[STOPPING].is_set() or not await app[STORE].ping() or not await app[READINESS].check():
        raise http_error(503, {"Retry-After": "1"})
    return await json_response(request, {"status": "ok"})
