"""GET and POST /v1/cookies."""

from aiohttp import web

from schemas.cookies import Cookie, CookieInput, Counted, StateQuery
from service.handlers.state_query import filters
from service.http.endpoint import endpoint
from service.http.keys import ORGANIZATION, STORE
from service.http.records import Records
from service.http.responses import json_array, json_response, stream_response

INPUT = Records(CookieInput)


@endpoint("Get cookies", Cookie(many=True), query=StateQuery)
async def get(request: web.Request) -> web.StreamResponse:
    """Return every cookie of the organization, expired or not, in the order of domain, path, name."""
    cookies = request.app[STORE].cookies.records(request[ORGANIZATION], **filters(request))
    return await stream_response(request, json_array(cookies))


@endpoint("Set cookies", Counted(), body=CookieInput(many=True))
async def post(request: web.Request) -> web.StreamResponse:
    """Store each cookie; one with the same domain, path and name is replaced."""
    cookies = await INPUT.read(request)
    counts = await request.app[STORE].cookies.set(request[ORGANIZATION], cookies)
    return await json_response(request, counts._asdict())
