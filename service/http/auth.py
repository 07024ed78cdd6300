"""Bearer token -> organization and scopes."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from service.bounded import Bounded
from service.http.errors import ApiError, problem, unavailable
from service.http.keys import ORGANIZATION, TOKEN
from service.http.routing import scopes_of
from service.http.turns import TENANT
from service.store import Token, Tokens, hash_token, in_time, is_token

# 10,000 tokens in use at once are about 5 MB.
_MAX_CACHED = 10_000
# Look-ups of unknown tokens at once: they cannot keep known ones from being looked up again.
_MAX_UNKNOWN = 32
_CHALLENGE = {"WWW-Authenticate": "Bearer"}


def _refused(kind: str, message: str) -> ApiError:
    return ApiError(401, [problem(kind, message, "header", "Authorization")], _CHALLENGE)


def _malformed() -> ApiError:
    return _refused("auth_invalid", "The token is malformed")


class Authenticator:
    """Looks tokens up, and believes what it found for a few seconds."""

    def __init__(self, tokens: Tokens, cache_seconds: float) -> None:
        self._tokens = tokens
        self._cache_seconds = cache_seconds
        self._cache: Bounded[str, tuple[float, Token]] = Bounded(_MAX_CACHED)
        self._looking: dict[str, asyncio.Task[Token | None]] = {}
        self._unknown = 0

    async def token(self, header: list[str]) -> Token:
        """Return the valid token of the `Authorization` headers. Raises 401 otherwise."""
        if not header:
            raise _refused("auth_missing", "Send the header Authorization: Bearer <ACCESS_TOKEN>")
        scheme, _, secret = header[0].partition(" ")
        secret = secret.strip()
        if len(header) > 1 or scheme.lower() != "bearer" or not secret.isascii():
            raise _malformed()
        token = await self._find(secret)
        if token is None or not token.valid_at(datetime.now(UTC)):
            raise _refused("auth_invalid", "The token is unknown, expired or revoked")
        return token

    async def _find(self, secret: str) -> Token | None:
        digest = hash_token(secret)  # never the text itself: a memory dump shows no token
        cached = self._cache.get(digest)
        if cached is not None and time.monotonic() < cached[0]:
            return cached[1]
        if not is_token(secret):
            raise _malformed()
        # One look-up serves all requests that came meanwhile.
        looking = self._looking.get(digest)
        if looking is None:
            if cached is None and self._unknown >= _MAX_UNKNOWN:
                raise unavailable("tokens")
            looking = asyncio.create_task(self._look_up(digest, secret))
            self._looking[digest] = looking
            looking.add_done_callback(lambda _: self._looking.pop(digest, None))
        async with in_time():
            return await asyncio.shield(looking)

    async def _look_up(self, digest: str, secret: str) -> Token | None:
        asked = time.monotonic()  # from before the reply: a revocation after it is not missed
        unknown = digest not in self._cache
        self._unknown += unknown
        try:
            token = await self._tokens.find(secret)
        finally:
            self._unknown -= unknown
        if token is None:
            self._cache.pop(digest, None)
            return None
        self._cache[digest] = (asked + self._cache_seconds, token)
        return token


AUTHENTICATOR = web.AppKey("authenticator", Authenticator)


@web.middleware
async def authenticate(request: web.Request, handler: Any) -> web.StreamResponse:
    """Let a request through whose token has the scopes that its route asks for."""
    scopes = scopes_of(request)
    if scopes:
        token = await request.app[AUTHENTICATOR].token(request.headers.getall("Authorization", []))
        request[TOKEN] = token
        request[ORGANIZATION] = token.organization_id
        TENANT.set(token.organization_id)
        if not scopes <= token.scopes:
            message = f"The token does not have the scope {' and '.join(sorted(scopes - token.scopes))}"
            raise ApiError(403, [problem("scope_missing", message, "header", "Authorization")])
    response: web.StreamResponse = await handler(request)
    return response
