"""The client that the add-on's parts use, and how they end a crawl."""

from __future__ import annotations

from typing import Any

from scrapy.exceptions import NotConfigured
from scrapy.utils.reactor import is_asyncio_reactor_installed

from sds_client.aio import AsyncClient
from sds_client.transport import PATIENCE


def connect(settings: Any) -> AsyncClient:
    if not is_asyncio_reactor_installed():
        raise NotConfigured(
            "the service's client needs TWISTED_REACTOR = 'twisted.internet.asyncioreactor.AsyncioSelectorReactor'"
        )
    patience = settings.getfloat("SDS_PATIENCE", PATIENCE)
    return AsyncClient(settings.get("SDS_URL"), settings.get("SDS_TOKEN"), patience=patience)
