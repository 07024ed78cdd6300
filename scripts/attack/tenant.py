"""Another tenant, who reads and writes all the time, in a process of its own: the attacker's work must not delay it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import aiohttp

from scripts.attack.attacks import Caller

# Its concurrent requests, and the seconds between two of one connection.
_WORKERS = 4
_PAUSE_SECONDS = 0.05

Times = list[tuple[int, float]]  # the status of each request, and its milliseconds


class Tenant:
    """The process of the tenant."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @asynccontextmanager
    async def working(cls, url: str, token: str) -> AsyncIterator[Tenant]:
        """Let a tenant work inside the block."""
        command = (sys.executable, "-m", "scripts.attack.tenant", url, token)
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=2**26
        )
        try:
            yield cls(process)
        finally:
            process.kill()
            await process.wait()

    async def times(self) -> Times:
        """Return the requests that have ended since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        return [(status, took) for status, took in json.loads(await self._process.stdout.readline())]


async def _work(caller: Caller, number: int, times: Times) -> None:
    item = {"source_url": "https://shop.example", "root_job_id": "job", "data": {"text": "x" * 500}}
    for turn in range(10**9):
        items = [{**item, "key_hash": f"{number}-{(turn + n) % 500}", "tags": {"turn": turn}} for n in range(10)]
        for send in (
            partial(caller.post, "/v1/outputs/own", items),
            partial(caller.get, "/v1/outputs/own?limit=100"),
            partial(caller.get, "/v1/cookies"),
        ):
            began = time.perf_counter()
            status = await send()
            times.append((status, (time.perf_counter() - began) * 1000))
            await asyncio.sleep(_PAUSE_SECONDS)


async def _main(url: str, token: str) -> None:
    times: Times = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(300)) as session:
        caller = Caller(session, url, token)
        workers = [asyncio.create_task(_work(caller, number, times)) for number in range(_WORKERS)]
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(times), flush=True)
            times.clear()
        for worker in workers:
            worker.cancel()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
