"""GET and POST /v1/storage-state: cookies and local storage as Playwright saves and loads them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import orjson
from aiohttp import web

from schemas.storage_state import StorageState, StorageStateInput, StorageStateQuery, StorageStateWritten
from service.http.endpoint import endpoint
from service.http.errors import invalid
from service.http.input.body import read_body
from service.http.input.json_input import check_storable, load, parse
from service.http.input.query import QueryLoader
from service.http.keys import ORGANIZATION, SETTINGS, STORE
from service.http.offload import off_loop
from service.http.output.responses import json_array, json_response, stream_response
from service.settings import Settings
from service.store import Batch, Selection, Store

_INPUT = StorageStateInput()
_QUERY = QueryLoader(StorageStateQuery())
_HTTP_PORT = 80
_MAX_EXTRA = 64 * 1024  # as a cookie's value


@endpoint("Get the storage state", StorageState(), query=StorageStateQuery)
async def get(request: web.Request) -> web.StreamResponse:
    """Return Playwright's storageState, ready for `new_context(storage_state=…)`."""
    domain = _QUERY.load(request)["domain"]
    return await stream_response(request, _state(request.app[STORE], request[ORGANIZATION], domain))


@endpoint("Merge a storage state", StorageStateWritten(), body=StorageStateInput())
async def post(request: web.Request) -> web.StreamResponse:
    """Set the cookies and local storage of a storageState, record by record; the others stay."""
    raw = await read_body(request)
    settings = request.app[SETTINGS]
    state = await off_loop(len(raw), lambda: _load(raw, settings))
    store, organization_id = request.app[STORE], request[ORGANIZATION]
    entries, others = [], []
    for origin in state["origins"]:
        domain = _domain(origin["origin"])
        for item in origin.pop("localStorage"):
            entry = {"domain": domain, "path": "/", "key": item["name"], "value": item["value"]}
            entries.append({**entry, "expires": None, "extra": {"origin": origin["origin"]}})
        name = origin.pop("origin")
        if origin:
            others.append({"origin": name, "domain": domain, "value": orjson.dumps(origin).decode()})
    cookies = await store.cookies.set(organization_id, state["cookies"])
    local_storage = await store.local_storage.set(organization_id, entries)
    await store.origins.set(organization_id, others)
    return await json_response(request, {"cookies": cookies._asdict(), "local_storage": local_storage._asdict()})


def _load(raw: bytes, settings: Settings) -> dict[str, Any]:
    value = parse(raw, settings)
    # A browser holds some thousand cookies: as many as ten other bodies may.
    max_records = 10 * settings.max_records
    if _count(value) > max_records:
        raise invalid("too_many", f"Must have at most {max_records} records", "body")
    check_storable(value, settings.max_depth, 1, max_key=settings.max_item_bytes)  # what a browser has, it keeps
    state: dict[str, Any] = load(_INPUT, value)
    for index, cookie in enumerate(state["cookies"]):
        if len(orjson.dumps(cookie["extra"])) > _MAX_EXTRA:
            raise invalid(
                "too_large",
                f"The cookie's unknown members must be at most {_MAX_EXTRA} bytes in all",
                "body",
                "cookies",
                str(index),
            )
    for index, origin in enumerate(state["origins"]):
        if len(orjson.dumps({**origin, "localStorage": None})) > settings.max_item_bytes:
            raise invalid("too_large", "The origin is too large", "body", "origins", str(index))
    return state


def _count(state: Any) -> int:
    """Return how many records there are to check, whatever else is wrong with them."""
    if not isinstance(state, dict):
        return 0
    cookies, origins = (part if isinstance(part := state.get(name), list) else [] for name in ("cookies", "origins"))
    entries = [origin.get("localStorage") for origin in origins if isinstance(origin, dict)]
    return len(cookies) + len(origins) + sum(len(part) for part in entries if isinstance(part, list))


def _domain(origin: str) -> str:
    """Return the domain under which an origin's entries are kept: with its port unless it is plain https."""
    parts = urlsplit(origin)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    if parts.scheme == "http":
        return f"{host}:{parts.port or _HTTP_PORT}"
    return f"{host}" if parts.port in (None, 443) else f"{host}:{parts.port}"


