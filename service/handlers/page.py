"""The page for people at /, and its assets."""

from __future__ import annotations

import gzip
import hashlib
from importlib.resources import files
from typing import NamedTuple

from aiohttp import web

from service.answers import accepts_gzip
from service.errors import http_error

_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_HEADERS = {
    # The page shows scraped data, which is hostile: nothing in it can become a script, a form or a request.
    "Content-Security-Policy": "; ".join(
        [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ]
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}


class _Asset(NamedTuple):
    body: bytes
    gzipped: bytes
    content_type: str
    etag: str


def _load() -> dict[str, _Asset]:
    assets = {}
    for file in (files("service") / "page").iterdir():
        content_type = _TYPES.get(file.name.rpartition(".")[2])
        if content_type is not None:
            body = file.read_bytes()
            etag = f'W/"{hashlib.sha256(body).hexdigest()[:16]}"'  # weak: gzip or not, it is the same
            assets[file.name] = _Asset(body, gzip.compress(body, mtime=0), content_type, etag)
    return assets


_ASSETS = _load()


def add_page(app: web.Application) -> None:
    """Serve the page at / and what it consists of under /page/."""
    app.router.add_get("/", index)
    app.router.add_get("/page/{name}", asset)


async def index(request: web.Request) -> web.StreamResponse:
    """Return the page itself."""
    return _serve(request, "index.html")


async def asset(request: web.Request) -> web.StreamResponse:
    """Return a script, a style sheet or a picture of the page."""
    return _serve(request, request.match_info["name"])


def _serve(request: web.Request, name: str) -> web.Response:
    found = _ASSETS.get(name)
    if found is None:
        raise http_error(404)
    headers = {**_HEADERS, "ETag": found.etag}
    if request.headers.get("If-None-Match") == found.etag:
        return web.Response(status=304, headers=headers)
    body = found.body
    if accepts_gzip(request):
        body, headers["Content-Encoding"] = found.gzipped, "gzip"
    return web.Response(body=body, content_type=found.content_type, charset="utf-8", headers=headers)
