"""Bearer token -> organization and scopes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime

from aiohttp import web

from service.bounded import Bounded
from service.http.errors import ApiError, problem, unavailable
from service.http.keys import ORGANIZATION, STORE, TOKEN
from service.http.routing import scopes_of
from service.store import ACTOR, StoreError, Token, Tokens, hash_token, in_time, is_token

log = logging.getLogger("service")

# Requests whose token was revoked, in one turn of the event loop.
_ENDED_AT_ONCE = 16
# Tokens in memory.
_MAX_CACHED = 10_000
# Concurrent look-ups of unknown tokens: they must not delay the look-ups of known ones.
_MAX_UNKNOWN = 32
# How often the tokens of streams and waiting requests are checked.
_WATCH_SECONDS = 0.5
_CHALLENGE = {"WWW-Authenticate": "Bearer"}
_MALFORMED, _NOT_VALID = "The token is malformed", "The token is unknown, expired or revoked"
_EXPECTED = "Send the header Authorization: Bearer <ACCESS_TOKEN>"


def _refused(kind: str, message: str) -> ApiError:
    return ApiError(401, [problem(kind, message, "header", "Authorization")], _CHALLENGE)


class Authenticator:
    """Looks tokens up, and caches them for a few seconds."""

    def __init__(self, tokens: Tokens, cache_seconds: float) -> None:
        self._tokens = tokens
        self._cache_seconds = cache_seconds
        self._cache: Bounded[str, tuple[float, Token]] = Bounded(_MAX_CACHED)
        self._looking: dict[str, asyncio.Task[Token | None]] = {}
        self._unknown = 0
        self._noting: set[asyncio.Task[None]] = set()
        # Digest -> the open `while_valid` blocks of its requests.
        self._lasting: dict[str, set[asyncio.Timeout]] = {}

    async def token(self, header: list[str]) -> Token:
        """Return the valid token of the `Authorization` headers. Raises 401 otherwise."""
        if not header:
            raise _refused("auth_missing", _EXPECTED)
        scheme, _, secret = header[0].partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer":
            raise _refused("auth_invalid", _EXPECTED)
        if len(header) > 1 or not secret.isascii():
            raise _refused("auth_invalid", _MALFORMED)
        token = await self._find(secret)
        if token is None or not token.valid_at(datetime.now(UTC)):
            raise _refused("auth_invalid", _NOT_VALID)
        return token

    async def _find(self, secret: str) -> Token | None:
        digest = hash_token(secret)  # never the text itself: a memory dump shows no token
        if (cached := self._cached(digest)) is not None:
            return cached
        if not is_token(secret):
            raise _refused("auth_invalid", _MALFORMED)
        # One look-up serves all requests that arrive meanwhile.
        looking = self._looking.get(digest)
        if looking is None:
            if digest not in self._cache and self._unknown >= _MAX_UNKNOWN:
                raise unavailable("tokens")
            looking = asyncio.create_task(self._look_up(digest))
            self._looking[digest] = looking
            looking.add_done_callback(lambda _: self._looking.pop(digest, None))
        async with in_time():
            return await asyncio.shield(looking)

    @asynccontextmanager
    async def while_valid(self, token: Token) -> AsyncIterator[None]:
        """Raise 401 inside as soon as the token is revoked or expires."""
        scopes = self._lasting.setdefault(token.digest, set())
        try:
            async with asyncio.timeout(None) as scope:
                scopes.add(scope)
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise _refused("auth_invalid", _NOT_VALID) from None
        finally:
            scopes.discard(scope)
            if not scopes:
                self._lasting.pop(token.digest, None)

    async def watch(self) -> None:
        """End requests that outlast their token, until cancelled; one look-up per token and `cache_seconds`."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            for digest in list(self._lasting):
                try:
                    token = self._cached(digest) or await self._look_up(digest)
                    if token is None or not token.valid_at(datetime.now(UTC)):
                        await self._end(digest)
                except StoreError:
                    pass  # unknown: its requests continue, and it is looked up again
                except Exception as error:
                    # A defect; but the other tokens must be checked.
                    log.error("checking a token failed", extra={"error": type(error).__name__})

    async def _end(self, digest: str) -> None:
        """End the requests of a token, a few in each turn of the event loop."""
        for count, scope in enumerate(list(self._lasting.get(digest, ())), 1):
            # It may have ended meanwhile, or take long to end; neither can be rescheduled.
            if scope in self._lasting.get(digest, ()) and not scope.expired():
                scope.reschedule(asyncio.get_running_loop().time())
            if count % _ENDED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _cached(self, digest: str) -> Token | None:
        until, token = self._cache.get(digest, (0.0, None))
        return token if time.monotonic() < until else None

    async def _look_up(self, digest: str) -> Token | None:
        asked_at = time.monotonic()  # before the reply, so that no later revocation is missed
        unknown = digest not in self._cache
        self._unknown += unknown
        try:
            token = await self._tokens.find(digest)
        finally:
            self._unknown -= unknown
        if token is None:
            self._cache.pop(digest, None)
            return None
        self._cache[digest] = (asked_at + self._cache_seconds, token)
        if token.valid_at(datetime.now(UTC)):
            noting = asyncio.create_task(self._note_use(token))
            self._noting.add(noting)
            noting.add_done_callback(self._noting.discard)
        return token

    async def _note_use(self, token: Token) -> None:
        """Store when a token is used, beside the request: a database that is busy must not delay it."""
        with suppress(StoreError):
            if await self._tokens.note_use(token):
                details = {"token_id": token.id, "label": token.label, "organization_id": token.organization_id}
                log.info("token used for the first time", extra=details)


AUTHENTICATOR = web.AppKey("authenticator", Authenticator)


async def authenticate(request: web.Request) -> None:
    """Refuse a request unless its token has the scopes of the route; a public one needs none."""
    scopes = scopes_of(request)
    if scopes:
        token = await request.app[AUTHENTICATOR].token(request.headers.getall("Authorization", []))
        request[TOKEN] = token
        request[ORGANIZATION] = token.organization_id
        ACTOR.set(token.label)
        if not scopes <= token.scopes:
            raise _missing(*sorted(scopes - token.scopes))
        await request.app[STORE].layout.require()


def while_valid(request: web.Request) -> AbstractAsyncContextManager[None]:
    """Raise 401 inside as soon as the token of a request is revoked or expires: for what waits or sends for long."""
    return request.app[AUTHENTICATOR].while_valid(request[TOKEN])


def require_scope(request: web.Request, scope: str) -> None:
    """Refuse a request whose body needs further scopes than its route."""
    if scope not in request[TOKEN].scopes:
        raise _missing(scope)


def _missing(*scopes: str) -> ApiError:
    message = f"The token does not have the scope {' and '.join(scopes)}"
    return ApiError(403, [problem("scope_missing", message, "header", "Authorization")])
