"""GET and POST /v1/storage-state: cookies and local storage as Playwright saves and loads them."""

from __future__ import annotations

from aiohttp import web

from schemas.storage_state import StorageState, StorageStateInput, StorageStateQuery, StorageStateWritten
from service.http.endpoint import endpoint
from service.http.input.query import QueryLoader
from service.http.input.storage_state import read_state
from service.http.keys import ORGANIZATION, STORE
from service.http.output.storage_state import storage_state
from service.http.reply import Json, Reply
from service.store import Selection, now

_QUERY = QueryLoader(StorageStateQuery())


@endpoint("Get the storage state", StorageState(), query=StorageStateQuery)
async def get(request: web.Request) -> Reply:
    """Return Playwright's storageState without expired records, ready for `new_context(storage_state=…)`."""
    store, organization_id = request.app[STORE], request[ORGANIZATION]
    selection = Selection(domain=_QUERY.load(request)["domain"], subdomains=True, active_at=now())
    pieces = storage_state(
        store.cookies.records(organization_id, selection, extra=True),
        store.local_storage.records(organization_id, selection, extra=True),
        store.origins.records(organization_id, selection),
    )
    return Reply(pieces)


@endpoint("Merge a storage state", StorageStateWritten(), body=StorageStateInput())
async def post(request: web.Request) -> Json:
    """Set the cookies and local storage of a storageState, record by record; the others stay."""
    state = await read_state(request)
    store, organization_id = request.app[STORE], request[ORGANIZATION]
    cookies = await store.cookies.set(organization_id, state.cookies)
    local_storage = await store.local_storage.set(organization_id, state.local_storage)
    await store.origins.set(organization_id, state.origins)
    return {"cookies": cookies._asdict(), "local_storage": local_storage._asdict()}
