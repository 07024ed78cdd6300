"""What reading reserves of the process; the application gives the work of its requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Work(Protocol):
    """The capacity that the current request has reserved."""

    async def read(self, size: int, searches: bool) -> None:
        """Reserve, in turn, so many bytes for a reading and what is made of it."""

    def shrink(self, size: int) -> None:
        """Keep no more than so many bytes."""


def _no_work() -> Work | None:
    return None


class Capacity:
    """Reserves for the current request, if there is one: here, and only here, the store does."""

    def __init__(self) -> None:
        self.current_work: Callable[[], Work | None] = _no_work

    async def reserve(self, size: int, searches: bool = False) -> None:
        """Reserve, in turn, so many bytes for a reading and what is made of it."""
        if (work := self.current_work()) is not None:
            await work.read(size, searches)

    def shrink(self, size: int) -> None:
        """Keep no more than so many bytes."""
        if (work := self.current_work()) is not None:
            work.shrink(size)
