"""The headers of every response: its request id, and headers that keep it private; the end of large heads."""

from __future__ import annotations

from aiohttp import web

from service.http.keys import HEAD_BYTES, REQUEST_ID

# A connection with a larger head ends with its response, and the head counts while its request waits or follows.
SMALL_HEAD = 8 * 1024

SECURITY_HEADERS = {
    "Server": "scraping-data-service",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Give every response its request id and the headers that keep it private."""
    headers, set_default = response.headers, response.headers.setdefault
    headers["Server"] = SECURITY_HEADERS["Server"]  # aiohttp has set its own, with its version
    for name, value in SECURITY_HEADERS.items():
        set_default(name, value)
    if REQUEST_ID in request:
        headers["X-Request-ID"] = request[REQUEST_ID]
    if request.get(HEAD_BYTES, 0) > SMALL_HEAD:  # an idle connection keeps its last head
        headers["Connection"] = "close"
        response.force_close()
