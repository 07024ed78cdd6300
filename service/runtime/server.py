"""The HTTP server: aiohttp's, with the one error shape, time limits for slow clients and a limit of connections.

The only module that uses a private part of aiohttp, `AppRunner._make_server`; `tests/runtime/test_server.py` checks it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from aiohttp import StreamReader, web
from multidict import CIMultiDict

from service.http.errors import ApiError, error_body, error_response, http_error, to_api_error
from service.http.keys import EXPECTS
from service.http.security_headers import SECURITY_HEADERS
from service.http.slow_readers import SlowReader
from service.settings import Settings

log = logging.getLogger("service")

# How long a rejected body is still drained so that the client can read the error.
_LINGER_SECONDS = 5.0
# A request that is whole begins in the next turn of the event loop.
_BEGIN_SECONDS = 0.1
_LOG_SECONDS = 10.0
_REASONS = {408: "Request Timeout", 503: "Service Unavailable"}


def _bare_error(error: ApiError) -> web.Response:
    """Return the response to a request that no route was found for yet."""
    response = error_response(error)
    response.headers.update(SECURITY_HEADERS)
    return response


class Protocol(web.RequestHandler):
    """One connection. Reports broken HTTP in the one error shape, and ends slow requests."""

    __slots__ = (
        "_body",
        "_half_closed",
        "_head_timer",
        "_min_send_rate",
        "_receive_timeout",
        "_slow_reader",
        "handling",
    )

    def __init__(self, *args: Any, receive_timeout: float, min_send_rate: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.handling = False
        self._body: StreamReader | None = None  # of the request, until all of it is in
        self._receive_timeout, self._min_send_rate = receive_timeout, min_send_rate
        self._head_timer: asyncio.TimerHandle | None = None
        self._slow_reader: SlowReader | None = None
        self._half_closed = False

    @property
    def busy(self) -> bool:
        """Return whether a request is being received, handled or responded to."""
        return self.handling or self._receiving_body or self._head_timer is not None

    @property
    def _receiving_body(self) -> bool:
        return self._body is not None and not self._body.is_eof()

    def begin(self, request: web.BaseRequest) -> None:
        """Note that a request's head is in and its handler runs."""
        self._body, self.handling = request.content, True
        self._stop_head_timer()

    def end(self, response: web.StreamResponse | None) -> None:
        """Note that the handler is done; what it responds with goes out now."""
        self.handling = False
        if not self._receiving_body:
            self._body = None
        if response is not None and self._half_closed:
            response.force_close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # Not part of a body, which has its own limit where it is read: a request's head has begun.
        if not self.busy:
            loop = asyncio.get_running_loop()
            self._head_timer = loop.call_later(self._receive_timeout, self.refuse, 408)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Let a client that has sent its whole request and closed its side have the response."""
        if self.ssl_context is not None:  # TLS cannot be open on one side only
            return False
        if self._head_timer is not None:
            asyncio.get_running_loop().call_later(_BEGIN_SECONDS, self._close_unless_handling)
        elif not self.handling or self._receiving_body:
            return False
        self._half_closed = True
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
        self._stop_head_timer()
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
            raise ConnectionError("a response has begun already")
        error = to_api_error(exc) if exc is not None and status == 400 else http_error(status)
        response = _bare_error(error)
        response.force_close()
        return response

    def refuse(self, status: int) -> None:
        """Respond without a request, and close."""
        if self.transport is not None:
            body = error_body(http_error(status).problems)
            headers = {
                **SECURITY_HEADERS,
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
                "Connection": "close",
            }
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            self.transport.write(f"HTTP/1.1 {status} {_REASONS[status]}\r\n{head}\r\n".encode() + body)
        self.force_close()

    def _close_unless_handling(self) -> None:
        if not self.handling:
            self.force_close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class Server(web.Server):
    """Makes a protocol for each connection, and keeps their number within the limit."""

    def __init__(self, *args: Any, max_connections: int, options: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._max_connections, self._options = max_connections, options
        self._open: dict[Protocol, None] = {}  # the oldest first
        self._next_log = 0.0

    def __call__(self) -> Protocol:
        return Protocol(self, loop=asyncio.get_running_loop(), **self._options)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if isinstance(handler, Protocol):
            self._open[handler] = None
            if len(self._open) > self._max_connections:
                self._make_room(handler)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        if isinstance(handler, Protocol):
            self._open.pop(handler, None)

    def _make_room(self, newest: Protocol) -> None:
        """Close the oldest connection without a request; with none, refuse the newest."""
        now = asyncio.get_running_loop().time()
        if now >= self._next_log:
            self._next_log = now + _LOG_SECONDS
            log.warning("too many connections", extra={"max_connections": self._max_connections})
        oldest = next(connection for connection in self._open if not connection.handling)
        if oldest is newest:
            newest.refuse(503)
        else:
            oldest.force_close()
        self._open.pop(oldest)


class Runner(web.AppRunner):
    """Runs an application on our server."""

    def __init__(self, app: web.Application, settings: Settings, max_connections: int = 10_000) -> None:
        self._max_connections = max_connections
        self._options = {
            "receive_timeout": settings.receive_timeout,
            "min_send_rate": settings.min_send_rate,
            "access_log": None,
            "keepalive_timeout": settings.keepalive_timeout,
            "lingering_time": min(_LINGER_SECONDS, settings.receive_timeout),
            "auto_decompress": False,  # in the event loop, and without an end: see `body.inflate`
            "max_line_size": 65536,  # all parameters at their longest are 19,000 characters, more if percent-encoded
            "max_field_size": 16384,
        }
        # `finish_requests` has waited for the requests before the shutdown.
        super().__init__(app, handle_signals=False, shutdown_timeout=1.0)

    async def _make_server(self) -> Server:
        made = await super()._make_server()
        respond = made.request_handler

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            connection = request.protocol
            assert isinstance(connection, Protocol)
            response: web.StreamResponse | None = None
            connection.begin(request)
            try:
                expect = request.headers.get("Expect")
                if expect is not None and expect.lower() != "100-continue":
                    response = _bare_error(http_error(417))
                else:
                    known = request if expect is None else _without_expect(request)
                    response = await respond(known)
                    if known is not request:
                        # What the application adds to each response is added for the request that it knows.
                        with contextlib.suppress(ConnectionError):
                            await response.prepare(known)
                return response
            finally:
                connection.end(response)

        return Server(
            handle,
            request_factory=made.request_factory,
            max_connections=self._max_connections,
            options=self._options,
        )


def _without_expect(request: web.BaseRequest) -> web.BaseRequest:
    """Return the request without its Expect header: not aiohttp but `read_body` says "continue", once it may come."""
    kept = CIMultiDict((name, value) for name, value in request.headers.items() if name.lower() != "expect")
    request = request.clone(headers=kept)
    request[EXPECTS] = True
    return request
