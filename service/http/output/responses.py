"""Writes response bodies: JSON, compressed on request, in pieces that are counted in the limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from aiohttp import web
from isal import igzip, isal_zlib

from service.http.keys import STREAMING
from service.http.middleware.auth import while_valid
from service.http.middleware.limits import ADMISSION, LIMITS, end_with_client
from service.http.offload import off_loop
from service.store import Chunk, render_json, response_has_begun

# Compressing less than one packet gains nothing.
_WORTH_COMPRESSING = 1400
# igzip takes about 5 ms per megabyte at this level, where zlib takes 20 to 30, and releases the
# interpreter lock.
_LEVEL = 1
_OFF_LOOP = 32 * 1024
_GZIP = 31  # zlib's window bits for gzip
# Responses up to this size are complete before they are sent, if they take no longer than this.
# After as long without a byte, a client that has closed its side is taken for one that has left.
WHOLE, _WHOLE_SECONDS = 64 * 1024, 1.0
# Bytes given to the transport at once: it buffers them until the client takes them.
_SLICE = 128 * 1024
_RECORD_BYTES = 500
# Memory of a stream: a chunk, its JSON of a megabyte or one large record, the compressed form, and the allocator's
# overhead.
STREAM_BYTES = 7 * 1024 * 1024


def accepts_gzip(request: web.Request) -> bool:
    """Return whether the client accepts gzip: by name or by `*`, and not with q=0."""
    codings = (part.partition(";") for part in request.headers.get("Accept-Encoding", "").lower().split(","))
    weights = {name.strip(): weight.replace(" ", "") for name, _, weight in codings}
    return weights.get("gzip", weights.get("*", "q=0")) not in ("q=0", "q=0.0", "q=0.00", "q=0.000")


async def _compressed(text: bytes | memoryview, compress: Callable[[bytes | memoryview], bytes]) -> bytes:
    return await asyncio.to_thread(compress, text) if len(text) > _OFF_LOOP else compress(text)


async def bytes_response(
    request: web.Request, body: bytes, headers: dict[str, str] | None = None
) -> web.StreamResponse:
    """Respond with a text, which is JSON unless the headers have another type."""
    headers = {"Content-Type": "application/json", **(headers or {})}
    admission = request.get(ADMISSION) if len(body) > WHOLE else None
    if admission is not None:
        admission.hold(len(body))
    if len(body) >= _WORTH_COMPRESSING:
        headers["Vary"] = "Accept-Encoding"
        if accepts_gzip(request):
            headers["Content-Encoding"] = "gzip"
            text, body = len(body), await _compressed(body, lambda body: igzip.compress(body, _LEVEL))
            if admission is not None:
                admission.release(max(0, text - len(body)))
    if len(body) <= WHOLE or admission is None:
        return public_response(request, body, headers)
    response = web.StreamResponse(headers=headers)
    response.content_length = len(body)
    async with while_valid(request):
        await _send(request, response, _once(body))
    return response


class _Sliced(web.StreamResponse):
    """Sends a body that many responses share: a connection holds a slice of it, not a copy."""

    def __init__(self, body: bytes, headers: dict[str, str]) -> None:
        super().__init__(headers=headers)
        self.content_length = len(body)
        self._unsent = memoryview(body)

    async def write_eof(self, data: bytes = b"") -> None:
        unsent, self._unsent = self._unsent, memoryview(b"")
        for start in range(0, len(unsent), _SLICE):
            await self.write(unsent[start : start + _SLICE])
        await super().write_eof(data)


def public_response(request: web.Request, body: bytes, headers: dict[str, str]) -> web.StreamResponse:
    """Respond with a body that needs no token, or with a small one.

    No limit counts it. It is sent after its handler has ended, so that a client that does not read gives up its
    connection when there are too many.
    """
    if len(body) <= WHOLE or request.method == "HEAD":
        return web.Response(body=body, headers=headers)
    return _Sliced(body, headers)


async def json_response(request: web.Request, value: Any, headers: dict[str, str] | None = None) -> web.StreamResponse:
    """Respond with a value."""
    return await bytes_response(request, render_json(value), headers)


async def stream_response(
    request: web.Request,
    pieces: AsyncGenerator[bytes | memoryview, None],
    content_type: str = "application/json",
    headers: dict[str, str] | None = None,
    *,
    at_once: bool = False,
) -> web.StreamResponse:
    """Respond with pieces as they come.

    A small response is complete before it is sent, so that a failing database gives a 503; a larger one, or one that
    takes long, can only be cut off. `at_once` sends every piece as it comes, the first one with the headers.
    Pieces may be empty: a long search that finds nothing ends there if its client has left.
    """
    begun = bytearray()
    async with aclosing(pieces), while_valid(request):
        if at_once:
            end_with_client(request)
            await request[ADMISSION].follow(request, STREAM_BYTES)
        whole = False
        async with request[ADMISSION].beginning():
            if at_once:
                begun += await anext(pieces, b"")
            elif not (whole := await _begin(begun, pieces)):
                request[ADMISSION].hold(STREAM_BYTES)
        headers = {**(headers or {}), "Content-Type": content_type}  # not before: the pieces may have changed them
        if whole:
            return await bytes_response(request, bytes(begun), headers)
        response = web.StreamResponse(headers={**headers, "Vary": "Accept-Encoding"})
        rest = _after(request, begun, pieces)
        if accepts_gzip(request) and not at_once:
            response.headers["Content-Encoding"] = "gzip"
            rest = _gzip(rest)
        async with aclosing(rest):
            await _send(request, response, rest)
        return response


async def _begin(begun: bytearray, pieces: AsyncIterator[bytes | memoryview]) -> bool:
    """Take pieces until they are worth streaming or take long; return whether these were all."""
    deadline = time.monotonic() + _WHOLE_SECONDS
    async for piece in pieces:
        begun += piece
        if len(begun) > WHOLE or time.monotonic() > deadline:
            return False
    return True


async def _send(request: web.Request, response: web.StreamResponse, pieces: AsyncIterator[bytes | memoryview]) -> None:
    """Send the pieces no faster than the client takes them."""
    await response.prepare(request)
    response_has_begun()
    request[STREAMING] = True
    if request.method != "HEAD":
        async for piece in pieces:
            view = memoryview(piece)
            for start in range(0, len(view), _SLICE):
                if start:
                    await request.app[LIMITS].waking.turn()
                with request[ADMISSION].sending():
                    await response.write(view[start : start + _SLICE])
            del piece, view
    await response.write_eof()
    request[STREAMING] = False


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _after(
    request: web.Request, begun: bytearray, pieces: AsyncIterator[bytes | memoryview]
) -> AsyncGenerator[bytes | memoryview, None]:
    if begun:
        first = bytes(begun)
        begun.clear()
        yield first
        del first
    sent = time.monotonic()
    async for piece in pieces:
        quiet = not piece and time.monotonic() > sent + _WHOLE_SECONDS
        if quiet and (request.transport is None or getattr(request.protocol, "half_closed", False)):
            raise ConnectionResetError  # no write shows whether the client has left
        yield piece
        if piece:
            sent = time.monotonic()
        del piece


async def _gzip(pieces: AsyncIterator[bytes | memoryview]) -> AsyncGenerator[bytes, None]:
    """Yield the pieces compressed; aiohttp's own compression took 28 ms per megabyte."""
    compressor = isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, _GZIP)
    async for piece in pieces:
        begun = await _compressed(piece, compressor.compress)
        del piece
        if begun:
            yield begun
    yield compressor.flush()


def _members(chunk: Chunk | list[Any], opening: bytes, change: Callable[[dict[str, Any]], Any] | None) -> bytes:
    records = chunk.open() if isinstance(chunk, Chunk) else chunk
    if change is not None:
        records = list(map(change, records))
    return b"".join((opening, memoryview(render_json(records))[1:-1])) if records else b""


async def json_array(
    chunks: AsyncIterator[Chunk | list[Any]],
    change: Callable[[dict[str, Any]], Any] | None = None,
) -> AsyncGenerator[bytes, None]:
    """Yield the JSON array of all records of all chunks, each changed first if wanted."""
    opening = b"["
    async for chunk in chunks:
        size = chunk.size if isinstance(chunk, Chunk) else len(chunk) * _RECORD_BYTES
        text = await off_loop(size, partial(_members, chunk, opening, change))
        del chunk
        if text:
            opening = b","
            yield text
            del text
    yield b"[]" if opening == b"[" else b"]"
