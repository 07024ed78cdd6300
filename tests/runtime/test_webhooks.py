"""Webhooks of real processes: what one has queued arrives, though it was killed."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any

import pytest

from tests.support.api import make_output
from tests.support.processes import ServiceProcess, make_token, refused_port
from tests.support.receiver import receiving

pytestmark = pytest.mark.slow


def call(service: ServiceProcess, token: str, path: str, value: Any = None) -> Any:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if value is None else json.dumps(value).encode()
    with urllib.request.urlopen(urllib.request.Request(service.url + path, data, headers), timeout=30) as response:
        return json.load(response)


async def test_a_change_is_reported_though_its_process_was_killed_after_the_acknowledgement(
    mongo_url: str, organization: int
) -> None:
    token = await asyncio.to_thread(make_token, mongo_url, organization)
    async with receiving() as receiver:
        first = await asyncio.to_thread(ServiceProcess(mongo_url, webhook_private=True).wait_until_ready)
        try:
            webhook = {"url": receiver.url, "events": ["group.changed"]}
            await asyncio.to_thread(call, first, token, "/v1/webhooks", webhook)
            await asyncio.to_thread(call, first, token, "/v1/outputs/shop", [make_output(1)])
            await receiver.wait_for(1, 60)  # longer than a lease; the next look is in five seconds
            written = await asyncio.to_thread(call, first, token, "/v1/outputs/shop", [make_output(2)])
        finally:
            first.kill()
        assert len(receiver.received) == 1
        second = ServiceProcess(mongo_url, webhook_private=True)
        try:
            told = (await receiver.wait_for(2, 60))[1].message["data"]
            assert told == {"group_id": "shop", "last_id": written["items"][0]["id"]}
        finally:
            await asyncio.to_thread(second.stop)


async def test_a_message_that_failed_is_retried_by_another_process_under_the_same_id(
    mongo_url: str, organization: int
) -> None:
    token = await asyncio.to_thread(make_token, mongo_url, organization)
    first = await asyncio.to_thread(ServiceProcess(mongo_url, webhook_private=True).wait_until_ready)
    second: ServiceProcess | None = None
    try:
        with refused_port() as port:
            webhook = {"url": f"http://127.0.0.1:{port}/hook", "events": ["group.changed"]}
            webhook_id = (await asyncio.to_thread(call, first, token, "/v1/webhooks", webhook))["webhook_id"]
            await asyncio.to_thread(call, first, token, "/v1/outputs/shop", [make_output(1)])
            deliveries: list[Any] = []
            async with asyncio.timeout(30):
                while not deliveries or not deliveries[0]["attempts"]:
                    await asyncio.sleep(0.1)
                    deliveries = await asyncio.to_thread(call, first, token, f"/v1/webhooks/{webhook_id}/deliveries")
            first.kill()
        async with receiving(port) as receiver:
            second = ServiceProcess(mongo_url, webhook_private=True)
            (received,) = await receiver.wait_for(1, 90)  # at most two retries and the rest of a lease later
            assert received.id == deliveries[0]["delivery_id"]
            await asyncio.sleep(2)
            assert len(receiver.received) == 1
    finally:
        first.kill()
        if second is not None:
            await asyncio.to_thread(second.stop)


async def test_workers_that_share_a_port_tell_each_change_once(mongo_url: str, organization: int) -> None:
    token = await asyncio.to_thread(make_token, mongo_url, organization)
    async with receiving() as receiver:
        service = await asyncio.to_thread(ServiceProcess(mongo_url, webhook_private=True, workers=3).wait_until_ready)
        try:
            webhook = {"url": receiver.url, "events": ["group.changed"]}
            await asyncio.to_thread(call, service, token, "/v1/webhooks", webhook)
            for number in range(20):
                await asyncio.to_thread(call, service, token, f"/v1/outputs/group-{number}", [make_output()])
            await receiver.wait_for(20)
            await asyncio.sleep(6)  # two looks
            assert sorted(data["group_id"] for data in receiver.of_type("group.changed")) == sorted(
                f"group-{number}" for number in range(20)
            )
        finally:
            await asyncio.to_thread(service.stop)
