"""GET and POST /v1/reviews/{group_id}."""

from aiohttp import web

from schemas.reviews import Review, ReviewInput, ReviewsQuery, ReviewsWritten
from service.http.endpoint import endpoint
from service.http.input.query import QueryLoader, path_group
from service.http.input.records import Records
from service.http.keys import STORE, TOKEN
from service.http.output.paging import decode_cursor, list_reply
from service.http.reply import Json, Reply

INPUT = Records(ReviewInput)
_QUERY = QueryLoader(ReviewsQuery())


@endpoint("Get latest reviews", Review(many=True), query=ReviewsQuery)
async def get(request: web.Request) -> Reply:
    """Return the latest review of each reviewed job of the group, newest first; with `history=true`, every review.

    With `limit`, return a page with that many records and a `Link` header to the next page.
    """
    group, query = path_group(request), _QUERY.load(request)
    reviews = request.app[STORE].reviews
    listing = reviews.history if query["history"] else reviews.latest
    return list_reply(request, await listing(group, query["limit"], decode_cursor(query["cursor"])))


@endpoint("Add reviews", ReviewsWritten(), body=ReviewInput(many=True))
async def post(request: web.Request) -> Json:
    """Add a review to each named job of the group."""
    group = path_group(request)
    reviews = await INPUT.read(request)
    added = await request.app[STORE].reviews.add(group, reviews, request[TOKEN].label)
    return {"created": len(added), "items": added}
