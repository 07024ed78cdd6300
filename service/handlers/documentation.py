"""GET /openapi.json, and GET /docs, which shows it."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from aiohttp import web

from service.http.openapi import DOCUMENT
from service.http.output.static import PAGE_ASSETS, Asset, serve
from service.http.output.static import asset as asset_of
from service.http.reply import Reply

# Swagger UI sets styles from its script and shows pictures from data: URLs.
_POLICY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
}
# A package that has the files of Swagger UI without a web framework; its code is never imported.
_CARRIER = "mkdocs_swagger_ui_tag"
_FILES = ("stylesheets/swagger-ui.css", "javascripts/swagger-ui-bundle.js")


@cache
def _assets() -> dict[str, Asset]:
    spec = find_spec(_CARRIER)
    assert spec is not None and spec.origin is not None, f"{_CARRIER} is not installed"
    files = [Path(spec.origin).parent / "swagger-ui" / name for name in _FILES]
    return {file.name: asset_of(file.name, file.read_bytes()) for file in files}


async def document(request: web.Request) -> Reply:
    """Return the OpenAPI document."""
    return Reply(request.app[DOCUMENT])


async def get(request: web.Request) -> Reply:
    """Return the page that shows the OpenAPI document, or a script or a style sheet of Swagger UI."""
    name = request.match_info.get("name")
    return serve(request, PAGE_ASSETS["docs/docs.html"] if name is None else _assets().get(name), _POLICY)
