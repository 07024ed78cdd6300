"""What requests hold of the process, and requests without HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from service.capacity.gate import Holder
from service.capacity.work import WORK, Gates, Work
from service.http.keys import GATES
from tests.support.fault_proxy import FaultProxy

TOTAL = 256 * 2**20


def bytes_held(app: web.Application) -> int:
    """Return the bytes that all requests have reserved."""
    gates = app[GATES]
    return gates.receiving.used + gates.working.used + gates.sending.used


def held_at(wire: FaultProxy, app: web.Application, name: str, collection: str) -> list[int]:
    """Return a list to which the bytes held are added when a command of a kind goes to the database."""
    held: list[int] = []

    async def note() -> None:
        held.append(bytes_held(app))

    # Not for the upkeep, which ends batches and removes old versions.
    def is_of_request(body: dict[str, Any]) -> bool:
        return "open.deadline" not in body.get("filter", {}) and body.get("hint") != "replaced"

    wire.before(name, collection, note, where=is_of_request)
    return held


def at_work(app: web.Application) -> int:
    """Return how many requests are handled."""
    return app[GATES].connections.used


def work_of(organization_id: int, gates: Gates | None = None) -> Work:
    """Return the work of a request."""
    return Work(gates or Gates(TOTAL), Holder(organization_id, "token"), 60)


@contextmanager
def request_of(organization_id: int, gates: Gates | None = None) -> Iterator[Work]:
    """Run a block as a request of an organization."""
    work = work_of(organization_id, gates)
    before = WORK.set(work)
    try:
        yield work
    finally:
        work.close()
        WORK.reset(before)
