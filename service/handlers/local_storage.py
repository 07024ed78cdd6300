"""GET and POST /v1/local-storage."""

from aiohttp import web

from schemas.cookies import Counted, StateQuery
from schemas.local_storage import LocalStorageEntry, LocalStorageInput
from service.answers import answer, array, stream
from service.body import Records
from service.handlers.docs import endpoint
from service.handlers.state_query import filters
from service.keys import ORGANIZATION, STORE

INPUT = Records(LocalStorageInput)


@endpoint("read", "Get local storage", LocalStorageEntry(many=True), query=StateQuery)
async def get(request: web.Request) -> web.StreamResponse:
    """Return every local-storage entry of the organization, in the order of domain, path, key."""
    entries = request.app[STORE].local_storage.records(request[ORGANIZATION], **filters(request))
    return await stream(request, array(entries))


@endpoint("write", "Set local storage", Counted(), body=LocalStorageInput(many=True))
async def post(request: web.Request) -> web.StreamResponse:
    """Store each entry; one with the same domain, path and key keeps its id and create_date."""
    entries = await INPUT.read(request)
    counts = await request.app[STORE].local_storage.set(request[ORGANIZATION], entries)
    return await answer(request, counts._asdict())
