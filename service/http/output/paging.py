"""Lists: whole, or with `limit` a page at a time, each page linked to the next."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import unquote

import orjson
from aiohttp import web

from schemas.base import INT64_MAX
from service.http.keys import SETTINGS
from service.http.output.responses import json_array, stream_response
from service.store import CursorInvalid, Key, Listing


async def list_response(request: web.Request, listing: Listing) -> web.StreamResponse:
    """Respond with the array of a listing, and a `Link` to the next page if there is one."""
    headers = {}
    if listing.next_key is not None:
        headers["Link"] = f'<{url_with_cursor(request, encode_cursor(listing.next_key))}>; rel="next"'
    return await stream_response(request, json_array(listing.chunks), headers=headers)


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
    kept = [part for part in query if part and unquote(part.partition("=")[0]) not in ("cursor", "walk")]
    added = [f"cursor={cursor}", *([] if walk is None else [f"walk={walk}"])]
    return f"{base}{request.rel_url.raw_path}?{'&'.join([*kept, *added])}"
