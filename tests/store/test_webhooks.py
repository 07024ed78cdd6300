"""Messages to webhooks: leased by one process, retried by the clock, never lost and never sent twice at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from bson import json_util

from service.http.outgoing import Sender
from service.settings import Settings
from service.store import Outcome, Store, StoreError, Vault, Webhook, new_message, webhooks
from service.store.deliveries import CHANGED_EVERY, LEASE, REFUSED, RETRIES, Deliveries
from service.store.messages import new_record
from service.store.outputs.counts import Change
from service.webhooks import Courier, sign
from tests.store.test_crawls import begin, finish
from tests.support.api import make_output
from tests.support.commands import Commands
from tests.support.fault_proxy import FaultProxy, Refused
from tests.support.groups import DATABASE, Group, open_batch, opened
from tests.support.limits import MachineClock, Small
from tests.support.receiver import Receiver, receiving

FAILED, DONE = Outcome(503, "", "The status is not 2xx"), Outcome(204)
OLD, NEW = Vault.new_key("old"), Vault.new_key("new")


class Clock:
    """What the stores of a test take for the present."""

    def __init__(self) -> None:
        self._moment, self._start = datetime.now(UTC), datetime.now(UTC)

    def now(self) -> datetime:
        passed = self._moment + (datetime.now(UTC) - self._start)
        return passed.replace(microsecond=passed.microsecond // 1000 * 1000)

    def advance(self, by: timedelta) -> None:
        self._moment += by


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Retries take up to a day by the clock of the database, which a test cannot set."""
    clock = Clock()

    async def now(_: object) -> datetime:
        return clock.now()

    monkeypatch.setattr(Deliveries, "now", now)
    return clock


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


async def make(
    store: Store, organization: int, url: str = "https://hooks.example/", *events: str, **fields: Any
) -> str:
    webhook = {"url": url, "events": list(events) or ["job.finished"], "group_id": None, "label": "", **fields}
    webhook_id: str = (await store.webhooks.create(organization, webhook))["webhook_id"]
    return webhook_id


def job(name: str = "crawl-1") -> dict[str, Any]:
    return {"job_id": name, "finish_date": datetime(2026, 11, 16, tzinfo=UTC)}


async def attempt(store: Store, organization: int, webhook_id: str, outcome: Outcome) -> bool:
    """Make the attempt that is due, if there is one; return whether there was."""
    lease = await store.webhooks.deliveries.lease(organization, webhook_id)
    if lease is None:
        return False
    lease = await store.webhooks.deliveries.add_changes(lease)
    message = await store.webhooks.deliveries.next(lease)
    if message is not None:
        await store.webhooks.deliveries.record(lease, message, outcome)
    await store.webhooks.deliveries.release(lease)
    return message is not None


async def mine(store: Store, organization: int) -> list[str]:
    """Return the webhooks of an organization that are due."""
    return [id for owner, id in await store.webhooks.deliveries.due([], 1000) if owner == organization]


async def told(store: Store, organization: int, webhook_id: str) -> list[tuple[str, int]]:
    """Return group and id of each change that is to be told, in the order in which they were added."""
    where = {"organization_id": organization, "webhook_id": webhook_id}
    found = await store.database["deliveries"].find(where).sort("create_date").to_list(None)
    return [(record["group_id"], record["version"]) for record in found]


# -- signatures -----------------------------------------------------------------------------------


