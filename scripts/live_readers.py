"""Measure how soon readers that follow or wait receive a write: `python -m scripts.live_readers`.

Starts a service and a database of its own. The readers' connections belong to a process of its own; the time is that
between the acknowledgement of a write and the first byte that a reader gets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import selectors
import socket
import statistics
import subprocess
import sys
import time
from urllib.parse import urlsplit

import aiohttp

from scripts.attack.attacks import Caller, output
from scripts.bench.load import percentile
from scripts.bench.machine import ALL_CPUS, DATABASE, engine, service
from tests.support.processes import make_token

_CONNECTED_AT_ONCE = 50
# For the service to notice that the readers of the turn before have left.
_LEFT_SECONDS = 5
# Between two looks at the connections. Readers on other machines would take nothing from the service's cores; one that
# woke up for every response would take a third of them. It makes the times longer, never shorter.
_READ_SECONDS = 0.005


def _connect(port: int, token: str, path: str, count: int) -> list[socket.socket]:
    """Return connections on which a request was sent."""
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    connections = []
    for number in range(count):
        connections.append(socket.create_connection(("127.0.0.1", port), 30))
        connections[-1].sendall(head)
        if number % _CONNECTED_AT_ONCE == 0:
            time.sleep(0.05)
    return connections


def _read(port: str, token: str, waiting: str, following: str, group: str, cursor: str) -> None:
    """Connect the readers, report that, and print when each received the write."""
    paths = {
        "following": (f"/v1/outputs/{group}/export?follow=true&cursor={cursor}", int(following)),
        "waiting": (f"/v1/outputs/{group}?wait=60&cursor={cursor}", int(waiting)),
    }
    selector = selectors.DefaultSelector()
    for name, (path, count) in paths.items():
        for connection in _connect(int(port), token, path, count):
            selector.register(connection, selectors.EVENT_READ, name)
    time.sleep(3)
    print("ready", flush=True)
    times: dict[str, list[float]] = {name: [] for name in paths}
    end = time.monotonic() + 20
    while sum(map(len, times.values())) < int(waiting) + int(following) and time.monotonic() < end:
        time.sleep(_READ_SECONDS)
        for key, _ in selector.select(0):
            readable = key.fileobj
            assert isinstance(readable, socket.socket)
            if b"live-item" in readable.recv(65536):
                times[key.data].append(time.monotonic())
    print(json.dumps(times), flush=True)


async def _measure(url: str, token: str, options: argparse.Namespace) -> None:
    async with aiohttp.ClientSession() as session:
        caller = Caller(session, url, token)
        for turn in range(options.turns):
            group = f"live-{time.time_ns()}"
            await caller.fill(f"/v1/outputs/{group}", [output(0)])
            counts = [str(options.waiting), str(options.following)]
            arguments = ["--read", str(urlsplit(url).port), token, *counts, group, "1"]
            reading = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "scripts.live_readers", *arguments), stdout=subprocess.PIPE, limit=2**24
            )
            assert reading.stdout is not None
            await reading.stdout.readline()
            await caller.post(f"/v1/outputs/{group}", [output(1, key_hash="live-item")])
            acknowledged = time.monotonic()
            for name, times in json.loads(await reading.stdout.readline()).items():
                delays = [max(0.0, moment - acknowledged) * 1000 for moment in times]
                if delays:
                    print(
                        f"{turn + 1}: {len(delays)} {name}: median {statistics.median(delays):.0f} ms, "
                        f"p99 {percentile(delays, 0.99):.0f} ms, last {max(delays):.0f} ms",
                        flush=True,
                    )
            await reading.wait()
            await asyncio.sleep(_LEFT_SECONDS)


def main() -> int:
    """Read the command line and measure."""
    if sys.argv[1:2] == ["--read"]:
        _read(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(prog="python -m scripts.live_readers", description=__doc__)
    parser.add_argument("--waiting", type=int, default=5000, help="readers with wait=60")
    parser.add_argument("--following", type=int, default=2000, help="readers with follow=true")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1, help="WORKERS of the service")
    options = parser.parse_args()
    with engine() as mongo, service(mongo.url, ALL_CPUS, workers=options.workers) as server:
        asyncio.run(_measure(server.url, make_token(mongo.url, 1, database=DATABASE), options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
