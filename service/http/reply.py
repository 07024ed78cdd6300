"""The only way out: a handler returns a Reply, or a value that becomes one, and `send` sends it.

A response is compressed on request, sent no faster than its client takes it, and has one piece in memory at a time: the
next one is made when it is this organization's turn.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web
from isal import igzip, isal_zlib

from service.capacity.work import WORK, Work
from service.http.keys import GATES, HEAD_BYTES, PARKING, STAYING, STREAMING
from service.http.middleware.auth import while_valid
from service.http.middleware.security_headers import SMALL_HEAD
from service.http.output.etags import is_known
from service.store import render_json, response_has_begun

T = TypeVar("T")

# Compressing less than one packet gains nothing. igzip is faster than zlib, and releases the interpreter lock.
_WORTH_COMPRESSING, _LEVEL, _LOOP_BYTES = 1400, 1, 32 * 1024
_GZIP = 31  # zlib's window bits for gzip
# Responses up to this size are complete before they are sent, if they take no longer than this. After as long without a
# byte, a client that has closed its side is taken for one that has left.
_WHOLE, _WHOLE_SECONDS = 64 * 1024, 1.0
# Bytes given to the transport at once: it buffers them until the client takes them.
_SLICE = 128 * 1024
# A piece is kept with what it was made of.
_COPIES = 2
# A head is kept as bytes and as text: one emoji makes four bytes of each character of a header.
_HEAD_COPIES = 5

_ENCODING = "Content-Encoding"

# Texts that many readers share: each as soon as it exists.
Texts = AsyncGenerator[bytes | memoryview, None]
# A piece may be such texts: while they come, the reader holds nothing.
Pieces = AsyncGenerator[bytes | Texts, None] | AsyncGenerator[bytes, None]
# A value that is sent as JSON.
Json = dict[str, Any] | list[Any]


@dataclass(slots=True)
class Reply:
    """What a handler returns: a text, or pieces of one of about a megabyte each. Pieces may be empty."""

    body: bytes | Pieces = b""
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 200
    content_type: str = "application/json"
    follows: bool = False  # goes on until its client leaves: sent piece by piece from the first one on


async def send(request: web.Request, value: Any, work: Work | None) -> web.StreamResponse:
    """Send what a handler has returned; without work, for a route that needs no token, of which no limit counts."""
    reply = value if isinstance(value, Reply) else Reply(render_json(value))
    if isinstance(reply.body, bytes):
        return await _send_whole(request, reply, reply.body, work)
    assert work is not None
    with _parked(request, work) if reply.follows else nullcontext():
        return await _send_pieces(request, reply, reply.body, work)


async def parked(request: web.Request, waiting: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns that waits for long: the request holds nothing, while client and token stay."""
    work = WORK.get()
    assert work is not None
    try:
        async with while_valid(request):
            with _parked(request, work):
                work.close()
                result = await waiting
            if request.transport is None:  # the client has gone meanwhile
                raise ConnectionResetError
            seconds, work.seconds = work.seconds, None  # it held nothing, and may wait for its turn
            await work.begin_piece()
            work.seconds = seconds
            return result
    finally:
        waiting.close()


async def _send_pieces(request: web.Request, reply: Reply, body: Pieces, work: Work) -> web.StreamResponse:
    async with aclosing(body) as pieces, while_valid(request):
        await work.begin_piece()
        piece: bytes | Texts | None
        piece, is_whole = (await anext(pieces, b""), False) if reply.follows else await _begin(pieces)
        if is_whole and isinstance(piece, bytes):
            return await _send_whole(request, reply, piece, work)
        response, compress = _streamed(request, reply)
        quiet_since = time.monotonic()
        while piece is not None:
            if not isinstance(piece, bytes):
                await _send_shared(request, response, piece, work)
            elif piece or not response.prepared:
                with await work.keep(_COPIES * len(piece)):
                    await _write(request, response, await _compressed(piece, compress), work)
                quiet_since = time.monotonic()
            elif time.monotonic() > quiet_since + _WHOLE_SECONDS and _has_left(request):
                raise ConnectionResetError  # no write shows it
            if request.method == "HEAD":
                break
            piece = None  # not in memory while the next one is made
            await work.begin_piece()
            piece = await anext(pieces, None)
        return await _end(request, response, compress(None))


def _streamed(request: web.Request, reply: Reply) -> tuple[web.StreamResponse, Callable[[bytes | None], bytes]]:
    """Return a response, and the function that compresses its pieces; called with None at the end."""
    headers = {"Content-Type": reply.content_type, **reply.headers, "Vary": "Accept-Encoding"}
    if reply.follows or not accepts_gzip(request):
        return web.StreamResponse(headers=headers), lambda piece: piece or b""
    compressor = isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, _GZIP)

    def compress(piece: bytes | None) -> bytes:
        return compressor.flush() if piece is None else compressor.compress(piece)

    return web.StreamResponse(headers=headers | {"Content-Encoding": "gzip"}), compress


