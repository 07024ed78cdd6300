"""Leased sessions in Scrapy: each cookie jar of a spider works with a session of a pool."""

from __future__ import annotations

import asyncio
import logging
from http.cookiejar import Cookie
from typing import Any, cast

from scrapy import signals
from scrapy.downloadermiddlewares import cookies as scrapy_cookies
from scrapy.exceptions import IgnoreRequest
from scrapy.http.cookies import CookieJar

from sds_client import types
from sds_client.aio import AsyncClient
from sds_client.errors import ClientError, NoSession, SessionLost
from sds_client.leasing import Lease, Outcome
from sds_client.scrapy.connection import connect
from sds_client.scrapy.cookies import jar_of

log = logging.getLogger(__name__)

# In a request's meta: the lease with which it was sent, the user agent that it had before, whether the proxy is that of
# its session, and how often it was sent again with another session.
_LEASE, _AGENT, _PROXY, _TRIES = "sds_lease", "sds_agent", "sds_proxy", "sds_session_tries"


class SessionsMiddleware(scrapy_cookies.CookiesMiddleware):
    """Scrapy's cookie middleware, with a leased session for each `cookiejar` of the requests.

    The session gives the jar its cookies and, where its `user_data` has them, `user_agent` and `proxy`. A response that
    shows that the site has logged the session out or blocks it ends the lease so; the request is sent again with the
    next session. At the end of the crawl the cookies are saved.
    """

    @classmethod
    def from_crawler(cls, crawler: Any) -> SessionsMiddleware:
        middleware: SessionsMiddleware = super().from_crawler(crawler)
        settings = crawler.settings
        middleware._client = connect(settings)
        middleware._pool = settings["SDS_SESSION_POOL"]
        middleware._wait = settings.getfloat("SDS_SESSION_WAIT", 60)
        middleware._max_tries = settings.getint("SDS_SESSION_TRIES", 3)
        middleware._outcomes = {
            **dict.fromkeys(map(int, settings.getlist("SDS_SESSION_BLOCKED", [403, 429])), "blocked"),
            **dict.fromkeys(map(int, settings.getlist("SDS_SESSION_LOGGED_OUT", [401])), "logged_out"),
        }
        middleware._leases, middleware._locks = {}, {}
        crawler.signals.connect(middleware._release_all, signals.spider_closed)
        return middleware

    _client: AsyncClient
    _pool: str
    _wait: float
    _max_tries: int
    _outcomes: dict[int, Outcome]
    _leases: dict[Any, Lease]
    _locks: dict[Any, asyncio.Lock]

    async def process_request(self, request: Any, spider: Any = None) -> Any:
        if request.meta.get("dont_merge_cookies", False):
            return None
        lease = await self._lease_of(request.meta.get("cookiejar"))
        request.meta[_LEASE] = lease.lease_id
        user_data = lease.session["user_data"] or {}
        # First without those of the session with which it was sent before.
        if _AGENT in request.meta:
            request.headers["User-Agent"] = request.meta.pop(_AGENT)
        if request.meta.pop(_PROXY, False):
            del request.meta["proxy"]
        if agent := user_data.get("user_agent"):
            request.meta[_AGENT] = request.headers.get("User-Agent", b"")
            request.headers["User-Agent"] = agent
        if proxy := user_data.get("proxy"):
            request.meta.update({"proxy": proxy, _PROXY: True})
        return super().process_request(request)

    async def process_response(self, request: Any, response: Any, spider: Any = None) -> Any:
        if request.meta.get("dont_merge_cookies", False):
            return response
        key, outcome = request.meta.get("cookiejar"), self._outcomes.get(response.status)
        lease = self._leases.get(key)
        is_current = lease is not None and lease.lease_id == request.meta.get(_LEASE)
        if outcome is None:
            return super().process_response(request, response) if is_current else response
        if lease is not None and is_current:
            self.crawler.stats.inc_value(f"sds/session_{outcome}")
            log.info("the session %s is %s: status %d from %s", lease.name, outcome, response.status, response.url)
            del self._leases[key]
            await self._release(lease, outcome, {})
        tries = request.meta.get(_TRIES, 0)
        if tries >= self._max_tries:
            return response
        return request.replace(dont_filter=True, meta={**request.meta, _TRIES: tries + 1})

    async def _lease_of(self, key: Any) -> Lease:
        """Return the live lease of a cookie jar; take one if there is none."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            lease = self._leases.get(key)
            try:
                if lease is not None:
                    lease.check()
                    return lease
            except SessionLost as error:
                log.warning("%s; the next one is taken", error)
                del self._leases[key]
            lease = Lease(self._client._transport, self._pool, self._wait, {})
            try:
                await lease.take()
            except (ClientError, SessionLost) as error:
                reason = "sds_no_session" if isinstance(error, NoSession) else "sds_failed"
                log.error("no session of the pool %s: %s", self._pool, error)
                self.crawler.engine.close_spider(self.crawler.spider, reason)
                raise IgnoreRequest("there is no session") from None
            self._leases[key] = lease
            self.jars[key] = jar_of(map(_cookie, (lease.session["storage_state"] or {}).get("cookies", [])))
            return lease

    async def _release_all(self, reason: str) -> None:
        """End the leases, and save what the sites have set; an interrupted crawl saves nothing."""
        for key, lease in self._leases.items():
            if reason == "shutdown":
                await self._release(lease, "interrupted", {})
            else:
                await self._release(lease, "good", {"storage_state": _state(lease, self.jars[key])})
        self._leases.clear()
        await self._client.close()

    async def _release(self, lease: Lease, outcome: Outcome, options: dict[str, Any]) -> None:
        try:
            await lease.release(outcome, options)
        except (ClientError, SessionLost) as error:
            log.warning("the session %s was not released as %s: %s", lease.name, outcome, error)


def _cookie(cookie: dict[str, Any]) -> types.Cookie:
    """Return a cookie of a storage state as the service lists cookies."""
    return cast(types.Cookie, {**cookie, "http_only": cookie.get("httpOnly", False), "expires": int(cookie["expires"])})


def _state(lease: Lease, jar: CookieJar) -> dict[str, Any]:
    """Return a session's storage state with the cookies of a jar."""
    state = lease.session["storage_state"] or {"cookies": [], "origins": []}
    stored = {_identity(cookie): cookie for cookie in state.get("cookies", [])}
    cookies = map(_playwright_cookie, jar.jar)
    return {**state, "cookies": [stored.get(_identity(cookie), {}) | cookie for cookie in cookies]}


def _identity(cookie: dict[str, Any]) -> tuple[str, str, str]:
    return cookie["domain"], cookie.get("path") or "/", cookie["name"]


def _playwright_cookie(cookie: Cookie) -> dict[str, Any]:
    return {
        "name": cookie.name,
        "value": cookie.value or "",
        "domain": cookie.domain.removesuffix(".local"),
        "path": cookie.path,
        "expires": -1 if cookie.expires is None else cookie.expires,
        "httpOnly": cookie.has_nonstandard_attr("HttpOnly"),
        "secure": cookie.secure,
    }
