"""Entity tags and the conditions that name them (RFC 9110, sections 8.8.3 and 13.1)."""

from __future__ import annotations

import re

from aiohttp import web

_TAG = r'(?:W/)?"[\x21\x23-\x7e\x80-\U0010ffff]*"'
# A list may have empty members, as every list in a header may.
_LIST = re.compile(rf"[ \t,]*{_TAG}(?:[ \t]*,[ \t,]*{_TAG})*[ \t,]*")
_EACH = re.compile(_TAG)
_WEAK = "W/"
ANY = "*"


def is_known(request: web.Request, etag: str) -> bool:
    """Return whether If-None-Match has a tag, by weak comparison: then the client has the content already."""
    tags = _tags(request, "If-None-Match")
    return tags is not None and (ANY in tags or etag.removeprefix(_WEAK) in (tag.removeprefix(_WEAK) for tag in tags))


def required_tags(request: web.Request) -> list[str] | None:
    """Return the tags of If-Match, of which the resource must have one; None if any tag is accepted.

    Weak tags are left out, as they never match. A header that is not a list of tags matches nothing.
    """
    tags = _tags(request, "If-Match")
    if tags is None or ANY in tags:
        return None
    return [tag for tag in tags if not tag.startswith(_WEAK)]


def _tags(request: web.Request, name: str) -> list[str] | None:
    """Return the members of a header, which may have several lines; None without the header."""
    lines = request.headers.getall(name, None)
    if lines is None:
        return None
    text = ",".join(lines).strip()
    if text == ANY:
        return [ANY]
    return _EACH.findall(text) if _LIST.fullmatch(text) else []
