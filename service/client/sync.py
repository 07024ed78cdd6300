"""The client for code that is not async."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Self, TypeVar

from service.client.aio import BATCH_BYTES, BATCH_ITEMS, AsyncClient
from service.client.outputs import PAGE, Batcher, Follower, Item, Pushed, Reader, Sender
from service.client.state import Counts, StateCounts

T = TypeVar("T")


class Client:
    """What `AsyncClient` does, without `await`: from any thread, also where a loop runs already (Jupyter).

    >>> client = Client(url, token)
    >>> def lamp(number, title, job="monday"):
    ...     page = f"https://shop.example/{number}"
    ...     return {"source_url": page, "root_job_id": job, "key_hash": str(number), "data": {"title": title}}
    >>> client.push("lamps", [lamp(1, "Oak"), lamp(2, "Ash")])
    Pushed(created=2, updated=0, unchanged=0)

    Sending the same again changes nothing:

    >>> client.push("lamps", [lamp(2, "Ash")])
    Pushed(created=0, updated=0, unchanged=1)

    >>> [item["data"]["title"] for item in client.outputs("lamps", job_id="monday")]
    ['Oak', 'Ash']
    >>> client.group("lamps")["items"]
    2

    What is new or changed since the last time, from a cursor kept in a file; without `poll=None` it goes on waiting:

    >>> [item["data"]["title"] for item in client.follow("lamps", cursor_file=folder / "lamps.cursor", poll=None)]
    ['Oak', 'Ash']
    >>> client.push("lamps", [lamp(1, "Elm", job="tuesday")])
    Pushed(created=0, updated=1, unchanged=0)
    >>> [item["data"]["title"] for item in client.follow("lamps", cursor_file=folder / "lamps.cursor", poll=None)]
    ['Elm']

    Browser state:

    >>> client.set_cookies([{"domain": ".shop.example", "name": "session", "value": "4f1c", "secure": True}])
    Counts(created=1, updated=0)
    >>> client.storage_state("shop.example")["cookies"][0]["name"]
    'session'

    What the service refuses says where:

    >>> client.set_cookies([{"domain": ".shop.example", "name": "session"}])
    Traceback (most recent call last):
    service.client.errors.ClientError: 422: body.0.value: Field required
    >>> client.close()
    """

    def __init__(self, url: str, token: str, *, timeout: float = 60.0, patience: float = 120.0) -> None:
        self.url = url
        self._client = AsyncClient(url, token, timeout=timeout, patience=patience)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="service.client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the client is of no use afterwards."""
        if self._loop.is_closed():
            return
        self._wait(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def push(
        self,
        group: str,
        items: Iterable[Mapping[str, Any]],
        *,
        batch_items: int = BATCH_ITEMS,
        batch_bytes: int = BATCH_BYTES,
        concurrency: int = 1,
        on_batch: Callable[[int, Item], None] | None = None,
    ) -> Pushed:
        """Write items to a group; see `AsyncClient.push`. The iterable runs in the caller's thread."""
        batcher = Batcher(batch_items, batch_bytes)
        sender = Sender(self._client._transport, group, concurrency, on_batch)
        try:
            for item in items:
                if (full := batcher.add(item)) is not None:
                    self._wait(sender.send(full))
            self._wait(sender.send(batcher.rest()))
            return self._wait(sender.finish())
        finally:
            self._wait(sender.stop())

    def outputs(self, group: str, *, cursor: int = 0, page_size: int = PAGE, **filters: Any) -> Iterator[Item]:
        """Yield a group's items; see `AsyncClient.outputs`."""
        reader = Reader(self._client._transport, group, cursor, page_size, **filters)
        while (page := self._wait(reader.page())) is not None:
            yield from page

    def follow(
        self,
        group: str,
        *,
        cursor_file: str | os.PathLike[str] | None = None,
        poll: float | None = 5.0,
        cursor: int = 0,
        page_size: int = PAGE,
        **filters: Any,
    ) -> Iterator[Item]:
        """Yield what is new or changed, each at least once; see `AsyncClient.follow`."""
        transport = self._client._transport
        with Follower(transport, group, cursor_file, poll, cursor, page_size, **filters) as follower:
            while (page := self._wait(follower.page())) is not None:
                for item in page:
                    yield item
                    follower.taken(item)

    def ndjson(self, group: str, *, cursor: int = 0, **filters: Any) -> Iterator[bytes]:
        """Yield a group's items as NDJSON text; see `AsyncClient.ndjson`."""
        blocks = self._client.ndjson(group, cursor=cursor, **filters)

        async def following() -> bytes:
            return await anext(blocks, b"")

        try:
            while block := self._wait(following()):
                yield block
        finally:
            with suppress(RuntimeError):  # after an interrupt it may still be ending by itself
                self._wait(blocks.aclose())

    def cookies(self, domain: str | None = None, active: bool = False) -> list[Item]:
        """Return the cookies, of one exact domain if given, with `active` only those not expired."""
        return self._wait(self._client.cookies(domain, active))

    def set_cookies(self, cookies: Iterable[Mapping[str, Any]]) -> Counts:
        """Set cookies; one of the same domain, path and name is replaced."""
        return self._wait(self._client.set_cookies(cookies))

    def local_storage(self, domain: str | None = None, active: bool = False) -> list[Item]:
        """Return the local-storage entries, of one exact domain if given."""
        return self._wait(self._client.local_storage(domain, active))

    def set_local_storage(self, entries: Iterable[Mapping[str, Any]]) -> Counts:
        """Set local-storage entries; one of the same domain, path and key is replaced."""
        return self._wait(self._client.set_local_storage(entries))

    def storage_state(self, domain: str | None = None) -> Item:
        """Return Playwright's storageState, of a domain and its subdomains if given."""
        return self._wait(self._client.storage_state(domain))

    def set_storage_state(self, state: Mapping[str, Any]) -> StateCounts:
        """Merge what Playwright's `context.storage_state()` returned, record by record."""
        return self._wait(self._client.set_storage_state(state))

    def reviews(self, group: str) -> list[Item]:
        """Return the latest review of each reviewed job of a group, newest first."""
        return self._wait(self._client.reviews(group))

    def add_reviews(self, group: str, reviews: Iterable[Mapping[str, Any]]) -> list[Item]:
        """Add reviews and return them with their ids; see `AsyncClient.add_reviews`."""
        return self._wait(self._client.add_reviews(group, reviews))

    def groups(self) -> list[Item]:
        """Return the organization's groups with their counts, newest change first."""
        return self._wait(self._client.groups())

    def group(self, group: str) -> Item:
        """Return the counts of one group, by day too."""
        return self._wait(self._client.group(group))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the work returns, in the loop's own thread; an interrupt here ends it there."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
