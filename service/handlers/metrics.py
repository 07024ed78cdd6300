"""GET /metrics, without a token."""

from aiohttp import web

from service.http.endpoint import endpoint
from service.http.keys import STORE
from service.http.metrics import METRICS
from service.http.reply import Reply


@endpoint("Get metrics", None, gives=["text/plain"])
async def metrics(request: web.Request) -> Reply:
    """Return the metrics of all workers in the format of Prometheus or OpenMetrics, as the client accepts."""
    state, sessions = await request.app[STORE].figures.current()
    text, content_type = request.app[METRICS].render(request.headers.get("Accept", ""), state, sessions)
    return Reply(text, {"Vary": "Accept"}, content_type=content_type)
