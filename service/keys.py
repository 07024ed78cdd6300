"""The typed keys under which the application and requests carry what handlers need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from service.settings import Settings
from service.store import Store
from service.store.tokens import Token

if TYPE_CHECKING:
    from service.auth import Authenticator
    from service.metrics import Metrics

SETTINGS = web.AppKey("settings", Settings)
STORE = web.AppKey("store", Store)
AUTHENTICATOR: web.AppKey[Authenticator] = web.AppKey("authenticator")
METRICS: web.AppKey[Metrics] = web.AppKey("metrics")

REQUEST_ID = web.RequestKey("request_id", str)
ORGANIZATION = web.RequestKey("organization_id", int)
TOKEN = web.RequestKey("token", Token)
# Set when the client waits to be told to send the body.
EXPECTS = web.RequestKey("expects", bool)
# Set while an answer's body goes out piece by piece.
STREAMING = web.RequestKey("streaming", bool)
