"""GET and POST /v1/storage-state: cookies and local storage as Playwright saves and loads them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import orjson
from aiohttp import web

from schemas.storage_state import StorageState, StorageStateInput, StorageStateQuery, StorageStateWritten
from service.http.body import read_body
from service.http.endpoint import endpoint
from service.http.errors import invalid
from service.http.json_input import check_storable, load, parse
from service.http.keys import ORGANIZATION, SETTINGS, STORE
from service.http.offload import off_loop
from service.http.query import QueryLoader
from service.http.responses import json_array, json_response, stream_response
from service.settings import Settings
from service.store import Store

_INPUT = StorageStateInput()
_QUERY = QueryLoader(StorageStateQuery())
_HTTP_PORT = 80
_MOST_EXTRA = 64 * 1024  # as a cookie's value


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
    most = 10 * settings.max_records
    if _count(value) > most:
        raise invalid("too_many", f"Must have at most {most} records", "body")
    check_storable(value, settings.max_depth)
    state: dict[str, Any] = load(_INPUT, value)
    for index, cookie in enumerate(state["cookies"]):
        if len(orjson.dumps(cookie["extra"])) > _MOST_EXTRA:
            raise invalid("too_large", "Has too much that is not of a cookie", "body", "cookies", str(index))
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
    """Return the origin of an entry; one set through /v1/local-storage has only a domain."""
    domain = entry["domain"].removeprefix(".")
    if "origin" in entry["extra"]:
        return str(entry["extra"]["origin"])
    if domain.endswith(f":{_HTTP_PORT}"):
        return f"http://{domain.removesuffix(f':{_HTTP_PORT}')}"
    return f"https://{domain}"


async def _state(store: Store, organization_id: int, domain: str | None) -> AsyncIterator[bytes]:
    only: dict[str, Any] = {"domain": domain, "subdomains": True, "extra": True}
    others = {
        record["origin"]: orjson.loads(record["value"])
        async for batch in store.origins.records(organization_id, **only)
        for record in batch
    }
    cookies = store.cookies.records(organization_id, **only)
    yield b'{"cookies":'
    async for piece in json_array([_cookie(c) for c in batch] async for batch in cookies):
        yield piece
    yield b',"origins":'
    async for piece in json_array(_origins(store.local_storage.records(organization_id, **only), others)):
        yield piece
    yield b"}"


async def _origins(
    batches: AsyncIterator[list[dict[str, Any]]], others: dict[str, dict[str, Any]]
) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield one origin at a time: entries come in the order of their domain."""
    current: dict[str, Any] | None = None
    async for batch in batches:
        for entry in batch:
            origin = _origin(entry)
            if current is None or current["origin"] != origin:
                if current is not None:
                    yield [current]
                current = {"origin": origin, "localStorage": [], **others.pop(origin, {})}
            current["localStorage"].append({"name": entry["key"], "value": entry["value"]})
    if current is not None:
        yield [current]
    for origin, other in others.items():
        yield [{"origin": origin, "localStorage": [], **other}]


def _cookie(cookie: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": cookie["name"],
        "value": cookie["value"],
        "domain": cookie["domain"],
        "path": cookie["path"] or "/",
        "expires": cookie["expires"],
        "httpOnly": cookie["http_only"],
        "secure": cookie["secure"],
        "sameSite": "Lax",  # what browsers take a cookie without one for
        **cookie["extra"],
    }
