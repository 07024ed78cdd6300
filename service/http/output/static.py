"""The static files: read once, and only those that are listed, so that no path leads to another file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from aiohttp import web
from isal import igzip

from service.http.errors import http_error
from service.http.reply import Reply, accepts_gzip

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


def serve(request: web.Request, file: Asset | None, headers: Mapping[str, str]) -> Reply:
    """Return a file; raise 404 if there is none."""
    if file is None:
        raise http_error(404)
    headers = {**headers, "Cache-Control": "no-cache", "Vary": "Accept-Encoding", "ETag": file.etag}
    if accepts_gzip(request):
        return Reply(file.gzipped, headers | {"Content-Encoding": "gzip"}, content_type=file.content_type)
    return Reply(file.body, headers, content_type=file.content_type)


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Asset]]:
    for file in folder.iterdir():
        if file.is_dir():
            yield from _walk(file, f"{prefix}{file.name}/")
        elif file.name.rpartition(".")[2] in TYPES:
            yield prefix + file.name, asset(file.name, file.read_bytes())


PAGE_ASSETS = dict(_walk(files("service") / "page"))
