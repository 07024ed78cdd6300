"""GET and POST /v1/local-storage."""

from aiohttp import web

from schemas.cookies import Counted, StateQuery
from schemas.local_storage import LocalStorageEntry, LocalStorageInput
from service.handlers.state_query import filters
from service.http.endpoint import endpoint
from service.http.keys import ORGANIZATION, STORE
from service.http.records import Records
from service.http.responses import json_array, json_response, stream_response

INPUT = Records(LocalStorageInput)


@endpoint("Get local storage", LocalStorageEntry(many=True), query=StateQuery)
async def get(request: web.Request) -> web.StreamResponse:
    """Return every local-storage entry of the organization, in the order of domain, path, key."""
    entries = request.app[STORE].local_storage.records(request[ORGANIZATION], **filters(request))
    return await stream_response(request, json_array(entries))


@endpoint("Set local storage", Counted(), body=LocalStorageInput(many=True))
async def post(request: web.Request) -> web.StreamResponse:
    """Store each entry; one with the same domain, path and key keeps its id and create_date."""
    entries = await INPUT.read(request)
    counts = await request.app[STORE].local_storage.set(request[ORGANIZATION], entries)
    return await json_response(request, counts._asdict())
