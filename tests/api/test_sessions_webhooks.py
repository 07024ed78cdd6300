"""Webhooks about sessions: who needs a login, who is blocked, which pool is empty. No message has a secret."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from service.settings import Settings
from service.store import Store
from tests.support.api import Api
from tests.support.receiver import Receiver, receiving
from tests.support.sessions import lapse, lease, make_state, put, release

pytestmark = pytest.mark.usefixtures("courier")
EVENTS = ["session.needs_login", "session.blocked", "pool.empty"]


@pytest.fixture
def settings() -> Settings:
    return Settings(mongo_database="test", mongo_timeout=20.0, lease_seconds=60.0, webhook_private=True)


@pytest.fixture
async def receiver(api: Api) -> AsyncIterator[Receiver]:
    """A webhook of the organization for everything about its sessions."""
    async with receiving() as receiver:
        await api.ok("/v1/webhooks", {"url": receiver.url, "events": EVENTS})
        yield receiver


async def use(api: Api, outcome: str, name: str = "anna") -> str:
    """Put a session, lease it and end the lease; return its id."""
    await put(api, f"/v1/sessions/shop/{name}", {"storage_state": make_state("s3cret"), "note": "of Anna"})
    lease_id: str = (await lease(api, "shop", name=name))["lease_id"]
    await release(api, lease_id, outcome)
    return lease_id


async def test_a_session_that_was_logged_out_or_blocked_is_told_of_once(api: Api, receiver: Receiver) -> None:
    await use(api, "good", "carl")
    lease_id = await use(api, "logged_out")
    await release(api, lease_id, "logged_out")  # repeated: the same message
    await use(api, "blocked", "ben")
    messages = await receiver.wait_for(2)
    assert [(message.message["type"], message.message["data"]) for message in messages] == [
        ("session.needs_login", {"pool": "shop", "name": "anna", "state": "needs_login"}),
        ("session.blocked", {"pool": "shop", "name": "ben", "state": "blocked"}),
    ]
    assert not any("s3cret" in message.body.decode() or "of Anna" in message.body.decode() for message in messages)


async def test_errors_that_block_a_session_are_told_of(api: Api, receiver: Receiver) -> None:
    await put(api, "/v1/sessions/shop", {"max_errors": 1})
    await use(api, "bad")
    [message] = await receiver.wait_for(1)
    assert message.message["type"] == "session.blocked"


async def test_a_session_that_its_workers_left_unreleased_too_often_is_told_of_each_time(
    api: Api, store: Store, receiver: Receiver
) -> None:
    await put(api, "/v1/sessions/shop", {"max_errors": 1, "blocked_rest_seconds": 60})
    await put(api, "/v1/sessions/shop/anna", {})
    for count in (1, 2):
        await lease(api, "shop")
        await lapse(store, api.organization_id, seconds=301)
        assert (await api.ok("/v1/sessions/shop"))[0]["state"] == "blocked"
        messages = await receiver.wait_for(count)
        assert messages[-1].message["data"] == {"pool": "shop", "name": "anna", "state": "blocked"}
        await lapse(store, api.organization_id, seconds=61)


async def test_an_empty_pool_is_told_of_at_most_every_five_minutes(api: Api, store: Store, receiver: Receiver) -> None:
    await put(api, "/v1/sessions/shop", {})
    for _ in range(3):
        assert (await api.post("/v1/sessions/shop/lease", {})).status == 409
    [message] = await receiver.wait_for(1)
    assert (message.message["type"], message.message["data"]) == ("pool.empty", {"pool": "shop"})
    owner = {"organization_id": api.organization_id, "pool": "shop"}
    six_minutes_ago = datetime.now(UTC) - timedelta(minutes=6)
    await store.database["pools"].update_one(owner, {"$set": {"empty_told": six_minutes_ago}})
    for _ in range(2):
        assert (await api.post("/v1/sessions/shop/lease", {})).status == 409
    assert len(await receiver.wait_for(2)) == 2


async def test_a_webhook_of_one_group_hears_nothing_of_sessions(api: Api, receiver: Receiver) -> None:
    async with receiving() as other:
        await api.ok("/v1/webhooks", {"url": other.url, "events": EVENTS, "group_id": "lamps"})
        await use(api, "blocked")
        await receiver.wait_for(1)
        assert other.received == []
