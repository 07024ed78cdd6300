"""A response that streams or waits ends with its token: SECURITY.md promises 5 seconds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import ClientError, web

from service.http.keys import GATES, STOPPING
from service.settings import Settings
from service.store import Store, now
from tests.conftest import MakeApi
from tests.support.api import Api, make_output
from tests.support.capacity import at_work
from tests.support.limits import Small
from tests.support.live_pages import waiting_readers

CACHE_SECONDS = 0.2
FOLLOWING = ["/v1/outputs/shop/export?follow=true", "/v1/outputs/shop/export?format=sse"]
SLACK = 10  # for a busy machine; without a check they go on for ever


@pytest.fixture
def settings(settings: Settings, small: Small) -> Settings:
    """The 5 seconds are those of the largest cache; what ends with them ends as well with a smaller one."""
    small(token_watch_seconds=0.05)
    return replace(settings, token_cache_seconds=CACHE_SECONDS)


@pytest.fixture(autouse=True)
async def stop_in_order(admin: Api, app: web.Application, store: Store) -> AsyncIterator[None]:
    """End the exports that are still open as a stop of the service does."""
    yield
    app[STOPPING].set()
    store.watch.stop()


async def read_to_the_end(api: Api, path: str) -> bytes:
    """Return the last bytes of a stream, once it has ended."""
    received = b""
    try:
        async with api.client.get(path, headers={"Authorization": f"Bearer {api.token}"}) as response:
            assert response.status == 200
            async for piece in response.content.iter_any():
                received = (received + piece)[-10_000:]
    except ClientError:
        pass
    return received


@pytest.mark.parametrize("path", FOLLOWING)
async def test_a_stream_ends_when_its_token_is_revoked(admin: Api, make_api: MakeApi, store: Store, path: str) -> None:
    await admin.ok("/v1/outputs/shop", [make_output(1)])
    reader = await make_api(admin.organization_id, ["read"])
    reading = asyncio.create_task(read_to_the_end(reader, path))
    async with asyncio.timeout(60):
        while not waiting_readers(store):
            await asyncio.sleep(0.01)
    assert await store.tokens.revoke(reader.token)
    async with asyncio.timeout(SLACK):
        await reading
    assert b"key-1" in reading.result()


@pytest.mark.slow
@pytest.mark.parametrize("path", FOLLOWING)
async def test_a_stream_ends_when_its_token_expires(admin: Api, make_api: MakeApi, path: str) -> None:
    expires = now() + timedelta(seconds=1)
    reader = await make_api(admin.organization_id, ["read"], expires=expires)
    async with asyncio.timeout(SLACK):
        await read_to_the_end(reader, path)
    assert now() >= expires


async def test_a_request_that_waits_is_401_when_its_token_is_revoked(
    admin: Api, make_api: MakeApi, store: Store, app: web.Application
) -> None:
    reader = await make_api(admin.organization_id, ["read", "write", "state"])
    assert (await reader.put("/v1/sessions/shop", {})).status == 200
    waiting = [
        asyncio.create_task(reader.get("/v1/outputs/shop?wait=60")),
        asyncio.create_task(reader.post("/v1/sessions/shop/lease", {"wait": 60})),
    ]
    async with asyncio.timeout(60):
        while app[GATES].readers.used < len(waiting):
            await asyncio.sleep(0.01)
    assert await store.tokens.revoke(reader.token)
    async with asyncio.timeout(SLACK):
        for response in await asyncio.gather(*waiting):
            assert (response.status, response.problems()) == (401, [(["header", "Authorization"], "auth_invalid")])


async def test_a_body_that_arrives_after_its_token_was_revoked_is_not_stored(
    admin: Api, make_api: MakeApi, store: Store, app: web.Application
) -> None:
    writer, text = await make_api(admin.organization_id, ["write"]), json.dumps([make_output(1)]).encode()

    async def body() -> AsyncIterator[bytes]:
        yield text[:-1]
        await asyncio.sleep(SLACK)
        yield text[-1:]

    headers = {"Authorization": f"Bearer {writer.token}", "Content-Type": "application/json"}
    sending = asyncio.create_task(writer.client.post("/v1/outputs/shop", data=body(), headers=headers))
    async with asyncio.timeout(60):
        while not at_work(app):
            await asyncio.sleep(0.01)
    assert await store.tokens.revoke(writer.token)
    async with asyncio.timeout(SLACK):
        assert (await sending).status == 401
    assert (await admin.ok("/v1/outputs/shop"))["items"] == []


@pytest.mark.slow  # it writes 20 MiB
async def test_a_list_that_is_read_slowly_is_cut_when_its_token_is_revoked(api: Api, store: Store) -> None:
    for n in range(5):
        await api.ok("/v1/local-storage", [{"domain": "a", "key": str(n), "value": "x" * 4 * 2**20}])
    headers = {"Authorization": f"Bearer {api.token}", "Accept-Encoding": "identity"}
    async with api.client.get("/v1/local-storage", headers=headers) as response:
        assert response.status == 200
        assert await store.tokens.revoke(api.token)
        await asyncio.sleep(1.5)  # what comes before the cut would arrive whole
        with pytest.raises(ClientError):
            async with asyncio.timeout(60):
                await response.read()


@pytest.mark.slow
async def test_valid_tokens_and_writes_go_on(admin: Api, make_api: MakeApi, store: Store) -> None:
    other: Any = await make_api(admin.organization_id, ["read"])
    waiting = asyncio.create_task(admin.get("/v1/outputs/shop?wait=60"))
    assert await store.tokens.revoke(other.token)
    await asyncio.sleep(3 * CACHE_SECONDS)
    assert not waiting.done()
    await admin.ok("/v1/outputs/shop", [make_output(1)])
    assert len((await waiting).json["items"]) == 1
