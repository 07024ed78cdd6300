"""The contract of the store in short, on a server without replica set: no retryable writes, no change streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient
from pytest_aiohttp.plugin import AiohttpClient

from service.app import create_app
from service.settings import Settings
from service.store import Store
from tests.conftest import Server
from tests.support.api import Api, make_cookie, make_entry, make_output, make_review, walk
from tests.support.mongod import standalone

pytestmark = pytest.mark.slow


@pytest.fixture
async def store(settings: Settings, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    options = getattr(request, "param", "")
    with standalone(tmp_path) as url:
        store = Store.connect(settings, url + options)
        await store.ensure_indexes()
        yield store
        await store.close()


@pytest.mark.parametrize("store", ["", "/?directConnection=true"], indirect=True, ids=["plain", "direct"])
async def test_a_standalone_server_keeps_the_contract(
    store: Store, settings: Settings, aiohttp_client: AiohttpClient
) -> None:
    client: TestClient[Any, Any] = await aiohttp_client(Server(create_app(settings, store)))
    api = Api(client, await store.tokens.create(1, ["read", "write", "state"]), 1)
    outputs = "/v1/outputs/group"

    written = await api.ok(outputs, [make_output(number) for number in range(30)])
    assert written["created"] == 30
    first = await walk(api, f"{outputs}?limit=7")
    assert [item["key_hash"] for item in first] == [f"key-{number}" for number in range(30)]

    again = await api.ok(outputs, [make_output(number) for number in range(10)])
    assert again["unchanged"] == 10
    changed = await api.ok(outputs, [make_output(5, data={"title": "Changed"}), make_output(30)])
    assert (changed["updated"], changed["created"]) == (1, 1)
    news = await walk(api, f"{outputs}?cursor={first[-1]['id']}")
    assert [item["key_hash"] for item in news] == ["key-5", "key-30"]
    assert len(await walk(api, f"{outputs}?limit=1000")) == 31

    for path, record in (("/v1/cookies", make_cookie()), ("/v1/local-storage", make_entry())):
        assert await api.ok(path, [record]) == {"created": 1, "updated": 0}
        assert await api.ok(path, [record | {"value": "new"}]) == {"created": 0, "updated": 1}
        assert [found["value"] for found in await api.ok(path)] == ["new"]
    await api.ok("/v1/reviews/group", [make_review(), make_review(status="rejected")])
    assert [review["status"] for review in await api.ok("/v1/reviews/group")] == ["rejected"]
