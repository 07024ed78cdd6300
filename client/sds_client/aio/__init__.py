"""The client for async code."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from sds_client.aio.outputs import Outputs
from sds_client.aio.resources import Resources
from sds_client.transport import Transport


class AsyncClient(Outputs, Resources):
    """The service at `url`, for the organization of `token`.

    Every request that may be sent twice without harm is sent again when the service is busy (429, 502, 503, 504) or the
    connection is lost, for up to `patience` seconds, with growing pauses and after the wait that the service asks
    for. `add_reviews`, and patches with `if_id`, are sent again only when they were surely not stored. Other failures
    raise `ClientError`. `timeout` is how many seconds the service may be silent.

    >>> async def titles(url, token):
    ...     async with AsyncClient(url, token) as client:
    ...         await client.push("lamps", [
    ...             {"source_url": "https://shop.example/1", "root_job_id": "monday", "data": {"title": "Oak"}},
    ...         ])
    ...         return [item["data"]["title"] async for item in client.outputs("lamps")]
    >>> asyncio.run(titles(url, token))
    ['Oak']
    """

    def __init__(self, url: str, token: str, *, timeout: float = 60.0, patience: float = 120.0) -> None:
        self.url = url
        self._transport = Transport(url, token, timeout, patience)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()
