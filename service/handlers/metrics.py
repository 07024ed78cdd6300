"""GET /metrics, without a token."""

from aiohttp import web
from prometheus_client.exposition import choose_encoder

from service.http.endpoint import endpoint
from service.http.keys import STORE
from service.http.metrics import METRICS


@endpoint("Get metrics", None, gives=["text/plain"])
async def metrics(request: web.Request) -> web.StreamResponse:
    """Return the metrics of all workers in the format of Prometheus or OpenMetrics, as the client accepts."""
    state = await request.app[STORE].in_flight()
    text, content_type = request.app[METRICS].render(_accepted(request), state)
    return web.Response(body=text, headers={"Content-Type": content_type, "Vary": "Accept"})


def _accepted(request: web.Request) -> str:
    """Return the `Accept` header, or none if the library cannot read it: it raises for a version of letters."""
    accept = request.headers.get("Accept", "")
    try:
        choose_encoder(accept)
    except TypeError:
        return ""
    return accept if accept.isascii() else ""  # a version stands in the response too
