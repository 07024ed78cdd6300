"""GET and POST /v1/cookies."""

from aiohttp import web

from schemas.cookies import Cookie, CookieInput, Counted, StateQuery
from service.answers import answer, array, stream
from service.body import Records
from service.handlers.docs import endpoint
from service.handlers.state_query import filters
from service.keys import ORGANIZATION, STORE

INPUT = Records(CookieInput)


@endpoint("read", "Get cookies", Cookie(many=True), query=StateQuery)
async def get(request: web.Request) -> web.StreamResponse:
    """Return every cookie of the organization, expired or not, in the order of domain, path, name."""
    cookies = request.app[STORE].cookies.records(request[ORGANIZATION], **filters(request))
    return await stream(request, array(cookies))


@endpoint("write", "Set cookies", Counted(), body=CookieInput(many=True))
async def post(request: web.Request) -> web.StreamResponse:
    """Store each cookie; one with the same domain, path and name is replaced."""
    cookies = await INPUT.read(request)
    counts = await request.app[STORE].cookies.set(request[ORGANIZATION], cookies)
    return await answer(request, counts._asdict())
