"""Running: one process or several on one port, stopped without losing an accepted request."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import uvloop
from aiohttp import web

from service.app import create_app
from service.errors import place
from service.logs import set_up
from service.metrics import FOLDER, NUMBER
from service.server import Protocol, Runner
from service.settings import Settings, SettingsError
from service.store import Store

log = logging.getLogger("service")

_BACKLOG = 1024
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# A worker that dies at once is started again, but not in a tight loop.
_RESTART_SECONDS = 1.0
_WATCH_SECONDS = 0.2
# After the order to stop, connections without a request are kept this long: one may be on its way.
_LAST_REQUESTS_SECONDS = 0.5
_POLL_SECONDS = 0.05
_COLLECT_SECONDS = 10.0
# Options of glibc's mallopt, and the memory that it may keep.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_KEPT_BYTES = 16 * 1024 * 1024
# Linux: SO_ATTACH_FILTER, and the instruction of a filter that ends it.
_ATTACH_FILTER, _BPF_RETURN = 26, 0x06
# What a worker may take to end after its last request: closing the store, joining the threads.
_END_SECONDS = 5.0


def serve(settings: Settings, url: str, on_listening: Callable[[str], None]) -> int:
    """Serve until told to stop; `on_listening` gets the address once requests are taken.

    Returns the exit code: 0 if every worker ended in order.
    """
    _tls(settings)  # what cannot work says so here, once, and not in every worker again and again
    Store.connect(settings, url).client.close()
    if settings.workers == 1:
        serve_one(settings, url, on_listening)
        return 0
    return _Supervisor(settings, url).run(on_listening)


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
    tune_allocator()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_one(settings, url, on_listening, shared_port, stop_with_stdin))


def tune_collector() -> None:
    """Let the garbage collector stop everything more rarely, and for less.

    A full collection takes 80 ms a million objects. What is loaded by now is never looked at again,
    and full collections come 100 times more rarely. Left at that, what only a full one finds grew by
    6 KB a request: `_collect` sees to it in time. Items of a page
    are in no cycle, and young objects are looked through every 50,000 of them, not every 700: 36 instead
    of 39 ms of CPU for each 1000 items.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 1000)