def test_a_signature_is_the_one_of_the_specification() -> None:
    # The example of the Standard Webhooks specification's own libraries.
    headers = sign(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


# -- retries --------------------------------------------------------------------------------------


async def test_a_message_is_retried_by_the_schedule_then_it_has_failed(
    store: Store, organization: int, clock: Clock
) -> None:
    webhook_id = await make(store, organization)
    await store.webhooks.job_finished(Group(organization).key, job())
    assert await attempt(store, organization, webhook_id, FAILED)
    for seconds in (5, 30, 120, 600, 3600, 21600, 86400):
        clock.advance(timedelta(seconds=seconds - 2))
        assert not await attempt(store, organization, webhook_id, FAILED), f"less than {seconds} s"
        clock.advance(timedelta(seconds=2))
        assert await attempt(store, organization, webhook_id, FAILED), f"{seconds} s"
    (delivery,) = await store.webhooks.deliveries.recent(organization, webhook_id)
    assert (delivery["state"], delivery["attempts"], delivery["next_attempt"]) == ("failed", 8, None)
    stored = await store.database["deliveries"].find_one({"_id": delivery["delivery_id"]})
    assert stored is not None and "body" not in stored
    (webhook,) = await store.webhooks.list(organization)
    assert webhook["active"], "one message that is always refused is no reason to send no other"
    await store.webhooks.job_finished(Group(organization).key, job("another"))
    assert await attempt(store, organization, webhook_id, DONE)


async def refuse_to_the_end(store: Store, organization: int, webhook_id: str, clock: Clock, *jobs: str) -> None:
    """Let a webhook refuse messages in their last attempt."""
    for name in jobs:
        await store.webhooks.job_finished(Group(organization).key, job(name))
        where = {"organization_id": organization, "webhook_id": webhook_id, "job_id": name}
        await store.database["deliveries"].update_one(where, {"$set": {"attempts": len(RETRIES)}})
        assert await attempt(store, organization, webhook_id, FAILED)
        clock.advance(timedelta(seconds=1))


async def is_active(store: Store, organization: int) -> bool:
    return bool((await store.webhooks.list(organization))[0]["active"])


@pytest.mark.slow
async def test_a_webhook_that_accepts_nothing_for_24_hours_and_many_messages_is_switched_off(
    store: Store, organization: int, clock: Clock, small: Small
) -> None:
    small(refused_messages=4)
    webhook_id = await make(store, organization)
    jobs = [f"crawl-{number}" for number in range(4)]
    await refuse_to_the_end(store, organization, webhook_id, clock, *jobs)
    assert await is_active(store, organization), "enough messages, but not yet 24 hours"
    await store.webhooks.job_finished(Group(organization).key, job("accepted"))
    assert await attempt(store, organization, webhook_id, DONE)
    clock.advance(timedelta(hours=24))
    await refuse_to_the_end(store, organization, webhook_id, clock, *(f"{name}-again" for name in jobs[:-1]))
    assert await is_active(store, organization), "24 hours, but not yet enough messages"
    await store.webhooks.job_finished(Group(organization).key, job("waiting"))
    assert await attempt(store, organization, webhook_id, FAILED)
    await refuse_to_the_end(store, organization, webhook_id, clock, "last")
    assert not await is_active(store, organization)
    assert await mine(store, organization) == []
    states = {delivery["state"] for delivery in await store.webhooks.deliveries.recent(organization, webhook_id)}
    assert states == {"failed", "delivered"}, "what waited has failed"


@pytest.mark.slow
async def test_a_message_that_is_accepted_and_was_replaced_meanwhile_keeps_its_webhook_on(
    store: Store, organization: int, clock: Clock
) -> None:
    webhook_id, key = await make(store, organization), Group(organization).key
    clock.advance(timedelta(hours=25))
    jobs = [f"crawl-{number}" for number in range(REFUSED)]
    await refuse_to_the_end(store, organization, webhook_id, clock, *jobs[:-1])
    await store.webhooks.job_finished(key, ended("a", 1))
    lease = await store.webhooks.deliveries.lease(organization, webhook_id)
    assert lease is not None
    message = await store.webhooks.deliveries.next(lease)
    assert message is not None
    await store.webhooks.job_finished(key, ended("a", 2))
    await store.webhooks.deliveries.record(lease, message, DONE)
    await store.webhooks.deliveries.release(lease)
    await store.database["deliveries"].delete_many({"organization_id": organization})
    await refuse_to_the_end(store, organization, webhook_id, clock, jobs[-1])
    assert await is_active(store, organization)


@pytest.mark.slow
async def test_a_webhook_that_is_switched_off_gets_nothing_until_a_test_succeeds(
    store: Store, organization: int, clock: Clock
) -> None:
    webhook_id = await make(store, organization)
    clock.advance(timedelta(hours=25))
    await refuse_to_the_end(store, organization, webhook_id, clock, *(f"crawl-{number}" for number in range(REFUSED)))
    before = len(await store.webhooks.deliveries.recent(organization, webhook_id))
    await store.webhooks.job_finished(Group(organization).key, job("later"))
    assert len(await store.webhooks.deliveries.recent(organization, webhook_id)) == before

    message = new_message("webhook.test", {})
    await store.webhooks.deliveries.record_test(organization, webhook_id, message, FAILED)
    assert not await is_active(store, organization)
    message = new_message("webhook.test", {})
    await store.webhooks.deliveries.record_test(organization, webhook_id, message, DONE)
    assert await is_active(store, organization)
    await store.webhooks.job_finished(Group(organization).key, job("later"))
    assert await attempt(store, organization, webhook_id, DONE)
    await refuse_to_the_end(store, organization, webhook_id, clock, "one")
    assert await is_active(store, organization), "the test has begun a new count"


# -- what waits -----------------------------------------------------------------------------------


def ended(name: str, second: int, **fields: Any) -> dict[str, Any]:
    return {"job_id": name, "finish_date": datetime(2026, 11, 16, 0, 0, second, tzinfo=UTC), **fields}


async def waiting(store: Store, organization: int) -> list[dict[str, Any]]:
    """Return what the messages that wait say of their jobs, oldest first."""
    where = {"organization_id": organization, "due": {"$exists": True}}
    records = await store.database["deliveries"].find(where).sort("create_date").to_list(None)
    return [json_util.loads(record["body"])["data"]["job"] for record in records]


async def test_a_newer_end_of_a_job_replaces_the_waiting_message_and_is_due_at_once(
    store: Store, organization: int, clock: Clock
) -> None:
    webhook_id = await make(store, organization)
    key = Group(organization).key
    await store.webhooks.job_finished(key, ended("a", 1, verdict="failed"))
    await store.webhooks.job_finished(key, ended("b", 1, verdict="failed"))
    for _ in range(2):
        assert await attempt(store, organization, webhook_id, FAILED)
    await store.webhooks.job_finished(key, ended("a", 2, verdict="passed"))
    assert [(one["job_id"], one["verdict"]) for one in await waiting(store, organization)] == [
        ("b", "failed"),
        ("a", "passed"),
    ]
    assert await attempt(store, organization, webhook_id, DONE), "not after the five seconds of the old one"
    assert [one["job_id"] for one in await waiting(store, organization)] == ["b"]


async def test_the_end_of_a_job_is_dated_by_the_clock_of_the_database(
    store: Store, organization: int, group: Group, machine_clock: MachineClock
) -> None:
    await make(store, organization)
    await group.write(store, make_output(root_job_id="a"))
    machine_clock(timedelta(hours=1))  # of the process that the crawler tells that it gives up
    await store.crawls.notify(group.key, await store.crawls.declare(group.key, "a", {"state": "failed"}))
    machine_clock(timedelta())
    await store.crawls.notify(group.key, await store.crawls.finish(group.key, "a"))
    assert [one["state"] for one in await waiting(store, organization)] == ["finished"]


async def test_an_old_verdict_never_follows_a_newer_one(store: Store, organization: int, clock: Clock) -> None:
    webhook_id = await make(store, organization)
    key = Group(organization).key
    newest = ended("a", 2)
    await store.database["jobs"].insert_one({**key.owner, "job_id": "a", "finish_date": newest["finish_date"]})
    await store.webhooks.job_finished(key, newest)
    assert await attempt(store, organization, webhook_id, DONE)
    await store.webhooks.job_finished(key, ended("a", 1))  # of a process that was slow
    assert not await attempt(store, organization, webhook_id, DONE)
    assert await waiting(store, organization) == []


@pytest.mark.slow
async def test_a_waiting_failure_of_a_job_that_has_passed_meanwhile_is_dropped(
    store: Store, organization: int, group: Group, clock: Clock
) -> None:
    webhook_id = await make(store, organization, "https://hooks.example/", "job.failed")
    await store.groups.set(group.key, {"rules": [{"min_items": 2}]})
    await group.write(store, make_output(1, root_job_id="a"))
    await store.crawls.notify(group.key, await finish(store, group, "a"))
    assert await attempt(store, organization, webhook_id, FAILED)
    await begin(store, group, "a")
    await group.write(store, make_output(2, root_job_id="a"))
    await store.crawls.notify(group.key, await finish(store, group, "a"))
    clock.advance(timedelta(seconds=6))
    assert not await attempt(store, organization, webhook_id, DONE)
    assert await waiting(store, organization) == []


async def test_a_verdict_that_is_replaced_while_it_is_sent_is_not_sent_again(
    store: Store, organization: int, clock: Clock
) -> None:
    webhook_id = await make(store, organization)
    key = Group(organization).key
    await store.webhooks.job_finished(key, ended("a", 1, verdict="failed"))
    lease = await store.webhooks.deliveries.lease(organization, webhook_id)
    assert lease is not None
    message = await store.webhooks.deliveries.next(lease)
    assert message is not None
    await store.webhooks.job_finished(key, ended("a", 2, verdict="passed"))
    await store.webhooks.deliveries.record(lease, message, FAILED)
    assert [one["verdict"] for one in await waiting(store, organization)] == ["passed"]


async def test_a_process_that_has_lost_its_lease_sends_nothing(
    store: Store, other: Store, organization: int, clock: Clock
) -> None:
    webhook_id = await make(store, organization)
    await store.webhooks.job_finished(Group(organization).key, job())
    lost = await store.webhooks.deliveries.lease(organization, webhook_id)
    assert lost is not None
    clock.advance(LEASE + timedelta(seconds=1))
    assert await other.webhooks.deliveries.lease(organization, webhook_id) is not None
    assert await store.webhooks.deliveries.next(lost) is None


async def test_the_oldest_of_too_many_waiting_messages_are_dropped_and_counted(
    store: Store, organization: int, clock: Clock, small: Small
) -> None:
    small(waiting_messages=10)
    await make(store, organization)
    for number in range(15):
        await store.webhooks.job_finished(Group(organization).key, job(f"crawl-{number}"))
        clock.advance(timedelta(milliseconds=2))
    assert [one["job_id"] for one in await waiting(store, organization)] == [f"crawl-{n}" for n in range(5, 15)]
    assert (await store.webhooks.list(organization))[0]["dropped"] == 5


async def test_waiting_messages_have_a_bounded_size(store: Store, organization: int, clock: Clock) -> None:
    await make(store, organization)
    for number in range(5):
        await store.webhooks.job_finished(Group(organization).key, ended(f"crawl-{number}", 1, text="x" * 300_000))
        clock.advance(timedelta(milliseconds=2))
    assert [one["job_id"] for one in await waiting(store, organization)] == ["crawl-2", "crawl-3", "crawl-4"]
    assert (await store.webhooks.list(organization))[0]["dropped"] == 2


async def test_changes_of_more_groups_than_may_wait_drop_the_oldest(
    store: Store, organization: int, clock: Clock, small: Small
) -> None:
    small(waiting_messages=3)
    webhook_id = await make(store, organization, "https://hooks.example/", "group.changed")
    for number in range(5):
        await Group(organization, f"group-{number}").write(store, make_output())
    assert await attempt(store, organization, webhook_id, FAILED)
    assert len(await told(store, organization, webhook_id)) == 3
    assert (await store.webhooks.list(organization))[0]["dropped"] == 2


# -- more than one message ------------------------------------------------------------------------


async def test_one_message_that_always_fails_does_not_hold_up_the_others(
    store: Store, organization: int, clock: Clock
) -> None:
    webhook_id = await make(store, organization)
    await store.webhooks.job_finished(Group(organization).key, job("broken"))
    assert await attempt(store, organization, webhook_id, FAILED)
    await store.webhooks.job_finished(Group(organization).key, job("fine"))
    assert await attempt(store, organization, webhook_id, DONE)
    states = {d["state"] for d in await store.webhooks.deliveries.recent(organization, webhook_id)}
    assert states == {"pending", "delivered"}


async def test_the_last_messages_are_kept(store: Store, organization: int, clock: Clock, small: Small) -> None:
    small(kept_messages=5)
    webhook_id = await make(store, organization)
    for number in range(8):
        clock.advance(timedelta(seconds=1))
        await store.webhooks.job_finished(Group(organization).key, job(f"crawl-{number}"))
        assert await attempt(store, organization, webhook_id, DONE)
    assert len(await store.webhooks.deliveries.recent(organization, webhook_id)) == 5
    where = {"organization_id": organization, "webhook_id": webhook_id}
    assert await store.database["deliveries"].count_documents(where) == 5


async def test_the_last_50_tests_are_kept_too(store: Store, organization: int, clock: Clock) -> None:
    webhook_id = await make(store, organization)
    await store.webhooks.job_finished(Group(organization).key, job())
    for _ in range(60):
        clock.advance(timedelta(seconds=1))
        message = new_message("webhook.test", {})
        await store.webhooks.deliveries.record_test(organization, webhook_id, message, FAILED)
    where = {"organization_id": organization, "webhook_id": webhook_id}
    assert await store.database["deliveries"].count_documents(where) == 51


async def test_a_test_of_a_webhook_that_was_deleted_meanwhile_leaves_nothing_behind(
    store: Store, organization: int
) -> None:
    webhook_id = await make(store, organization)
    assert await store.webhooks.delete(organization, webhook_id)
    message = new_message("webhook.test", {})
    await store.webhooks.deliveries.record_test(organization, webhook_id, message, DONE)
    assert await store.database["deliveries"].count_documents({"organization_id": organization}) == 0


@pytest.mark.slow
async def test_the_oldest_messages_are_found_without_reading_those_that_wait(
    listening: Store, commands: Commands, organization: int, clock: Clock
) -> None:
    webhook_id = await make(listening, organization)
    for number in range(30):
        await listening.webhooks.job_finished(Group(organization).key, job(f"crawl-{number}"))
    commands.clear()
    assert await attempt(listening, organization, webhook_id, DONE)
    finds = [command.body for command in commands.sent if (command.name, command.collection) == ("find", "deliveries")]
    (trim,) = [find for find in finds if "state" in find["filter"]]
    hidden = ("lsid", "$db", "readConcern", "maxTimeMS", "$clusterTime")
    bare = {name: value for name, value in trim.items() if name not in hidden}
    plan = await listening.database.command("explain", bare, verbosity="executionStats")
    assert plan["executionStats"]["totalDocsExamined"] <= 1  # the one that was sent


@pytest.mark.slow
async def test_webhooks_made_at_once_are_no_more_than_allowed(store: Store, organization: int) -> None:
    made = await asyncio.gather(*(make(store, organization) for _ in range(70)), return_exceptions=True)
    assert await store.database["webhooks"].count_documents({"organization_id": organization}) <= webhooks.MAX_WEBHOOKS
    assert {type(one) for one in made} <= {str, webhooks.TooManyWebhooks}


# -- leases ---------------------------------------------------------------------------------------


async def test_a_webhook_is_leased_by_one_of_two_processes(store: Store, other: Store, organization: int) -> None:
    webhook_id = await make(store, organization)
    await store.webhooks.job_finished(Group(organization).key, job())
    stores = [store, other] * 5
    leases = await asyncio.gather(*(one.webhooks.deliveries.lease(organization, webhook_id) for one in stores))
    assert sum(lease is not None for lease in leases) == 1
    await store.webhooks.job_finished(Group(organization).key, job("crawl-2"))  # which makes it due again
    assert await mine(other, organization) == []
    assert await other.webhooks.deliveries.lease(organization, webhook_id) is None


async def test_a_lease_lasts_by_the_clock_of_the_database(
    store: Store, other: Store, organization: int, machine_clock: MachineClock
) -> None:
    webhook_id = await make(store, organization)
    await store.webhooks.job_finished(Group(organization).key, job())
    machine_clock(-timedelta(hours=1))
    assert await store.webhooks.deliveries.lease(organization, webhook_id) is not None
    machine_clock(timedelta(hours=1))
    assert await mine(other, organization) == []
    assert await other.webhooks.deliveries.lease(organization, webhook_id) is None


async def test_what_is_added_during_a_lease_is_looked_at_as_soon_as_it_ends(
    store: Store, organization: int, clock: Clock
) -> None:
    webhook_id = await make(store, organization)
    lease = await store.webhooks.deliveries.lease(organization, webhook_id)
    assert lease is not None
    await store.webhooks.job_finished(Group(organization).key, job())
    await store.webhooks.deliveries.release(lease)
    assert await mine(store, organization) == [webhook_id]


async def test_the_lease_of_a_process_that_died_ends_by_itself(
    store: Store, other: Store, organization: int, clock: Clock
) -> None:
    webhook_id = await make(store, organization)
    await store.webhooks.job_finished(Group(organization).key, job())
    assert await store.webhooks.deliveries.lease(organization, webhook_id)
    clock.advance(LEASE - timedelta(seconds=20))  # the machine's own time passes too
    assert not await attempt(other, organization, webhook_id, DONE)
    clock.advance(timedelta(seconds=21))
    assert await attempt(other, organization, webhook_id, DONE)


async def test_a_message_is_found_though_its_process_died_before_setting_due(
    store: Store, organization: int, clock: Clock
) -> None:
    webhook_id = await make(store, organization)
    assert not await attempt(store, organization, webhook_id, DONE)
    message = new_message("job.finished", {})
    await store.database["deliveries"].insert_one(new_record(organization, webhook_id, message, clock.now()))
    assert await mine(store, organization) == []
    clock.advance(timedelta(minutes=2))
    assert await attempt(store, organization, webhook_id, DONE)


async def test_a_webhook_deleted_during_its_lease_leaves_nothing_behind(
    store: Store, organization: int, group: Group
) -> None:
    webhook_id = await make(store, organization, "https://hooks.example/", "group.changed")
    await group.write(store, make_output())
    lease = await store.webhooks.deliveries.lease(organization, webhook_id)
    assert lease is not None
    assert await store.webhooks.delete(organization, webhook_id)
    lease = await store.webhooks.deliveries.add_changes(lease)
    assert await told(store, organization, webhook_id)
    await store.webhooks.deliveries.release(lease)
    assert await told(store, organization, webhook_id) == []


# -- changed groups -------------------------------------------------------------------------------


async def test_a_batch_that_the_snapshot_does_not_show_yet_is_told_later(
    store: Store, wired: Store, wire: FaultProxy, organization: int, group: Group, clock: Clock, small: Small
) -> None:
    small(skew=timedelta())
    webhook_id = await make(store, organization, "https://hooks.example/", "group.changed")
    clock.advance(timedelta(seconds=1))
    sender = wired.webhooks.deliveries
    lease = await sender.lease(organization, webhook_id)
    assert lease is not None
    batch = await open_batch(store, group, 1)
    await asyncio.sleep(0.01)

    async def show_nothing() -> None:
        raise Refused(ok=1.0, cursor={"id": 0, "ns": f"{DATABASE}.groups", "firstBatch": []})

    wire.after("find", "groups", show_nothing)
    await sender.release(await sender.add_changes(lease))
    await store.outputs.ids.turn(group.key, (batch, Change(last_id=batch.first, items=1)), 0)
    clock.advance(timedelta(minutes=2))
    assert await attempt(store, organization, webhook_id, DONE)


async def test_two_processes_that_look_at_once_tell_a_change_once(
    store: Store, other: Store, organization: int, group: Group
) -> None:
    webhook_id = await make(store, organization, "https://hooks.example/", "group.changed")
    await group.write(store, make_output())
    lease = await store.webhooks.deliveries.lease(organization, webhook_id)
    assert lease is not None
    await asyncio.gather(*(one.webhooks.deliveries.add_changes(lease) for one in [store, other] * 4))
    assert await told(store, organization, webhook_id) == [("lamps", 1)]


@pytest.mark.slow
async def test_a_batch_in_flight_is_reported_when_it_is_over_though_another_was_newer(
    store: Store, organization: int, group: Group, clock: Clock, small: Small
) -> None:
    async def of_lamps() -> list[tuple[str, int]]:
        return [one for one in await told(store, organization, webhook_id) if one[0] == "lamps"]

    # The clock of the database, by which a look begins, cannot be advanced: its two seconds would find the batch.
    small(skew=timedelta())
    webhook_id = await make(store, organization, "https://hooks.example/", "group.changed")
    await group.write(store, *(make_output(n) for n in range(3)))
    begun = (await group.document(store))["last_change"]
    batch = {"token": "t", "first": 3, "n": 1, "date": begun, "deadline": begun + timedelta(hours=1)}
    await group.set(store, open=[batch])
    assert await attempt(store, organization, webhook_id, DONE)
    assert await of_lamps() == [("lamps", 2)]  # what can be read
    elsewhere = Group(organization, "chairs")
    for number in range(5):  # time goes on, and other groups change
        clock.advance(timedelta(minutes=1))
        await elsewhere.write(store, make_output(number))
        assert await attempt(store, organization, webhook_id, DONE)
    assert await of_lamps() == [("lamps", 2)]
    await group.set(store, open=[])  # with its own date: `last_change` stays
    clock.advance(CHANGED_EVERY)
    assert await attempt(store, organization, webhook_id, DONE)
    assert await of_lamps() == [("lamps", 2), ("lamps", 3)]


async def test_a_change_that_waits_is_replaced_by_the_next_one_which_is_due_at_once(
    store: Store, organization: int, group: Group, clock: Clock
) -> None:
    webhook_id = await make(store, organization, "https://hooks.example/", "group.changed")
    await group.write(store, make_output(1))
    assert await attempt(store, organization, webhook_id, FAILED)
    clock.advance(timedelta(seconds=5))
    assert await attempt(store, organization, webhook_id, FAILED)
    await group.write(store, make_output(2))
    clock.advance(timedelta(seconds=6))
    assert await attempt(store, organization, webhook_id, FAILED), (
        "the replaced one would have waited for half a minute"
    )
    (delivery,) = await store.webhooks.deliveries.recent(organization, webhook_id)
    assert (delivery["attempts"], delivery["state"]) == (1, "pending")
    assert await told(store, organization, webhook_id) == [("lamps", 2)]


async def test_the_deletion_of_a_group_replaces_the_change_that_waits(
    store: Store, organization: int, group: Group, clock: Clock, small: Small
) -> None:
    small(waiting_messages=2)
    webhook_id = await make(store, organization, "https://hooks.example/", "group.changed")
    await group.write(store, make_output(1))
    assert await attempt(store, organization, webhook_id, FAILED)
    await store.webhooks.group_removed(group.key, 7)
    assert await told(store, organization, webhook_id) == [("lamps", 7)]
    for name in ("chairs", "tables"):
        await store.webhooks.group_removed(Group(organization, name).key, 1)
    assert len(await told(store, organization, webhook_id)) == 2
    assert (await store.webhooks.list(organization))[0]["dropped"] == 1


async def test_more_changed_groups_than_one_look_reads_are_all_reported(
    store: Store, organization: int, clock: Clock, small: Small
) -> None:
    small(groups_per_look=3)
    webhook_id = await make(store, organization, "https://hooks.example/", "group.changed")
    for number in range(10):
        await Group(organization, f"group-{number}").write(store, make_output())
    lease = await store.webhooks.deliveries.lease(organization, webhook_id)
    assert lease is not None
    await store.webhooks.deliveries.add_changes(lease)
    assert sorted(await told(store, organization, webhook_id)) == [(f"group-{n}", 1) for n in range(10)]


async def test_without_a_webhook_a_write_sends_no_more_commands(
    listening: Store, commands: Commands, group: Group
) -> None:
    await group.write(listening, make_output())
    assert {command.collection for command in commands.sent}.isdisjoint({"webhooks", "deliveries"})


# -- couriers -------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_dead_receiver_costs_the_others_nothing(
    store: Store, organization: int, receiver: Receiver, small: Small
) -> None:
    small(sent_at_once=6)
    await store.database["webhooks"].delete_many({})  # those of other tests are due too
    async with receiving() as dead:
        dead.hangs = True
        # More webhooks of one organization than there are places, and all of them hang.
        for _ in range(8):
            await make(store, organization, dead.url)
        await make(store, organization + 1_000_000, receiver.url)
        courier = Courier(store.webhooks, Sender(private=True, seconds=60.0))
        running = asyncio.create_task(courier.run())
        await store.webhooks.job_finished(Group(organization).key, job())
        await dead.wait_for(4)
        await asyncio.sleep(0.5)
        assert len(dead.received) == 4, "an organization has four places"
        await store.webhooks.job_finished(Group(organization + 1_000_000).key, job())
        await receiver.wait_for(1, 45.0)  # before those that hang end
        running.cancel()
        await courier.close()


