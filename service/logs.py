"""Structured logs: one JSON line an event, on standard error."""

from __future__ import annotations

import itertools
import logging
import re
import sys
import threading
import time
import uuid
from typing import Any

import orjson
from aiohttp import web

from service.keys import METRICS, ORGANIZATION, REQUEST_ID
from service.store.tokens import PREFIX

access = logging.getLogger("service.access")

# Unlike any other process's; a number each is then enough.
_PROCESS = uuid.uuid4().hex[:24]
_numbers = itertools.count(1)
_PLAIN_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One line of JSON a record: time, level, event, and what the record carries besides.

    Only the class of an exception: messages of drivers and codecs hold documents and values.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "event": "",
        }
        if record.name.partition(".")[0] == "service":
            line["event"] = record.getMessage()
            line.update((k, v) for k, v in vars(record).items() if k not in _STANDARD)
        else:
            # A library's words may quote what it works on; the template they are made from does not.
            line["event"] = str(record.msg) if record.args else ""
            line["logger"] = record.name
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
        return orjson.dumps(line, default=lambda value: type(value).__name__).decode()


def set_up(level: str) -> None:
    """Send all logs of this process to standard error, in JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # The driver's and the server's own messages may quote what they were sent.
    for name in ("pymongo", "aiohttp", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # What nobody caught, outside of the event loop: Python would print it with its message.
    threading.excepthook = lambda hook: _log_uncaught(hook.exc_type)
    sys.unraisablehook = lambda hook: _log_uncaught(hook.exc_type)


def _log_uncaught(kind: type[BaseException]) -> None:
    logging.getLogger("service").error("uncaught", extra={"error": kind.__name__})


def route_of(request: web.BaseRequest) -> str:
    """Return the route's template: paths hold identifiers, queries hold more."""
    resource = getattr(getattr(request, "match_info", None), "route", None)
    resource = getattr(resource, "resource", None)
    return resource.canonical if resource is not None else "unmatched"


def request_id(request: web.BaseRequest) -> str:
    """Return the id the client gave, if it is one, else a new one."""
    given = request.headers.get("X-Request-ID", "")
    # Ids go into the log: a token there by mistake must not.
    if given and _PLAIN_ID.fullmatch(given) and PREFIX not in given:
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
