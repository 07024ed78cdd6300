"""Lists: whole, or with `limit` a page at a time, each page linked to the next."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from typing import Any
from urllib.parse import unquote

import orjson
from aiohttp import web

from schemas.base import INT64_MAX
from service.capacity import cpu
from service.http.keys import SETTINGS
from service.http.reply import Reply
from service.store import Chunk, CursorInvalid, Key, Listing, render_json

# The assumed bytes of a record that did not come in a chunk.
_RECORD_BYTES = 500


def list_reply(request: web.Request, listing: Listing) -> Reply:
    """Return the array of a listing, with a `Link` to the next page if there is one."""
    headers = {}
    if listing.next_key is not None:
        headers["Link"] = f'<{url_with_cursor(request, encode_cursor(listing.next_key))}>; rel="next"'
    return Reply(json_array(listing.chunks), headers)


async def json_array(
    chunks: AsyncIterator[Chunk | list[Any]], change: Callable[[dict[str, Any]], Any] | None = None
) -> AsyncGenerator[bytes, None]:
    """Yield the JSON array of all records of all chunks, each changed first if wanted."""
    opening = b"["
    async for chunk in chunks:
        size = chunk.size if isinstance(chunk, Chunk) else len(chunk) * _RECORD_BYTES
        if text := await cpu.run(size, partial(_members, chunk, opening, change)):
            opening = b","
            yield text
    yield b"[]" if opening == b"[" else b"]"


def _members(chunk: Chunk | list[Any], opening: bytes, change: Callable[[dict[str, Any]], Any] | None) -> bytes:
    records = chunk.open() if isinstance(chunk, Chunk) else chunk
    if change is not None:
        records = list(map(change, records))
    return b"".join((opening, memoryview(render_json(records))[1:-1])) if records else b""


def encode_cursor(key: Key) -> str:
    """Return a key as an opaque text for a URL."""
    return base64.urlsafe_b64encode(orjson.dumps(key)).decode().rstrip("=")


def decode_cursor(text: str | None) -> Key | None:
    """Return the key of a cursor; the list that it belongs to knows its parts. Raises CursorInvalid."""
    if text is None:
        return None
    try:
        key: Any = orjson.loads(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True))
        if not isinstance(key, list) or not all(map(_is_part, key)):
            raise ValueError
        return tuple(key)
    except ValueError:
        raise CursorInvalid from None


def _is_part(value: Any) -> bool:
    return type(value) is str or (type(value) is int and abs(value) <= INT64_MAX)


def url_with_cursor(request: web.Request, cursor: object, walk: int | None = None) -> str:
    """Return the absolute URL that repeats a request with another cursor, as the next page of a walk."""
    base = request.app[SETTINGS].base_url.rstrip("/")
    if not base:
        # The Host header if present: aiohttp takes the host of an absolute target, without its port.
        base = f"{request.scheme}://{request.headers.get('Host', request.host)}"
    query = request.rel_url.raw_query_string.split("&")
    parts = [part for part in query if part and unquote(part.partition("=")[0]) not in ("cursor", "walk")]
    added = [f"cursor={cursor}", *([] if walk is None else [f"walk={walk}"])]
    return f"{base}{request.rel_url.raw_path}?{'&'.join([*parts, *added])}"
