"""GET /healthz and GET /readyz, without a token."""

from aiohttp import web

from schemas.health import Health
from service.http.endpoint import endpoint
from service.http.errors import error_body, unavailable
from service.http.keys import READINESS, REASON, STOPPING, STORE
from service.http.reply import Json, Reply
from service.store import StoreError


@endpoint("Is the process alive?", Health())
async def healthz(request: web.Request) -> Json:
    """Respond with 200 while the process is alive."""
    return {"status": "ok"}


@endpoint("Is the service ready?", Health())
async def readyz(request: web.Request) -> Json | Reply:
    """Respond with 200 if the database takes writes; with 503 while it does not, and once the process stops."""
    app = request.app
    try:
        is_ready = not app[STOPPING].is_set() and await app[STORE].ping() and await app[READINESS].check()
    except StoreError:
        is_ready = False
    if not is_ready:
        # Returned, not raised: starting and stopping are not failures, and are not logged as such.
        request[REASON] = "not_ready"
        error = unavailable("not_ready")
        return Reply(error_body(error.problems), error.headers, error.status)
    return {"status": "ok"}
