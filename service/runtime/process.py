"""Running: one process or several on one port, stopped without losing an accepted request."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
import sys
from collections.abc import Callable
from typing import Any

import uvloop
from aiohttp import web

from service.app import create_app
from service.http.errors import place
from service.runtime.drain import finish_requests, stop_listening
from service.runtime.logging import set_up
from service.runtime.server import Runner
from service.runtime.supervisor import Supervisor
from service.runtime.tuning import collect_garbage, tune_allocator, tune_collector
from service.settings import Settings, SettingsError
from service.store import Store

log = logging.getLogger("service")

_BACKLOG = 1024
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(settings: Settings, url: str, on_listening: Callable[[str], None]) -> int:
    """Serve until told to stop; `on_listening` gets the address once requests are taken.

    Returns the exit code: 0 if every worker ended in order.
    """
    tls_context(settings)  # what cannot work says so here, once, and not in every worker again and again
    Store.connect(settings, url).client.close()
    if settings.workers == 1:
        serve_one(settings, url, on_listening)
        return 0
    return Supervisor(settings, url).run(on_listening)


def serve_one(
    settings: Settings,
    url: str,
    on_listening: Callable[[str], None] = lambda address: None,
    *,
    shared_port: bool = False,
    stop_with_stdin: bool = False,
) -> None:
    """Serve in this process until a signal comes, or until standard input ends."""
    set_up(settings.log_level, settings.log_format)
    tune_collector()
    tune_allocator()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_one(settings, url, on_listening, shared_port, stop_with_stdin))


async def _serve_one(
    settings: Settings,
    url: str,
    on_listening: Callable[[str], None],
    shared_port: bool,
    stop_with_stdin: bool,
) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.set_exception_handler(_log_unhandled)
    for name in _STOP_SIGNALS:
        loop.add_signal_handler(name, stop.set)
    if stop_with_stdin:
        loop.add_reader(sys.stdin.fileno(), stop.set)
    store = Store.connect(settings, url)
    if not store.encrypts:
        log.warning("SECRET_KEYS is not set: cookie and local-storage values are stored in plain text")

    async def say_close(request: web.Request, response: web.StreamResponse) -> None:
        if stop.is_set():
            response.headers["Connection"] = "close"
            response.force_close()

    app = create_app(settings, store)
    app.on_response_prepare.append(say_close)
    runner = Runner(app, settings)
    await runner.setup()
    tls = tls_context(settings)
    site = web.TCPSite(
        runner,
        settings.host,
        settings.port,
        backlog=_BACKLOG,
        reuse_port=shared_port or None,
        ssl_context=tls,
    )
    await site.start()
    collecting = asyncio.create_task(collect_garbage())
    host, port = runner.addresses[0][:2]
    on_listening(f"{'https' if tls else 'http'}://{host}:{port}")
    log.info("listening", extra={"host": host, "port": port, "pid": os.getpid()})
    await stop.wait()
    if stop_with_stdin:
        loop.remove_reader(sys.stdin.fileno())
    log.info("stopping", extra={"pid": os.getpid()})
    await stop_listening(runner, site, tls)
    await finish_requests(runner, settings.shutdown_timeout)
    await runner.cleanup()
    collecting.cancel()
    log.info("stopped", extra={"pid": os.getpid()})


def _log_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what went wrong outside of any request, without the values that asyncio would print."""
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