@pytest.mark.slow
async def test_couriers_of_two_processes_send_each_message_once(
    store: Store, other: Store, organization: int, receiver: Receiver
) -> None:
    await store.database["webhooks"].delete_many({})  # those of other tests are due too
    names = [await make(store, organization, receiver.url) for _ in range(5)]
    couriers = [Courier(one.webhooks, Sender(private=True)) for one in (store, other)]
    running = [asyncio.create_task(courier.run()) for courier in couriers]
    for number in range(10):
        await (store, other)[number % 2].webhooks.job_finished(Group(organization).key, job(f"crawl-{number}"))
    await receiver.wait_for(50)
    for task in running:
        task.cancel()
    for courier in couriers:
        await courier.close()
    assert len(receiver.received) == len({received.id for received in receiver.received}) == 50
    for webhook_id in names:
        found = await store.webhooks.deliveries.recent(organization, webhook_id)
        assert [delivery["state"] for delivery in found] == ["delivered"] * 10


async def test_a_courier_that_stops_waits_for_messages_being_sent(
    store: Store, wired: Store, wire: FaultProxy, organization: int, receiver: Receiver
) -> None:
    recorded = wire.before("update", "deliveries", lambda: asyncio.sleep(0.5))  # the stop comes meanwhile
    webhook_id = await make(store, organization, receiver.url)
    courier = Courier(wired.webhooks, Sender(private=True))
    running = asyncio.create_task(courier.run())
    await store.webhooks.job_finished(Group(organization).key, job())
    await receiver.wait_for(1)
    running.cancel()
    await courier.close()
    (delivery,) = await store.webhooks.deliveries.recent(organization, webhook_id)
    assert delivery["state"] == "delivered" and recorded.reached.is_set()


