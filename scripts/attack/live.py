"""Attacks by readers that follow or wait, and by what they make the service derive."""

from __future__ import annotations

import asyncio
import gzip
import socket
import time
from contextlib import suppress
from typing import Any

import orjson

from scripts.attack.attacks import MEGABYTE, Target, attack, kept, output


async def begin_to_follow(target: Target, group: str, count: int, receive_buffer: int | None = None) -> list[Any]:
    """Return connections that follow a group, each once its response has begun or was refused."""
    loop, connections = asyncio.get_running_loop(), []
    path = f"GET /v1/outputs/{group}/export?format=sse"
    for _ in range(count):
        connections.append(target.connect(path, b"\r\n", receive_buffer))
        await asyncio.sleep(0)
    target.facts["followers"] = 0
    for connection in connections:
        head = await asyncio.wait_for(loop.sock_recv(connection, 200), 30)
        target.facts["followers"] += b" 200 " in head
    return connections


@attack("11", "401 followers that do not read, then 12 MB are written")
async def deaf_followers(target: Target) -> None:
    group = f"deaf-{time.time_ns()}"
    connections = await begin_to_follow(target, group, target.size(401, 60), 4096)
    async with target.measured():
        items = [output(n, data={"text": f"{n % 10}" * 1_000_000}) for n in range(12)]
        target.facts["status"] = await target.attacker.post(f"/v1/outputs/{group}", items)
        target.facts |= await target.others(target.size(10, 3))
        for connection in connections:
            connection.close()
        await asyncio.sleep(1)
    target.facts["kept_mb"] = (await asyncio.to_thread(kept, target)) // MEGABYTE


@attack("12", "2,007 followers of one token, one item is written")
async def many_followers(target: Target) -> None:
    group = f"many-{time.time_ns()}"
    connections = await begin_to_follow(target, group, target.size(2007, 100))
    async with target.measured():
        await asyncio.gather(target.attacker.post(f"/v1/outputs/{group}", [output(1)]), target.others(5))
        loop, began = asyncio.get_running_loop(), time.monotonic()
        reached = [connection for connection in connections if await _reached(loop, connection)]
        target.facts |= {"reached": len(reached), "seconds": round(time.monotonic() - began, 1)}
        target.facts |= await target.others(2)
        for connection in connections:
            connection.close()
        await asyncio.sleep(1)


async def _reached(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> bool:
    with suppress(TimeoutError, ConnectionError):
        while piece := await asyncio.wait_for(loop.sock_recv(connection, 65536), 10):
            if b"data:" in piece:
                return True
    return False


@attack("13", "600 idle streams of one token")
async def idle_streams(target: Target) -> None:
    async with target.measured():
        connections = await begin_to_follow(target, "idle", target.size(600, 260))
        target.facts |= await target.others(3)
        for connection in connections:
            connection.close()
        await asyncio.sleep(1)


async def _fill(target: Target, group: str, data: dict[str, Any]) -> int:
    body = gzip.compress(orjson.dumps([output(1, data=data)]))
    return await target.attacker.post_gzip(f"/v1/outputs/{group}", body)


@attack("14", "CSV and fields of long keys over many short ones")
async def long_keys(target: Target) -> None:
    count = target.size(20_000)
    allowed = {"k" * 1000: {f"{n}": n for n in range(count)}}
    deep = {"a" * 200: {"b" * 200: {"c" * 200: {"d" * 200: {f"{n}": n for n in range(count)}}}}}
    async with target.measured():
        target.facts["long_key_status"] = await _fill(target, "long", {"k" * 20_000: {f"{n}": n for n in range(count)}})
        for name, data in (("allowed", allowed), ("deep", deep)):
            await _fill(target, name, data)
            statuses = [
                await target.attacker.get(f"/v1/outputs/{name}/export?format=csv"),
                await target.attacker.get(f"/v1/groups/{name}/fields"),
            ]
            target.facts[name] = statuses


@attack("17", "jobs and reviews of a group with 1,000 reviews of 65,536 emoji")
async def emoji(target: Target) -> None:
    count = target.size(1000, 100)
    for start in range(0, count, 20):
        numbers = range(start, min(count, start + 20))
        await target.attacker.fill("/v1/outputs/emoji", [output(n, root_job_id=f"job-{n}") for n in numbers])
        reviews = [{"job_id": f"job-{n}", "status": "ok", "comment": "\U0001f600" * 65_536} for n in numbers]
        await target.attacker.fill("/v1/reviews/emoji", reviews)
    async with target.measured():
        began = time.monotonic()
        target.facts["jobs"] = await target.attacker.get("/v1/groups/emoji/jobs"), round(time.monotonic() - began, 2)
        began = time.monotonic()
        target.facts["reviews"] = await target.attacker.get("/v1/reviews/emoji"), round(time.monotonic() - began, 2)


@attack("18", "60 reads of 1,000 items of 10 KB after reads of their ids alone")
async def poisoned_estimate(target: Target) -> None:
    items = [output(n, data={"text": "x" * 10_000}) for n in range(target.size(1000, 300))]
    for start in range(0, len(items), 100):
        await target.attacker.fill("/v1/outputs/poisoned", items[start : start + 100])
    async with target.measured():
        for fields in ("", "&fields=id", "&fields=id", "&fields=id"):
            await target.attacker.call("GET", f"/v1/outputs/poisoned?limit=1000{fields}")
        reads = (target.attacker.call("GET", "/v1/outputs/poisoned?limit=1000") for _ in range(60))
        target.facts["refused"] = sum(status != 200 for status in await asyncio.gather(*reads))


@attack("21", "150 pages of twelve items of a megabyte in a group of tiny ones")
async def sudden_megabytes(target: Target) -> None:
    tiny = [output(n, data={}) for n in range(1000)]
    await target.attacker.fill("/v1/outputs/sudden", tiny)
    for number in range(1000, 1000 + target.size(24, 12)):
        await target.attacker.fill("/v1/outputs/sudden", [output(number, data={"text": "x" * 1_000_000})])
    async with target.measured():
        for _ in range(3):  # they teach the service that items are small
            await target.attacker.call("GET", "/v1/outputs/sudden?limit=1000")
        others = asyncio.create_task(target.others(5))
        path = "/v1/outputs/sudden?limit=12&cursor=1000"
        reads = (target.attacker.call("GET", path) for _ in range(target.size(150, 20)))
        statuses = await asyncio.gather(*reads)
        target.facts |= {"refused": sum(status != 200 for status in statuses), **await others}
