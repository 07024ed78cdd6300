"""Bodies in: read within bounds and decompressed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError
from isal import isal_zlib

from service.capacity import cpu
from service.capacity.work import WORK, Work, body_bytes
from service.http.errors import ApiError, http_error, problem
from service.http.input.fast_decoder import count_values
from service.http.keys import EXPECTS, SETTINGS
from service.http.middleware.auth import while_valid

JSON = "application/json"
NDJSON = "application/x-ndjson"
# Name -> zlib's window bits; 0 is not compressed.
_ENCODINGS = {"": 0, "identity": 0, "gzip": 31, "deflate": 15}
_MAX_CONTENT_TYPE = 256  # characters
_STEP = 1024 * 1024
# Every gzip member costs a copy of the rest of its slice. Parallel compressors make one per 64 KB or more.
_SLICE = 16 * 1024
_MAX_MEMBERS = 1024
# A body that takes longer was built to be slow.
_INFLATE_SECONDS = 1.0
# An object with one member.
_VALUE_BYTES = 200


async def read_body(
    request: web.Request, types: tuple[str, ...] = (JSON,), max_bytes: int | None = None, *, as_values: bool = False
) -> bytes:
    """Return the body, decompressed. Raises if its type is wrong, or if it is too large or arrives too slowly.

    `max_bytes` is for a route with smaller bodies than `max_body_bytes`; `as_values` for one that keeps all values of
    the body in memory. Capacity for as much as was announced is reserved before the body is read, and before it is
    worked on; waiting for that does not count as the client's slowness.
    """
    encoding = _encoding(request, types)
    settings, work = request.app[SETTINGS], WORK.get()
    assert work is not None
    limit = settings.max_body_bytes if max_bytes is None else min(max_bytes, settings.max_body_bytes)
    if (request.content_length or 0) > limit:
        raise http_error(413)
    # Only now: a request that is rejected by its head need not send its body. HTTP/1.0 does not know this response.
    if request.get(EXPECTS) and request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # no response has begun
    body = await _receive(request, work, limit, settings.receive_timeout)
    if not encoding or not body:
        await work.begin(body_bytes(len(body)) + (await _value_bytes(body) if as_values else 0))
        return body
    await work.begin(body_bytes(limit) + (_VALUE_BYTES * settings.max_values if as_values else 0))
    text = bytearray()
    await cpu.drain(inflate(body, limit, encoding, text))
    work.shrink(body_bytes(len(text)) + (await _value_bytes(text) if as_values else 0))
    return bytes(text)


def keep_of_body(size: int) -> None:
    """Keep only so many bytes of what was reserved for the body of the current request."""
    if (work := WORK.get()) is not None:
        work.shrink(size)


async def _receive(request: web.Request, work: Work, limit: int, seconds: float) -> bytes:
    """Return the body as it was sent, once it is complete."""
    if request.content.is_eof():  # small bodies have arrived already
        body = request.content.read_nowait()
        if len(body) > limit:
            raise http_error(413)
        return body
    async with while_valid(request):
        await work.receive(limit if request.content_length is None else request.content_length, seconds)
        try:
            async with asyncio.timeout(seconds):
                return await _read(request, limit)
        except TimeoutError:
            raise http_error(408) from None
        except (RequestPayloadError, HttpProcessingError):
            raise http_error(400) from None


async def _read(request: web.Request, limit: int) -> bytes:
    body = bytearray()
    while chunk := await request.content.readany():
        body += chunk
        if len(body) > limit:
            raise http_error(413)
    return bytes(body)


async def _value_bytes(text: bytes | bytearray) -> int:
    """Return the memory of the values of a text as Python's objects."""
    return _VALUE_BYTES * await cpu.run(len(text), lambda: count_values(text))


def content_type(request: web.Request) -> tuple[str, set[str]]:
    """Return the media type of a body, and the charsets that its header names; no type if the header is too long.

    aiohttp uses Python's email parser, which fails on some headers and takes 0.3 s for others of 16 KB.
    """
    header = request.headers.get("Content-Type", "")
    if len(header) > _MAX_CONTENT_TYPE:
        return "", set()
    kind, *parameters = header.lower().split(";")
    pairs = [parameter.partition("=") for parameter in parameters]
    charsets = {value.strip(" \t\"'") for name, _, value in pairs if name.strip() == "charset"}
    return kind.strip(), charsets - {""}


def _encoding(request: web.Request, types: tuple[str, ...]) -> int:
    """Return how the body is compressed. Raises for a type or an encoding that is not supported."""
    kind, charsets = content_type(request)
    if kind not in types or not charsets <= {"utf-8", "utf8"}:
        message = f"Send the body as {' or '.join(types)}, in UTF-8"
        raise ApiError(415, [problem("unsupported_media_type", message, "header", "Content-Type")])
    encoding = _ENCODINGS.get(",".join(request.headers.getall("Content-Encoding", [])).strip().lower())
    if encoding is None:
        message = "Send the body as gzip, deflate or without an encoding"
        raise ApiError(415, [problem("unsupported_encoding", message, "header", "Content-Encoding")])
    return encoding


def inflate(body: bytes, limit: int, encoding: int, text: bytearray) -> Iterator[bool]:
    """Add the text of a compressed body step by step, all of them heavy.

    Stops at the limit, at too many members, and after too much CPU time, in which other work does not count.
    """
    data, at, members, seconds = memoryview(body), 0, 0, 0.0
    yield True
    try:
        while at < len(data):
            members += 1
            if members > _MAX_MEMBERS:
                raise _invalid(f"The body must have at most {_MAX_MEMBERS} gzip members")
            stream = isal_zlib.decompressobj(encoding)
            while not stream.eof:
                began = time.thread_time()
                block: bytes | memoryview = stream.unconsumed_tail
                if not block:
                    # In slices: the bytes after a member are copied, and that must not be all of the rest.
                    block = data[at : at + _SLICE]
                    at += len(block)
                # In steps, so that the limit is exceeded by one step at most: 200 KB can hold 200 MB.
                piece = stream.decompress(block, min(_STEP, limit - len(text) + 1))
                text += piece
                if len(text) > limit:
                    raise http_error(413)
                if not block and not piece and not stream.eof:
                    raise ValueError("cut off")
                seconds += time.thread_time() - began
                if seconds > _INFLATE_SECONDS:
                    raise _invalid("The body takes too long to decompress")
                yield True
            at = _skip_padding(data, at - len(stream.unused_data))
    except (isal_zlib.error, ValueError):  # type: ignore[misc]
        raise _invalid("The body does not match its encoding") from None


def _skip_padding(data: memoryview, at: int) -> int:
    """Return the position of the next byte that is not NUL."""
    while at < len(data):
        slice = bytes(data[at : at + _SLICE])
        remainder = slice.lstrip(b"\0")
        at += len(slice) - len(remainder)
        if remainder:
            break
    return at


def _invalid(message: str) -> ApiError:
    return ApiError(400, [problem("encoding_invalid", message, "body")])
