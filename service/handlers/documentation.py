"""GET /openapi.json, and GET /docs, which shows it."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from aiohttp import web

from service.handlers.page import ASSETS
from service.http.openapi import DOCUMENT
from service.http.responses import bytes_response
from service.http.static import Asset, serve
from service.http.static import asset as asset_of

# Swagger UI sets styles from its script and shows pictures from data: URLs.
_POLICY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
}
_RENDERER = "flask_swagger_ui"  # a package that carries Swagger UI; only its files are used, nothing of it is imported


@cache
def _assets() -> dict[str, Asset]:
    spec = find_spec(_RENDERER)
    assert spec is not None and spec.origin is not None, f"{_RENDERER} is not installed"
    folder = Path(spec.origin).parent / "dist"
    names = ("swagger-ui.css", "swagger-ui-bundle.js")
    return {name: asset_of(name, (folder / name).read_bytes()) for name in names}


async def document(request: web.Request) -> web.StreamResponse:
    """Return the OpenAPI document."""
    return await bytes_response(request, request.app[DOCUMENT])


async def index(request: web.Request) -> web.StreamResponse:
    """Return the page that shows the OpenAPI document."""
    return serve(request, ASSETS["docs.html"], _POLICY)


async def asset(request: web.Request) -> web.StreamResponse:
    """Return a script or a style sheet of Swagger UI."""
    return serve(request, _assets().get(request.match_info["name"]), _POLICY)
