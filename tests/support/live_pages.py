"""Reading at the end of a group, as followers and waiting readers do."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager

from service.store import Form, Page, Query, Store
from service.store.outputs.live import Reader
from tests.support.groups import Group

SOON = 30  # seconds: well before a reader who is not woken gives up, also on a busy machine


class OpenGate:
    """Bounds nothing, and counts."""

    def __init__(self) -> None:
        self.used = 0

    def work(self, organization_id: int) -> OpenGate:
        return self

    async def keep(self, size: int) -> OpenRoom:
        self.used += size
        return OpenRoom(self, size)

    def __enter__(self) -> OpenGate:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wake(self, waiting: asyncio.Future[None]) -> None:
        if not waiting.done():
            waiting.set_result(None)


class OpenRoom:
    def __init__(self, gate: OpenGate, size: int) -> None:
        self._gate, self._size = gate, size

    def close(self) -> None:
        self._gate.used -= self._size


async def _lines(page: Page) -> bytes:
    return page.lines()


LINES = Form(_lines, b"\n")


def reading(
    store: Store, group: Group, gate: OpenGate | None = None, cursor: int = 0, form: Form = LINES
) -> AbstractContextManager[Reader]:
    """Return a reader at the end of a group, as `Outputs.live_page` does."""
    store.within(lambda: None, gate or OpenGate())
    return store.outputs.live_page(group.key, Query(cursor=cursor, limit=0), form)


def waiting_readers(store: Store) -> int:
    """Return how many readers wait for something new."""
    return store.outputs.live_pages.waiting


async def until_waiting(store: Store, readers: int = 1) -> None:
    async with asyncio.timeout(SOON):
        while waiting_readers(store) < readers:
            await asyncio.sleep(0.005)
