"""The opaque cursor of a deletion in several calls: it belongs to one request, and holds the deletion's place."""

from __future__ import annotations

import hashlib

from aiohttp import web

from service.http.keys import ORGANIZATION
from service.http.output.paging import decode_cursor, encode_cursor
from service.store import CursorInvalid, Place


def place_of(request: web.Request, cursor: str | None) -> Place | None:
    """Return the place in a cursor of the same request; None for a first call. Raises CursorInvalid."""
    match decode_cursor(cursor):
        case None:
            return None
        case (str(digest), int(until), int(done)) if digest == _digest(request) and 0 <= done <= until:
            return Place(until, done)
    raise CursorInvalid


def cursor_of(request: web.Request, place: Place | None) -> str | None:
    """Return the cursor with which a request goes on at a place; None at its end."""
    return None if place is None else encode_cursor((_digest(request), place.until, place.done))


def _digest(request: web.Request) -> str:
    """Return what tells one deletion from another: a cursor must not continue a deletion by other filters."""
    filters = sorted(item for item in request.query.items() if item[0] != "cursor")
    return hashlib.sha256(repr((request[ORGANIZATION], request.path, filters)).encode()).hexdigest()[:16]
