"""The page for people at /, and its assets."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

from aiohttp import web

from service.http.output.static import TYPES, Asset, serve
from service.http.output.static import asset as asset_of

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


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Asset]]:
    for file in folder.iterdir():
        if file.is_dir():
            yield from _walk(file, f"{prefix}{file.name}/")
        elif file.name.rpartition(".")[2] in TYPES:
            yield prefix + file.name, asset_of(file.name, file.read_bytes())


ASSETS = dict(_walk(files("service") / "page"))


async def index(request: web.Request) -> web.StreamResponse:
    """Return the page."""
    return serve(request, ASSETS["index.html"], _HEADERS)


async def asset(request: web.Request) -> web.StreamResponse:
    """Return a script, a style sheet or a picture of the page."""
    return serve(request, ASSETS.get("/".join(request.match_info.values())), _HEADERS)