async def _begin(pieces: AsyncIterator[Any]) -> tuple[bytes, bool]:
    """Take pieces until they are worth streaming or take long; return them, and whether these were all.

    A small response is complete before it is sent, so that a failing database gives a 503; a larger one, or one that
    takes long, can only be cut off.
    """
    begun: list[bytes] = []
    size, deadline = 0, time.monotonic() + _WHOLE_SECONDS
    async for piece in pieces:
        begun.append(piece)
        size += len(piece)
        if size > _WHOLE or time.monotonic() > deadline:
            return b"".join(begun), False
    return b"".join(begun), True


async def _send_shared(request: web.Request, response: web.StreamResponse, texts: Texts, work: Work) -> None:
    """Send texts as they come; between them the reader holds nothing, and of each no more than the transport does."""
    work.close()
    await _write(request, response, b"", work)
    async with aclosing(texts):
        async for text in texts:
            with await work.keep(min(_SLICE, len(text))):
                await _write(request, response, text, work)


async def _send_whole(request: web.Request, reply: Reply, body: bytes, work: Work | None) -> web.StreamResponse:
    headers = {"Content-Type": reply.content_type, **reply.headers}
    if reply.status == 304 or ("ETag" in headers and is_known(request, headers["ETag"])):
        return web.Response(status=304, headers={name: headers[name] for name in reply.headers if name != _ENCODING})
    if len(body) >= _WORTH_COMPRESSING and "Vary" not in headers:
        headers["Vary"] = "Accept-Encoding"
        if accepts_gzip(request):
            headers[_ENCODING] = "gzip"
            body = await _compressed(body, _gzip)
    if len(body) <= _WHOLE or request.method == "HEAD":
        return web.Response(body=body, status=reply.status, headers=headers)
    if work is None:
        return _Shared(body, headers)
    response = web.StreamResponse(status=reply.status, headers=headers)
    response.content_length = len(body)
    async with while_valid(request):
        with await work.keep(len(body)):
            await _write(request, response, body, work)
        return await _end(request, response)


class _Shared(web.StreamResponse):
    """Sends a body that many responses share, after the handler: a connection holds a slice of it, not a copy.

    So a client that does not read gives up its connection when there are too many.
    """

    def __init__(self, body: bytes, headers: dict[str, str]) -> None:
        super().__init__(headers=headers)
        self.content_length = len(body)
        self._unsent = memoryview(body)

    async def write_eof(self, data: bytes = b"") -> None:
        unsent, self._unsent = self._unsent, memoryview(b"")
        for start in range(0, len(unsent), _SLICE):
            await self.write(unsent[start : start + _SLICE])
        await super().write_eof(data)


def accepts_gzip(request: web.Request) -> bool:
    """Return whether the client accepts gzip: by name or by `*`, and not with q=0."""
    header = request.headers.get("Accept-Encoding")
    if header is None:
        return False
    codings = (part.partition(";") for part in header.lower().split(","))
    weights = {name.strip(): weight.replace(" ", "") for name, _, weight in codings}
    return weights.get("gzip", weights.get("*", "q=0")) not in ("q=0", "q=0.0", "q=0.00", "q=0.000")


def _gzip(text: bytes) -> bytes:
    return igzip.compress(text, _LEVEL)


async def _compressed(text: bytes, compress: Callable[[bytes], bytes]) -> bytes:
    return await asyncio.to_thread(compress, text) if len(text) > _LOOP_BYTES else compress(text)


async def _write(request: web.Request, response: web.StreamResponse, text: bytes | memoryview, work: Work) -> None:
    """Write a text no faster than its client takes it; before the first one, the head of the response."""
    if not response.prepared:
        await response.prepare(request)
        response_has_begun()
        work.seconds = None
        request[STREAMING] = True
    view = memoryview(text if request.method != "HEAD" else b"")
    for start in range(0, len(view), _SLICE):
        if start:
            await request.app[PARKING].turn()
        await response.write(view[start : start + _SLICE])


async def _end(request: web.Request, response: web.StreamResponse, text: bytes = b"") -> web.StreamResponse:
    await response.write_eof(text if request.method != "HEAD" else b"")
    request[STREAMING] = False
    return response


def _has_left(request: web.Request) -> bool:
    return request.transport is None or getattr(request.protocol, "half_closed", False)


@contextmanager
def _parked(request: web.Request, work: Work) -> Iterator[None]:
    """Hold a place among the readers that wait or follow, and end with the client; a large head counts."""
    gates, size = request.app[GATES], request.get(HEAD_BYTES, 0)
    head = _HEAD_COPIES * size if size > SMALL_HEAD else 0
    with gates.readers.hold(work.holder), gates.receiving.hold(work.holder, head):
        end_with_client(request)
        yield


def end_with_client(request: web.Request) -> None:
    """Cancel a request when its client leaves; of many that leave at once, a few at a time.

    Raises ConnectionResetError if the client has left already.
    """
    if _has_left(request):
        raise ConnectionResetError
    task, gone = asyncio.current_task(), asyncio.get_running_loop().create_future()
    assert task is not None
    gone.add_done_callback(lambda _: task.cancel())
    request[STAYING] = functools.partial(request.app[PARKING].wake, gone)
