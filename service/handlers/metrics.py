"""GET /metrics, without a token."""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from service.handlers.docs import endpoint
from service.keys import METRICS, STORE


@endpoint(None, "Get metrics", None, gives=["text/plain"])
async def metrics(request: web.Request) -> web.StreamResponse:
    """Return the metrics of all workers in Prometheus' text format."""
    text = request.app[METRICS].render(await request.app[STORE].in_flight())
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})
