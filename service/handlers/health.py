"""GET /healthz and GET /readyz, without a token."""

from aiohttp import web

from schemas.health import Health
from service.answers import answer
from service.errors import http_error
from service.handlers.docs import endpoint
from service.keys import STORE


@endpoint(None, "Is the process alive?", Health())
async def healthz(request: web.Request) -> web.StreamResponse:
    """Say that the process lives."""
    return await answer(request, {"status": "ok"})


@endpoint(None, "Is the service ready?", Health())
async def readyz(request: web.Request) -> web.StreamResponse:
    """Say whether the database answers; 503 while it does not."""
    if not await request.app[STORE].ping():
        raise http_error(503, {"Retry-After": "1"})
    return await answer(request, {"status": "ok"})
