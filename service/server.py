"""The HTTP server: aiohttp's, with the one error shape and patience that ends."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from service.errors import error_body, error_response, http_error, to_api_error
from service.keys import REQUEST_ID
from service.settings import Settings

SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


class Protocol(RequestHandler):
    """One connection. Answers what is not HTTP in the one error shape, and ends slow requests."""

    __slots__ = ("_patience", "_receive_timeout")

    def __init__(self, *args: Any, receive_timeout: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._receive_timeout = receive_timeout
        self._patience: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # Nothing to work on after data came: a request's head has begun and not ended. The body
        # has its own limit, where it is read.
        waiting = self._waiter is not None and not self._waiter.done() and not self._messages
        if not waiting:
            self._stop_waiting()
        elif self._patience is None:
            self._patience = self._loop.call_later(self._receive_timeout, self._give_up)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        error = to_api_error(exc) if exc is not None and status == 400 else http_error(status)
        response = error_response(error)
        response.headers.update(SECURITY_HEADERS)
        response.force_close()
        return response

    def _give_up(self) -> None:
        if self.transport is not None:
            body = error_body(http_error(408).problems)
            self.transport.write(
                b"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\n"
                b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            )
        self.force_close()

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class Server(web.Server):
    """Makes our protocol for each connection."""

    def __call__(self) -> RequestHandler:
        return Protocol(self, loop=self._loop, **self._kwargs)


class Runner(web.AppRunner):
    """Runs an application on our server."""

    def __init__(self, app: web.Application, settings: Settings) -> None:
        self._receive_timeout = settings.receive_timeout
        super().__init__(
            app,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=settings.keepalive_timeout,
            shutdown_timeout=settings.shutdown_timeout,
            max_line_size=16384,  # a URL of 8,192 characters to filter by, percent-encoded in part
            max_field_size=16384,
        )

    async def _make_server(self) -> Server:
        made = await super()._make_server()
        return Server(
            made.request_handler,
            request_factory=made.request_factory,
            receive_timeout=self._receive_timeout,
            **made._kwargs,
        )


async def add_headers(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Give every answer its request id and the headers that keep it private."""
    for name, value in SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)
    if isinstance(request, web.Request) and REQUEST_ID in request:
        response.headers["X-Request-ID"] = request[REQUEST_ID]
