"""A database that fails while a response is under way: waited for, as it is too late for a 503."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import aiohttp
import pytest

from tests.support.api import Api, make_output
from tests.support.fault_proxy import FaultProxy, refuse
from tests.support.limits import Small

ITEMS = 60
READS_BEFORE = 4  # enough for the response to begin


@pytest.fixture
async def large_group(wired_api: Api) -> Api:
    items = [make_output(n, data={"text": "x" * 100_000}) for n in range(ITEMS)]
    for start in range(0, ITEMS, 20):
        await wired_api.ok("/v1/outputs/g", items[start : start + 20])
    await wired_api.ok("/v1/outputs/g?limit=10")  # now the size of its items is known: about ten of them at a time
    return wired_api


@pytest.fixture
def fail_reads(wire: FaultProxy, small: Small) -> Callable[[int, float], None]:
    """Let reads from the database fail after some have worked, so many times."""
    small(retry_seconds=0.01)

    def fail(before: int, times: float) -> None:
        calls = itertools.count(1)

        async def read() -> None:
            if before < next(calls) <= before + times:
                await refuse()()

        for collection in ("groups", "outputs"):
            wire.before("find", collection, read, times=math.inf)

    return fail


PATHS = ["/v1/outputs/g?limit=1000", *(f"/v1/outputs/g/export?format={format}" for format in ("json", "ndjson", "csv"))]


@pytest.mark.parametrize("path", PATHS)
async def test_a_response_under_way_goes_on_when_the_database_is_back(
    large_group: Api, fail_reads: Callable[[int, float], None], path: str
) -> None:
    whole = (await large_group.get(path)).body
    fail_reads(READS_BEFORE, 20)
    response = await large_group.get(path)
    assert response.status == 200
    assert response.body == whole and len(whole) > 100_000 * ITEMS


@pytest.mark.parametrize("path", PATHS)
async def test_a_response_under_way_is_cut_off_when_the_database_stays_away(
    large_group: Api, fail_reads: Callable[[int, float], None], small: Small, path: str
) -> None:
    small(failover_seconds=0.1)
    fail_reads(READS_BEFORE, math.inf)
    with pytest.raises(aiohttp.ClientPayloadError):
        await large_group.get(path)


@pytest.mark.parametrize("path", PATHS)
async def test_a_response_that_has_not_begun_is_a_503_at_once(
    large_group: Api, fail_reads: Callable[[int, float], None], path: str
) -> None:
    fail_reads(0, math.inf)
    assert (await large_group.get(path)).status == 503
