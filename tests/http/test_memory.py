"""Failed requests leave no large garbage; other garbage is collected once much memory stays in use."""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from aiohttp import ClientPayloadError

from service.http.errors import ApiError
from service.http.memory import Garbage
from service.store import Page
from tests.support.api import Api, make_output
from tests.support.capacity import bytes_held
from tests.support.fault_proxy import FaultProxy, refuse
from tests.support.limits import Small
from tests.support.raw import connect


@contextmanager
def garbage() -> Iterator[list[Any]]:
    """Fill the list with what only the collector would free of all that the block leaves."""
    found: list[Any] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def test_an_error_response_leaves_no_exception_with_its_frames(api: Api) -> None:
    with garbage() as found:
        for path, status in (("/v1/outputs/g?limit=0", 422), ("/v1/outputs/g/none", 404), ("/v1/cookies", 200)):
            assert (await api.get(path)).status == status
    assert not [error for error in found if isinstance(error, ApiError)]


@pytest.mark.parametrize(
    "path", ["export", *(pytest.param(path, marks=pytest.mark.slow) for path in ("export?format=csv", "?limit=1000"))]
)
async def test_a_response_that_is_cut_off_leaves_none_of_its_pieces(api: Api, path: str) -> None:
    for n in range(20):
        items = [make_output(10 * n + i, data={"text": "x" * 100_000}) for i in range(10)]
        await api.ok("/v1/outputs/g", items)
    app = api.client.app
    path = f"/v1/outputs/g{path if path.startswith('?') else f'/{path}'}"
    with garbage() as found:
        async with asyncio.timeout(60), connect(api) as connection:
            connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
            head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api.token}\r\n\r\n"
            await connection.send(head.encode())
            while not bytes_held(app):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)  # it waits for its client
        async with asyncio.timeout(60):
            while bytes_held(app):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)
    assert not texts(found)


@pytest.mark.slow
async def test_a_response_that_breaks_off_leaves_none_of_its_pieces(
    wired_api: Api, wire: FaultProxy, small: Small
) -> None:
    small(failover_seconds=0.0)
    for n in range(20):
        items = [make_output(10 * n + i, data={"text": "x" * 100_000}) for i in range(10)]
        await wired_api.ok("/v1/outputs/g", items)
    reads = itertools.count()

    async def fail_later() -> None:
        if next(reads) > 3:
            await refuse()()

    wire.before("find", "outputs", fail_later, times=math.inf)
    with garbage() as found:
        with pytest.raises(ClientPayloadError):
            await wired_api.get("/v1/outputs/g/export")
        await asyncio.sleep(0.01)
    assert not texts(found)


def texts(found: list[Any]) -> list[Any]:
    """Return the pages and the long texts that the frames in the garbage still hold."""
    values = [value for frame in found if isinstance(frame, FrameType) for value in frame.f_locals.values()]
    return [value for value in values if isinstance(value, Page) or (isinstance(value, bytes) and len(value) > 50_000)]


def collections(*megabytes: int) -> list[bool]:
    """Return whether it collects, with this much memory in use one after the other; collections free nothing."""
    done: list[int] = []
    garbage = Garbage(collect=lambda: done.append(used))
    counts = [0]
    for used in megabytes:
        garbage.inspect(used * 2**20)
        counts.append(len(done))
    return [after > before for before, after in itertools.pairwise(counts)]


def test_it_collects_when_memory_stays_high_and_again_when_it_has_grown() -> None:
    low = 50, 500, 50, 500, 100, 150, 150
    assert collections(*low, 500, 500, 500, 510, 530, 600, 600) == [
        *[False] * len(low),
        *(False, True),  # the second time
        *(False, False, False),  # what is still in use is no garbage
        *(False, True),
    ]


def test_it_looks_anew_after_memory_was_low() -> None:
    assert collections(500, 500, 60, 500, 500) == [False, True, False, False, True]