def tune_allocator() -> None:
    """Let glibc keep the memory of one page for the next instead of giving it back to the kernel.

    Pages of 1000 items: 33 instead of 42 ms of CPU, most of it page faults, and 165 MB instead of 209 at
    the most. One arena is enough where one thread runs at a time. Other C libraries have no `mallopt`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((_TRIM_THRESHOLD, _KEPT_BYTES), (_MMAP_THRESHOLD, _KEPT_BYTES), (_ARENA_MAX, 1)):
            mallopt(option, value)


async def _collect() -> None:
    while True:
        await asyncio.sleep(_COLLECT_SECONDS)
        gc.collect()


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
    tls = _tls(settings)
    site = web.TCPSite(
        runner,
        settings.host,
        settings.port,
        backlog=_BACKLOG,
        reuse_port=shared_port or None,
        ssl_context=tls,
    )
    await site.start()
    collecting = asyncio.create_task(_collect())
    host, port = runner.addresses[0][:2]
    on_listening(f"{'https' if tls else 'http'}://{host}:{port}")
    log.info("listening", extra={"host": host, "port": port, "pid": os.getpid()})
    await stop.wait()
    if stop_with_stdin:
        loop.remove_reader(sys.stdin.fileno())
    log.info("stopping", extra={"pid": os.getpid()})
    await _stop_listening(runner, site, tls)
    await _finish_requests(runner, settings.shutdown_timeout)
    await runner.cleanup()
    collecting.cancel()
    log.info("stopped", extra={"pid": os.getpid()})


async def _stop_listening(runner: Runner, site: web.TCPSite, tls: ssl.SSLContext | None) -> None:
    """Close the port, after taking in the connections that wait there: closing would reset them.

    New ones are kept out meanwhile, or one could come between the last that is taken in and the end.
    """
    loop = asyncio.get_running_loop()
    server: Any = site._server
    assert runner.server is not None
    listeners = [socket.socket(fileno=os.dup(s.fileno())) for s in server.sockets]
    await site.stop()
    waiting = []
    for listener in listeners:
        _keep_out(listener)
        listener.setblocking(False)
        with listener, contextlib.suppress(BlockingIOError):
            while True:
                waiting.append(listener.accept()[0])
    for connection in waiting:
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            await loop.connect_accepted_socket(runner.server, connection, ssl=tls)


def _keep_out(listener: socket.socket) -> None:
    """Drop the packets of connections that are not made yet, where the system can do that.

    Their clients try again after a second, and are refused or reach another process.
    """
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(struct.pack("HBBI", _BPF_RETURN, 0, 0, 0))  # keep 0 bytes of each
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))


async def _finish_requests(runner: Runner, seconds: float) -> None:
    """Wait until every request is answered; close the connections that have none."""
    loop = asyncio.get_running_loop()
    assert runner.server is not None
    deadline = loop.time() + seconds
    await asyncio.sleep(_LAST_REQUESTS_SECONDS)
    while connections := list(runner.server.connections):
        for connection in connections:
            if isinstance(connection, Protocol) and not connection.busy:
                connection.force_close()
        if loop.time() > deadline:
            log.error("stopping with requests unanswered", extra={"connections": len(runner.server.connections)})
            return
        await asyncio.sleep(_POLL_SECONDS)


def _log_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what went wrong outside of any request, without the values that asyncio would print."""
    error = context.get("exception")
    log.error("unhandled", extra={"error": type(error).__name__, "at": place(error) if error else ""})


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

    def run(self, on_listening: Callable[[str], None]) -> int:
        set_up(self._settings.log_level)
        for name in _STOP_SIGNALS:
            signal.signal(name, lambda *_: self._stopping.set())
        with tempfile.TemporaryDirectory(prefix="sds-metrics-") as metrics:
            self._environ[FOLDER] = metrics
            try:
                # The workers share the port with anybody who shares it: make sure that it is free.
                self._socket().close()
                for number in range(self._settings.workers):
                    self._start(number)
                while not self._stopping.wait(_WATCH_SECONDS):
                    if not self._announced and self._answers():
                        self._announced = True
                        scheme = "https" if self._settings.tls_cert else "http"
                        on_listening(f"{scheme}://{self._settings.host}:{self._settings.port}")
                    self._restart_dead()
            finally:
                self._end()
        # A worker that was still starting ends by the signal itself; it had taken no request yet.
        return int(any(worker.returncode not in (0, -signal.SIGTERM) for worker in self._workers.values()))

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

    def _start(self, number: int) -> None:
        # Its own session: Ctrl-C reaches the supervisor, which tells the workers in order. They
        # also end when this process is gone, however it went: their standard input ends then.
        worker = subprocess.Popen(
            [sys.executable, "-m", "service", "worker"],
            env={**self._environ, NUMBER: str(number)},
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._workers[number] = worker

    def _restart_dead(self) -> None:
        for number, worker in list(self._workers.items()):
            if worker.poll() is not None:
                log.error("a worker died", extra={"pid": worker.pid, "code": worker.returncode})
                del self._workers[number]
                self._stopping.wait(_RESTART_SECONDS)
                if not self._stopping.is_set():
                    self._start(number)

    def _end(self) -> None:
        for worker in self._workers.values():
            worker.terminate()
        deadline = time.monotonic() + self._settings.shutdown_timeout + _END_SECONDS
        for worker in self._workers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(max(0.0, deadline - time.monotonic()))
            if worker.poll() is None:
                log.error("a worker did not stop in time", extra={"pid": worker.pid})
                worker.kill()
                worker.wait()
