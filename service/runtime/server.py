"""The HTTP server: aiohttp's, with the one error shape, and with limits for what a client sends and how fast.

The only module that uses private parts of aiohttp's server: `AppRunner._make_server`, and of its connections
`_messages`, the requests that are parsed but not begun, `_pause_reading_for_buffer`, `_resume_reading_for_buffer` and
`_buffer_paused`.
`tests/runtime/test_server.py` checks them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import socket
import ssl
import sys
from http import HTTPStatus
from itertools import chain, islice
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestPayloadError
from multidict import CIMultiDict

from service.capacity.work import HEADS, Gates
from service.http.errors import ApiError, error_body, error_response, http_error, to_api_error, unavailable
from service.http.keys import EXPECTS, GATES, HEAD_BYTES, STAYING
from service.http.middleware.security_headers import SECURITY_HEADERS
from service.http.output.slow_readers import SlowReader
from service.runtime.sockets import BACKLOG
from service.settings import Settings

log = logging.getLogger("service")

# A request's head, its first line included. All parameters at their longest are 19,000 characters, more if encoded.
# Also: after as many bytes that follow a request, reading pauses until its response is sent.
MAX_HEAD = 64 * 1024
# aiohttp looks every beginning of a path up: 64,000 slashes take 0.7 s. Routes have at most 5.
_MAX_SLASHES = 16
# How long, and for how many bytes, a rejected body is still drained so that the client can read the error.
_LINGER_SECONDS, _LINGER_BYTES = 5.0, 64 * 1024 * 1024
# Seconds between two reads of it: clients that send at full speed must not take a core.
_DROP_SECONDS = 0.01
# Small chunks cost as much as large ones. A body may have this many, and one more per KB.
_SMALL_CHUNK = re.compile(rb"\r\n0*[0-9A-Fa-f]{1,2}(?:;[^\r\n]*)?\r\n")
_MAX_SMALL_CHUNKS, _BYTES_PER_SMALL_CHUNK = 1000, 1024
# Only the parser finds the end of a chunked body: it gets this many bytes at a time, and so few of the next request.
_PIECE = 16 * 1024
_BLANK_LINE = b"\r\n\r\n"
_LOG_SECONDS = 10.0
# For TLS; until then a connection counts in no limit.
_HANDSHAKE_SECONDS = 5.0
# Seconds for which the bytes after a refused head are dropped.
_REFUSED_SECONDS = 1.0


def _bare_error(error: ApiError) -> web.Response:
    """Return the error response to a request that has no route yet; its connection ends."""
    response = error_response(error)
    response.headers.update(SECURITY_HEADERS)
    response.force_close()
    return response


class Protocol(web.RequestHandler):
    """One connection. Reports broken HTTP in the one error shape, and ends slow requests."""

    def __init__(
        self, server: Server, *, receive_timeout: float, min_send_rate: float, gates: Gates, **kwargs: Any
    ) -> None:
        super().__init__(server, **kwargs)
        self._server = server
        self.handling = False  # the handler runs
        self._in_progress = False  # from the end of a request's head until its response is sent
        self._receiving = gates.receiving
        self._counted = 0  # bytes taken from it
        self._head, self._head_end = 0, b""  # size and last bytes of an incomplete head
        self._ahead = b""  # received after the request in progress
        self._body: StreamReader | None = None  # of the request in progress
        self._body_left = 0  # bytes that aiohttp does not have yet
        self._chunked = False
        self._received = self._small_chunks = 0  # of a chunked body
        self._drained: asyncio.Event | None = None  # while incoming bytes are dropped: whether their end has come
        self._dropped = 0
        self._receive_timeout, self._min_send_rate = receive_timeout, min_send_rate
        self._head_timer: asyncio.TimerHandle | None = None
        self._slow_reader: SlowReader | None = None
        self.half_closed = False  # the client sends nothing more, or has left: only a write shows which
        self._request: web.BaseRequest | None = None  # that is being handled

    @property
    def busy(self) -> bool:
        """Return whether a request is being received, handled or responded to."""
        return self._in_progress or self._head_timer is not None

    @property
    def has_unread_body(self) -> bool:
        return self._body is not None and not self._body.is_eof()

    def begin(self, request: web.BaseRequest) -> None:
        """Note that a request's handler runs."""
        self._request, self.handling = request, True

    def end(self, response: web.StreamResponse | None) -> None:
        """Note that the handler is done, and its response is sent now."""
        self._request, self.handling = None, False
        if response is not None and self.half_closed and not (self._ahead or self._messages):
            response.force_close()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send a response, then continue with what the client has sent meanwhile."""
        resp, reset = await super().finish_response(request, resp, start_time)
        if resp.keep_alive and not reset:
            self._in_progress, self._body, self._chunked = False, None, False
            if self._messages:
                self._accept()
            if self._ahead:
                self._receive(b"")
            if self.half_closed and not self._in_progress:
                self.close()
            elif self._buffer_paused and not self._messages:  # else aiohttp resumes it, with what its parser holds back
                self._resume_reading_for_buffer()
        return resp, reset

    def data_received(self, data: bytes) -> None:
        if self._drained is not None:
            self._drop(len(data))
        elif not data:  # aiohttp continues with bytes that it held back
            self._parse(data)
        else:
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        """Parse one request; what follows it is counted and waits until the response is sent."""
        data, start = self._ahead + data, 0
        while start < len(data) and self.transport is not None and (size := self._wanted(data, start)):
            self._parse(data[start : start + size])
            start += size
        self._ahead = b"" if self._drained is not None else data[start:]
        if self._head > MAX_HEAD:
            self.refuse(431)
        elif not self._count_heads():
            self.refuse(503)
        elif len(self._ahead) > MAX_HEAD:
            self._pause_reading_for_buffer()
        elif not self.busy and self._head_end:  # blank lines begin no head
            loop = asyncio.get_running_loop()
            self._head_timer = loop.call_later(self._receive_timeout, self.refuse, 408)

    def _parse(self, data: bytes) -> None:
        """Let aiohttp parse bytes of the next head, or of the body of the request in progress."""
        if not self._in_progress:
            super().data_received(data)
            if self._messages:
                self._accept()
            else:
                self._head += len(data)
                if self._head_end or data.strip(b"\r\n"):
                    self._head_end = (self._head_end + data)[-3:]
        elif not self._chunked or self._count_chunks(data):
            super().data_received(data)
            self._body_left -= len(data)
            # Nothing but an error follows an incomplete body.
            if self.has_unread_body and self._messages and self._messages[-1][1] is not self._body:
                self._reject_body("the chunks are malformed")

    def _wanted(self, data: bytes, start: int) -> int:
        """Return how many bytes belong to the next head, or to the body of the request in progress."""
        size = len(data) - start
        if self._in_progress:
            if not self.has_unread_body or self._drained is not None:
                return 0
            return min(size, _PIECE if self._chunked else self._body_left)
        text = self._head_end + data[start:]
        blank_lines = 0 if self._head_end else len(text) - len(text.lstrip(b"\r\n"))
        end = text.find(_BLANK_LINE, blank_lines)
        return size if end < 0 else end + len(_BLANK_LINE) - len(self._head_end)

    def _accept(self) -> None:
        """Note that the head of the next request is complete."""
        message, body = self._messages[0]
        self._in_progress, self._head, self._head_end = True, 0, b""
        self._received = self._small_chunks = 0
        self._stop_head_timer()
        if isinstance(message, RawRequestMessage) and not body.is_eof():  # else the head is broken, or has no body
            self._body, self._chunked = body, message.chunked
            self._body_left = int(message.headers.get("Content-Length", sys.maxsize)) - body.total_bytes

    def _count_heads(self) -> bool:
        """Count the bytes that belong to no request in progress; return False if there is no room for them."""
        more = self._head + len(self._ahead) - self._counted
        if more > 0 and not self._receiving.take(HEADS, more, self._receiving.total // 2):
            return False
        if more < 0:
            self._receiving.put_back(HEADS, -more)
        self._counted += more
        return True

    def _resume_reading_for_buffer(self) -> None:
        if len(self._ahead) <= MAX_HEAD:
            super()._resume_reading_for_buffer()

    def _count_chunks(self, data: bytes) -> bool:
        """Return whether a body may go on; it ends if it comes in chunks of a few bytes."""
        self._received += len(data)
        allowed = _MAX_SMALL_CHUNKS + self._received // _BYTES_PER_SMALL_CHUNK - self._small_chunks
        small = sum(1 for _ in islice(_SMALL_CHUNK.finditer(data), allowed + 1))
        self._small_chunks += small
        if small > allowed:
            self._reject_body("the chunks are too small")
        return small <= allowed

    def _reject_body(self, reason: str) -> None:
        """Let the handler respond with 400, and drop what still comes."""
        assert self._body is not None
        self._body.set_exception(RequestPayloadError(reason))
        self._begin_to_drop()

    async def close_after(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Send a response, then drop the rest of the body for a while: unread bytes would reset the connection."""
        response.force_close()
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            await response.write_eof()
        self.handling, self._in_progress, self._body = False, False, None
        if self.transport is None:
            return
        drained = self._begin_to_drop()
        with contextlib.suppress(RuntimeError):
            if self.ssl_context is None:
                self.transport.write_eof()
            self.transport.resume_reading()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(_LINGER_SECONDS, self._receive_timeout)):
                await drained.wait()

    def _begin_to_drop(self) -> asyncio.Event:
        if self._drained is None:
            self._drained = asyncio.Event()
        return self._drained

    def _drop(self, size: int) -> None:
        self._dropped += size
        if self.transport is None:
            return
        if self._dropped > _LINGER_BYTES:
            self.transport.abort()
            return
        self.transport.pause_reading()
        asyncio.get_running_loop().call_later(_DROP_SECONDS, self._drop_more)

    def _drop_more(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Let a client that closed its side after its request still get the response, unless that never ends."""
        if self._drained is not None:
            self._drained.set()
        if self._staying is not None or self.ssl_context is not None:  # TLS cannot be open on one side only
            return False
        if self.has_unread_body or not self._in_progress:
            return False
        self.half_closed = True
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

    @property
    def _staying(self) -> functools.partial[None] | None:
        return None if self._request is None else self._request.get(STAYING)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._staying is not None:
            self._staying()
        self._stop_head_timer()
        self._head, self._ahead = 0, b""
        self._count_heads()
        if self._drained is not None:
            self._drained.set()
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
        return _bare_error(error)

    def refuse(self, status: int) -> None:
        """Respond without a request, and close."""
        self._stop_head_timer()
        if self.transport is None:
            return
        if self._in_progress:  # a response may have begun
            self.transport.abort()
            return
        error = unavailable("connections") if status == 503 else http_error(status)
        body = error_body(error.problems)
        headers = {
            **SECURITY_HEADERS,
            **error.headers,
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{head}\r\n".encode() + body)
        if status == 503:  # there is no room
            self._server.refused += 1
            self.force_close()
        else:
            self._begin_to_drop()
            asyncio.get_running_loop().call_later(_REFUSED_SECONDS, self.force_close)

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
        self.refused = 0  # connections and heads, for the metrics

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
        gates = app[GATES] if GATES in app else Gates(settings.max_bytes_in_flight)
        gates.set_connections(max_connections)
        self._max_connections = max_connections
        self._options = {
            "receive_timeout": settings.receive_timeout,
            "min_send_rate": settings.min_send_rate,
            "access_log": None,
            "keepalive_timeout": settings.keepalive_timeout,
            "lingering_time": 0,  # aiohttp would parse what it drops: see `Protocol.close_after`
            "auto_decompress": False,  # aiohttp's blocks the event loop and has no limit: see `body.inflate`
            "max_line_size": MAX_HEAD,
            "max_field_size": 16384,
            "gates": gates,
        }
        # `finish_requests` has waited for the requests before the shutdown.
        super().__init__(app, handle_signals=False, shutdown_timeout=1.0)
        self._ports: list[asyncio.AbstractServer] = []

    async def listen(self, listeners: list[socket.socket], tls: ssl.SSLContext | None) -> None:
        """Accept connections. With aiohttp's own sites, a client without a handshake would stay for a minute."""
        loop = asyncio.get_running_loop()
        assert self.server is not None
        limit = _HANDSHAKE_SECONDS if tls else None
        for listener in listeners:
            port = await loop.create_server(
                self.server, sock=listener, ssl=tls, backlog=BACKLOG, ssl_handshake_timeout=limit
            )
            self._ports.append(port)

    def close_ports(self) -> None:
        """Accept no more connections."""
        for port in self._ports:
            port.close()

    @property
    def refused(self) -> int:
        """Return how many connections were refused with 503."""
        return self.server.refused if isinstance(self.server, Server) else 0

    async def _make_server(self) -> Server:
        server = await super()._make_server()
        respond = server.request_handler

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            connection = request.protocol
            assert isinstance(connection, Protocol)
            response: web.StreamResponse | None = None
            expect = request.headers.get("Expect")
            known = request if expect is None else _without_expect(request)
            known[HEAD_BYTES] = _head_bytes(request)
            connection.begin(known)
            try:
                if known[HEAD_BYTES] > MAX_HEAD:
                    response = _bare_error(http_error(431))
                elif request.rel_url.raw_path.count("/") > _MAX_SLASHES:
                    response = _bare_error(http_error(404))
                elif expect is not None and expect.lower() != "100-continue":
                    response = _bare_error(http_error(417))
                else:
                    response = await respond(known)
                    if known is not request:
                        # The application adds its headers only for the request that it was given.
                        with contextlib.suppress(ConnectionError):
                            await response.prepare(known)
                if connection.has_unread_body:
                    await connection.close_after(known, response)
                return response
            finally:
                connection.end(response)

        return Server(
            handle,
            request_factory=server.request_factory,
            max_connections=self._max_connections,
            options=self._options,
        )


def _head_bytes(request: web.BaseRequest) -> int:
    """Return the size of a head; the parser limits its lines, not their sum."""
    headers = request.raw_headers
    return len(request.raw_path) + sum(map(len, chain.from_iterable(headers))) + 4 * len(headers)


def _without_expect(request: web.BaseRequest) -> web.BaseRequest:
    """Return the request without its Expect header: `read_body`, not aiohttp, sends "100 Continue"."""
    kept = CIMultiDict((name, value) for name, value in request.headers.items() if name.lower() != "expect")
    request = request.clone(headers=kept)
    request[EXPECTS] = True
    return request
