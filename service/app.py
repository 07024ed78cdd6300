"""Wires the application; does nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from aiohttp import web

from service.capacity.parked import Parking
from service.capacity.work import WORK, Gates
from service.http.keys import GATES, PARKING, READINESS, SETTINGS, STOPPING, STORE
from service.http.memory import watch_memory
from service.http.metrics import METRICS, Metrics
from service.http.middleware.access_log import ACCESS_LOG, AccessLog
from service.http.middleware.auth import AUTHENTICATOR, Authenticator
from service.http.middleware.cors import add_cors
from service.http.middleware.rate import RATE, Rate
from service.http.middleware.security_headers import add_headers
from service.http.middleware.serve import serve
from service.http.openapi import DOCUMENT, document
from service.http.outgoing import Sender
from service.http.routing import add_routes
from service.routes import ROUTES
from service.settings import Settings, SettingsError
from service.store import Readiness, Store
from service.webhooks import COURIER, Courier


def create_app(settings: Settings, store: Store) -> web.Application:
    """Return the application that uses a store."""
    app = web.Application(client_max_size=settings.max_body_bytes, middlewares=[serve])
    app[SETTINGS] = settings
    app[STORE] = store
    app[STOPPING] = asyncio.Event()
    app[READINESS] = Readiness(store.database)
    gates = app[GATES] = Gates(settings.max_bytes_in_flight)
    app[PARKING] = Parking(gates)
    app[RATE] = Rate(settings.rate_limit)
    store.within(WORK.get, app[PARKING])
    app[METRICS] = Metrics(settings, store, gates)
    app[ACCESS_LOG] = AccessLog(settings.access_log)
    app[COURIER] = Courier(store.webhooks, Sender(settings.webhook_private), settings.base_url)
    attempts = app[COURIER].attempts
    for result in attempts:
        app[METRICS].follow_counter("sds_webhook_deliveries_total", partial(attempts.__getitem__, result), result)
    app[AUTHENTICATOR] = Authenticator(store.tokens, settings.token_cache_seconds)
    add_routes(app, ROUTES)
    app[DOCUMENT] = document(tuple(ROUTES), settings.max_records, settings.base_url)
    app.on_response_prepare.append(add_headers)
    if settings.cors_origins:
        app.on_response_prepare.append(add_cors)
    app.cleanup_ctx.append(_upkeep)
    if settings.tracing:
        _trace(app)
    return app


def _trace(app: web.Application) -> None:
    """Trace requests and commands; only then is OpenTelemetry imported."""
    try:
        from service.http.middleware.tracing import Tracing, start_provider
    except ImportError:
        raise SettingsError(
            "TRACING needs OpenTelemetry: pip install '.[otel]' in a clone of the repository."
        ) from None
    tracing = Tracing(start_provider(), app[STORE])
    app.middlewares.insert(0, tracing.middleware)
    app.on_response_prepare.append(tracing.add_header)
    app.on_cleanup.append(tracing.close)


async def _upkeep(app: web.Application) -> AsyncIterator[None]:
    """Run the store's upkeep while the application runs, and let writes finish at the end."""
    store = app[STORE]
    store.start_upkeep()
    works = (app[METRICS].watch(), app[AUTHENTICATOR].watch(), watch_memory(), app[COURIER].run())
    tasks = [asyncio.create_task(work) for work in works]
    yield
    for task in tasks:
        task.cancel()
    await app[COURIER].close()
    await store.close()
