"""What an item takes on disk, a connection and a waiting reader in memory, and how fast waiting readers are woken."""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import time
from typing import Any

from scripts.bench import data
from scripts.bench.load import percentile
from scripts.bench.machine import ALL_CPUS, PATIENT, Server, describe, engine, service

GROUPS = 100


def capacity(items: int, readers: int) -> None:
    """Measure disk per item, memory per connection and per waiting reader, and the wake-up."""
    print(describe())
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with engine() as mongo:
        loaded = data.load(mongo, items)
        mongo.client.admin.command("fsync")
        stats = mongo.database.command("collStats", "outputs")
        count = stats["count"]
        print(f"\n| of {count:,} items | bytes per item |\n|---|---:|")
        print(f"| BSON | {stats['size'] / count:,.0f} |")
        print(f"| on disk, compressed | {stats['storageSize'] / count:,.0f} |")
        for name, size in sorted(stats["indexSizes"].items(), key=lambda pair: -pair[1]):
            print(f"| index `{name}` | {size / count:,.0f} |")
        print(f"| all indexes | {stats['totalIndexSize'] / count:,.0f} |", flush=True)
        with service(mongo.url, ALL_CPUS, **PATIENT) as server:
            asyncio.run(_waiting(server, loaded.token, readers))


async def _waiting(server: Server, token: str, readers: int) -> None:
    write = "/v1/outputs/waiting-{}", json.dumps([{"source_url": "https://a.example", "root_job_id": "j", "data": {}}])
    for group in range(GROUPS):
        await _call(server, token, "POST", write[0].format(group), write[1])
    before = server.tree.resident_mb()
    idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(readers)]
    await asyncio.sleep(1)
    connected = server.tree.resident_mb()
    for _, writer in idle:
        writer.close()
    await asyncio.sleep(1)
    base = server.tree.resident_mb()
    woken: dict[int, list[float]] = {group: [] for group in range(GROUPS)}

    async def read(number: int) -> None:
        group = number % GROUPS
        await _call(server, token, "GET", f"/v1/outputs/waiting-{group}?cursor=1&wait=60&limit=1")
        woken[group].append(time.perf_counter())

    tasks = []
    for number in range(readers):
        tasks.append(asyncio.create_task(read(number)))
        if number % 100 == 99:
            await asyncio.sleep(0.25)
    await asyncio.sleep(10)  # until all wait
    waiting = server.tree.resident_mb()
    health = []
    for _ in range(200):
        began = time.perf_counter()
        await _call(server, token, "GET", "/healthz")
        health.append((time.perf_counter() - began) * 1000)
    delays, others = [], 0
    for group in range(5):
        change = json.dumps([{"source_url": "https://a.example", "root_job_id": "j", "data": {"new": group}}])
        await _call(server, token, "POST", f"/v1/outputs/waiting-{group}", change)
        acknowledged = time.perf_counter()
        await asyncio.sleep(2)
        delays += [(moment - acknowledged) * 1000 for moment in woken[group]]
        others += sum(len(woken[n]) for n in range(group + 1, GROUPS))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(f"\n{readers:,} idle connections: {(connected - before) * 1024 / readers:.0f} KB each")
    print(f"{readers:,} waiting readers of {GROUPS} groups: {waiting - base:.0f} MB more, /healthz p99", end=" ")
    print(f"{percentile(health, 0.99):.0f} ms")
    print(f"a write woke {len(delays) // 5} readers of its group and {others} of others:", end=" ")
    print(f"median {statistics.median(delays):.0f} ms after its acknowledgement, p99 {percentile(delays, 0.99):.0f} ms")


async def _call(server: Server, token: str, method: str, path: str, body: str = "") -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body.encode())
    response = await reader.read()
    writer.close()
    if b" 503 " in response[:20]:  # too many at once: later, as a client would
        await asyncio.sleep(0.5)
        return await _call(server, token, method, path, body)
    if b" 200 " not in response[:20]:
        raise SystemExit(f"{method} {path}: {response[:200]!r}")
    return response
