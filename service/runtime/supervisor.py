"""Several worker processes on one port: started, restarted when they die, stopped together."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

from service.http.metrics import FOLDER, NUMBER
from service.runtime.logging import set_up
from service.settings import Settings

log = logging.getLogger("service")

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# A worker that dies at once is started again, but not in a tight loop.
_RESTART_SECONDS = 1.0
_WATCH_SECONDS = 0.2
# What a worker may take to end after its last request: closing the store, joining the threads.
_END_SECONDS = 5.0


class Supervisor:
    """Starts the workers, starts again those that die, and ends with all of them."""

    def __init__(self, settings: Settings, url: str) -> None:
        self._settings = settings
        self._environ = {**os.environ, **settings.environ(), "MONGO_URL": url}
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._stopping = threading.Event()
        self._announced = False

    def run(self, on_listening: Callable[[str], None]) -> int:
        set_up(self._settings.log_level, self._settings.log_format)
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
