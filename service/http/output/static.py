"""The static files: read once, and only those that are listed, so that no path leads to another file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from aiohttp import web
from isal import igzip

from service.http.errors import http_error
from service.http.output.etags import is_known
from service.http.output.responses import accepts_gzip, public_response

TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml; charset=utf-8",
    "png": "image/png",
}


class Asset(NamedTuple):
    body: bytes
    gzipped: bytes
    content_type: str
    etag: str


def asset(name: str, body: bytes) -> Asset:
    """Return a file ready to be served."""
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:16]}"'  # weak: the same with and without gzip
    return Asset(body, igzip.compress(body, 3), TYPES[name.rpartition(".")[2]], etag)


def serve(request: web.Request, found: Asset | None, headers: Mapping[str, str]) -> web.StreamResponse:
    """Respond with a file, or with 404."""
    if found is None:
        raise http_error(404)
    headers = {**headers, "Cache-Control": "no-cache", "Vary": "Accept-Encoding", "ETag": found.etag}
    if is_known(request, found.etag):
        return web.Response(status=304, headers=headers)
    body, headers["Content-Type"] = found.body, found.content_type
    if accepts_gzip(request):
        body, headers["Content-Encoding"] = found.gzipped, "gzip"
    return public_response(request, body, headers)
