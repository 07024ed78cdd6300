"""GET /openapi.json, and GET /docs, which shows it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from aiohttp import web

from service.http.openapi import DOCUMENT
from service.http.responses import bytes_response
from service.http.static import Asset, serve
from service.http.static import asset as asset_of

_PAGE = b"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Scraping Data Service: API</title>
<link rel="stylesheet" href="/docs/static/swagger-ui.css">
<link rel="icon" type="image/png" href="/docs/static/favicon-32x32.png">
</head>
<body>
<div id="swagger-ui"></div>
<script src="/docs/static/swagger-ui-bundle.js"></script>
<script src="/docs/static/start.js"></script>
</body>
</html>
"""

_START = b"""SwaggerUIBundle({
  url: "/openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis]
});
"""
# Swagger UI sets styles from its script and shows pictures from data: URLs.
_POLICY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
}


@cache
def _assets() -> dict[str, Asset]:
    assets = {"index.html": asset_of("index.html", _PAGE), "start.js": asset_of("start.js", _START)}
    for name in ("swagger-ui.css", "swagger-ui-bundle.js", "favicon-32x32.png"):
        assets[name] = asset_of(name, (files("aiohttp_apispec") / "static" / name).read_bytes())
    return assets


async def document(request: web.Request) -> web.StreamResponse:
    """Return the OpenAPI document."""
    return await bytes_response(request, request.app[DOCUMENT])


async def index(request: web.Request) -> web.StreamResponse:
    """Return the page that shows the OpenAPI document."""
    return serve(request, _assets()["index.html"], _POLICY)


async def asset(request: web.Request) -> web.StreamResponse:
    """Return a script, a style sheet or a picture of that page."""
    return serve(request, _assets().get(request.match_info["name"]), _POLICY)
