"""Measure what group commit is worth: `python -m scripts.checker.group_commit`.

Clients post one item at a time to one group, each on a connection of its own, first with group
commit and then without; turn by turn, and each rate is the median of its turns.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import aiohttp
import orjson

from scripts.checker.services import mongo, new_token, wait_until_ready
from scripts.processes import free_port


@contextmanager
def service(environ: dict[str, str], group_commit: bool) -> Iterator[int]:
    """Yield the port of a service."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "service", "serve"],
        env={**environ, "PORT": str(port), "GROUP_COMMIT": str(int(group_commit)), "LOG_LEVEL": "ERROR"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until_ready(port)
        yield port
    finally:
        process.terminate()
        process.wait(30)


async def rate(port: int, token: str, clients: int, seconds: float) -> float:
    """Return how many single items all clients together get acknowledged in a second."""
    url = f"http://127.0.0.1:{port}/v1/outputs/lamps"
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    started = time.perf_counter()

    async def post(session: aiohttp.ClientSession, client: int) -> int:
        done = 0
        while time.perf_counter() - started < seconds:
            item = {
                "source_url": f"https://shop.example/{port}/{client}/{done}",
                "data": {"title": f"Lamp {done}", "price": 19.99},
                "root_job_id": "job-1",
            }
            async with session.post(url, data=orjson.dumps([item]), headers=headers) as response:
                assert response.status == 200, await response.text()
                await response.read()
            done += 1
        return done

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=clients)) as session:
        done = await asyncio.gather(*(post(session, client) for client in range(clients)))
    return sum(done) / (time.perf_counter() - started)


def run(url: str, clients: int, seconds: float, turns: int) -> int:
    environ = {**os.environ, "MONGO_URL": url, "MONGO_DATABASE": f"group-commit-{os.getpid()}"}
    token = new_token(environ)
    rates: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(turns):
        for group_commit in rates:
            with service(environ, group_commit) as port:
                rates[group_commit].append(asyncio.run(rate(port, token, clients, seconds)))
            name = "with" if group_commit else "without"
            print(f"turn {turn + 1}, {name} group commit: {rates[group_commit][-1]:.0f} items/s", flush=True)
    joined, single = median(rates[True]), median(rates[False])
    print(f"{clients} clients, one item a request: {joined:.0f} items/s with group commit, {single:.0f} without")
    print(f"ratio {joined / single:.1f}")
    return 0 if joined >= 3 * single else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.checker.group_commit", description=__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    with mongo() as (url, _):
        return run(url, options.clients, options.seconds, options.turns)


if __name__ == "__main__":
    sys.exit(main())
