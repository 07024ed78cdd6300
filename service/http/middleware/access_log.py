"""One log line and one count per request."""

from __future__ import annotations

import itertools
import logging
import random
import re
import uuid
from collections.abc import Callable
from typing import Any

from aiohttp import web

from service.http.keys import ORGANIZATION, REASON, REQUEST_ID
from service.http.metrics import METRICS
from service.store import TOKEN_PREFIX

access = logging.getLogger("service.access")

# Unique per process; a counter is then enough for each request.
_PROCESS = uuid.uuid4().hex[:24]
_numbers = itertools.count(1)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


def route_of(request: web.Request) -> str:
    """Return the route's template: paths and queries hold identifiers and values."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "unmatched"


def request_id(request: web.BaseRequest) -> str:
    """Return the request id that the client sent, if it is valid, else a new one."""
    header = request.headers.get("X-Request-ID", "")
    # Ids are logged: a token sent by mistake must not be.
    if header and _REQUEST_ID.fullmatch(header) and TOKEN_PREFIX not in header:
        return header
    return f"{_PROCESS}{next(_numbers):08x}"


def kind_of(request: web.Request, route: str) -> str:
    """Return `wait` for a long poll, `stream` for an export, else `request`: their times are not comparable."""
    if route.endswith("/export"):
        return "stream"
    return "wait" if "wait=" in request.rel_url.raw_query_string else "request"


class AccessLog:
    """Writes a line per request, or for a share of them."""

    def __init__(self, share: float) -> None:
        self.share = share
        # The server replaces it with a faster function if lines are JSON.
        self.write: Callable[[dict[str, Any]], None] = lambda members: access.info("request", extra=members)

    def wants(self, status: int) -> bool:
        """Return whether a request gets a line."""
        share = self.share
        return share >= 1 or (share > 0 and (status >= 500 or random.random() < share))


ACCESS_LOG = web.AppKey("access_log", AccessLog)


def observe(request: web.Request, status: int, seconds: float) -> None:
    """Log and count a request."""
    route, app = route_of(request), request.app
    metrics, log = app[METRICS], app[ACCESS_LOG]
    metrics.observe(request.method, route, kind_of(request, route), status, seconds)
    if status == 503:
        metrics.count("sds_unavailable_total", request.get(REASON) or "other")
    if log.wants(status):
        log.write(
            {
                "method": request.method,
                "route": route,
                "status": status,
                "ms": round(seconds * 1000, 2),
                "organization": request.get(ORGANIZATION),
                "request_id": request[REQUEST_ID],
            }
        )
