"""Scrapy: items go to the service, and a crawl starts with its cookies.

In the project's settings, and nowhere else:

    ADDONS = {"sds_client.scrapy.Addon": 500}
    SDS_URL = "https://data.example.com"
    SDS_TOKEN = "…"
    SDS_GROUP = "lamps"
    SDS_KEY_FIELDS = ["sku"]

`SDS_KEY_FIELDS` are the fields (or dotted paths) by which an item is the same as one from an earlier crawl.
docs/scrapers.md in the service's repository lists the other settings, and says what becomes of files and errors.
"""

from __future__ import annotations

import logging
from typing import Any, Self

from scrapy import signals
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware as ScrapyCookiesMiddleware

from sds_client.environment import access_token
from sds_client.scrapy.cookies import CookiesMiddleware
from sds_client.scrapy.pipeline import OutputsPipeline
from sds_client.scrapy.sessions import SessionsMiddleware
from sds_client.scrapy.sources import SourceUrls

__all__ = ["Addon", "CookiesMiddleware", "OutputsPipeline", "SessionsMiddleware", "SourceUrls"]

log = logging.getLogger(__name__)


class Addon:
    """Adds the pipeline, the spider middleware and the cookies to the components that the project has."""

    def __init__(self, crawler: Any) -> None:
        self._crawler = crawler
        self._expected: list[tuple[str, type]] = []
        crawler.signals.connect(self._check, signals.spider_opened)

    @classmethod
    def from_crawler(cls, crawler: Any) -> Self:
        return cls(crawler)

    def update_settings(self, settings: Any) -> None:
        """Add the components; those that the project names itself keep their place."""
        access_token(settings.get("SDS_TOKEN"))  # without one the crawl stops here instead of storing nothing
        if settings.get("SDS_GROUP"):
            self._add(settings, "ITEM_PIPELINES", OutputsPipeline, 900)
            self._add(settings, "SPIDER_MIDDLEWARES", SourceUrls, 10)
        else:
            log.warning("items are not stored: SDS_GROUP is not set")
        if settings.get("SDS_SESSION_POOL") or settings.getbool("SDS_COOKIES", True):
            cookies = SessionsMiddleware if settings.get("SDS_SESSION_POOL") else CookiesMiddleware
            settings.set_in_component_priority_dict("DOWNLOADER_MIDDLEWARES", ScrapyCookiesMiddleware, None)
            self._add(settings, "DOWNLOADER_MIDDLEWARES", cookies, 700)

    def _add(self, settings: Any, name: str, component: type, place: int) -> None:
        # Scrapy's own method: a plain `set` would lose to the project's settings, whose priority is higher.
        settings.setdefault_in_component_priority_dict(name, component, place)
        self._expected.append((name, component))

    def _check(self) -> None:
        """Report a component that is not in place: it was switched off, or the settings were changed since."""
        crawler = self._crawler
        finders = {
            "ITEM_PIPELINES": crawler.get_item_pipeline,
            "SPIDER_MIDDLEWARES": crawler.get_spider_middleware,
            "DOWNLOADER_MIDDLEWARES": crawler.get_downloader_middleware,
        }
        for name, component in self._expected:
            if finders[name](component) is None:
                effect = "NOTHING IS STORED: " if component is OutputsPipeline else ""
                log.error("%s%s is not in place; %s or a setting disables it", effect, component.__name__, name)
