"""A leased session in async code."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from sds_client.aio.base import Base
from sds_client.errors import SessionLost
from sds_client.leasing import Lease, Leased, save_body


class LeasedSession(Leased):
    """A leased session for `async with`; when its time is over, the block is cancelled and raises SessionLost."""

    def __init__(self, client: Base, lease: Lease) -> None:
        super().__init__(lease)
        self._limit = asyncio.Timeout(None)

    async def __aenter__(self) -> Self:
        await self._lease.take()
        await self._limit.__aenter__()
        self._lease.on_change = self._move_limit
        self._move_limit()
        return self

    def _move_limit(self) -> None:
        if not self._limit.expired():
            left = 0.0 if self._lease.is_lost else self._lease.ends - time.monotonic()
            self._limit.reschedule(asyncio.get_running_loop().time() + left)

    async def save(self, state: Mapping[str, Any] | None = None, *, user_data: Mapping[str, Any] | None = None) -> bool:
        """Save the state of the browser during the lease; return False if a person has put another one meanwhile.

        Raises SessionLost when the lease has ended: nothing was saved then.
        """
        return await self._lease.save(save_body(state, user_data))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lease.on_change = lambda: None
        try:
            await self._limit.__aexit__(kind, error, traceback)
        except TimeoutError:
            self._lease.is_lost = True
            await self._end(SessionLost)
            raise SessionLost(self.name) from None
        await self._end(kind)
