"""The load generator: wrk, made to send a fixed number of requests and to stop after the last response.

With a fixed time, the requests under way at its end would cost processor time without a counted response: 16 of about
100 at 1000 items per page.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench.machine import OTHER_CPUS

_LUA = Path(__file__).with_name("load.lua")
# No run takes longer, whatever happens.
_MOST_SECONDS = 180


@dataclass
class Requests:
    """What to send."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)
    connections: int = 16
    templates: Path | None = None  # of items to post; without it the request is a GET
    batch: int = 100
    groups: int = 1  # with more than one, their numbers go behind the path
    first: int | None = None  # number of the first item; else none has been sent before
    cpus: set[int] = field(default_factory=lambda: OTHER_CPUS)


@dataclass
class Result:
    """The result of a run: milliseconds, requests per second."""

    requests: int
    seconds: float
    p50: float
    p99: float
    bytes: int

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


class Failed(Exception):
    """Raised when not every request succeeded."""


# Every item that is ever posted has a number of its own.
_numbers = iter(range(10_000_000, 10**12, 10_000_000))


def next_number() -> int:
    """Return a number from which on no item has been posted."""
    return next(_numbers)


def send(what: Requests, count: int) -> Result:
    """Send `count` requests, as many at once as there are connections. Raises if one fails."""
    count = max(count, what.connections)
    result, failed = _wrk(what, count)
    if failed or result.requests != count:
        raise Failed(f"{failed} of {count} requests to {what.url} failed; {result.requests} succeeded")
    return result


def _wrk(what: Requests, count: int) -> tuple[Result, int]:
    headers = [word for name, value in what.headers.items() for word in ("-H", f"{name}: {value}")]
    post = _post(what)
    connections = str(what.connections)
    command = ["wrk", "-t1", "-c", connections, "-d", str(_MOST_SECONDS), "--timeout", "60", "-s", str(_LUA)]
    process = subprocess.Popen(
        [*command, *headers, what.url, "--", str(count), *post],
        env={**os.environ, "CONNECTIONS": connections},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.sched_setaffinity(process.pid, what.cpus)
    assert process.stderr
    started = ended = time.perf_counter()
    report: dict[str, Any] = {}
    seen = []
    for line in process.stderr:
        seen.append(line)
        if line == "begin\n":
            started = time.perf_counter()
        elif line == "end\n":
            ended = time.perf_counter()
            process.send_signal(signal.SIGINT)
        elif line.startswith("{"):
            report = json.loads(line)
    process.wait()
    if not report or ended == started:
        raise Failed(f"wrk did not get {count} responses from {what.url}: {''.join(seen)}")
    result = Result(report["requests"], ended - started, report["p50"], report["p99"], report["bytes"])
    return result, report["failed"]


def _post(what: Requests) -> list[str]:
    if what.templates is None:
        return []
    first = next_number() if what.first is None else what.first
    return [str(what.templates), str(what.batch), str(first), str(what.groups)]


def percentile(values: list[float], share: float) -> float:
    """Return the value below which a share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


@contextmanager
def template_file(templates: list[str]) -> Iterator[Path]:
    """Put item templates where the load generator reads them."""
    with tempfile.NamedTemporaryFile("w", prefix="sds-bench-", suffix=".jsonl") as file:
        file.write("\n".join(templates))
        file.flush()
        yield Path(file.name)
