"""GET, POST and DELETE /v1/local-storage."""

from aiohttp import web

from schemas.cookies import Counted, Deleted, StateQuery
from schemas.local_storage import LocalStorageDeletion, LocalStorageEntry, LocalStorageInput
from service.http.endpoint import endpoint
from service.http.input import state_query
from service.http.input.query import QueryLoader
from service.http.input.records import Records
from service.http.keys import ORGANIZATION, STORE
from service.http.output.paging import list_reply
from service.http.reply import Json, Reply
from service.store import Selection

INPUT = Records(LocalStorageInput)
_DELETION = QueryLoader(LocalStorageDeletion(), refuse_empty=True)


@endpoint("Get local storage", LocalStorageEntry(many=True), query=StateQuery, responses=state_query.LISTED)
async def get(request: web.Request) -> Reply:
    """Return every local-storage entry of the organization, in the order of domain, path, key.

    With `limit`, return a page with that many records and a `Link` header to the next page.
    """
    return list_reply(request, await state_query.listing(request, request.app[STORE].local_storage))


@endpoint("Set local storage", Counted(), body=LocalStorageInput(many=True))
async def post(request: web.Request) -> Json:
    """Store each entry; one with the same domain, path and key keeps its id and create_date."""
    entries = await INPUT.read(request)
    counts = await request.app[STORE].local_storage.set(request[ORGANIZATION], entries)
    return counts._asdict()


@endpoint("Delete local storage", Deleted(), query=LocalStorageDeletion)
async def delete(request: web.Request) -> Json:
    """Delete the entries that match all filters; at least one filter, or `all=true`, is required.

    With `domain` or `all=true` alone, IndexedDB that a storage state has brought goes too.
    """
    query, store = _DELETION.load(request), request.app[STORE]
    deleted = await state_query.delete(request, store.local_storage, query)
    if query["path"] is None and query["key"] is None and not query["expired"]:
        await store.origins.delete(request[ORGANIZATION], Selection(domain=query["domain"]))
    return deleted
