"""What the parts of the synchronous client share: a loop in a thread of its own, which does the asynchronous work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Self, TypeVar

from sds_client.transport import Transport, Waiting

T = TypeVar("T")
Items = Iterable[Mapping[str, Any]]
each = iter


class Base:
    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout: float = 60.0,
        patience: float = 120.0,
        on_wait: Callable[[Waiting], None] | None = None,
    ) -> None:
        self.url = url
        self._transport = Transport(url, token, timeout, patience, on_wait)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sds_client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the client cannot be used afterwards."""
        if self._loop.is_closed():
            return
        self._wait(self._transport.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Awaitable[T]) -> T:
        """Return the result of asynchronous work, done in the loop; an interrupt here cancels it there."""
        if threading.current_thread() is self._thread:
            if isinstance(work, Coroutine):
                work.close()
            raise RuntimeError("on_batch, on_progress and on_wait must not call the client: it waits for them")
        future = asyncio.run_coroutine_threadsafe(_result(work), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


async def _result(work: Awaitable[T]) -> T:
    return await work
