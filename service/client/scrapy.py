"""Scrapy: items go to the service, and a crawl starts with its cookies.

In the project's settings, and nowhere else:

    ADDONS = {"service.client.scrapy.Addon": 500}
    SDS_URL = "https://data.example.com"
    SDS_TOKEN = "…"
    SDS_GROUP = "lamps"
    SDS_KEY_FIELDS = ["sku"]

`SDS_KEY_FIELDS` are the fields (or dotted paths) by which an item is the same as one from an earlier crawl; without
them it is the page and all of its data. `SDS_JOB_ID` names the crawl; by default it is the spider and the time.
`SDS_TAGS` is put on every item, such as `{"country": "Germany"}`. `SDS_COOKIES = False` starts without cookies.
`SDS_BATCH_ITEMS` (100) and `SDS_BATCH_SECONDS` (0.5) say how many items wait for each other, and how long.

An item counts as scraped when it is stored. One that the service refuses is dropped, with the reason in the log.
When nothing can be stored any more, the spider is closed with the reason `sds_failed`.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime
from http.cookiejar import Cookie, DefaultCookiePolicy
from typing import Any

from itemadapter import ItemAdapter, is_item
from scrapy import signals
from scrapy.downloadermiddlewares import cookies as scrapy_cookies
from scrapy.exceptions import CloseSpider, DropItem, IgnoreRequest, NotConfigured
from scrapy.http.cookies import CookieJar
from scrapy.utils.reactor import is_asyncio_reactor_installed

from service.client.aio import AsyncClient
from service.client.errors import ClientError
from service.client.transport import dump
from service.client.writing import key_hash

log = logging.getLogger(__name__)

# Pages of items that other pipelines dropped would gather for ever.
_MOST_SOURCES = 10_000


class Addon:
    """Puts the pipeline, the pages of items and the cookies in their places."""

    def update_settings(self, settings: Any) -> None:
        """Add to the project's settings; what the project says itself stays."""
        if not settings.get("SDS_URL") or not settings.get("SDS_TOKEN"):
            raise NotConfigured("SDS_URL and SDS_TOKEN are not set")
        here = __name__
        if settings.get("SDS_GROUP"):
            _put(settings, "ITEM_PIPELINES", f"{here}.OutputsPipeline", 900)
            _put(settings, "SPIDER_MIDDLEWARES", f"{here}.SourceUrls", 10)
        if settings.getbool("SDS_COOKIES", True):
            _put(settings, "DOWNLOADER_MIDDLEWARES", "scrapy.downloadermiddlewares.cookies.CookiesMiddleware", None)
            _put(settings, "DOWNLOADER_MIDDLEWARES", f"{here}.CookiesMiddleware", 700)


def _put(settings: Any, name: str, component: str, place: int | None) -> None:
    components = dict(settings.getwithbase(name) if name.endswith("_BASE") else settings.getdict(name))
    components.setdefault(component, place)
    settings.set(name, components, priority="addon")


def _client(settings: Any) -> AsyncClient:
    if not is_asyncio_reactor_installed():
        raise NotConfigured(
            "the service's client needs TWISTED_REACTOR = 'twisted.internet.asyncioreactor.AsyncioSelectorReactor'"
        )
    return AsyncClient(settings["SDS_URL"], settings["SDS_TOKEN"])


class _Sources:
    """The page of each item on its way, by the item itself: nothing is added to it."""

    _of: weakref.WeakKeyDictionary[Any, _Sources] = weakref.WeakKeyDictionary()

    def __init__(self) -> None:
        self._pages: OrderedDict[int, tuple[Any, str]] = OrderedDict()

    @classmethod
    def of(cls, crawler: Any) -> _Sources:
        return cls._of.setdefault(crawler, cls())

    def note(self, item: Any, page: str) -> None:
        self._pages[id(item)] = (item, page)
        if len(self._pages) > _MOST_SOURCES:
            self._pages.popitem(last=False)

    def page(self, item: Any) -> str | None:
        return self._pages.pop(id(item), (None, None))[1]


class SourceUrls:
    """A spider middleware that notes the page from which each item comes."""

    def __init__(self, crawler: Any) -> None:
        self._sources = _Sources.of(crawler)

    @classmethod
    def from_crawler(cls, crawler: Any) -> SourceUrls:
        return cls(crawler)

    def process_spider_output(self, response: Any, result: Iterable[Any], spider: Any = None) -> Iterator[Any]:
        for found in result:
            yield self._noted(response, found)

    async def process_spider_output_async(
        self, response: Any, result: AsyncIterator[Any], spider: Any = None
    ) -> AsyncIterator[Any]:
        async for found in result:
            yield self._noted(response, found)

    def _noted(self, response: Any, found: Any) -> Any:
        if response is not None and is_item(found):
            self._sources.note(found, response.url)
        return found


