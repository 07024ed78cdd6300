"""GET /healthz and GET /readyz, without a token."""

from aiohttp import web

from service.answers import answer
from service.errors import http_error
from service.keys import STORE


async def healthz(request: web.Request) -> web.StreamResponse:
    """Say that the process lives."""
    return await answer(request, {"status": "ok"})


async def readyz(request: web.Request) -> web.StreamResponse:
    """Say whether the database answers."""
    if not await request.app[STORE].ping():
        raise http_error(503, {"Retry-After": "1"})
    return await answer(request, {"status": "ok"})
