"""A leased session in code that is not async."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from sds_client.leasing import Lease, Leased, save_body
from sds_client.sync.base import Base


class LeasedSession(Leased):
    """A leased session for `with`. Nothing can end the block from outside: call `check()` before each page.

    `check` and `save` raise SessionLost when the time of the lease is over, and so does the end of the block.
    """

    def __init__(self, client: Base, lease: Lease) -> None:
        super().__init__(lease)
        self._client = client

    def __enter__(self) -> Self:
        self._client._wait(self._lease.take())
        return self

    def save(self, state: Mapping[str, Any] | None = None, *, user_data: Mapping[str, Any] | None = None) -> bool:
        """Save the state of the browser during the lease; return False if a person has put another one meanwhile.

        Raises SessionLost when the lease has ended: nothing was saved then.
        """
        return self._client._wait(self._lease.save(save_body(state, user_data)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client._wait(self._end(kind))
