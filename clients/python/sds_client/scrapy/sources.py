"""The page from which each item comes."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from itemadapter import is_item

# Items on their way at the same time: a page may have hundreds, and Scrapy reads ahead of a service that is slow.
_MAX_SOURCES = 50_000


class Sources:
    """The page of each item on its way, by the item itself: nothing is added to it."""

    _of: weakref.WeakKeyDictionary[Any, Sources] = weakref.WeakKeyDictionary()

    def __init__(self) -> None:
        self._pages: OrderedDict[int, tuple[Any, str]] = OrderedDict()

    @classmethod
    def of(cls, crawler: Any) -> Sources:
        return cls._of.setdefault(crawler, cls())

    def note(self, item: Any, page: str) -> None:
        self._pages[id(item)] = (item, page)
        if len(self._pages) > _MAX_SOURCES:
            self._pages.popitem(last=False)

    def page(self, item: Any) -> str | None:
        return self._pages.pop(id(item), (None, None))[1]


class SourceUrls:
    """A spider middleware that notes the page from which each item comes."""

    def __init__(self, crawler: Any) -> None:
        self._sources = Sources.of(crawler)

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
