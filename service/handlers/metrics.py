"""GET /metrics, without a token."""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from service.http.endpoint import endpoint
from service.http.keys import STORE
from service.http.metrics import METRICS


@endpoint("Get metrics", None, gives=["text/plain"])
async def metrics(request: web.Request) -> web.StreamResponse:
    """Return the metrics of all workers in Prometheus' text format."""
    text = request.app[METRICS].render(await request.app[STORE].in_flight())
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})
