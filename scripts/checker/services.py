"""Service processes on one database, and the database when none is given."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scripts.processes import die_with_parent, free_port
from scripts.replica_set import ReplicaSet
from tests.support.processes import wait_until

ORGANIZATION = 1
SERVICE_KILLED = "kill -9 of a service"


@contextmanager
def mongo(nodes: int = 0) -> Iterator[tuple[str, ReplicaSet | None]]:
    """Yield the address of a new replica set of so many members, or MONGO_URL, else of a set of one."""
    given = os.environ.get("MONGO_URL")
    if given and not nodes:
        yield given, None
    else:
        with ReplicaSet(nodes or 1, test_commands=False) as replica_set:
            yield replica_set.url, replica_set


def responds(port: int, path: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2):
        return True
    return False


class Services:
    """Service processes on one database, each started again when it dies."""

    def __init__(self, count: int, environ: dict[str, str], folder: Path) -> None:
        self.ports = [free_port() for _ in range(count)]
        self._environ, self._log = environ, (folder / "services.log").open("ab")
        self._processes = [self._start(number) for number in range(count)]
        self.ended = Counter[str]()

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        # Not one seed for all: a process that crashes at a step would do so again.
        environ = {**self._environ, "PORT": str(self.ports[number]), "CHECKER_SEED": str(random.random())}
        return subprocess.Popen(
            [sys.executable, "-m", "scripts.checker.service", "serve"],
            env=environ,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )

    def wait_until_ready(self) -> None:
        wait_until(lambda: all(responds(port, "/readyz") for port in self.ports), Path(self._log.name).read_text)

    def are_up(self) -> bool:
        """Return whether all respond: with none of them up, nobody could end what the dead left."""
        return all(responds(port, "/healthz") for port in self.ports)

    def kill_one(self) -> None:
        random.choice(self._processes).kill()
        self.ended[SERVICE_KILLED] += 1

    def restart_dead(self) -> None:
        for number, process in enumerate(self._processes):
            if process.poll() is not None:
                if process.returncode not in (9, -signal.SIGKILL):
                    raise SystemExit(f"a service ended by itself: {Path(self._log.name).read_text()[-3000:]}")
                self._processes[number] = self._start(number)

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
            process.kill()
            process.wait()
