"""A database that fails while a response is under way: waited for, as it is too late for a 503."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from pymongo.errors import AutoReconnect

from service.store import connection, contract
from service.store.outputs import ids, pages, ranges
from tests.support.api import Api, make_output

ITEMS = 60
READS_BEFORE = 4  # enough for the response to begin


@pytest.fixture
async def large_group(api: Api) -> Api:
    items = [make_output(n, data={"text": "x" * 100_000}) for n in range(ITEMS)]
    for start in range(0, ITEMS, 20):
        await api.ok("/v1/outputs/g", items[start : start + 20])
    await api.ok("/v1/outputs/g?limit=10")  # now the size of its items is known: about ten of them at a time
    return api


@pytest.fixture
def fail_reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Let reads from the database fail after some have worked, so many times."""

    def fail(before: int, times: int) -> None:
        real, calls = connection.read_committed, 0

        async def read(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if before < calls <= before + times:
                raise AutoReconnect("injected")
            return await real(*args, **options)

        for module in (ids, ranges, pages):
            monkeypatch.setattr(module, "read_committed", read)
        monkeypatch.setattr(contract, "_RETRY_SECONDS", 0.01)

    return fail


PATHS = ["/v1/outputs/g?limit=1000", *(f"/v1/outputs/g/export?format={format}" for format in ("json", "ndjson", "csv"))]


@pytest.mark.parametrize("path", PATHS)
async def test_a_response_under_way_goes_on_when_the_database_is_back(
    large_group: Api, fail_reads: Callable[[int, int], None], path: str
) -> None:
    whole = (await large_group.get(path)).body
    fail_reads(READS_BEFORE, 20)
    response = await large_group.get(path)
    assert response.status == 200
    assert response.body == whole and len(whole) > 100_000 * ITEMS


@pytest.mark.parametrize("path", PATHS)
async def test_a_response_under_way_is_cut_off_when_the_database_stays_away(
    large_group: Api, fail_reads: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(contract, "_FAILOVER_SECONDS", 0.1)
    fail_reads(READS_BEFORE, 10**6)
    with pytest.raises(aiohttp.ClientPayloadError):
        await large_group.get(path)


@pytest.mark.parametrize("path", PATHS)
async def test_a_response_that_has_not_begun_is_a_503_at_once(
    large_group: Api, fail_reads: Callable[[int, int], None], path: str
) -> None:
    fail_reads(0, 10**6)
    assert (await large_group.get(path)).status == 503
