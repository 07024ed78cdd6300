"""The page for people at /, and its assets."""

from __future__ import annotations

from importlib.resources import files

from aiohttp import web

from service.http.static import TYPES, Asset, serve
from service.http.static import asset as asset_of

_HEADERS = {
    # The page shows scraped data, which is hostile: nothing in it can become a script or a form, and the only
    # requests it can cause are pictures, which the page loads when a person asks for them.
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


ASSETS: dict[str, Asset] = {
    file.name: asset_of(file.name, file.read_bytes())
    for file in (files("service") / "page").iterdir()
    if file.name.rpartition(".")[2] in TYPES
}


async def index(request: web.Request) -> web.StreamResponse:
    """Return the page."""
    return serve(request, ASSETS["index.html"], _HEADERS)


async def asset(request: web.Request) -> web.StreamResponse:
    """Return a script, a style sheet or a picture of the page."""
    return serve(request, ASSETS.get(request.match_info["name"]), _HEADERS)