class OutputsPipeline:
    """Stores items, some at a time; an item goes on when it is durable."""

    def __init__(self, crawler: Any) -> None:
        settings = crawler.settings
        if not settings.get("SDS_GROUP"):
            raise NotConfigured("SDS_GROUP is not set")
        self._crawler, self._client = crawler, _client(settings)
        self._sources = _Sources.of(crawler)
        self._group = settings["SDS_GROUP"]
        self._keys = settings.getlist("SDS_KEY_FIELDS")
        self._tags = settings.getdict("SDS_TAGS")
        self._job: str | None = settings.get("SDS_JOB_ID")
        self._most = settings.getint("SDS_BATCH_ITEMS", 100)
        self._pause = settings.getfloat("SDS_BATCH_SECONDS", 0.5)
        self._waiting: list[tuple[dict[str, Any], asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()

    @classmethod
    def from_crawler(cls, crawler: Any) -> OutputsPipeline:
        return cls(crawler)

    async def process_item(self, item: Any, spider: Any = None) -> Any:
        """Return the item when it is stored."""
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[None] = loop.create_future()
        self._waiting.append((self._output(item), stored))
        if len(self._waiting) >= self._most:
            self._send()
        elif self._timer is None:
            self._timer = loop.call_later(self._pause, self._send)
        await stored
        return item

    async def close_spider(self, spider: Any = None) -> None:
        """Send what waits and close the connections."""
        self._send()
        await asyncio.gather(*self._sending)
        await self._client.close()

    def _output(self, item: Any) -> dict[str, Any]:
        """Return an item as the service takes it. Raises DropItem for one that cannot be told apart or sent."""
        page = self._sources.page(item)
        data = ItemAdapter(item).asdict()
        source = data.pop("source_url", None) or page or data.get("url")
        if not isinstance(source, str):
            raise DropItem("it has no source_url, and its page is not known")
        if self._job is None:
            spider = self._crawler.spider
            self._job = getattr(spider, "_job", None) or f"{spider.name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        output = {"source_url": source, "root_job_id": self._job, "data": data}
        if self._tags:
            output["tags"] = self._tags
        try:
            if self._keys:
                output["key_hash"] = key_hash(data, self._keys)
            dump(output)
        except KeyError as error:
            raise DropItem(f"it has no {error.args[0]}, which is one of SDS_KEY_FIELDS") from None
        except (TypeError, ValueError) as error:
            raise DropItem(f"it cannot be sent: {error}") from None
        return output

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            task = asyncio.get_running_loop().create_task(self._store(self._waiting))
            self._waiting = []
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _store(self, batch: list[tuple[dict[str, Any], asyncio.Future[None]]]) -> None:
        """Store a batch, without the items that the service refuses."""
        while batch:
            try:
                pushed = await self._client.push(self._group, [output for output, _ in batch])
            except Exception as error:
                refused = _refused(error)
                if not refused:
                    self._fail(batch, error)
                    return
                for place, reason in refused.items():
                    batch[place][1].set_exception(DropItem(f"the service refuses it: {reason}"))
                batch = [entry for place, entry in enumerate(batch) if place not in refused]
                continue
            for kind in ("created", "updated", "unchanged"):
                self._crawler.stats.inc_value(f"sds/{kind}", getattr(pushed, kind))
            for _, stored in batch:
                stored.set_result(None)
            return

    def _fail(self, batch: list[tuple[dict[str, Any], asyncio.Future[None]]], error: Exception) -> None:
        log.error("%d items could not be stored: %s", len(batch), error)
        for _, stored in batch:
            stored.set_exception(error)
        asyncio.get_running_loop().call_soon(_close, self._crawler, "sds_failed")


def _close(crawler: Any, reason: str) -> None:
    if crawler.engine is not None and crawler.spider is not None:
        crawler.engine.close_spider(crawler.spider, reason)


def _refused(error: Exception) -> dict[int, str]:
    """Return which items of a batch a refusal is about, and why; none if it is about something else."""
    refused: dict[int, str] = {}
    if isinstance(error, ClientError) and error.status == 422:
        for problem in error.problems:
            loc = [str(part) for part in problem.get("loc", [])]
            if len(loc) < 2 or not loc[1].isdecimal():
                return {}
            refused.setdefault(int(loc[1]), f"{'.'.join(loc[2:])}: {problem.get('msg')}".lstrip(": "))
    return refused


class CookiesMiddleware(scrapy_cookies.CookiesMiddleware):
    """Scrapy's own, with the service's cookies in every jar from the start."""

    @classmethod
    def from_crawler(cls, crawler: Any) -> CookiesMiddleware:
        middleware: CookiesMiddleware = super().from_crawler(crawler)
        middleware._client = _client(crawler.settings)
        middleware._cookies = None
        middleware.jars = defaultdict(middleware._jar)
        crawler.signals.connect(middleware._load, signals.spider_opened)
        return middleware

    _client: AsyncClient
    _cookies: list[dict[str, Any]] | None

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
        # As browsers do: a cookie without a domain of its own is for its host only.
        jar = CookieJar(DefaultCookiePolicy(strict_ns_domain=DefaultCookiePolicy.DomainStrictNonDomain))
        for cookie in self._cookies or []:
            jar.set_cookie(_jar_cookie(cookie))
        return jar


def _jar_cookie(cookie: dict[str, Any]) -> Cookie:
    host = cookie["domain"].rsplit(":", 1)[0] if cookie["domain"].count(":") == 1 else cookie["domain"]
    wide = host.startswith(".")
    if "." not in host:
        host += ".local"  # what http.cookiejar takes a name without dots for
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
