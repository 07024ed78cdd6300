"""The page for people at /, and its assets."""

from __future__ import annotations

from aiohttp import web

from service.http.output.static import PAGE_ASSETS, serve
from service.http.reply import Reply

_HEADERS = {
    # The page shows scraped data, which may be hostile: it cannot become a script or a form, and the only requests
    # that it can cause are for pictures, which the page loads when the user asks for them.
    "Content-Security-Policy": "; ".join(
        [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data: https: http:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ]
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
}


async def get(request: web.Request) -> Reply:
    """Return the page, or a script, a style sheet or a picture of it."""
    return serve(request, PAGE_ASSETS.get("/".join(request.match_info.values()) or "index.html"), _HEADERS)
