"""Real processes of the service, as the command line starts them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service.settings import Settings
from service.store import Store


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_command(mongo_url: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m service …` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "service", *arguments],
        env={**os.environ, "MONGO_URL": mongo_url, "MONGO_DATABASE": "test", **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


def make_token(mongo_url: str, organization_id: int, *scopes: str, database: str = "test") -> str:
    """Return a token that may read and write, or has these scopes, made without a process of its own."""

    async def make() -> str:
        store = Store.connect(Settings(mongo_database=database), mongo_url)
        try:
            return await store.tokens.create(organization_id, list(scopes) or ["read", "write"])
        finally:
            await store.close()

    return asyncio.run(make())


class ServiceProcess:
    """A running `python -m service serve`; its log lines are in `log()`."""

    def __init__(
        self, mongo_url: str, *, entry: list[str] | None = None, flags: Sequence[str] = (), **settings: Any
    ) -> None:
        self.port = settings.pop("port", None) or free_port()
        environ = {name.upper(): str(value) for name, value in settings.items()}
        self._log = Path(tempfile.mkstemp(prefix="service-", suffix=".log")[1])
        self.process = subprocess.Popen(
            [*(entry or [sys.executable, "-m", "service"]), "serve", *flags],
            env={
                **os.environ,
                "MONGO_URL": mongo_url,
                "MONGO_DATABASE": "test",
                "PORT": str(self.port),
                **environ,
            },
            stdout=self._log.open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.url = f"{'https' if 'TLS_CERT' in environ else 'http'}://127.0.0.1:{self.port}"

    def log(self) -> str:
        return self._log.read_text()

    def events(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines of one event."""
        lines = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def wait_for(self, event: str, count: int = 1, seconds: float = 60) -> list[dict[str, Any]]:
        """Wait until the log has this many lines of one event, and return them."""
        deadline = time.monotonic() + seconds
        while len(found := self.events(event)) < count:
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)
        return found

    def wait_until_listening(self, seconds: float = 20) -> ServiceProcess:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log()
            # With several workers: until one of them answers.
            if re.search('"event":"listening"', self.log()):
                return self
            time.sleep(0.05)
        raise AssertionError(f"does not listen: {self.log()}")

    def wait_until_ready(self, seconds: float = 20) -> ServiceProcess:
        self.wait_until_listening(seconds)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.url}/readyz", timeout=2):
                    return self
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.05)
        raise AssertionError(f"is not ready: {self.log()}")

    def stop(self, seconds: float = 35) -> int:
        """Send SIGTERM and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> ServiceProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
        self._log.unlink(missing_ok=True)
