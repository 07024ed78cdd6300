"""GET, POST and DELETE /v1/cookies."""

from aiohttp import web

from schemas.cookies import Cookie, CookieInput, CookiesDeletion, Counted, Deleted, StateQuery
from service.http.endpoint import endpoint
from service.http.input import state_query
from service.http.input.query import QueryLoader
from service.http.input.records import Records
from service.http.keys import ORGANIZATION, STORE
from service.http.output.paging import list_reply
from service.http.reply import Json, Reply

INPUT = Records(CookieInput)
_DELETION = QueryLoader(CookiesDeletion(), refuse_empty=True)


@endpoint("Get cookies", Cookie(many=True), query=StateQuery, responses=state_query.LISTED)
async def get(request: web.Request) -> Reply:
    """Return every cookie of the organization, expired or not, in the order of domain, path, name.

    With `limit`, return a page with that many records and a `Link` header to the next page.
    """
    return list_reply(request, await state_query.listing(request, request.app[STORE].cookies))


@endpoint("Set cookies", Counted(), body=CookieInput(many=True))
async def post(request: web.Request) -> Json:
    """Store each cookie; one with the same domain, path and name is replaced."""
    cookies = await INPUT.read(request)
    counts = await request.app[STORE].cookies.set(request[ORGANIZATION], cookies)
    return counts._asdict()


@endpoint("Delete cookies", Deleted(), query=CookiesDeletion)
async def delete(request: web.Request) -> Json:
    """Delete the cookies that match all filters; at least one filter, or `all=true`, is required."""
    query = _DELETION.load(request)
    return await state_query.delete(request, request.app[STORE].cookies, query)
