"""GET and POST /v1/reviews/{group_id}."""

from aiohttp import web

from schemas.reviews import Review, ReviewInput, ReviewsWritten
from service.answers import answer
from service.body import Records
from service.handlers.docs import endpoint
from service.keys import ORGANIZATION, STORE
from service.query import path_id

INPUT = Records(ReviewInput)


@endpoint("read", "Get latest reviews", Review(many=True))
async def get(request: web.Request) -> web.StreamResponse:
    """Return the latest review of each reviewed job of the group, newest first."""
    group_id = path_id(request, "group_id")
    reviews = await request.app[STORE].reviews.latest(request[ORGANIZATION], group_id)
    return await answer(request, reviews)


@endpoint("write", "Add reviews", ReviewsWritten(), body=ReviewInput(many=True))
async def post(request: web.Request) -> web.StreamResponse:
    """Add a review to each named job of the group."""
    group_id = path_id(request, "group_id")
    reviews = await INPUT.read(request)
    added = await request.app[STORE].reviews.add(request[ORGANIZATION], group_id, reviews)
    return await answer(request, {"created": len(added), "items": added})
