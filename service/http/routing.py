"""Routes: their type, how a table of them is served, and which scopes a request needs."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection
from typing import Any, NamedTuple

from aiohttp import web

from service.store import SCOPES


class Route(NamedTuple):
    """One row of the table."""

    method: str
    path: str
    scope: str  # the scopes that its token needs, all of them, or "public"
    handler: Callable[[web.Request], Awaitable[Any]]


_SCOPES = web.AppKey("scopes", dict[web.AbstractRoute, frozenset[str]])


def add_routes(app: web.Application, routes: Collection[Route]) -> None:
    """Serve every route of a table. Raises ValueError for a route without a known scope."""
    paths = {route.path for route in routes}
    scopes = app[_SCOPES] = {}
    for method, path, scope, handler in routes:
        words = scope.split() if scope != "public" else []
        if scope != "public" and (not words or not set(words) <= set(SCOPES)):
            raise ValueError(f"{method} {path} needs a scope: public, or some of {', '.join(SCOPES)}")
        pattern = _pattern(path, paths)
        for name in ("GET", "HEAD") if method == "GET" else (method,):
            route = app.router.add_route(name, pattern, handler)
            scopes[route] = frozenset(words)


def _pattern(path: str, paths: set[str]) -> str:
    """Return a path for aiohttp; a variable at its end does not match the last part of another path."""
    # aiohttp's own pattern for a variable refuses braces, also percent-encoded ones.
    pattern = path.replace("}", ":[^/]+}")
    parent, _, last = path.rpartition("/")
    siblings = (other.rpartition("/") for other in paths)
    names = sorted(name for above, _, name in siblings if above == parent and not name.startswith("{"))
    if not (names and last.startswith("{")):
        return pattern
    # Otherwise the methods of the variable's path would be served, and named in Allow, for those names too.
    return pattern.removesuffix("[^/]+}") + rf"(?!(?:{'|'.join(map(re.escape, names))})\Z)[^/]+}}"


def scopes_of(request: web.Request) -> frozenset[str]:
    """Return the scopes that a request's token needs; none when it needs no token."""
    return request.app[_SCOPES].get(request.match_info.route, frozenset())
