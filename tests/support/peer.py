"""A service that sends the responses it is given, one per request, and keeps what it was sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any

from aiohttp import web


class Peer:
    """Sends the next of its responses to each request: JSON, a response, a function, "lost" or "silent"."""

    def __init__(self, *responses: Any) -> None:
        self.responses = list(responses)
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        response = self.responses.pop(0)
        if response == "lost":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if response == "silent":
            await asyncio.Event().wait()  # until the client leaves
        if callable(response):
            response = response()
            if isawaitable(response):
                response = await response
        if isinstance(response, web.Response):
            return response
        if isinstance(response, bytes):
            return web.Response(body=response)
        return web.json_response(response)


@asynccontextmanager
async def peer(*responses: Any) -> AsyncIterator[Peer]:
    found = Peer(*responses)
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", found.handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


def failure(status: int, type: str = "unavailable", msg: str = "busy", **headers: str) -> web.Response:
    """Return an error in the service's shape."""
    text = json.dumps({"detail": [{"loc": [], "msg": msg, "type": type}]})
    return web.Response(status=status, text=text, content_type="application/json", headers=headers)


def page(items: list[dict[str, Any]], next_cursor: int | None = None) -> dict[str, Any]:
    """Return a page of outputs."""
    return {"metadata": {"next_cursor": next_cursor, "next_url": None}, "items": items}


def written(created: int) -> dict[str, Any]:
    """Return the response to a POST of new items."""
    return {"created": created, "updated": 0, "unchanged": 0, "items": [{}] * created}
