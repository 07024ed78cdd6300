"""/v1/webhooks: made, listed, tested and deleted; what they deliver."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from service.settings import Settings
from service.store import Group, Store
from tests.conftest import MakeApi
from tests.support.api import Api, make_output
from tests.support.contract import HeldApi
from tests.support.limits import Small
from tests.support.receiver import Receiver, receiving

pytestmark = pytest.mark.usefixtures("courier")
PATH = "/v1/webhooks"
JOB = {"job_id": "crawl-1", "state": "finished", "verdict": "passed", "finish_date": "2026-11-16T06:00:00.000Z"}


@pytest.fixture
def settings() -> Settings:
    return Settings(
        mongo_database="test", mongo_timeout=20.0, lease_seconds=60.0, webhook_private=True, token_cache_seconds=0.5
    )


@pytest.fixture
def api(api: Api) -> Api:
    return HeldApi(api.client, api.token, api.organization_id)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


def make_webhook(url: str = "https://hooks.example/scraping", **changes: Any) -> dict[str, Any]:
    return {"url": url, "events": ["job.finished", "group.changed"]} | changes


async def finished(store: Store, api: Api, url: str, count: int = 1) -> list[dict[str, Any]]:
    """Return the deliveries of a webhook once so many have come to an end."""
    async with asyncio.timeout(30):
        while True:
            found = await api.ok(f"{PATH}/{url}/deliveries")
            if sum(delivery["state"] != "pending" for delivery in found) >= count:
                return list(found)
            await asyncio.sleep(0.05)


# -- made, listed, deleted ------------------------------------------------------------------------


async def test_a_webhook_is_listed_without_its_secret_which_is_shown_once(api: Api) -> None:
    created = await api.ok(PATH, make_webhook(group_id="shop", label="warehouse"))
    secret = created.pop("secret")
    assert secret.startswith("whsec_")
    assert await api.ok(PATH) == [created]
    assert created == {
        "webhook_id": created["webhook_id"],
        "url": "https://hooks.example/scraping",
        "events": ["job.finished", "group.changed"],
        "format": "standard",
        "group_id": "shop",
        "label": "warehouse",
        "create_date": created["create_date"],
        "active": True,
        "switched_off": None,
        "last_result": None,
        "dropped": 0,
    }


async def test_group_and_label_may_be_left_out(api: Api) -> None:
    created = await api.ok(PATH, make_webhook())
    assert (created["group_id"], created["label"]) == (None, "")


async def test_webhooks_are_listed_in_the_order_in_which_they_were_made(api: Api) -> None:
    made = [(await api.ok(PATH, make_webhook(label=str(n))))["webhook_id"] for n in range(3)]
    assert [webhook["webhook_id"] for webhook in await api.ok(PATH)] == made


async def test_a_deleted_webhook_is_gone_with_its_deliveries(api: Api, receiver: Receiver, store: Store) -> None:
    webhook_id = (await api.ok(PATH, make_webhook(receiver.url)))["webhook_id"]
    await api.post(f"{PATH}/{webhook_id}/test")
    assert (await api.delete(f"{PATH}/{webhook_id}")).json == {"deleted": 1}
    assert await api.ok(PATH) == []
    assert await store.database["deliveries"].count_documents({"webhook_id": webhook_id}) == 0


async def test_a_webhook_that_does_not_exist_is_not_found(api: Api) -> None:
    for method, path in (("DELETE", ""), ("POST", "/test"), ("GET", "/deliveries")):
        response = await api.request(method, f"{PATH}/nobody{path}")
        assert (response.status, response.problems()) == (404, [(["path", "webhook_id"], "not_found")])


async def test_another_organization_sees_nothing_of_a_webhook(api: Api, stranger: Api, receiver: Receiver) -> None:
    webhook_id = (await api.ok(PATH, make_webhook(receiver.url)))["webhook_id"]
    assert await stranger.ok(PATH) == []
    for method, path in (("DELETE", ""), ("POST", "/test"), ("GET", "/deliveries")):
        assert (await stranger.request(method, f"{PATH}/{webhook_id}{path}")).status == 404
    assert len(await api.ok(PATH)) == 1 and receiver.received == []


NOT_VALID: list[tuple[dict[str, Any], tuple[list[str], str]]] = [
    ({"url": "ftp://hooks.example/"}, (["body", "url"], "value_error")),
    ({"url": "https://user:password@hooks.example/"}, (["body", "url"], "value_error")),
    ({"url": ""}, (["body", "url"], "string_too_short")),
    ({"url": 1}, (["body", "url"], "string_type")),
    ({"url": "https://hooks.example/" + "a" * 2048}, (["body", "url"], "string_too_long")),
    ({"events": []}, (["body", "events"], "value_error")),
    ({"events": None}, (["body", "events"], "list_type")),
    ({"events": "job.finished"}, (["body", "events"], "list_type")),
    ({"events": ["job.done"]}, (["body", "events", "0"], "value_error")),
    ({"events": [{}]}, (["body", "events", "0"], "value_error")),
    ({"events": ["job.finished", "job.finished"]}, (["body", "events"], "value_error")),
    ({"group_id": ""}, (["body", "group_id"], "string_too_short")),
    ({"group_id": "g" * 257}, (["body", "group_id"], "string_too_long")),
    ({"label": "l" * 257}, (["body", "label"], "string_too_long")),
    ({"secret": "mine"}, (["body", "secret"], "unknown_field")),
]


async def test_a_webhook_that_is_not_valid_is_refused(api: Api) -> None:
    for change, problem in NOT_VALID:
        response = await api.post(PATH, make_webhook(**change))
        assert (response.status, response.problems()) == (422, [problem]), change
        assert await api.ok(PATH) == [], change


@pytest.mark.parametrize("field", ["url", "events"])
async def test_url_and_events_are_required(api: Api, field: str) -> None:
    webhook = make_webhook()
    del webhook[field]
    response = await api.post(PATH, webhook)
    assert (response.status, response.problems()) == (422, [(["body", field], "missing")])


async def test_an_organization_has_a_bounded_number_of_webhooks(api: Api, small: Small) -> None:
    small(webhooks=3)
    for _ in range(3):
        await api.ok(PATH, make_webhook())
    response = await api.post(PATH, make_webhook())
    assert (response.status, response.problems()) == (422, [(["body"], "too_many")])


# -- tests ----------------------------------------------------------------------------------------


async def test_a_test_sends_a_signed_message_and_returns_the_result(api: Api, receiver: Receiver) -> None:
    receiver.status, receiver.text = 200, "thanks, " + "x" * 500
    webhook = await api.ok(PATH, make_webhook(receiver.url))
    delivery = (await api.post(f"{PATH}/{webhook['webhook_id']}/test")).json
    (received,) = receiver.received
    assert received.is_signed_with(webhook["secret"])
    assert abs(int(received.headers["webhook-timestamp"]) - received.at) < 10
    assert received.message["type"] == "webhook.test"
    assert received.message["data"] == {"webhook_id": webhook["webhook_id"]}
    assert (delivery["delivery_id"], delivery["state"], delivery["status"]) == (received.id, "delivered", 200)
    assert delivery["response"] == receiver.text[:200]
    assert await api.ok(f"{PATH}/{webhook['webhook_id']}/deliveries") == [delivery]
    (listed,) = await api.ok(PATH)
    assert listed["last_result"] == {
        "date": delivery["last_attempt"],
        "type": "webhook.test",
        "delivered": True,
        "status": 200,
        "error": None,
    }


async def test_a_test_that_fails_says_why_and_is_not_repeated(api: Api, receiver: Receiver) -> None:
    receiver.status = 500
    webhook_id = (await api.ok(PATH, make_webhook(receiver.url)))["webhook_id"]
    delivery = (await api.post(f"{PATH}/{webhook_id}/test")).json
    assert (delivery["state"], delivery["status"], delivery["error"]) == ("failed", 500, "The status is not 2xx")
    assert (delivery["attempts"], delivery["next_attempt"]) == (1, None)


async def test_one_test_of_an_organization_runs_at_a_time(api: Api, stranger: Api, receiver: Receiver) -> None:
    receiver.hangs = True
    webhook_id = (await api.ok(PATH, make_webhook(receiver.url)))["webhook_id"]
    first = asyncio.create_task(api.post(f"{PATH}/{webhook_id}/test"))
    await receiver.wait_for(1)
    second = await api.post(f"{PATH}/{webhook_id}/test")
    assert (second.status, second.problems()[0][1]) == (429, "rate_limited")
    receiver.hangs = False
    other = (await stranger.ok(PATH, make_webhook(receiver.url)))["webhook_id"]
    assert (await stranger.post(f"{PATH}/{other}/test")).status == 200
    first.cancel()


@pytest.mark.slow
async def test_a_test_that_waits_is_401_when_its_token_is_revoked(
    api: Api, make_api: MakeApi, receiver: Receiver, store: Store
) -> None:
    receiver.hangs = True
    webhook_id = (await api.ok(PATH, make_webhook(receiver.url)))["webhook_id"]
    writer = await make_api(api.organization_id, ["write"])
    testing = asyncio.create_task(writer.post(f"{PATH}/{webhook_id}/test"))
    await receiver.wait_for(1)
    assert await store.tokens.revoke(writer.token)
    response = await testing
    assert (response.status, response.problems()) == (401, [(["header", "Authorization"], "auth_invalid")])


# -- events ---------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_finished_job_is_reported_to_the_webhooks_of_its_group(
    api: Api, receiver: Receiver, store: Store, organization: int
) -> None:
    webhook = await api.ok(PATH, make_webhook(receiver.url, events=["job.finished"]))
    await api.ok(PATH, make_webhook(receiver.url, events=["job.finished"], group_id="shop"))
    await api.ok(PATH, make_webhook(receiver.url, events=["job.finished"], group_id="other"))
    await api.ok(PATH, make_webhook(receiver.url, events=["group.changed"]))
    for _ in range(2):  # telling it again changes nothing
        await store.webhooks.job_finished(Group(organization, "shop"), JOB)
    received = await receiver.wait_for(2)
    await asyncio.sleep(1.5)  # longer than a look at what is due
    assert len(received) == 2 and len({one.id for one in received}) == 2
    assert {one.message["type"] for one in received} == {"job.finished"}
    assert [one.message["data"] for one in received] == [{"group_id": "shop", "job": JOB}] * 2
    assert sum(one.is_signed_with(webhook["secret"]) for one in received) == 1
    (delivery,) = await finished(store, api, webhook["webhook_id"])
    assert (delivery["state"], delivery["status"], delivery["attempts"]) == ("delivered", 204, 1)


@pytest.mark.slow
async def test_a_changed_group_is_reported_with_the_id_up_to_which_it_can_be_read(api: Api, receiver: Receiver) -> None:
    await api.ok("/v1/outputs/before", [make_output()])
    await asyncio.sleep(2.5)  # what changed shortly before is within the clocks' difference
    await api.ok(PATH, make_webhook(receiver.url, events=["group.changed"]))
    written = await api.ok("/v1/outputs/shop", [make_output(n) for n in range(3)])
    (received,) = await receiver.wait_for(1)
    assert received.message["type"] == "group.changed"
    assert received.message["data"] == {"group_id": "shop", "last_id": written["items"][-1]["id"]}


@pytest.mark.slow
async def test_a_group_that_changes_all_the_time_is_reported_every_five_seconds(api: Api, receiver: Receiver) -> None:
    await api.ok(PATH, make_webhook(receiver.url, events=["group.changed"], group_id="shop"))
    number = 0
    async with asyncio.timeout(60):
        while len(receiver.received) < 3:
            number += 1
            await api.ok("/v1/outputs/shop", [make_output(number)])
            await api.ok("/v1/outputs/other", [make_output(number)])
            await asyncio.sleep(0.2)
    times = [received.at for received in receiver.received]
    assert all(later - earlier >= 4.9 for earlier, later in itertools.pairwise(times))
    told = receiver.of_type("group.changed")
    assert {data["group_id"] for data in told} == {"shop"}
    assert sorted({data["last_id"] for data in told}) == [data["last_id"] for data in told]
    last = (await api.ok("/v1/outputs/shop", [make_output(0)]))["items"][0]["id"]
    assert (await receiver.wait_for(4))[3].message["data"]["last_id"] == last


async def test_an_event_is_reported_to_its_own_organization_only(
    api: Api, stranger: Api, receiver: Receiver, store: Store
) -> None:
    await stranger.ok(PATH, make_webhook(receiver.url))
    async with receiving() as mine:
        await api.ok(PATH, make_webhook(mine.url))
        await api.ok("/v1/outputs/shop", [make_output()])
        await store.webhooks.job_finished(Group(api.organization_id, "shop"), JOB)
        await mine.wait_for(2)
    assert receiver.received == []


@pytest.mark.slow
async def test_a_message_that_failed_is_sent_again_with_the_same_id_and_body(
    api: Api, receiver: Receiver, store: Store, organization: int
) -> None:
    receiver.status = 503
    webhook = await api.ok(PATH, make_webhook(receiver.url, events=["job.finished"]))
    await store.webhooks.job_finished(Group(organization, "shop"), JOB)
    await receiver.wait_for(1)
    receiver.status = 204
    first, second = await receiver.wait_for(2)
    assert second.at - first.at >= 4.9
    assert (first.id, first.body) == (second.id, second.body)
    assert second.is_signed_with(webhook["secret"])
    (delivery,) = await finished(store, api, webhook["webhook_id"])
    assert (delivery["state"], delivery["attempts"]) == ("delivered", 2)


# -- without WEBHOOK_PRIVATE ----------------------------------------------------------------------


class TestPublicOnly:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(mongo_database="test", mongo_timeout=20.0, lease_seconds=60.0)

    async def test_only_public_https_urls_are_taken(self, api: Api) -> None:
        for url in [
            *("http://hooks.example/", "https://127.0.0.1/", "https://[::1]/", "https://localhost:8000/"),
            *("https://0/", "https://2130706433/", "https://127.1/", "https://0x7f.1/", "https://0177.0.0.1/"),
            *("https://0x7f000001/", "https://127.0.0.1./", "https://10.0.257/", "https://169.16689662/"),
        ]:
            response = await api.post(PATH, make_webhook(url))
            assert (response.status, response.problems()) == (422, [(["body", "url"], "value_error")]), url
            assert "WEBHOOK_PRIVATE=true" in response.json["detail"][0]["msg"], url


async def test_a_token_without_write_cannot_see_webhooks(make_api: MakeApi, organization: int) -> None:
    reader = await make_api(organization, ["read"])
    assert (await reader.get(PATH)).status == 403
