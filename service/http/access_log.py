"""One log line and one count per request."""

from __future__ import annotations

import itertools
import logging
import re
import time
import uuid
from typing import Any

from aiohttp import web

from service.http.keys import ORGANIZATION, REQUEST_ID
from service.http.metrics import METRICS
from service.store import TOKEN_PREFIX

access = logging.getLogger("service.access")

# Unique per process; a counter is then enough for each request.
_PROCESS = uuid.uuid4().hex[:24]
_numbers = itertools.count(1)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


def route_of(request: web.BaseRequest) -> str:
    """Return the route's template: paths hold identifiers, queries hold more."""
    resource = getattr(getattr(request, "match_info", None), "route", None)
    resource = getattr(resource, "resource", None)
    return resource.canonical if resource is not None else "unmatched"


def request_id(request: web.BaseRequest) -> str:
    """Return the id the client gave, if it is one, else a new one."""
    given = request.headers.get("X-Request-ID", "")
    # Ids go into the log: a token there by mistake must not.
    if given and _REQUEST_ID.fullmatch(given) and TOKEN_PREFIX not in given:
        return given
    return f"{_PROCESS}{next(_numbers):08x}"


@web.middleware
async def observe(request: web.Request, handler: Any) -> web.StreamResponse:
    """Log and count each request; give it its id."""
    request[REQUEST_ID] = request_id(request)
    started = time.perf_counter()
    status = 499  # the client left, or the process stops
    try:
        response: web.StreamResponse = await handler(request)
        status = response.status
        return response
    finally:
        seconds = time.perf_counter() - started
        route = route_of(request)
        request.app[METRICS].observe(request.method, route, status, seconds)
        if access.isEnabledFor(logging.INFO):
            access.info(
                "request",
                extra={
                    "method": request.method,
                    "route": route,
                    "status": status,
                    "ms": round(seconds * 1000, 2),
                    "organization": request.get(ORGANIZATION),
                    "request_id": request[REQUEST_ID],
                },
            )
