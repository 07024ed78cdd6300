"""GET and POST /v1/tokens, DELETE /v1/tokens/{token_id}: the tokens of the caller's organization."""

from __future__ import annotations

import logging
from typing import Any

from aiohttp import web

from schemas.tokens import OrganizationToken, TokenCreated, TokenInput
from service.http.endpoint import endpoint
from service.http.errors import ApiError, invalid, not_found, problem
from service.http.input.json_input import read_object
from service.http.input.query import path_id
from service.http.keys import ORGANIZATION, STORE, TOKEN
from service.http.reply import Json
from service.store import MAX_TOKENS, Token, TooManyTokens, hash_token

log = logging.getLogger("service")

_INPUT = TokenInput()


@endpoint("List tokens", OrganizationToken(many=True))
async def get(request: web.Request) -> Json:
    """Return the newest 1000 tokens of the organization, newest first, revoked ones too; never their text."""
    tokens = await request.app[STORE].tokens.newest(request[ORGANIZATION])
    return list(map(_served, tokens))


@endpoint("Make a token", TokenCreated(), body=TokenInput())
async def post(request: web.Request) -> Json:
    """Make a token of the organization; the response has its text, which is not shown again.

    It may have the scopes read, write, delete and state, whatever the caller's own are; `admin` is given on the
    command line only.
    """
    body = await read_object(request, _INPUT)
    tokens, organization_id = request.app[STORE].tokens, request[ORGANIZATION]
    try:
        await tokens.make_room(organization_id)
    except TooManyTokens:
        message = f"An organization has at most {MAX_TOKENS} tokens: revoke one first"
        raise invalid("too_many", message, "body") from None
    secret = await tokens.create(organization_id, body["scopes"], body["label"], body["expires"])
    token = await tokens.find(hash_token(secret))
    if token is None:
        raise not_found("token", "token_id")
    _log(request, "token made", token)
    return {**_served(token), "token": secret}


@endpoint(
    "Revoke a token",
    OrganizationToken(),
    not_found=True,
    responses={"409": {"description": "It is the caller's own token"}},
)
async def delete(request: web.Request) -> Json:
    """Revoke a token: it stops working within 5 seconds. Revoking it again changes nothing."""
    token_id, tokens = path_id(request, "token_id"), request.app[STORE].tokens
    if token_id == request[TOKEN].id:
        message = "A token cannot revoke itself: use another one, or the command line"
        raise ApiError(409, [problem("own_token", message, "path", "token_id")])
    token = await tokens.of_id(request[ORGANIZATION], token_id)
    if token is None:
        raise not_found("token", "token_id")
    if await tokens.end(token):
        _log(request, "token revoked", token)
        token = await tokens.find(token.digest) or token
    return _served(token)


def _served(token: Token) -> dict[str, Any]:
    return {
        "token_id": token.id,
        "label": token.label,
        "scopes": sorted(token.scopes),
        "create_date": token.create_date,
        "last_used": token.last_used,
        "expires": token.expires,
        "revoked": token.revoked,
    }


def _log(request: web.Request, event: str, token: Token) -> None:
    actor = request[TOKEN]
    details = {"token_id": token.id, "label": token.label, "scopes": sorted(token.scopes)}
    log.info(
        event, extra={**details, "by": actor.id, "by_label": actor.label, "organization_id": token.organization_id}
    )
