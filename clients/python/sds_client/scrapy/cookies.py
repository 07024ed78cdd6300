"""The service's cookies in Scrapy's jars."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from http.cookiejar import Cookie, DefaultCookiePolicy
from typing import Any

from scrapy import signals
from scrapy.downloadermiddlewares import cookies as scrapy_cookies
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.http.cookies import CookieJar

from sds_client import types
from sds_client.aio import AsyncClient
from sds_client.errors import ClientError
from sds_client.scrapy.connection import connect

log = logging.getLogger(__name__)


class CookiesMiddleware(scrapy_cookies.CookiesMiddleware):
    """Scrapy's cookie middleware, with the service's cookies in every jar from the start."""

    @classmethod
    def from_crawler(cls, crawler: Any) -> CookiesMiddleware:
        middleware: CookiesMiddleware = super().from_crawler(crawler)
        middleware._client = connect(crawler.settings)
        middleware._cookies = None
        middleware.jars = defaultdict(middleware._jar)
        crawler.signals.connect(middleware._load, signals.spider_opened)
        return middleware

    _client: AsyncClient
    _cookies: list[types.Cookie] | None

    async def _load(self, spider: Any) -> None:
        """Get the cookies before the first request; without them there is no crawl."""
        try:
            self._cookies = await self._client.cookies(active=True)
        except ClientError as error:
            log.error("the cookies could not be loaded: %s", error)
            raise CloseSpider("sds_cookies_unavailable") from None
        finally:
            await self._client.close()

    def process_request(self, request: Any, spider: Any = None) -> Any:
        if self._cookies is None:
            raise IgnoreRequest("the service's cookies were not loaded")
        return super().process_request(request)

    def process_response(self, request: Any, response: Any, spider: Any = None) -> Any:
        return super().process_response(request, response)

    def _jar(self) -> CookieJar:
        return jar_of(self._cookies or [])


def jar_of(cookies: Iterable[types.Cookie]) -> CookieJar:
    """Return a jar with these cookies."""
    # As browsers do: a cookie without a domain of its own is for its host only.
    jar = CookieJar(DefaultCookiePolicy(strict_ns_domain=DefaultCookiePolicy.DomainStrictNonDomain))
    for cookie in cookies:
        jar.set_cookie(_jar_cookie(cookie))
    return jar


def _jar_cookie(cookie: types.Cookie) -> Cookie:
    host = cookie["domain"].rsplit(":", 1)[0] if cookie["domain"].count(":") == 1 else cookie["domain"]
    wide = host.startswith(".")
    if "." not in host:
        host += ".local"  # as http.cookiejar does with names without dots
    return Cookie(
        version=0,
        name=cookie["name"],
        value=cookie["value"],
        port=None,
        port_specified=False,
        domain=host,
        domain_specified=wide,
        domain_initial_dot=wide,
        path=cookie["path"] or "/",
        path_specified=True,
        secure=cookie["secure"],
        expires=None if cookie["expires"] < 0 else cookie["expires"],
        discard=cookie["expires"] < 0,
        comment=None,
        comment_url=None,
        rest={"HttpOnly": ""} if cookie["http_only"] else {},
    )
