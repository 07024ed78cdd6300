"""The base of the asynchronous client."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Self

from sds_client.transport import PATIENCE, Transport, Waiting

Items = Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]]


class Base:
    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        cacert: str | os.PathLike[str] | None = None,
        timeout: float = 60.0,
        patience: float = PATIENCE,
        on_wait: Callable[[Waiting], None] | None = None,
    ) -> None:
        self._transport = Transport(url, token, cacert, timeout, patience, on_wait)
        self.url = self._transport.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()


async def each(items: Items) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the items of either kind of iterable."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
