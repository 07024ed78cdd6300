"""Entity tags and the conditions that name them (RFC 9110, sections 8.8.3 and 13.1)."""

from __future__ import annotations

import re
import zlib
from typing import Any

from aiohttp import web

from service.http.errors import ApiError, invalid, not_found, problem
from service.http.keys import ORGANIZATION

_TAG = r'(?:W/)?"[\x21\x23-\x7e\x80-\U0010ffff]*"'
# A list may have empty members, as every list in a header may.
_LIST = re.compile(rf"[ \t,]*{_TAG}(?:[ \t]*,[ \t,]*{_TAG})*[ \t,]*")
_EACH = re.compile(_TAG)
_WEAK = "W/"
ANY = "*"
_OUTPUT = re.compile(r'"(\d{1,19})"')  # the tag of an output is its id

# A client may cache a page, but must revalidate it each time.
CACHING = {"Cache-Control": "private, no-cache"}
# For the documentation of routes that change one output.
IF_MATCH = {"If-Match": "The ETag that the output must still have, or several with commas between"}
PRECONDITION = {"412": {"description": "The output has changed since the ETag in If-Match"}}


def is_known(request: web.Request, etag: str) -> bool:
    """Return whether If-None-Match has a tag, by weak comparison: then the client has the content already."""
    tags = _tags(request, "If-None-Match") if request.method in ("GET", "HEAD") else None
    return tags is not None and (ANY in tags or etag.removeprefix(_WEAK) in (tag.removeprefix(_WEAK) for tag in tags))


def page_etag(request: web.Request, version: int) -> str:
    """Return the tag of a page.

    Weak: last_scraped_date may differ, which is not a change. With the organization: a browser's cache does not know
    tokens, and must not show one organization's page for another's. With the query: the tag of one page must not make
    the next one 304.
    """
    query = zlib.crc32(request.rel_url.raw_query_string.encode())
    return f'W/"{request[ORGANIZATION]}-{version}-{query:x}"'


def required_ids(request: web.Request) -> frozenset[int] | None:
    """Return the ids in If-Match, of which the output must have one; None if any id is accepted.

    Weak tags are left out, as they never match. A header that is not a list of tags matches nothing.
    """
    tags = _tags(request, "If-Match")
    if tags is None or ANY in tags:
        return None
    return frozenset(int(match[1]) for tag in tags if (match := _OUTPUT.fullmatch(tag)))


def check_precondition(result: dict[str, Any]) -> None:
    """Raise if one output could not be changed."""
    match result["result"]:
        case "not_found":
            raise not_found("output", "output_id")
        case "conflict":
            message = "The output has changed meanwhile: read it again"
            raise ApiError(412, [problem("precondition_failed", message, "header", "If-Match")])
        case "too_large":
            raise invalid("too_large", "The tags would be too large", "body", "tags")


def _tags(request: web.Request, name: str) -> list[str] | None:
    """Return the members of a header, which may have several lines; None without the header."""
    lines = request.headers.getall(name, None)
    if lines is None:
        return None
    text = ",".join(lines).strip()
    if text == ANY:
        return [ANY]
    return _EACH.findall(text) if _LIST.fullmatch(text) else []
