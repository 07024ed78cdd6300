"""Bodies in: read within bounds and decompressed."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError
from isal import isal_zlib

from service.http.errors import ApiError, http_error, problem
from service.http.keys import EXPECTS, SETTINGS
from service.http.offload import in_thread

JSON = "application/json"
NDJSON = "application/x-ndjson"
# Name -> zlib's window bits; 0 is not compressed.
_ENCODINGS = {"": 0, "identity": 0, "gzip": 31, "deflate": 15}
_STEP = 1024 * 1024


async def read_body(request: web.Request, types: tuple[str, ...] = (JSON,)) -> bytes:
    """Return the body, decompressed. Raises for a wrong type, too much of it, or too slow."""
    encoding = _encoding(request, types)
    settings = request.app[SETTINGS]
    if (request.content_length or 0) > settings.max_body_bytes:
        raise http_error(413)
    if request.get(EXPECTS):  # only now: what is refused by its head need not be sent
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # no answer has begun
    body = bytearray()
    try:
        async with asyncio.timeout(settings.receive_timeout):
            while chunk := await request.content.readany():
                body += chunk
                if len(body) > settings.max_body_bytes:
                    raise http_error(413)
    except TimeoutError:
        raise http_error(408) from None
    except (RequestPayloadError, HttpProcessingError):
        raise http_error(400) from None
    if not encoding or not body:
        return bytes(body)
    return await in_thread(lambda: inflate(bytes(body), settings.max_body_bytes, encoding))


def _encoding(request: web.Request, types: tuple[str, ...]) -> int:
    """Return how the body is compressed. Raises for a type or an encoding that is not taken."""
    charset = (request.charset or "utf-8").lower()
    if request.content_type not in types or charset not in ("utf-8", "utf8"):
        raise http_error(415)
    encoding = _ENCODINGS.get(",".join(request.headers.getall("Content-Encoding", [])).strip().lower())
    if encoding is None:
        raise ApiError(415, [problem("unsupported_encoding", "Use gzip or none", "header", "Content-Encoding")])
    return encoding


def inflate(body: bytes, limit: int, encoding: int) -> bytes:
    """Return the text of a compressed body, and stop at the limit: 200 KB can hold 200 MB."""
    text = bytearray()
    try:
        while body:
            stream = isal_zlib.decompressobj(encoding)
            while not stream.eof:
                # In steps, so that the limit is passed by one step at most.
                piece = stream.decompress(body, min(_STEP, limit + 1 - len(text)))
                text += piece
                if len(text) > limit:
                    raise http_error(413)
                body = stream.unconsumed_tail
                if not piece and not body and not stream.eof:
                    raise ValueError("cut off")
            body = stream.unused_data.lstrip(b"\0")  # more of gzip may follow, or padding
    except (isal_zlib.error, ValueError):  # type: ignore[misc]
        raise ApiError(400, [problem("encoding_invalid", "The body does not match its encoding", "body")]) from None
    return bytes(text)
