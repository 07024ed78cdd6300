"""Mixed load on a real service for some minutes: are memory, threads and file descriptors flat at its end?

    python -m scripts.soak --minutes 15

Starts the service as the command line does, on a database of its own in a temporary folder. Prints a line per
minute, then the verdict, and exits with 0 if all three are flat. The numbers of records stay the same after the
first minutes, because cookies and outputs are set again: the data do not grow.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from service.runtime.local_mongo import local_mongo
from tests.support.api import make_output
from tests.support.processes import ServiceProcess, make_token, run_command

GROUPS = 10
KEYS = 500  # per group
RATE = 50  # requests per second
# Flat: the mean of the last quarter exceeds that of the second by no more than this.
MOST_MEMORY = 1.05
MOST_HANDLES = 5


def _secret() -> str:
    return random.randbytes(20).hex()


def item(number: int) -> dict[str, Any]:
    data = {"title": f"Lamp {number}", "price": random.random(), "text": "x" * 500}
    return make_output(number, data=data, root_job_id=f"job-{number % 5}")


class Soak:
    def __init__(self, url: str, token: str) -> None:
        self.url, self.headers = url, {"Authorization": f"Bearer {token}"}
        self.outcomes: collections.Counter[str] = collections.Counter()
        self._cursors = [0] * GROUPS

    async def run(self, seconds: float) -> None:
        """Send requests at the set rate, each kind in its turn, some on connections of their own."""
        ends = time.monotonic() + seconds
        kinds = [
            self._write,
            self._follow,
            self._follow,
            self._page,
            self._cookies,
            self._local_storage,
            self._list,
            self._review,
            self._wrong,
            self._export,
            self._leave,
        ]
        async with aiohttp.ClientSession(self.url, headers=self.headers) as session:
            # Fill pools and threads first, so that they do not count as growth.
            for _ in range(5):
                await asyncio.gather(*(self._count(kind, session) for kind in kinds * 10))
            under_way: set[asyncio.Task[None]] = set()
            turn = 0
            while time.monotonic() < ends:
                task = asyncio.create_task(self._count(kinds[turn % len(kinds)], session))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                turn += 1
                await asyncio.sleep(1 / RATE)
                while len(under_way) > 100:  # the machine has other things to do
                    await asyncio.sleep(0.1)
            await asyncio.gather(*under_way)

    async def _count(self, kind: Any, session: aiohttp.ClientSession) -> None:
        try:
            outcome = await kind(session)
        except (aiohttp.ClientError, OSError) as error:
            outcome = type(error).__name__
        self.outcomes[f"{kind.__name__[1:]} {outcome}"] += 1

    async def _ask(self, session: aiohttp.ClientSession, method: str, path: str, **options: Any) -> int:
        async with session.request(method, path, **options) as response:
            await response.read()
            return response.status

    async def _write(self, session: aiohttp.ClientSession) -> int:
        items = [item(random.randrange(KEYS)) for _ in range(random.choice((1, 5, 50)))]
        return await self._ask(session, "POST", f"/v1/outputs/soak-{random.randrange(GROUPS)}", json=items)

    async def _follow(self, session: aiohttp.ClientSession) -> int:
        group = random.randrange(GROUPS)
        path = f"/v1/outputs/soak-{group}?limit=100&cursor={self._cursors[group]}"
        async with session.get(path) as response:
            page = await response.json()
            if response.status == 200:
                self._cursors[group] = page["metadata"]["next_cursor"] or 0
            return response.status

    async def _page(self, session: aiohttp.ClientSession) -> int:
        query = random.choice(("?limit=1000", "?job_id=job-1", "?country=Germany", "?created_after=2020-01-01"))
        return await self._ask(session, "GET", f"/v1/outputs/soak-{random.randrange(GROUPS)}{query}")

    async def _cookies(self, session: aiohttp.ClientSession) -> int:
        cookies = [{"domain": f"d{n % 50}.example", "name": f"c{n}", "value": _secret()} for n in range(200)]
        return await self._ask(session, "POST", "/v1/cookies", json=random.sample(cookies, 20))

    async def _local_storage(self, session: aiohttp.ClientSession) -> int:
        entries = [{"domain": f"d{n % 50}.example", "key": f"k{n}", "value": _secret()} for n in range(200)]
        return await self._ask(session, "POST", "/v1/local-storage", json=random.sample(entries, 20))

    async def _list(self, session: aiohttp.ClientSession) -> int:
        return await self._ask(session, "GET", random.choice(("/v1/cookies", "/v1/local-storage", "/v1/storage-state")))

    async def _review(self, session: aiohttp.ClientSession) -> int:
        if random.random() < 0.9:
            return await self._ask(session, "GET", "/v1/reviews/soak")
        review = {"job_id": f"job-{random.randrange(50)}", "status": "ok"}
        return await self._ask(session, "POST", "/v1/reviews/soak", json=[review])

    async def _wrong(self, session: aiohttp.ClientSession) -> int:
        wrong: list[tuple[str, str, dict[str, Any]]] = [
            ("GET", "/nothing", {}),
            ("POST", "/v1/cookies", {"data": b"{", "headers": {"Content-Type": "application/json"}}),
            ("POST", "/v1/outputs/soak-1", {"json": [{"data": 1}] * 200}),
            ("GET", "/v1/outputs/soak-1?limit=x", {}),
            ("GET", "/v1/cookies", {"headers": {"Authorization": "Bearer wrong"}}),
            ("DELETE", "/v1/cookies", {}),
        ]
        method, path, options = random.choice(wrong)
        return await self._ask(session, method, path, **options)

    async def _export(self, session: aiohttp.ClientSession) -> int:
        path = f"/v1/outputs/soak-{random.randrange(GROUPS)}/export?format={random.choice(('ndjson', 'csv'))}"
        return await self._ask(session, "GET", path)

    async def _leave(self, session: aiohttp.ClientSession) -> str:
        """Disconnect in the middle of the head, of the body or of the response, or before the response."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps([item(1)]).encode()
        head = "\r\n".join(
            (
                "POST /v1/outputs/soak-0 HTTP/1.1",
                "Host: x",
                f"Authorization: {self.headers['Authorization']}",
                "Content-Type: application/json",
                f"Content-Length: {len(body)}\r\n\r\n",
            )
        ).encode()
        export = head.replace(b"POST /v1/outputs/soak-0", b"GET /v1/outputs/soak-0/export").split(b"Content-Type")[0]
        sent = random.choice((head[:40], head + body[:20], head + body, export + b"\r\n"))
        writer.write(sent)
        await writer.drain()
        if sent.startswith(b"GET"):
            with contextlib.suppress(ConnectionError):
                await reader.read(1000)
        writer.transport.abort()
        return "left"


