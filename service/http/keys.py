"""The typed keys under which the application and requests carry what handlers need."""

from __future__ import annotations

import asyncio
import functools

from aiohttp import web

from service.capacity.parked import Parking
from service.capacity.work import Gates
from service.settings import Settings
from service.store import Readiness, Store, Token

SETTINGS = web.AppKey("settings", Settings)
STORE = web.AppKey("store", Store)
GATES = web.AppKey("gates", Gates)
PARKING = web.AppKey("parking", Parking)
READINESS = web.AppKey("readiness", Readiness)

# Set when the service must stop: it is no longer ready, and endless streams end.
STOPPING = web.AppKey("stopping", asyncio.Event)

REQUEST_ID = web.RequestKey("request_id", str)
# Why the response is a 503, for the metrics.
REASON = web.RequestKey("reason", str)
ORGANIZATION = web.RequestKey("organization_id", int)
TOKEN = web.RequestKey("token", Token)
# The bytes of the request's head, if it came through the service's own server.
HEAD_BYTES = web.RequestKey("head_bytes", int)
# Set when the client waits to be told to send the body.
EXPECTS = web.RequestKey("expects", bool)
# Called when the client of a request that waits or follows leaves: it ends the request.
STAYING = web.RequestKey("staying", functools.partial[None])
# Set while a response's body goes out piece by piece.
STREAMING = web.RequestKey("streaming", bool)
