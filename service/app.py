"""Wires the application; does nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from service.auth import Authenticator, authenticate
from service.cors import add_cors, preflight
from service.errors import errors
from service.handlers.page import add_page
from service.keys import AUTHENTICATOR, METRICS, SETTINGS, STORE
from service.limits import LIMITS, Limits, admit, rate_limit, time_limit
from service.logs import observe
from service.metrics import Metrics
from service.openapi import add_documentation
from service.query import well_formed_target
from service.routes import ROUTES
from service.server import add_headers
from service.settings import Settings
from service.store import Store


def create_app(settings: Settings, store: Store) -> web.Application:
    """Return the application on a store. Tests call it as the command line does."""
    app = web.Application(
        client_max_size=settings.max_body_bytes,
        middlewares=[observe, errors, preflight, well_formed_target, admit, time_limit, authenticate, rate_limit],
    )
    app[SETTINGS] = settings
    app[STORE] = store
    app[LIMITS] = Limits(settings.max_in_flight, settings.rate_limit)
    app[METRICS] = Metrics(store, app[LIMITS])
    app[AUTHENTICATOR] = Authenticator(store.tokens, settings.token_cache_seconds)
    for method, path, handler in ROUTES:
        # aiohttp's own pattern for a variable refuses braces, also percent-encoded ones.
        path = path.replace("}", ":[^/]+}")
        app.router.add_route(method, path, handler)
        if method == "GET":
            app.router.add_route("HEAD", path, handler)
    add_documentation(app)
    add_page(app)
    app.on_response_prepare.append(add_headers)
    app.on_response_prepare.append(add_cors)
    app.cleanup_ctx.append(_upkeep)
    return app


async def _upkeep(app: web.Application) -> AsyncIterator[None]:
    """Keep the store in order while the application runs, and let its writes finish at the end."""
    store = app[STORE]
    store.start_upkeep()
    watch = asyncio.create_task(app[METRICS].watch())
    yield
    watch.cancel()
    await store.close()
