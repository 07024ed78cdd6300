"""Running: one process or several on one port, stopped without losing an accepted request."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

import uvloop

from service.app import create_app
from service.logs import set_up
from service.server import Runner
from service.settings import Settings, SettingsError
from service.store import Store

log = logging.getLogger("service")

_BACKLOG = 1024
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# A worker that dies at once is started again, but not in a tight loop.
_RESTART_SECONDS = 1.0
_WATCH_SECONDS = 0.2


def serve(settings: Settings, url: str, on_listening: Callable[[str], None]) -> None:
    """Serve until told to stop; `on_listening` gets the address once requests are taken."""
    _tls(settings)  # what cannot work says so here, once, and not in every worker again and again
    Store.connect(settings, url).client.close()
    if settings.workers == 1:
        serve_one(settings, url, on_listening)
    else:
        _Supervisor(settings, url).run(on_listening)


def serve_one(
    settings: Settings,
    url: str,
    on_listening: Callable[[str], None] = lambda address: None,
    *,
    shared_port: bool = False,
    stop_with_stdin: bool = False,
) -> None:
    """Serve in this process until a signal comes, or until standard input ends."""
    set_up(settings.log_level)
    tune_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_one(settings, url, on_listening, shared_port, stop_with_stdin))


def tune_collector() -> None:
    """Let the garbage collector stop everything more rarely, and for less.

    A full collection takes 80 ms a million objects. What is loaded by now is never looked at again,
    and full collections come 100 times more rarely; those of young objects are as frequent as ever.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 1000)


async def _serve_one(
    settings: Settings,
    url: str,
    on_listening: Callable[[str], None],
    shared_port: bool,
    stop_with_stdin: bool,
) -> None:
    from aiohttp import web

    store = Store.connect(settings, url)
    if not store.encrypts:
        log.warning("SECRET_KEYS is not set: cookie and local-storage values are stored in plain text")
    runner = Runner(create_app(settings, store), settings)
    await runner.setup()
    site = web.TCPSite(
        runner,
        settings.host,
        settings.port,
        backlog=_BACKLOG,
        reuse_port=shared_port or None,
        ssl_context=_tls(settings),
    )
    await site.start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in _STOP_SIGNALS:
        loop.add_signal_handler(name, stop.set)
    if stop_with_stdin:
        threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(stop.set)), daemon=True).start()
    host, port = runner.addresses[0][:2]
    on_listening(f"{'https' if settings.tls_cert else 'http'}://{host}:{port}")
    log.info("listening", extra={"host": host, "port": port, "pid": os.getpid()})
    await stop.wait()
    log.info("stopping", extra={"pid": os.getpid()})
    await runner.cleanup()


def _tls(settings: Settings) -> ssl.SSLContext | None:
    if not settings.tls_cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except ssl.SSLError as error:
        raise SettingsError(f"TLS_CERT and TLS_KEY cannot be used: {error.reason or error}") from None
    return context


class _Supervisor:
    """Starts the workers, starts again those that die, and ends with all of them."""

    def __init__(self, settings: Settings, url: str) -> None:
        self._settings = settings
        self._environ = {**os.environ, **settings.environ(), "MONGO_URL": url}
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._stopping = threading.Event()
        self._announced = False

    def run(self, on_listening: Callable[[str], None]) -> None:
        set_up(self._settings.log_level)
        for name in _STOP_SIGNALS:
            signal.signal(name, lambda *_: self._stopping.set())
        with tempfile.TemporaryDirectory(prefix="sds-metrics-") as metrics:
            self._environ["PROMETHEUS_MULTIPROC_DIR"] = metrics
            try:
                # The workers share the port with anybody who shares it: make sure that it is free.
                self._socket().close()
                for _ in range(self._settings.workers):
                    self._start()
                while not self._stopping.wait(_WATCH_SECONDS):
                    if not self._announced and self._answers():
                        self._announced = True
                        scheme = "https" if self._settings.tls_cert else "http"
                        on_listening(f"{scheme}://{self._settings.host}:{self._settings.port}")
                    self._restart_dead()
            finally:
                self._end()

    def _socket(self) -> socket.socket:
        host = self._settings.host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, self._settings.port), family=family)

    def _answers(self) -> bool:
        try:
            socket.create_connection((self._settings.host, self._settings.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _start(self) -> None:
        # Its own session: Ctrl-C reaches the supervisor, which tells the workers in order. They
        # also end when this process is gone, however it went: their standard input ends then.
        worker = subprocess.Popen(
            [sys.executable, "-m", "service", "worker"],
            env=self._environ,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._workers[worker.pid] = worker

    def _restart_dead(self) -> None:
        for pid, worker in list(self._workers.items()):
            if worker.poll() is not None:
                log.error("a worker died", extra={"pid": pid, "code": worker.returncode})
                del self._workers[pid]
                self._stopping.wait(_RESTART_SECONDS)
                if not self._stopping.is_set():
                    self._start()

    def _end(self) -> None:
        for worker in self._workers.values():
            worker.terminate()
        deadline = time.monotonic() + self._settings.shutdown_timeout + 3
        for worker in self._workers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(max(0.0, deadline - time.monotonic()))
            if worker.poll() is None:
                worker.kill()
