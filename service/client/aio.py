"""The client."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from service.client.outputs import PAGE, Batcher, Follower, Item, Pushed, Reader, Sender, blocks
from service.client.state import Counts, StateCounts, chunks, state_chunks
from service.client.transport import Transport

BATCH_ITEMS = 500
BATCH_BYTES = 4 * 1024 * 1024


class AsyncClient:
    """The service at `url`, for the organization of `token`.

    Every request but `add_reviews` may be sent twice with no harm, so each is tried again when the service
    is busy (429, 503) or the connection is lost, for up to `patience` seconds, with growing pauses and after
    the wait that the service asks for. What cannot be helped raises `ClientError`. `timeout` is how many
    seconds the service may be silent.

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

    async def push(
        self,
        group: str,
        items: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
        *,
        batch_items: int = BATCH_ITEMS,
        batch_bytes: int = BATCH_BYTES,
        concurrency: int = 1,
        on_batch: Callable[[int, Item], None] | None = None,
    ) -> Pushed:
        """Write items to a group and return how many were created, updated and unchanged.

        Items are sent as they come, in batches, so any number of them needs little memory. All are durable
        when this returns. On `ClientError` the batches before the refused one are stored; `loc` in its
        problems counts from the first item of all. More than one request at once (`concurrency`) is faster
        over a distance, but of two items with one key in different batches either may win.
        `on_batch` is called with the number of items and the answer of each request, in order.

        A request that was stored but whose answer was lost is sent again and counts as unchanged.
        """
        batcher = Batcher(batch_items, batch_bytes)
        sender = Sender(self._transport, group, concurrency, on_batch)
        try:
            if isinstance(items, AsyncIterable):
                async for item in items:
                    await sender.send(batcher.add(item))
            else:
                for item in items:
                    await sender.send(batcher.add(item))
            await sender.send(batcher.rest())
            return await sender.finish()
        finally:
            await sender.stop()

    async def outputs(
        self, group: str, *, cursor: int = 0, page_size: int = PAGE, **filters: Any
    ) -> AsyncGenerator[Item]:
        """Yield a group's items in the order in which they last changed, to the present end.

        Filters are those of the API: job_id, created_after, url, country, region; `fields` keeps only some paths.
        """
        reader = Reader(self._transport, group, cursor, page_size, **filters)
        while (page := await reader.page()) is not None:
            for item in page:
                yield item

    async def follow(
        self,
        group: str,
        *,
        cursor_file: str | os.PathLike[str] | None = None,
        poll: float | None = 5.0,
        cursor: int = 0,
        page_size: int = PAGE,
        **filters: Any,
    ) -> AsyncGenerator[Item]:
        """Yield what is new or changed, and go on waiting for more, asking every `poll` seconds.

        `poll=None` ends when there is nothing more. The cursor is kept in `cursor_file`; an item is behind it
        only when the loop has come back for the next one. So each item is seen *at least once*: after a kill
        those of the last second, or of the last page, come again. `cursor` is where to begin without a file.
        """
        with Follower(self._transport, group, cursor_file, poll, cursor, page_size, **filters) as follower:
            while (page := await follower.page()) is not None:
                for item in page:
                    yield item
                    follower.taken(item)

    def ndjson(self, group: str, *, cursor: int = 0, **filters: Any) -> AsyncGenerator[bytes]:
        """Yield a group's items as NDJSON text, some whole lines at a time: the fastest way to read all.

        A lost connection is taken up again after the last line that came.
        """
        return blocks(self._transport, group, cursor, **filters)

    async def cookies(self, domain: str | None = None, active: bool = False) -> list[Item]:
        """Return the cookies, of one exact domain if given, with `active` only those not expired."""
        return await self._list("/v1/cookies", **_state_query(domain, active))

    async def set_cookies(self, cookies: Iterable[Mapping[str, Any]]) -> Counts:
        """Set cookies; one of the same domain, path and name is replaced."""
        return await self._set("/v1/cookies", cookies)

    async def local_storage(self, domain: str | None = None, active: bool = False) -> list[Item]:
        """Return the local-storage entries, of one exact domain if given."""
        return await self._list("/v1/local-storage", **_state_query(domain, active))

    async def set_local_storage(self, entries: Iterable[Mapping[str, Any]]) -> Counts:
        """Set local-storage entries; one of the same domain, path and key is replaced."""
        return await self._set("/v1/local-storage", entries)

    async def storage_state(self, domain: str | None = None) -> Item:
        """Return Playwright's storageState, of a domain and its subdomains if given."""
        return await self._object("/v1/storage-state", **_state_query(domain, False))

    async def set_storage_state(self, state: Mapping[str, Any]) -> StateCounts:
        """Merge what Playwright's `context.storage_state()` returned, record by record."""
        counts = StateCounts()
        for chunk in state_chunks(state):
            counts.add((await self._transport.call("POST", "/v1/storage-state", value=chunk)).json)
        return counts

    async def reviews(self, group: str) -> list[Item]:
        """Return the latest review of each reviewed job of a group, newest first."""
        return await self._list(f"/v1/reviews/{quote(group, safe='')}")

    async def add_reviews(self, group: str, reviews: Iterable[Mapping[str, Any]]) -> list[Item]:
        """Add reviews and return them with their ids. Not sent again after a lost connection: it might add twice."""
        path = f"/v1/reviews/{quote(group, safe='')}"
        answer = await self._transport.call("POST", path, value=list(reviews), repeatable=False)
        items: list[Item] = answer.json["items"]
        return items

    async def groups(self) -> list[Item]:
        """Return the organization's groups with their counts, newest change first."""
        return await self._list("/v1/groups")

    async def group(self, group: str) -> Item:
        """Return the counts of one group, by day too."""
        return await self._object(f"/v1/groups/{quote(group, safe='')}/stats")

    async def _list(self, path: str, **query: str) -> list[Item]:
        found: list[Item] = (await self._transport.call("GET", path, query=query)).json
        return found

    async def _object(self, path: str, **query: str) -> Item:
        found: Item = (await self._transport.call("GET", path, query=query)).json
        return found

    async def _set(self, path: str, records: Iterable[Mapping[str, Any]]) -> Counts:
        counts = Counts()
        for chunk in chunks(records):
            counts.add((await self._transport.call("POST", path, value=chunk)).json)
        return counts


def _state_query(domain: str | None, active: bool) -> dict[str, str]:
    return ({} if domain is None else {"domain": domain}) | ({"active": "true"} if active else {})