def _origin(entry: dict[str, Any]) -> str:
    """Return the origin of an entry: the one it was saved with if that fits its domain, else one made of it."""
    domain = entry["domain"]
    saved = str(entry["extra"].get("origin", ""))
    with suppress(ValueError):  # of a port that is none, in what somebody changed in the database
        if saved and _domain(saved) == domain:
            return saved
    domain = domain.removeprefix(".")
    if domain.endswith(f":{_HTTP_PORT}"):
        return f"http://{domain.removesuffix(f':{_HTTP_PORT}')}"
    return f"https://{domain}"


async def _state(store: Store, organization_id: int, domain: str | None) -> AsyncGenerator[bytes, None]:
    """Yield the storage state: cookies, then origins, in the order in which the database has them."""
    selection = Selection(domain=domain, subdomains=True)
    yield b'{"cookies":'
    async for piece in json_array(store.cookies.records(organization_id, selection, extra=True), _cookie):
        yield piece
    yield b',"origins":['
    entries = _parts(store.local_storage.records(organization_id, selection, extra=True), _runs)
    others = _parts(store.origins.records(organization_id, selection), _others)
    async with aclosing(entries), aclosing(others):
        async for piece in _merged(entries, others):
            yield piece
    yield b"]}"


class _Part(NamedTuple):
    """Some of an origin, as JSON: entries of its local storage, or its other members."""

    domain: str
    origin: str
    text: bytes


async def _parts(batches: AsyncIterator[Batch], render: Callable[[Batch], list[_Part]]) -> AsyncGenerator[_Part, None]:
    async for batch in batches:
        parts = await off_loop(batch.size, partial(render, batch))
        del batch
        for part in parts:
            yield part


def _runs(batch: Batch) -> list[_Part]:
    """Return the entries of a batch, those of one origin that follow each other in one part."""
    runs = groupby(batch.open(), lambda entry: (entry["domain"], _origin(entry)))
    return [
        _Part(domain, origin, orjson.dumps([{"name": e["key"], "value": e["value"]} for e in entries])[1:-1])
        for (domain, origin), entries in runs
    ]


def _others(batch: Batch) -> list[_Part]:
    """Return the other members of the origins of a batch, each with a comma behind."""
    return [_Part(record["domain"], record["origin"], record["value"][1:-1].encode() + b",") for record in batch.open()]


async def _merged(entries: AsyncGenerator[_Part, None], others: AsyncGenerator[_Part, None]) -> AsyncIterator[bytes]:
    """Yield the origins of two lists that have the same order, one part of each in memory at a time."""
    other, current, comma = await anext(others, None), None, b""
    async for part in entries:
        if current is not None and part[:2] == current:
            yield b"," + part.text
            continue
        if current is not None:
            yield b"]}"
        while other is not None and other[:2] < part[:2]:
            yield comma + _opening(other.origin, other.text) + b"]}"
            other, comma = await anext(others, None), b","
        members = b""
        if other is not None and other[:2] == part[:2]:
            members, other = other.text, await anext(others, None)
        yield comma + _opening(part.origin, members) + part.text
        current, comma = part[:2], b","
    if current is not None:
        yield b"]}"
    while other is not None:
        yield comma + _opening(other.origin, other.text) + b"]}"
        other, comma = await anext(others, None), b","


def _opening(origin: str, members: bytes) -> bytes:
    # Ours last: where a name stands twice, readers take the last.
    return b"{" + members + b'"origin":' + orjson.dumps(origin) + b',"localStorage":['


def _cookie(cookie: dict[str, Any]) -> dict[str, Any]:
    extra, expires = cookie["extra"], cookie["expires"]
    saved = extra.get("expires")  # with its fraction, which the contract does not have
    return {
        "sameSite": "Lax",  # what browsers take a cookie without one for
        **extra,
        "name": cookie["name"],
        "value": cookie["value"],
        "domain": cookie["domain"],
        "path": cookie["path"] or "/",
        "expires": saved if isinstance(saved, float) and int(saved) == expires else expires,
        "httpOnly": cookie["http_only"],
        "secure": cookie["secure"],
    }