async def test_a_courier_ends_when_it_is_stopped_while_a_message_arrives(store: Store) -> None:
    for steps in range(5):
        courier = Courier(store.webhooks, Sender(private=True))
        running = asyncio.create_task(courier.run())
        await asyncio.sleep(0.05)  # it waits for a message
        store.webhooks.deliveries.added.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        running.cancel()
        _, still_running = await asyncio.wait([running], timeout=5)
        assert not still_running, steps
        await courier.close()


# -- secrets --------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_secret_is_sealed_with_its_url(apart: Settings, organization: int) -> None:
    sealed = await opened(apart, OLD)
    webhook_id = await make(sealed, organization)
    webhook = await sealed.webhooks.find(organization, webhook_id)
    assert webhook is not None
    assert webhook == Webhook(organization, webhook_id, "https://hooks.example/", webhook.secret, "standard")
    (stored,) = await sealed.database["webhooks"].find().to_list(None)
    assert webhook.secret.encode() not in bson.encode(stored)
    await sealed.database["webhooks"].update_one({}, {"$set": {"url": "https://thief.example/"}})
    with pytest.raises(StoreError):
        await sealed.webhooks.find(organization, webhook_id)
    await sealed.close()


@pytest.mark.slow
async def test_secrets_are_sealed_anew_with_a_new_key(apart: Settings, organization: int) -> None:
    old, both = await opened(apart, OLD), await opened(apart, f"{NEW},{OLD}")
    webhook_id = await make(old, organization)
    before = await old.webhooks.find(organization, webhook_id)
    assert both.webhooks in both.sealed
    assert [rotation async for rotation in both.webhooks.rotate()][-1] == (1, 1, 0)
    new = await opened(replace(apart, sealed_only=True), NEW)
    assert await new.webhooks.find(organization, webhook_id) == before
    for store in (old, both, new):
        await store.close()


