"""Calls from pages of other origins: none, unless CORS_ORIGINS names the origin."""

from __future__ import annotations

from aiohttp import web

from service.http.keys import SETTINGS

_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
    "Access-Control-Allow-Headers": "Authorization, Content-Encoding, Content-Type, If-Match, If-None-Match, "
    "Last-Event-ID, X-Request-ID",
    "Access-Control-Max-Age": "600",
}


def _allowed(request: web.Request) -> str | None:
    """Return the origin to allow for a request."""
    origins = [origin.strip() for origin in request.app[SETTINGS].cors_origins.split(",")]
    origin = request.headers.get("Origin", "")
    if not origin:
        return None
    return origin if origin in origins else "*" if "*" in origins else None


def preflight(request: web.Request) -> web.Response | None:
    """Return the response to a CORS preflight, which comes without a token; None for any other request."""
    if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers and _allowed(request):
        return web.Response(status=204, headers=_PREFLIGHT)
    return None


async def add_cors(request: web.Request, response: web.StreamResponse) -> None:
    """Let a listed origin read the response, errors too."""
    vary = response.headers.get("Vary")
    response.headers["Vary"] = f"{vary}, Origin" if vary else "Origin"
    if origin := _allowed(request):
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = "ETag, Link, Retry-After, X-Cursor, X-Request-ID"
