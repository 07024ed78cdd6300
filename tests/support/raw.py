"""HTTP byte by byte, for what no client library would send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.api import Api


@dataclass
class RawResponse:
    """One response as it came over the wire; status 0 is a connection closed without one."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def problems(self) -> list[tuple[list[str], str]]:
        assert self.headers["content-type"].startswith("application/json"), self.headers
        assert set(self.json) == {"detail"}
        assert all(set(problem) == {"loc", "msg", "type"} for problem in self.json["detail"])
        return [(problem["loc"], problem["type"]) for problem in self.json["detail"]]


class Connection:
    """A connection to the service under test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read_response(self, seconds: float = 60, head_only: bool = False) -> RawResponse:
        """Return the next response."""
        async with asyncio.timeout(seconds):
            try:
                head = await self.reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return RawResponse(0, {}, b"")
            first, *lines = head.decode("latin-1").split("\r\n")[:-2]
            headers = {}
            for line in lines:
                name, _, value = line.partition(": ")
                headers[name.lower()] = value
            body = b""
            if not head_only and "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            elif not head_only and headers.get("transfer-encoding") == "chunked":
                while size := int(await self.reader.readline(), 16):
                    body += (await self.reader.readexactly(size + 2))[:-2]
                await self.reader.readline()
            elif not head_only and headers.get("connection") == "close":
                body = await self.reader.read()
            return RawResponse(int(first.split(" ")[1]), headers, body)

    async def closed(self, seconds: float = 60) -> bool:
        """Wait until the service closes, and return whether it did so without a further byte."""
        async with asyncio.timeout(seconds):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True


@asynccontextmanager
async def connect(api: Api) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection(api.client.host, api.client.port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


async def exchange(api: Api, data: bytes, **options: Any) -> RawResponse:
    """Send bytes on a new connection and return the first response. `{token}` in them is the token."""
    async with connect(api) as connection:
        await connection.send(data.replace(b"{token}", api.token.encode()))
        return await connection.read_response(**options)
