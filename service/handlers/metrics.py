"""GET /metrics, without a token."""

import asyncio

from aiohttp import web

from service.http.endpoint import endpoint
from service.http.keys import STORE
from service.http.metrics import METRICS
from service.http.reply import Reply


@endpoint("Get metrics", None, gives=["text/plain"])
async def metrics(request: web.Request) -> Reply:
    """Return the metrics of all workers in the format of Prometheus or OpenMetrics, as the client accepts."""
    store = request.app[STORE]
    state, sessions = await asyncio.gather(store.in_flight(), store.sessions.pools.by_state())
    text, content_type = request.app[METRICS].render(request.headers.get("Accept", ""), state, sessions)
    return Reply(text, {"Vary": "Accept"}, content_type=content_type)