async def test_an_outcome_that_comes_after_that_of_another_process_changes_nothing(
    store: Store, other: Store, organization: int, clock: Clock, group: Group
) -> None:
    webhook_id = await make(store, organization)
    await store.webhooks.job_finished(group.key, job())
    attempts = {"$set": {"attempts": len(RETRIES)}}
    await store.database["deliveries"].update_many({"webhook_id": webhook_id}, attempts)
    deliveries, others = store.webhooks.deliveries, other.webhooks.deliveries
    late = await deliveries.lease(organization, webhook_id)
    assert late is not None
    message = await deliveries.next(late)
    clock.advance(timedelta(seconds=41))  # the clock of the other process
    lease = await others.lease(organization, webhook_id)
    assert lease is not None and message is not None and await others.next(lease) == message
    await others.record(lease, message, DONE)
    await deliveries.record(late, message, FAILED)
    [webhook] = await store.webhooks.list(organization)
    assert webhook["active"]
    assert [delivery["state"] for delivery in await deliveries.recent(organization, webhook_id)] == ["delivered"]


async def test_a_success_that_comes_after_the_failure_of_another_process_counts(
    store: Store, other: Store, organization: int, clock: Clock, group: Group
) -> None:
    webhook_id = await make(store, organization)
    await store.webhooks.job_finished(group.key, job())
    deliveries, others = store.webhooks.deliveries, other.webhooks.deliveries
    late = await deliveries.lease(organization, webhook_id)
    assert late is not None
    message = await deliveries.next(late)
    clock.advance(timedelta(seconds=41))
    lease = await others.lease(organization, webhook_id)
    assert lease is not None and message is not None
    await others.record(lease, message, FAILED)
    await deliveries.record(late, message, DONE)
    assert [delivery["state"] for delivery in await deliveries.recent(organization, webhook_id)] == ["delivered"]
