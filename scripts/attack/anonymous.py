"""Attacks by a client without a token."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress

from scripts.attack.attacks import Target, attack


def _open(target: Target, data: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", target.port), 5)
    with suppress(OSError):  # it may be cut while it sends
        connection.sendall(data)
    connection.setblocking(False)
    return connection


@attack("15", "200 connections with 120 headers of 16 KB that never end")
async def endless_heads(target: Target) -> None:
    headers = b"".join(b"X-%d: " % n + b"x" * 16_000 + b"\r\n" for n in range(120))
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + headers
    async with target.measured():
        connections = [await asyncio.to_thread(_open, target, head) for _ in range(target.size(200, 50))]
        target.facts |= await target.others(3)
        for connection in connections:
            connection.close()


@attack("19", "10 connections that send heads of 900 KB behind responses that they do not read")
async def heads_behind_responses(target: Target) -> None:
    request = b"GET /docs/static/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n"
    heads = request + b"".join(b"X-%d: " % n + b"x" * 15_000 + b"\r\n" for n in range(60)) + b"\r\n"

    def send() -> socket.socket:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(5)
        connection.connect(("127.0.0.1", target.port))
        connection.sendall(3 * (request + b"\r\n"))
        connection.settimeout(1)
        with suppress(OSError):  # it is not read, or cut
            connection.sendall(30 * heads)
        return connection

    async with target.measured():
        connections = await asyncio.gather(*(asyncio.to_thread(send) for _ in range(10)))
        target.facts |= await target.others(3)
        for connection in connections:
            connection.close()


@attack("16", "10 connections with a body in chunks of one byte on GET /healthz")
async def tiny_chunks(target: Target) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    await _send_chunks(target, head)


@attack("16b", "10 connections with a body in chunks of one byte, with a token")
async def tiny_chunks_with_token(target: Target) -> None:
    token = f"Authorization: Bearer {target.attacker.token}\r\n".encode()
    head = b"POST /v1/cookies HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + token
    await _send_chunks(target, head + b"Transfer-Encoding: chunked\r\n\r\n")


async def _send_chunks(target: Target, head: bytes) -> None:
    chunks = b"1\r\n \r\n" * 50_000
    end = time.monotonic() + target.size(7, 2)

    def send() -> int:
        """Send for as long as it is taken, again and again; return how many connections it took."""
        times = 0
        while time.monotonic() < end:
            times += 1
            with suppress(OSError), socket.create_connection(("127.0.0.1", target.port), 5) as connection:
                connection.settimeout(1)
                connection.sendall(head)
                while time.monotonic() < end:
                    connection.sendall(chunks)
        return times

    async with target.measured():
        sending = [asyncio.create_task(asyncio.to_thread(send)) for _ in range(10)]
        target.facts |= await target.others(target.size(6, 2))
        target.facts["connections"] = sum(await asyncio.gather(*sending))
