"""Webhooks for people: messages for Slack, Discord and Teams, failed jobs and silent groups."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from service.settings import Settings
from service.store import Group, Store
from tests.support.api import Api, make_output
from tests.support.chats import CHECKS, STATUS
from tests.support.contract import HeldApi
from tests.support.receiver import Receiver, receiving

pytestmark = pytest.mark.usefixtures("courier")
PATH = "/v1/webhooks"


@pytest.fixture
def settings() -> Settings:
    return Settings(
        mongo_database="test",
        mongo_timeout=20.0,
        lease_seconds=60.0,
        webhook_private=True,
        token_cache_seconds=0.5,
        base_url="https://data.example",
    )


@pytest.fixture
def api(api: Api) -> Api:
    return HeldApi(api.client, api.token, api.organization_id)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


async def crawl(api: Api, job: str, rules: list[dict[str, Any]], state: str = "finished") -> None:
    await api.put("/v1/groups/lamps", {"rules": rules})
    await api.ok("/v1/outputs/lamps", [make_output(root_job_id=job)])
    response = await api.put(f"/v1/groups/lamps/jobs/{job}", {"state": state})
    assert response.status == 200, response.body


@pytest.mark.parametrize("format", CHECKS)
async def test_a_test_and_a_failed_job_reach_the_receiver_in_its_documented_format(
    api: Api, receiver: Receiver, format: str
) -> None:
    receiver.status = STATUS[format]
    webhook = await api.ok(PATH, {"url": receiver.url, "events": ["job.failed"], "format": format})
    assert webhook["format"] == format
    tested = (await api.post(f"{PATH}/{webhook['webhook_id']}/test")).json
    assert (tested["state"], tested["status"]) == ("delivered", STATUS[format])
    await crawl(api, "monday", [{"min_items": 5}])
    first, second = await receiver.wait_for(2)
    assert "Test of a webhook" in CHECKS[format](first.message)
    text = CHECKS[format](second.message).replace("\\", "")
    assert "Crawl of lamps failed" in text and "monday" in text and "5" in text
    assert "https://data.example/#/groups/lamps" in second.body.decode()
    assert not any(name.startswith("webhook-") for name in second.headers)


async def test_a_job_that_passes_or_was_not_judged_is_no_failed_one(api: Api, receiver: Receiver) -> None:
    await api.ok(PATH, {"url": receiver.url, "events": ["job.failed"]})
    await crawl(api, "monday", [])
    await crawl(api, "tuesday", [{"min_items": 1}])
    await crawl(api, "wednesday", [], state="failed")
    [message] = await receiver.wait_for(1)
    assert message.message["type"] == "job.failed"
    assert message.message["data"]["job"]["job_id"] == "wednesday"


async def silent(store: Store, api: Api, group: str, hours: float) -> None:
    """Let the last write and the setting of a group be older by some hours, and look at silent groups."""
    owner = {"organization_id": api.organization_id, "group_id": group}
    moment = datetime.now(UTC) - timedelta(hours=hours)
    await store.jobs.collect(Group(api.organization_id, group))
    await store.database["jobs"].update_many(owner, {"$set": {"last_write": moment}})
    await store.database["groups"].update_one(owner, {"$set": {"silent_from": moment, "silent_due": moment}})
    await store.silence.notify()


async def test_a_silent_group_is_told_of_once_and_again_after_a_write(
    api: Api, store: Store, receiver: Receiver
) -> None:
    await api.ok(PATH, {"url": receiver.url, "events": ["group.silent"]})
    await api.ok("/v1/outputs/lamps", [make_output()])
    group = (await api.put("/v1/groups/lamps", {"silent_hours": 24})).json
    assert group["silent_hours"] == 24
    await silent(store, api, "lamps", 23)
    assert receiver.received == []
    await silent(store, api, "lamps", 25)
    [first] = await receiver.wait_for(1)
    data = first.message["data"]
    assert first.message["type"] == "group.silent"
    assert (data["group_id"], data["silent_hours"]) == ("lamps", 24) and data["last_write"].endswith("Z")
    owner = {"organization_id": api.organization_id, "group_id": "lamps"}
    await store.database["groups"].update_one(owner, {"$set": {"silent_due": datetime.now(UTC)}})
    await store.silence.notify()
    await api.ok("/v1/outputs/lamps", [make_output()])  # unchanged, but a write
    await silent(store, api, "lamps", 30)
    _, second = await receiver.wait_for(2)
    assert second.message["data"]["last_write"] < data["last_write"]
    assert len(receiver.received) == 2


async def test_a_group_without_the_setting_is_not_looked_at_again(api: Api, store: Store, receiver: Receiver) -> None:
    await api.ok(PATH, {"url": receiver.url, "events": ["group.silent"]})
    await api.put("/v1/groups/lamps", {"silent_hours": 1})
    await api.put("/v1/groups/lamps", {"silent_hours": None})
    await silent(store, api, "lamps", 5)
    owner = {"organization_id": api.organization_id, "group_id": "lamps"}
    found = await store.database["groups"].find_one(owner)
    assert found is not None and "silent_due" not in found
    assert receiver.received == []
    for hours in (0, 8761, "x"):
        assert (await api.put("/v1/groups/lamps", {"silent_hours": hours})).status == 422
