"""Scrapy: items go to the service, and a crawl starts with its cookies.

In the project's settings, and nowhere else:

    ADDONS = {"sds_client.scrapy.Addon": 500}
    SDS_URL = "https://data.example.com"
    SDS_TOKEN = "…"
    SDS_GROUP = "lamps"
    SDS_KEY_FIELDS = ["sku"]

`SDS_KEY_FIELDS` are the fields (or dotted paths) by which an item is the same as one from an earlier crawl; without
them it is the page and all of its data. `SDS_JOB_ID` names the crawl; by default it is the spider and the time.
`SDS_TAGS` is put on every item, such as `{"country": "Germany"}`. An item's own field `SDS_TAGS_FIELD` (a name, not
set by default) holds tags for this item only, and is not stored in its data. `SDS_COOKIES = False` starts without
cookies. `SDS_BATCH_ITEMS` (100) and `SDS_BATCH_SECONDS` (0.5) say how many items wait for each other, and how long.

`SDS_DELETE_MISSING = True` deletes, at the end of a crawl, the items of the group that the crawl did not see: those
that were on the site before and are gone. Nothing is deleted unless the crawl came to its own end (`finished`), saw
an item, and every item and page was processed without an error. It is for a group that one spider fills, and its token
needs the scope `delete`.

An item counts as scraped when it is stored. One that the service rejects is dropped, with the reason in the log.
When nothing can be stored any more, the spider is closed with the reason `sds_failed`.
"""

from __future__ import annotations

from typing import Any

from scrapy.exceptions import NotConfigured

from sds_client.scrapy.cookies import CookiesMiddleware
from sds_client.scrapy.pipeline import OutputsPipeline
from sds_client.scrapy.sources import SourceUrls

__all__ = ["Addon", "CookiesMiddleware", "OutputsPipeline", "SourceUrls"]


class Addon:
    """Adds the pipeline, the spider middleware and the cookies to the project's settings."""

    def update_settings(self, settings: Any) -> None:
        """Add the components; what the project has set itself stays."""
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
