"""The processes that are measured: started, watched through /proc, stopped."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo

from scripts.processes import free_port
from service.runtime.local_mongo import local_mongo

ROOT = Path(__file__).resolve().parents[2]
PEERS_PYTHON = ROOT / ".venv-bench" / "bin" / "python"
DATABASE = "bench"

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CPUS = sorted(os.sched_getaffinity(0))
# The measured server has one core to itself; the database and the load generator share the others.
SERVER_CPUS, OTHER_CPUS = ({_CPUS[0]}, set(_CPUS[1:])) if len(_CPUS) > 1 else (set(_CPUS), set(_CPUS))
ALL_CPUS = set(_CPUS)

# The share of memory that the database may take for its cache: 1,000,000 items are 3 GB.
_CACHE_GB = max(1, int(os.sysconf("SC_PHYS_PAGES") * _PAGE / 2**30 / 3))


def describe() -> str:
    """Return the machine in a line."""
    model = "unknown CPU"
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    memory = os.sysconf("SC_PHYS_PAGES") * _PAGE / 2**30
    version = ".".join(map(str, sys.version_info[:3]))
    return f"{len(_CPUS)} x {model}, {memory:.0f} GiB, Linux {os.uname().release}, Python {version}"


class Tree:
    """A process and all below it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def pids(self) -> list[int]:
        """Return the living processes of the tree."""
        children: dict[int, list[int]] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    children.setdefault(int(_stat(int(entry))[1]), []).append(int(entry))
        found, waiting = [], [self.pid]
        while waiting:
            pid = waiting.pop()
            found.append(pid)
            waiting += children.get(pid, [])
        return found

    def cpu_seconds(self) -> float:
        """Return the processor time that the tree has taken, in user and kernel mode."""
        ticks = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                ticks += sum(map(int, _stat(pid)[11:13]))
        return ticks / _TICK

    def resident_mb(self) -> float:
        """Return the memory that the tree holds now."""
        pages = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * _PAGE / 2**20

    def pin(self, cpus: set[int]) -> None:
        """Keep all threads of the tree, and those they start, on some processors."""
        for pid in self.pids():
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    os.sched_setaffinity(int(thread), cpus)


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, which may hold spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


class PeakMemory:
    """Samples a tree's memory while a block runs; the highest is `mb`."""

    def __init__(self, tree: Tree) -> None:
        self._tree, self._stop = tree, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.mb = 0.0

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            self.mb = max(self.mb, self._tree.resident_mb())

    def __enter__(self) -> PeakMemory:
        self.mb = self._tree.resident_mb()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Server:
    """A server process under measurement."""

    def __init__(
        self, name: str, command: list[str], environ: dict[str, str], cpus: set[int], folder: Path = ROOT
    ) -> None:
        self.name = name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.python = command[0]
        self.environ = {**os.environ, **environ, "PORT": str(self.port)}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [word.replace("{port}", str(self.port)) for word in command],
            cwd=folder,
            env=self.environ,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self.tree = Tree(self._process.pid)
        self.cpus = cpus

    def wait(self, path: str, headers: dict[str, str], seconds: float = 60) -> None:
        """Wait until a path responds with 200, then pin."""
        deadline = time.monotonic() + seconds
        problem: object = "no response"
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=10):
                    self.tree.pin(self.cpus)
                    return
            except urllib.error.HTTPError as error:
                problem = f"{error.code} {error.read(500)!r}"
            except OSError as error:
                problem = error
            time.sleep(0.1)
        raise SystemExit(f"{self.name} does not serve {path}: {problem}\n{self.log()}")

    def log(self) -> str:
        """Return the end of what the server printed."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-3000:]

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


# The peers have no time limit either, so that on a busy machine all are slow and none fails.
PATIENT: dict[str, Any] = {"mongo_timeout": 60, "lease_seconds": 100}


def service(mongo_url: str, cpus: set[int] = SERVER_CPUS, folder: Path = ROOT, **settings: Any) -> Server:
    """Start this service, or the version in another checkout that has its own `.venv`."""
    python = sys.executable if folder == ROOT else str(folder / ".venv/bin/python")
    environ = {"LOG_LEVEL": "WARNING", "MONGO_URL": mongo_url, "MONGO_DATABASE": DATABASE}
    environ |= {name.upper(): str(value) for name, value in settings.items()}
    server = Server("this service", [python, "-m", "service", "serve"], environ, cpus, folder)
    server.wait("/readyz", {})
    return server


class Engine:
    """The database of a measurement."""

    def __init__(self, url: str, tree: Tree) -> None:
        self.url, self.tree = url, tree
        self.client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(url)
        self.database = self.client[DATABASE]

    def step_aside(self) -> None:
        """Leave the measured server its core: this process and the database go to the others."""
        self.tree.pin(OTHER_CPUS)
        os.sched_setaffinity(0, OTHER_CPUS)


@contextlib.contextmanager
def engine() -> Iterator[Engine]:
    """Start a database on a temporary folder, with a cache that holds the data."""
    with (
        tempfile.TemporaryDirectory(prefix="sds-bench-") as folder,
        local_mongo(Path(folder), cache_gb=_CACHE_GB) as mongo,
    ):
        running = Engine(mongo.url, Tree(mongo.pid))
        yield running
        running.client.close()
