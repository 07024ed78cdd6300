"""Running: one process or several on one port, stopped without losing an accepted request."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Any

import uvloop
from aiohttp import web

from service.app import create_app
from service.http.errors import place
from service.http.keys import STOPPING
from service.http.metrics import METRICS
from service.http.middleware.access_log import ACCESS_LOG
from service.runtime.drain import deliver_responses, finish_requests, stop_listening
from service.runtime.logging import AccessLines, is_json, set_up
from service.runtime.server import Runner
from service.runtime.sockets import address_of, bind
from service.runtime.supervisor import STOP_SIGNALS, Supervisor
from service.runtime.tuning import raise_file_limit, tune_allocator, tune_collector
from service.settings import Settings, SettingsError
from service.store import Store
from service.webhooks import COURIER

log = logging.getLogger("service")

_READY_SECONDS = 3.0


def serve(settings: Settings, url: str, on_listening: Callable[[str], None]) -> int:
    """Serve until told to stop; `on_listening` gets the address once requests are accepted.

    Returns the exit code: 0 if every worker ended in order.
    """
    tls_context(settings)  # fails here, once, instead of in every worker
    Store.connect(settings, url).client.close()
    if settings.workers > 1:
        return Supervisor(settings, url).run(on_listening)
    serve_one(settings, url, bind(settings.host, settings.port), on_listening)
    return 0


def serve_one(
    settings: Settings,
    url: str,
    listeners: list[socket.socket],
    on_listening: Callable[[str], None] = lambda address: None,
    *,
    stop_with_stdin: bool = False,
) -> None:
    """Serve in this process until a signal comes, or until standard input ends."""
    set_up(settings.log_level, settings.log_format)
    tune_collector()
    tune_allocator()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_one(settings, url, listeners, on_listening, stop_with_stdin))


async def _serve_one(
    settings: Settings,
    url: str,
    listeners: list[socket.socket],
    on_listening: Callable[[str], None],
    stop_with_stdin: bool,
) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.set_exception_handler(_log_unhandled)
    for name in STOP_SIGNALS:
        loop.add_signal_handler(name, stop.set)
    if stop_with_stdin:
        loop.add_reader(sys.stdin.fileno(), stop.set)
    store = Store.connect(settings, url)
    if not store.encrypts:
        log.warning("SECRET_KEYS is not set: cookie and local-storage values are stored in plain text")
    app = create_app(settings, store)
    access = app[ACCESS_LOG]
    if not logging.getLogger("service.access").isEnabledFor(logging.INFO):
        access.share = 0.0
    elif is_json(settings.log_format):
        lines = AccessLines(sys.stderr.fileno())
        atexit.register(lines.flush)
        access.write = lines.write

    async def say_close(request: web.Request, response: web.StreamResponse) -> None:
        if app[STOPPING].is_set():
            response.headers["Connection"] = "close"
            response.force_close()

    app[STOPPING] = stop
    app.on_response_prepare.append(say_close)
    runner = Runner(app, settings, raise_file_limit(settings.mongo_pool))
    app[METRICS].follow_counter("sds_unavailable_total", lambda: runner.refused, "connections")
    await runner.setup()
    tls = tls_context(settings)
    addresses = [address_of(listener) for listener in listeners]
    await runner.listen(listeners, tls)
    host, port = addresses[0]
    encoder = store.outputs.encoder_name
    log.info("listening", extra={"host": host, "port": port, "pid": os.getpid(), "encoder": encoder})
    with contextlib.suppress(TimeoutError):
        # So that the address works once it is announced; an unreachable database is not waited for.
        async with asyncio.timeout(_READY_SECONDS):
            await store.indexes.wait_until_ready()
    on_listening(f"{'https' if tls else 'http'}://{host}:{port}")
    await stop.wait()
    if stop_with_stdin:
        loop.remove_reader(sys.stdin.fileno())
    log.info("stopping", extra={"pid": os.getpid()})
    await asyncio.sleep(settings.drain_seconds)
    store.watch.stop()
    store.sessions.queue.stop()
    app[COURIER].stop()  # a slow receiver takes its time beside the last requests, not after them
    deadline = loop.time() + settings.shutdown_timeout
    await stop_listening(runner, listeners, tls)
    await finish_requests(runner, deadline)
    await runner.cleanup()
    await deliver_responses({port for _, port in addresses}, deadline)
    log.info("stopped", extra={"pid": os.getpid()})


def _log_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error outside of any request, without the values that asyncio would print."""
    error = context.get("exception")
    log.error("unhandled", extra={"error": type(error).__name__, "at": place(error) if error else ""})


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    if not settings.tls_cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except ssl.SSLError as error:
        raise SettingsError(f"TLS_CERT and TLS_KEY cannot be used: {error.reason or error}") from None
    return context