def measure(pid: int) -> tuple[float, int, int]:
    """Return memory in MB, threads and open files of a process."""
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    return int(status["VmRSS"].split()[0]) / 1024, int(status["Threads"]), len(os.listdir(f"/proc/{pid}/fd"))


async def soak(service: ServiceProcess, token: str, minutes: float) -> bool:
    load = Soak(service.url, token)
    running = asyncio.create_task(load.run(minutes * 60))
    started, rows = time.monotonic(), []
    print(f"{'minute':>6} {'memory':>9} {'threads':>8} {'files':>6} {'requests':>9}")
    next_line = 0.0
    while not running.done():
        rows.append(measure(service.process.pid))
        if time.monotonic() - started >= next_line:
            memory, threads, files = rows[-1]
            print(f"{next_line / 60:6.1f} {memory:6.1f} MB {threads:8} {files:6} {load.outcomes.total():9}", flush=True)
            next_line += 60
        await asyncio.sleep(2)
    await running
    assert service.process.poll() is None, "the service has ended"
    print("\noutcomes:")
    for outcome, count in sorted(load.outcomes.items()):
        print(f"  {outcome:<32} {count}")
    return verdict(rows)


def verdict(rows: list[tuple[float, int, int]]) -> bool:
    """Compare the last quarter with the second: the first is for filling caches and pools."""
    quarter = len(rows) // 4
    before, after = rows[quarter : 2 * quarter], rows[3 * quarter :]
    flat = True
    print()
    for name, column, most in (("memory, MB", 0, MOST_MEMORY), ("threads", 1, 0), ("open files", 2, 0)):
        first = sum(row[column] for row in before) / len(before)
        last = sum(row[column] for row in after) / len(after)
        ok = last <= first * most if most else last <= first + MOST_HANDLES
        flat &= ok
        print(f"{name:<11} second quarter {first:7.1f}, last quarter {last:7.1f}: {'flat' if ok else 'GROWS'}")
    return flat


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="repeats what is sent")
    options = parser.parse_args()
    random.seed(options.seed)
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, local_mongo(Path(folder)) as mongo:
        token, key = make_token(mongo.url, 1), run_command(mongo.url, "secrets", "new-key").stdout.strip()
        with ServiceProcess(mongo.url, secret_keys=key) as service:
            service.wait_until_ready()
            return 0 if asyncio.run(soak(service, token, options.minutes)) else 1


if __name__ == "__main__":
    sys.exit(main())
