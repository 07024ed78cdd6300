"""The OpenAPI document, made from the routes, and the page that shows it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from aiohttp import web
from aiohttp_apispec.aiohttp_apispec import AiohttpApiSpec
from apispec import APISpec
from marshmallow import Schema

import service
from service.answers import answer_bytes
from service.assets import Asset, asset, serve
from service.keys import SETTINGS
from service.store import documents

_LINES = {"type": "string"}
_TEXT = {"schema": {"type": "string"}}
_PATH_ID = {"type": "string", "minLength": 1, "maxLength": 256}

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


class OpenApi(AiohttpApiSpec):  # type: ignore[misc]
    """aiohttp-apispec, which reads the handlers' decorators, made to write OpenAPI 3.

    Its own Swagger 2.0 knows neither bearer tokens nor null.
    """

    def __init__(self, max_records: int) -> None:
        self._max_records = max_records
        info = {"title": "Scraping Data Service", "version": service.__version__}
        super().__init__(url=None, **info)
        self.spec = APISpec(openapi_version="3.0.3", plugins=(self.plugin,), **info)
        self.spec.components.security_scheme("bearer", {"type": "http", "scheme": "bearer"})

    def _update_paths(self, data: dict[str, Any], method: str, url_path: str) -> None:
        if method == "head":  # it works wherever GET does, and says the same
            return
        operation = {k: v for k, v in data.items() if k not in ("schemas", "produces", "part", "takes", "gives")}
        operation["parameters"] = [
            {"in": "path", "name": name[1:-1], "required": True, "schema": _PATH_ID}
            for name in url_path.split("/")
            if name.startswith("{")
        ]
        for used in data["schemas"]:
            if used["location"] == "json":
                content = {"application/json": {"schema": self._body(used["schema"])}}
                content.update((kind, {"schema": _LINES}) for kind in data.get("takes", ()))
                operation["requestBody"] = {"required": True, "content": content}
            else:
                operation["parameters"].append({"in": "query", "schema": used["schema"]})
        operation["responses"] = {
            status: {"description": response["description"], "headers": _headers(status), **_content(response)}
            for status, response in data["responses"].items()
        }
        success = operation["responses"]["200"].setdefault("content", {})
        if "part" in data:
            for status in ("200", "304"):
                operation["responses"][status]["headers"]["ETag"] = _TEXT
            success["application/json"]["schema"] = {"anyOf": [success["application/json"]["schema"], data["part"]]}
        success.update((kind, {"schema": _LINES}) for kind in data.get("gives", ()))
        self.spec.path(path=url_path, operations={method: operation})

    def _body(self, schema: Schema) -> Any:
        if not schema.many:
            return schema
        return {"type": "array", "items": type(schema)(), "maxItems": self._max_records}


def _headers(status: str) -> dict[str, Any]:
    """Return the headers that say something to clients."""
    by_status = {"401": ["WWW-Authenticate"], "429": ["Retry-After"], "503": ["Retry-After"]}
    return dict.fromkeys(["X-Request-ID", *by_status.get(status, [])], _TEXT)


def _content(response: dict[str, Any]) -> dict[str, Any]:
    if "schema" not in response:
        return {}
    return {"content": {response.get("content_type", "application/json"): {"schema": response["schema"]}}}


def describe(app: web.Application) -> dict[str, Any]:
    """Return the OpenAPI document of an application's routes."""
    openapi = OpenApi(app[SETTINGS].max_records)
    for route in app.router.routes():
        openapi._register_route(route, route.method.lower(), route.handler)
    document = dict(openapi.swagger_dict())
    for operation in (operation for path in document["paths"].values() for operation in path.values()):
        for parameter in operation["parameters"]:
            if parameter["schema"].get("nullable"):
                parameter["allowEmptyValue"] = True  # the same as leaving it out
    return document


@cache
def _assets() -> dict[str, Asset]:
    assets = {"index.html": asset("index.html", _PAGE), "start.js": asset("start.js", _START)}
    for name in ("swagger-ui.css", "swagger-ui-bundle.js", "favicon-32x32.png"):
        assets[name] = asset(name, (files("aiohttp_apispec") / "static" / name).read_bytes())
    return assets


# By the one setting that stands in it: tests make an application each, and it takes 40 ms to make.
_documents: dict[int, bytes] = {}


def add_documentation(app: web.Application) -> None:
    """Serve the document at /openapi.json and Swagger UI at /docs, with its own assets."""
    max_records = app[SETTINGS].max_records
    if max_records not in _documents:
        _documents[max_records] = documents.dump(describe(app))
    document, assets = _documents[max_records], _assets()

    async def openapi(request: web.Request) -> web.StreamResponse:
        return await answer_bytes(request, document)

    async def page(request: web.Request) -> web.StreamResponse:
        return serve(request, assets["index.html"], _POLICY)

    async def static(request: web.Request) -> web.StreamResponse:
        return serve(request, assets.get(request.match_info["name"]), _POLICY)

    app.router.add_get("/openapi.json", openapi)
    app.router.add_get("/docs", page)
    app.router.add_get("/docs/static/{name}", static)
