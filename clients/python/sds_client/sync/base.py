"""What the parts of the synchronous client share: a loop in a thread of its own, which does the asynchronous work."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, ParamSpec, Self, TypeVar

from sds_client.errors import ClientError
from sds_client.transport import PATIENCE, Transport, Waiting

P = ParamSpec("P")
T = TypeVar("T")
Items = Iterable[Mapping[str, Any]]
each = iter
# Seconds for closing the connections of a client that nobody closed.
_END_SECONDS = 2.0


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
        self._process, self._lock, self._is_closed = os.getpid(), threading.Lock(), False
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_Executor())
        self._thread = threading.Thread(target=self._loop.run_forever, name="sds_client", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, _abandon, self._transport, self._loop, self._thread, self._process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the client cannot be used afterwards. Calls in other threads raise ClientError."""
        if os.getpid() != self._process:  # after a fork, the connections are the parent's
            return
        self._check_thread()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._end.detach()
        asyncio.run_coroutine_threadsafe(_end(self._transport), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Awaitable[T]) -> T:
        """Return the result of asynchronous work, done in the loop; an interrupt here cancels it there."""
        try:
            future = self._start(work)
        except BaseException:
            if isinstance(work, Coroutine):
                work.close()
            raise
        try:
            return future.result()
        except CancelledError:
            raise _closed() from None
        except BaseException:
            future.cancel()
            raise

    def _start(self, work: Awaitable[T]) -> Future[T]:
        if os.getpid() != self._process:
            raise RuntimeError("this client was made before a fork: make a Client in each process")
        self._check_thread()
        with self._lock:  # not between the last look of `close` for tasks and the end of the loop
            if self._is_closed:
                raise _closed()
            return asyncio.run_coroutine_threadsafe(_result(work), self._loop)

    def _check_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError("on_batch, on_progress and on_wait must not call the client: it waits for them")


class _Executor(ThreadPoolExecutor):
    """Looks up hosts and compresses bodies in threads; after the main thread has ended, in the loop itself."""

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        try:
            return super().submit(work, *args, **kwargs)
        except RuntimeError:  # an executor takes no more work then
            future: Future[T] = Future()
            try:
                future.set_result(work(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)
            return future


def _abandon(transport: Transport, loop: asyncio.AbstractEventLoop, thread: threading.Thread, process: int) -> None:
    """Close the connections of a client that nobody closed, when it is collected or at the exit."""
    if os.getpid() != process:
        return
    ended = asyncio.run_coroutine_threadsafe(_end(transport), loop)
    ended.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
    if threading.current_thread() is not thread:  # a collection may run in any thread
        thread.join(_END_SECONDS)
        if not thread.is_alive():
            loop.close()


async def _result(work: Awaitable[T]) -> T:
    return await work


async def _end(transport: Transport) -> None:
    """Cancel what other threads wait for, and close the connections."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await transport.close()


def _closed() -> ClientError:
    return ClientError(0, message="the client was closed")
