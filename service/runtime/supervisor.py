"""Several worker processes on one port: started, restarted when they die, stopped together."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from service.http.cells import Cells
from service.http.metrics import FOLDER, NUMBER, SUPERVISOR
from service.runtime.healthcheck import fetch_status
from service.runtime.logging import set_up
from service.runtime.sockets import address_of, bind, close
from service.settings import Settings, SettingsError

log = logging.getLogger("service")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_WATCH_SECONDS = 0.2
# The pause before a worker is started again doubles with each death, until one has lived long enough.
_FIRST_PAUSE, _MAX_PAUSE, _STABLE_SECONDS = 1.0, 30.0, 60.0
# Seconds that a worker may take to end after its last request: closing the store, joining the threads.
_END_SECONDS = 5.0
# A worker told to stop while it still starts exits with this; it had accepted no request yet.
_STOPPED_AT_START = 128 + signal.SIGTERM


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    started: float
    pause: float  # before its next start


class Supervisor:
    """Holds the listening sockets, starts the workers, restarts those that die, and stops them all at the end.

    Each worker has sockets of its own, so that the kernel spreads connections evenly: of 40 that came together, two
    workers that shared a socket took 7 and 33. The sockets of a dead worker are closed, except the last ones: so the
    port stays taken, and connections wait there for the next worker.
    """

    def __init__(self, settings: Settings, url: str) -> None:
        # Not shared: fails if another service listens there. A port that the system chose is free, and is kept.
        sockets = bind(settings.host, settings.port, shared=not settings.port)
        self._settings = dataclasses.replace(settings, port=address_of(sockets[0])[1])
        self._listeners: dict[int, list[socket.socket]] = {}
        if settings.port:
            close(sockets)
        else:
            self._listeners[0] = sockets
        self._environ = {**os.environ, **self._settings.environ(), "MONGO_URL": url}
        self._workers: dict[int, _Worker] = {}
        self._due: dict[int, tuple[float, float]] = {}  # dead workers: when each starts again, and its pause
        self._stopping = threading.Event()

    def run(self, on_listening: Callable[[str], None]) -> int:
        set_up(self._settings.log_level, self._settings.log_format)
        for name in STOP_SIGNALS:
            signal.signal(name, lambda *_: self._stopping.set())
        announced = False
        with tempfile.TemporaryDirectory(prefix="sds-metrics-") as metrics:
            self._environ[FOLDER] = metrics
            cells = Cells(Path(metrics), SUPERVISOR)
            restarts = cells.place("sds_worker_restarts_total")
            try:
                for number in range(self._settings.workers):
                    self._start(number, _FIRST_PAUSE)
                while not self._stopping.wait(_WATCH_SECONDS):
                    if not announced and self._responds():
                        announced = True
                        scheme = "https" if self._settings.tls_cert else "http"
                        on_listening(f"{scheme}://{self._settings.host}:{self._settings.port}")
                    self._note_deaths()
                    cells.values[restarts] += self._restart_due()
            finally:
                self._end()
        codes = [worker.process.returncode for worker in self._workers.values()]
        return int(any(code not in (0, -signal.SIGTERM, _STOPPED_AT_START) for code in codes))

    def _responds(self) -> bool:
        with contextlib.suppress(OSError):
            return fetch_status(self._settings, "/healthz", 1.0) == 200
        return False

    def _start(self, number: int, pause: float, beside: Iterable[int] = ()) -> None:
        """Start a worker; those `beside` it start at the same time, with sockets of their own."""
        # Its own session: Ctrl-C reaches only the supervisor, which stops the workers in order. They also
        # end when this process dies in any way, because their standard input ends.
        # Connections wait at the sockets of dead workers whose pause is not over.
        for other in set(self._listeners) - set(self._workers) - {number, *beside}:
            self._listeners.setdefault(number, []).extend(self._listeners.pop(other))
        if number not in self._listeners:
            self._listeners[number] = bind(self._settings.host, self._settings.port, shared=True)
        files = [listener.fileno() for listener in self._listeners[number]]
        process = subprocess.Popen(
            [sys.executable, "-m", "service", "worker", *map(str, files)],
            env={**self._environ, NUMBER: str(number)},
            stdin=subprocess.PIPE,
            pass_fds=files,
            start_new_session=True,
        )
        self._workers[number] = _Worker(process, time.monotonic(), pause)

    def _note_deaths(self) -> None:
        now = time.monotonic()
        for number, worker in list(self._workers.items()):
            if worker.process.poll() is None:
                continue
            del self._workers[number]
            if any(other.process.poll() is None for other in self._workers.values()):
                close(self._listeners.pop(number))
            pause = _FIRST_PAUSE if now - worker.started > _STABLE_SECONDS else worker.pause
            self._due[number] = now + pause, min(2 * pause, _MAX_PAUSE)
            code = worker.process.returncode
            log.error("a worker died", extra={"pid": worker.process.pid, "code": code, "restart_seconds": pause})

    def _restart_due(self) -> int:
        """Start the workers again whose pause is over; return how many were started."""
        due = [number for number, (moment, _) in self._due.items() if time.monotonic() >= moment]
        started = 0
        for number in due:
            pause = self._due.pop(number)[1]
            try:
                self._start(number, pause, due)
                started += 1
            except (OSError, SettingsError) as error:  # too many processes or files: the other workers go on
                self._due[number] = time.monotonic() + pause, min(2 * pause, _MAX_PAUSE)
                log.error("a worker cannot be started", extra={"error": str(error), "restart_seconds": pause})
        return started

    def _end(self) -> None:
        # First: no connection may wait here that nobody will accept.
        for listeners in self._listeners.values():
            close(listeners)
        processes = [worker.process for worker in self._workers.values()]
        for process in processes:
            process.terminate()
        settings = self._settings
        deadline = time.monotonic() + settings.drain_seconds + settings.shutdown_timeout + _END_SECONDS
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            if process.poll() is None:
                log.error("a worker did not stop in time", extra={"pid": process.pid})
                process.kill()
                process.wait()
