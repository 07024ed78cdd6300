"""The HTTP server: aiohttp's, with the one error shape and patience that ends."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from multidict import CIMultiDict

from service.http.errors import ApiError, error_body, error_response, http_error, to_api_error
from service.http.keys import EXPECTS
from service.http.security_headers import SECURITY_HEADERS
from service.http.slow_readers import SlowReader
from service.settings import Settings

# How long the rest of a body that nobody wants is still taken, so that the client gets to read why.
_LINGER_SECONDS = 5.0


def _bare_error(error: ApiError) -> web.Response:
    """Return the answer to what no route was found for yet."""
    response = error_response(error)
    response.headers.update(SECURITY_HEADERS)
    return response


class Protocol(RequestHandler):
    """One connection. Answers what is not HTTP in the one error shape, and ends slow requests."""

    __slots__ = ("_min_send_rate", "_patience", "_receive_timeout", "_slow_reader")

    def __init__(self, *args: Any, receive_timeout: float, min_send_rate: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._receive_timeout, self._min_send_rate = receive_timeout, min_send_rate
        self._patience: asyncio.TimerHandle | None = None
        self._slow_reader: SlowReader | None = None

    def data_received(self, data: bytes) -> None:
        request = self._current_request
        if (self._close or self._force_close) and request is not None and not request.content.is_eof():
            # The service is stopping, and aiohttp would drop the rest of a body that it has begun to take.
            closing, self._close, self._force_close = (self._close, self._force_close), False, False
            super().data_received(data)
            self._close, self._force_close = closing
            return
        super().data_received(data)
        # Nothing to work on after data came: a request's head has begun and not ended. The body
        # has its own limit, where it is read.
        waiting = self._waiter is not None and not self._waiter.done() and not self._messages
        if not waiting:
            self._stop_waiting()
        elif self._patience is None:
            self._patience = self._loop.call_later(self._receive_timeout, self._give_up)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Let a client that has sent its request whole and closed its side have the answer."""
        idle = self._waiter is not None and not self._waiter.done()
        request = self._current_request
        whole = not idle and (request is None or request.content.is_eof())
        if not whole or self.ssl_context is not None:  # TLS cannot be open on one side only
            return False
        self.close()
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._slow_reader is None and self.transport is not None:
            self._slow_reader = SlowReader(self.transport, self._receive_timeout, self._min_send_rate)
        if self._slow_reader is not None:
            self._slow_reader.watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._slow_reader is not None:
            self._slow_reader.stop()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_waiting()
        if self._slow_reader is not None:
            self._slow_reader.stop()
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
        response = _bare_error(error)
        response.force_close()
        return response

    @property
    def busy(self) -> bool:
        """Return whether a request is being received, worked on or answered."""
        idle = self._waiter is not None and not self._waiter.done()
        return not idle or self._patience is not None

    def _give_up(self) -> None:
        """Answer a head that does not end."""
        if self.transport is not None:
            body = error_body(http_error(408).problems)
            headers = {
                **SECURITY_HEADERS,
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
                "Connection": "close",
            }
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            self.transport.write(f"HTTP/1.1 408 Request Timeout\r\n{head}\r\n".encode() + body)
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
        self._receive_timeout, self._min_send_rate = settings.receive_timeout, settings.min_send_rate
        super().__init__(
            app,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=settings.keepalive_timeout,
            shutdown_timeout=1.0,  # `workers` has waited for the requests by then
            lingering_time=min(_LINGER_SECONDS, settings.receive_timeout),
            auto_decompress=False,  # in the event loop, and without an end: see `body.inflate`
            max_line_size=65536,  # all parameters at their longest are 19,000 characters, more if percent-encoded
            max_field_size=16384,
        )

    async def _make_server(self) -> Server:
        made = await super()._make_server()

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            expect = request.headers.get("Expect")
            if expect is None:
                return await made.request_handler(request)
            if expect.lower() != "100-continue":
                return _bare_error(http_error(417))
            # aiohttp would say "continue" before anything is known of the request: `read_body` does.
            kept = CIMultiDict((name, value) for name, value in request.headers.items() if name.lower() != "expect")
            request = request.clone(headers=kept)
            request[EXPECTS] = True
            return await made.request_handler(request)

        return Server(
            handle,
            request_factory=made.request_factory,
            receive_timeout=self._receive_timeout,
            min_send_rate=self._min_send_rate,
            **made._kwargs,
        )
