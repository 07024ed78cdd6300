"""Attacks by one tenant on a running service. The default sizes once succeeded; `scale` shrinks them."""

from __future__ import annotations

import asyncio
import gzip
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from scripts.attack.probe import PAUSE, Probe

MEGABYTE = 2**20
_JSON = {"Content-Type": "application/json"}
_GZIP = {**_JSON, "Content-Encoding": "gzip"}


class Caller:
    """A token and how it calls the service."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str) -> None:
        self._session, self._url, self.token = session, url, token

    async def call(self, method: str, path: str, data: bytes | None = None, **headers: str) -> int:
        """Return the status of a request, after reading its response to the end; 0 if it was cut."""
        headers = {"Authorization": f"Bearer {self.token}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        try:
            async with self._session.request(method, self._url + path, data=data, headers=headers) as response:
                async for _ in response.content.iter_chunked(256 * 1024):
                    pass
                return response.status
        except (aiohttp.ClientError, ConnectionError):
            return 0

    async def get(self, path: str) -> int:
        return await self.call("GET", path, Accept_Encoding="identity")

    async def post(self, path: str, value: Any) -> int:
        return await self.call("POST", path, orjson.dumps(value), **_JSON)

    async def post_gzip(self, path: str, data: bytes) -> int:
        return await self.call("POST", path, data, **_GZIP)

    async def fill(self, path: str, value: Any) -> None:
        """Store something; the service may be busy."""
        for _ in range(60):
            status = await self.post(path, value)
            if status == 200:
                return
            if status not in (0, 503):
                break
            await asyncio.sleep(0.5)
        raise RuntimeError(f"POST {path}: {status}")


@dataclass
class Target:
    """The service, the attacker and another tenant; `probe` and `facts` hold the results."""

    url: str
    pid: int
    attacker: Caller
    other: Caller
    scale: float = 1.0
    pause: float = PAUSE  # of the probe
    probe: Probe | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 80

    def size(self, number: int, least: int = 1) -> int:
        return max(least, int(number * self.scale))

    @asynccontextmanager
    async def measured(self) -> AsyncIterator[None]:
        probe = await asyncio.to_thread(Probe(self.port, self.pid, self.pause).__enter__)
        try:
            yield
        finally:
            await asyncio.to_thread(probe.__exit__, None, None, None)
            self.probe = probe

    def connect(self, request: str, body: bytes = b"", receive_buffer: int | None = None) -> socket.socket:
        """Return a connection on which a request of the attacker was sent."""
        connection = socket.socket()
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(10)
        connection.connect(("127.0.0.1", self.port))
        head = f"{request} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.attacker.token}\r\n"
        connection.sendall(head.encode() + b"Content-Type: application/json\r\n" + body)
        connection.setblocking(False)
        return connection

    async def others(self, seconds: float) -> dict[str, Any]:
        """Let the other tenant read and write for some seconds; return how it fared."""
        times, refused, end = [], 0, time.monotonic() + seconds
        while time.monotonic() < end:
            for work in (self.other.get("/v1/cookies"), self.other.post("/v1/cookies", [])):
                began = time.perf_counter()
                refused += await work != 200
                times.append(time.perf_counter() - began)
            await asyncio.sleep(0.02)
        return {"other_requests": len(times), "other_refused": refused, "other_slowest": round(max(times), 3)}


Attack = Callable[[Target], Awaitable[None]]
ATTACKS: dict[str, tuple[str, Attack]] = {}


def attack(name: str, title: str) -> Callable[[Attack], Attack]:
    def add(function: Attack) -> Attack:
        ATTACKS[name] = (title, function)
        return function

    return add


def output(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "source_url": f"https://shop.example/p/{number}",
        "data": {"n": number},
        "root_job_id": "job",
        "key_hash": f"key-{number}",
    } | changes


async def fill_group(target: Target, group: str, megabytes: int) -> None:
    """Store items of 100 KB."""
    items = [output(n, data={"text": "x" * 100_000, "n": n}) for n in range(megabytes * 10)]
    for start in range(0, len(items), 50):
        await target.attacker.fill(f"/v1/outputs/{group}", items[start : start + 50])


@attack("1a", "CSV of an item with 20,000 keys, fields= with 1,000 paths")
async def csv_fields(target: Target) -> None:
    keys = target.size(20_000)
    await target.attacker.fill("/v1/outputs/wide", [output(1, data={f"k{n}": n for n in range(keys)})])
    few = ",".join(f"data.k{n}" for n in range(100))
    many = ",".join(f"data.k{n}" for n in range(target.size(1000, 200)))[:8192].rpartition(",")[0]
    async with target.measured():
        export = "/v1/outputs/wide/export?format=csv&fields="
        target.facts["statuses"] = [await target.attacker.get(export + fields) for fields in (few, many)]


@attack("1b", "CSV of 64 items with 20,000 keys each")
async def csv_wide(target: Target) -> None:
    keys = target.size(20_000)
    for n in range(64):
        await target.attacker.fill("/v1/outputs/wider", [output(n, data={f"k{i}": i for i in range(keys)})])
    async with target.measured():
        target.facts["status"] = await target.attacker.get("/v1/outputs/wider/export?format=csv")


@attack("2", "fields= of 8 KB, 20 times")
async def fields(target: Target) -> None:
    deep = ",".join("data." + ".".join("ab"[n % 2] * 30) + f".{n}" for n in range(200))[:8192].rpartition(",")[0]
    short = ",".join(f"data.{n}" for n in range(1000))[:8192].rpartition(",")[0]
    async with target.measured():
        for _ in range(10):
            target.facts["statuses"] = [await target.attacker.get(f"/v1/outputs/g?fields={f}") for f in (deep, short)]


@attack("3", "700 items with 1,000 empty files each, gzipped")
async def files(target: Target) -> None:
    items = [output(n, files=[{}] * 1000) for n in range(target.size(700))]
    body = gzip.compress(orjson.dumps(items))
    async with target.measured():
        target.facts["status"] = await target.attacker.post_gzip("/v1/outputs/files", body)


@attack("3b", "as many files as are allowed: 10 bodies of 10 items with 1,000 files")
async def allowed_files(target: Target) -> None:
    bodies = [
        gzip.compress(orjson.dumps([output(n, files=[{}] * 1000) for n in range(i * 10, i * 10 + 10)]))
        for i in range(10)
    ]
    async with target.measured():
        target.facts["statuses"] = await asyncio.gather(
            *(target.attacker.post_gzip("/v1/outputs/files", body) for body in bodies)
        )


@attack("20", "small bodies that cost much: empty lines, empty cookies, spaced keys, errors with long names")
async def costly_bodies(target: Target) -> None:
    nested: Any = ["\0"] * 100
    for _ in range(2):
        nested = {"k" * 1_000_000: nested}
    bodies = [
        ("/v1/outputs/costly", "application/x-ndjson", b"\n" * 16 * MEGABYTE),
        ("/v1/outputs/costly", "application/json", b"[{" + b",".join(b'"%x" :0' % n for n in range(10**6)) + b"}]"),
        ("/v1/storage-state", "application/json", b'{"cookies":[' + b",".join([b"{}"] * 10_000) + b"]}"),
        ("/v1/storage-state", "application/json", orjson.dumps(nested)),
    ]
    packed = [(path, kind, gzip.compress(data, 1)) for path, kind, data in bodies]
    async with target.measured():
        for _ in range(int(target.size(5, 2))):
            for path, kind, data in packed:
                status = await target.attacker.call("POST", path, data, Content_Type=kind, Content_Encoding="gzip")
                target.facts[f"status_{status}"] = target.facts.get(f"status_{status}", 0) + 1


@attack("4", "bodies of 2 MB of tiny gzip members, while another tenant writes")
async def members(target: Target) -> None:
    member = gzip.compress(b" ")
    body = member * (target.size(2 * MEGABYTE) // len(member))
    small = gzip.compress(orjson.dumps([output(n) for n in range(500)]))

    async def other() -> float:
        began = time.perf_counter()
        target.facts["other_status"] = await target.other.post_gzip("/v1/outputs/own", small)
        return time.perf_counter() - began

    async with target.measured():
        sent = [asyncio.create_task(target.attacker.post_gzip("/v1/outputs/g", body)) for _ in range(8)]
        await asyncio.sleep(0.05)
        target.facts["other_waited"] = round(await other(), 3)
        target.facts["statuses"] = await asyncio.gather(*sent)


async def fill_storage(target: Target, count: int, size: int) -> None:
    await target.attacker.call("DELETE", "/v1/local-storage?all=true")
    for n in range(count):
        entry = {"domain": f"d{n % 5}.example", "key": f"{n:04}", "value": "x" * size}
        await target.attacker.fill("/v1/local-storage", [entry])


@attack("5a", "listing 60 values of 4 MiB")
async def large_values(target: Target) -> None:
    await fill_storage(target, target.size(60), 4 * MEGABYTE)
    async with target.measured():
        target.facts["status"] = await target.attacker.get("/v1/local-storage")


@attack("5b", "listing 120 values of 5 MiB, then all as a storage state")
async def larger_values(target: Target) -> None:
    await fill_storage(target, target.size(120), 5 * MEGABYTE)
    async with target.measured():
        target.facts["statuses"] = [
            await target.attacker.get("/v1/local-storage"),
            await target.attacker.get("/v1/storage-state"),
        ]
    await target.attacker.call("DELETE", "/v1/local-storage?all=true")


@attack("6", "listing 200,000 reviews")
async def reviews(target: Target) -> None:
    count = target.size(200_000)
    for start in range(0, count, 1000):
        part = [{"job_id": f"job-{n}", "status": "ok"} for n in range(start, min(count, start + 1000))]
        await target.attacker.fill("/v1/reviews/many", part)
    async with target.measured():
        target.facts["status"] = await target.attacker.get("/v1/reviews/many")


@attack("6b", "listing 200,000 groups")
async def groups(target: Target) -> None:
    async with target.measured():
        target.facts["statuses"] = [await target.attacker.get(f"/v1/groups{query}") for query in ("", "?limit=1000")]


@attack("7", "260 requests that send one byte of their body")
async def slow_bodies(target: Target) -> None:
    async with target.measured():
        sent = [target.connect("POST /v1/cookies", b"Content-Length: 1000\r\n\r\n[") for _ in range(260)]
        target.facts |= await target.others(target.size(8, 2))
        for connection in sent:
            connection.close()


async def slow_readers(target: Target, paths: list[str]) -> None:
    """Begin to read, take nothing, and measure what other clients get."""
    async with target.measured():
        reading = []
        for path in paths:
            reading.append(target.connect(f"GET {path}", b"\r\n", receive_buffer=4096))
            await asyncio.sleep(0)
        target.facts |= await target.others(target.size(10, 3))
        for connection in reading:
            connection.close()
        await asyncio.sleep(1)
    target.facts["kept_mb"] = (await asyncio.to_thread(kept, target)) // MEGABYTE


def kept(target: Target) -> int:
    """Return how much more memory the process has some seconds after the attack."""
    assert target.probe is not None
    if target.scale >= 1:
        time.sleep(8)  # the service returns memory every few seconds
    return max(0, target.probe.grown())


@attack("8a", "10 slow readers of a group of 64 MB, by pages")
async def slow_pages(target: Target) -> None:
    await fill_group(target, "large", target.size(64, 8))
    await slow_readers(target, ["/v1/outputs/large?limit=1000"] * 10)


@attack("8b", "10 slow readers of a group of 64 MB, as NDJSON")
async def slow_lines(target: Target) -> None:
    await fill_group(target, "large", target.size(64, 8))
    await slow_readers(target, ["/v1/outputs/large/export?format=ndjson"] * 10)


@attack("8c", "300 slow readers of a group of 14 MB, by pages")
async def many_slow_pages(target: Target) -> None:
    await fill_group(target, "middle", target.size(14, 4))
    await slow_readers(target, ["/v1/outputs/middle?limit=1000"] * target.size(300, 60))


@attack("8d", "300 slow readers of a group of 14 MB, as NDJSON")
async def many_slow_lines(target: Target) -> None:
    await fill_group(target, "middle", target.size(14, 4))
    await slow_readers(target, ["/v1/outputs/middle/export?format=ndjson"] * target.size(300, 60))


@attack("9", "steady readers of 10 and 300 KB per second, none of which may be cut off")
async def steady_readers(target: Target) -> None:
    await fill_group(target, "large", target.size(64, 16))
    seconds = target.size(120, 10)

    async def read(rate: int) -> int:
        loop, end = asyncio.get_running_loop(), time.monotonic() + seconds
        connection = target.connect("GET /v1/outputs/large/export?format=ndjson", b"\r\n")
        received = 0
        with connection, suppress(ConnectionError):
            while time.monotonic() < end:
                piece = await loop.sock_recv(connection, rate // 10)
                if not piece:
                    break
                received += len(piece)
                await asyncio.sleep(0.1)
            else:
                return received
        return -received

    async with target.measured():
        target.facts["received"] = await asyncio.gather(read(10_000), read(300_000))
    target.facts["cut"] = sum(received < 0 for received in target.facts["received"])


@attack("10", "1,100 silent connections")
async def silent(target: Target) -> None:
    connections: list[socket.socket] = []
    async with target.measured():
        with suppress(OSError):
            for _ in range(target.size(1100, 1100)):
                connections.append(socket.create_connection(("127.0.0.1", target.port), 5))
        target.facts |= await target.others(3)
        for connection in connections:
            connection.close()


@attack("10b", "refused chunked bodies that go on")
async def chunked(target: Target) -> None:
    async with target.measured():
        sent = []
        for _ in range(target.size(100, 20)):
            connection = socket.create_connection(("127.0.0.1", target.port), 5)
            head = b"POST /v1/cookies HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            connection.sendall(head + b"1\r\n[\r\n")
            sent.append(connection)
        await asyncio.sleep(1)
        still_open = 0
        for connection in sent:
            connection.settimeout(0.05)
            try:
                while connection.recv(65536):
                    pass
            except TimeoutError:
                still_open += 1
            except ConnectionError:
                pass
            connection.close()
        target.facts["still_open"] = still_open
