"""Real processes of the service, as the command line starts them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

from service.cli import main
from service.settings import Settings
from service.store import Store

SECONDS = 60  # for what takes one or two on a quiet machine


@contextmanager
def refused_port() -> Iterator[int]:
    """Yield a port that refuses connections, and that nobody else can get meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield int(bound.getsockname()[1])


def free_port() -> int:
    """Return a port for a program that cannot be told to choose one itself: another may take it first."""
    with refused_port() as port:
        return port


def wait_until(holds: Callable[[], bool], told: Callable[[], object] = lambda: "", seconds: float = SECONDS) -> None:
    """Wait until something holds; `told` says what to show where it never does."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, told()
        time.sleep(0.02)


def run_process(mongo_url: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m service …` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "service", *arguments],
        env={**os.environ, **_environ(mongo_url, environ)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def run_command(mongo_url: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command as `run_process` does, in this process: importing the service takes most of a second."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.dict(os.environ, _environ(mongo_url, environ)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        ThreadPoolExecutor(1) as thread,  # a command runs an event loop, and so may whoever calls this
    ):
        code = thread.submit(main, list(arguments)).result(SECONDS)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def _environ(mongo_url: str, environ: dict[str, str]) -> dict[str, str]:
    return {"MONGO_URL": mongo_url, "MONGO_DATABASE": "test", **environ}


def make_token(mongo_url: str, organization_id: int, *scopes: str, database: str = "test") -> str:
    """Return a token that may read and write all, or has these scopes, made without a process of its own."""

    async def make() -> str:
        store = Store.connect(Settings(mongo_database=database), mongo_url)
        try:
            return await store.tokens.create(organization_id, list(scopes) or ["read", "write", "state"])
        finally:
            await store.close()

    return asyncio.run(make())


class ServiceProcess:
    """A running `python -m service serve`; its log lines are in `log()`."""

    def __init__(
        self, mongo_url: str, *, entry: list[str] | None = None, flags: Sequence[str] = (), **settings: Any
    ) -> None:
        self._workers = int(settings.get("workers", 1))
        self._port = settings.pop("port", 0)  # without one, the system chooses
        environ = {name.upper(): str(value) for name, value in settings.items()}
        self._log = Path(tempfile.mkstemp(prefix="service-", suffix=".log")[1])
        self.process = subprocess.Popen(
            [*(entry or [sys.executable, "-m", "service"]), "serve", *flags],
            env={
                **os.environ,
                "MONGO_URL": mongo_url,
                "MONGO_DATABASE": "test",
                "PORT": str(self._port),
                **environ,
            },
            stdout=self._log.open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._scheme = "https" if "TLS_CERT" in environ else "http"

    @property
    def port(self) -> int:
        """Return the port, once the service listens on it."""
        if not self._port:
            self._port = self.wait_for("listening")[0]["port"]
        return int(self._port)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def log(self) -> str:
        return self._log.read_text()

    def events(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines of one event."""
        # What follows the last line break is a line that is still being written.
        whole = self.log().rpartition("\n")[0]
        lines = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def wait_for(self, event: str, count: int = 1, **members: Any) -> list[dict[str, Any]]:
        """Wait until the log has this many lines of one event, with these members, and return them."""
        found: list[dict[str, Any]] = []

        def logged() -> bool:
            ended = self.process.poll() is not None  # before the log is read: what it wrote last is in it
            found[:] = [line for line in self.events(event) if members.items() <= line.items()]
            assert len(found) >= count or not ended, self.log()
            return len(found) >= count

        wait_until(logged, self.log)
        return found

    def wait_until_listening(self) -> ServiceProcess:
        """Wait until it listens; with several workers, until one of them does."""
        self.wait_for("listening")
        return self

    def wait_until_ready(self, tls: ssl.SSLContext | None = None) -> ServiceProcess:
        """Wait until it says that it is ready; with several workers, until each of them does."""
        self.wait_for("listening", self._workers)
        # Each connection goes to any of the workers: of 20, some go to each.
        times = 1 if self._workers == 1 else 20
        wait_until(lambda: all(self._is_ready(tls) for _ in range(times)), self.log)
        return self

    def _is_ready(self, tls: ssl.SSLContext | None) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/readyz", timeout=SECONDS, context=tls):
            return True
        return False

    def stop(self, seconds: float = SECONDS) -> int:
        """Send SIGTERM and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        self._log.unlink(missing_ok=True)
