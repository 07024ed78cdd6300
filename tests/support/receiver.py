"""A receiver of webhooks that keeps what it gets and responds as it is told."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

SECONDS = 30.0  # for what takes one or two on a quiet machine


@dataclass
class Received:
    """One request, and when it came."""

    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.body)
        return message

    def is_signed_with(self, secret: str) -> bool:
        """Return whether the signature is the one that the Standard Webhooks specification describes."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        content = b".".join([self.id.encode(), self.headers["webhook-timestamp"].encode(), self.body])
        expected = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
        return f"v1,{expected}" in self.headers["webhook-signature"].split(" ")


@dataclass
class Receiver:
    """What came, at which URL, and the responses to the next requests."""

    url: str = ""
    received: list[Received] = field(default_factory=list)
    status: int = 204
    text: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False

    async def handle(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append(Received(headers, await request.read(), time.time()))
        if self.hangs:
            await asyncio.sleep(3600)
        return web.Response(status=self.status, text=self.text or None, headers=self.headers)

    async def wait_for(self, count: int, seconds: float = SECONDS) -> list[Received]:
        """Return what came once it is so many."""
        async with asyncio.timeout(seconds):
            while len(self.received) < count:
                await asyncio.sleep(0.02)
        return self.received

    def of_type(self, type: str) -> list[dict[str, Any]]:
        return [received.message["data"] for received in self.received if received.message["type"] == type]


@asynccontextmanager
async def receiving(port: int = 0, **options: Any) -> AsyncIterator[Receiver]:
    """Run a receiver on this machine; `ssl_context` makes it HTTPS."""
    receiver = Receiver()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", receiver.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, **options)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    receiver.url = f"{'https' if 'ssl_context' in options else 'http'}://127.0.0.1:{port}/hook"
    try:
        yield receiver
    finally:
        await runner.cleanup()
