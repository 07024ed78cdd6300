"""Writes a storage state: Playwright's file, made from records while they are read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import orjson

from service.capacity import cpu
from service.http.input.storage_state import HTTP_PORT, domain_of
from service.http.output.paging import json_array
from service.store import Chunk

Chunks = AsyncIterator[Chunk]


async def storage_state(cookies: Chunks, local_storage: Chunks, origins: Chunks) -> AsyncGenerator[bytes, None]:
    """Yield the storage state: cookies, then origins, in the order in which the database has them."""
    yield b'{"cookies":'
    async for piece in json_array(cookies, _cookie):
        yield piece
    yield b',"origins":['
    entries, origin_entries = _parts(local_storage, _runs), _parts(origins, _others)
    async with aclosing(entries), aclosing(origin_entries):
        async for piece in _merged(entries, origin_entries):
            yield piece
    yield b"]}"


class _Part(NamedTuple):
    """A part of an origin, as JSON: entries of its local storage, or its other members."""

    domain: str
    origin: str  # "" if no entry of the domain has brought one so far
    text: bytes


async def _parts(chunks: AsyncIterator[Chunk], render: Callable[[Chunk], list[_Part]]) -> AsyncGenerator[_Part, None]:
    async for chunk in chunks:
        parts = await cpu.run(chunk.size, partial(render, chunk))
        for part in parts:
            yield part


def _runs(chunk: Chunk) -> list[_Part]:
    """Return the entries of a chunk, those of one origin as one part: a browser loads an origin once.

    An entry that was set alone has no saved origin: it gets that of another entry of its domain, if the chunk has one.
    Of one key with several paths, the entry of the whole domain comes last, and counts.
    """
    entries = [(entry["domain"], _saved_origin(entry), entry) for entry in chunk.open()]
    origin_by_domain = {domain: origin for domain, origin, _ in entries if origin}
    by_origin = [(domain, origin or origin_by_domain.get(domain, ""), entry) for domain, origin, entry in entries]
    by_origin.sort(key=lambda one: (one[0], one[1], one[2]["path"] == "/"))
    return [
        _Part(domain, origin, orjson.dumps([{"name": e["key"], "value": e["value"]} for *_, e in group])[1:-1])
        for (domain, origin), group in groupby(by_origin, lambda one: one[:2])
    ]


def _others(chunk: Chunk) -> list[_Part]:
    """Return the other members of the origins of a chunk, each with a comma behind."""
    return [_Part(record["domain"], record["origin"], record["value"][1:-1].encode() + b",") for record in chunk.open()]


async def _merged(entries: AsyncGenerator[_Part, None], others: AsyncGenerator[_Part, None]) -> AsyncIterator[bytes]:
    """Yield the origins of two lists that have the same order, one part of each in memory at a time.

    Entries without an origin join the one that their domain has, which may come after them: so the name of an origin
    is written behind its entries. What was saved beside them comes first: of a name that occurs twice, readers take the
    last.
    """
    entry, other, comma = await anext(entries, None), await anext(others, None), b""
    while entry is not None or other is not None:
        if entry is not None and other is not None and (entry.domain, entry.origin) == (other.domain, ""):
            entry = entry._replace(origin=other.origin)
        domain, origin = min(part[:2] for part in (entry, other) if part is not None)
        text = comma + b"{"
        if other is not None and other[:2] == (domain, origin):
            text, other = text + other.text, await anext(others, None)
        text += b'"localStorage":['
        while entry is not None and entry.domain == domain and (entry.origin in ("", origin) or not origin):
            origin = origin or entry.origin
            yield text + entry.text
            entry, text = await anext(entries, None), b","
        yield text.removesuffix(b",") + b'],"origin":' + orjson.dumps(origin or _origin_of(domain)) + b"}"
        comma = b","


def _cookie(cookie: dict[str, Any]) -> dict[str, Any]:
    extra, expires = cookie["extra"], cookie["expires"]
    saved = extra.get("expires")  # with its fraction, which the API does not have
    return {
        "sameSite": "Lax",  # the default of browsers
        **extra,
        "name": cookie["name"],
        "value": cookie["value"],
        "domain": cookie["domain"],
        "path": cookie["path"] or "/",
        "expires": saved if isinstance(saved, float) and int(saved) == expires else expires,
        "httpOnly": cookie["http_only"],
        "secure": cookie["secure"],
    }


def _saved_origin(entry: dict[str, Any]) -> str:
    """Return the saved origin of an entry if it fits the domain."""
    saved = str(entry["extra"].get("origin", ""))
    with suppress(ValueError):  # an invalid port, in a record changed by hand in the database
        if saved and domain_of(saved) == entry["domain"]:
            return saved
    return ""


def _origin_of(domain: str) -> str:
    """Return the origin of a domain for which none is saved."""
    domain = domain.removeprefix(".")
    if domain.endswith(f":{HTTP_PORT}"):
        return f"http://{domain.removesuffix(f':{HTTP_PORT}')}"
    return f"https://{domain}"
