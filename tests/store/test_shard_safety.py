"""Every command on a collection that grows carries its whole shard key, and takes no more round trips than it may."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from service.store import Group as StoredGroup
from service.store import Outcome, Patch, Query, Release, Store, new_message, wanted
from service.store.browser_state import Selection
from service.store.deliveries import RETRIES
from tests.support.api import make_output
from tests.support.commands import Command, Commands
from tests.support.groups import Group, at, fail, groups_of, look_after, open_batch, reap, version
from tests.support.live_pages import SOON, reading, until_waiting

DELAY = 0.3  # seconds: many times what lies between two commands that are sent together
GROUP_KEY = ("organization_id", "group_id")
SHARD_KEYS = {
    **dict.fromkeys(("outputs", "versions", "groups", "jobs", "days", "reviews"), GROUP_KEY),
    **dict.fromkeys(("cookies", "local_storage", "origins", "webhooks", "deliveries"), ("organization_id",)),
    **dict.fromkeys(("pools", "sessions", "session_secrets", "released_leases"), ("organization_id",)),
}


@pytest.fixture
def store(listening: Store) -> Store:
    return listening


def is_value(condition: Any) -> bool:
    """Return whether a condition is an equality."""
    return not isinstance(condition, dict) or not any(name.startswith("$") for name in condition)


def is_excepted(command: Command, where: dict[str, Any]) -> bool:
    """Return whether a command is one of the few that ask all shards, or all groups of an organization."""
    if command.collection == "groups":
        return (
            "open.deadline" in where  # the reaper
            or "due" in where
            or "silent_due" in where  # the upkeep
            or list(where) == ["_id"]  # an event of the change stream
            or "open.0" in where  # GET /metrics
            or (command.name == "find" and "last_change" in where and is_value(where["organization_id"]))
        )
    if command.collection == "jobs":
        return command.name == "find" and bool(where.keys() & {"untold", "deleting.date"})  # the upkeep
    if command.collection == "pools":
        return command.name == "find" and "removed" in where  # the upkeep
    if command.collection == "webhooks":
        return command.name == "find" and "due" in where  # whoever looks for what is due
    # GET /v1/groups, which lists an organization's groups.
    return command.collection == "days" and command.name == "find" and is_value(where["organization_id"])


def without_shard_key(commands: Commands) -> list[Any]:
    return [
        (command.name, command.collection, where)
        for command in commands.sent
        if command.collection in SHARD_KEYS
        for where in command.wheres()
        if not all(name in where and is_value(where[name]) for name in SHARD_KEYS[command.collection])
        and not is_excepted(command, where)
    ]


async def exercise(store: Store, other: Store, group: Group) -> None:
    """Use every method of the store, on every way it can go."""
    owner = group.key
    await store.groups.set(owner, {"history_days": 30})
    items = [make_output(n, root_job_id=f"job-{n % 2}") for n in range(20)]
    written = await group.write(store, *items)
    await group.write(store, *items)
    await group.write(store, *(dict(item, data={"new": 1}) for item in items[:5]))
    store.outputs.ids.step = at("before write", lambda: group.write(other, version(7)))
    await group.write(store, version(8), make_output(2, root_job_id="job-7"))
    await group.patch(store, Patch("key_hash", "key-3", is_approved=True), Patch("key_hash", "key-4", tags={"a": 1}))
    await group.delete(store, written[6])
    await group.write(store, items[6])
    for query in (
        {},
        {"job_id": "job-1"},
        {"country": "Germany", "region": "DE-BE"},
        {"is_approved": True},
        {"is_approved": False, "scraped_before": datetime(2200, 1, 1, tzinfo=UTC)},
        {"created_after": datetime(2020, 1, 1, tzinfo=UTC), "cursor": 1},
        {"newest_first": True, "limit": 2},
        {"deleted": True, "cursor": 2},
        {"limit": 1000, "key_hash": "key-1"},
    ):
        await group.walk(store, **query)
    await store.outputs.one(owner, written[0]["output_id"])
    await store.outputs.watermark(owner)
    await store.outputs.versions(owner, written[0]["output_id"], 10, 0)
    async for _ in store.outputs.pages(owner, Query()):
        pass
    with reading(store, group, cursor=(await store.outputs.watermark(owner)).position) as reader:
        waiting = asyncio.ensure_future(reader.next(SOON))
        await until_waiting(store)
        await group.write(store, make_output(50))
        await waiting
    store.outputs.ids.step = at("written", fail())
    await group.write(store, make_output(51))
    await open_batch(store, group, 2)
    await reap(store, group)
    await store.groups.set(owner, {"retention_days": 30})
    await group.delete_matching(store, job_id="job-1")
    await group.write(store, make_output(52))
    long_ago = {"$set": {"replaced_date": datetime(2020, 1, 1, tzinfo=UTC)}}
    assert (await store.database["versions"].update_many(group.owner, long_ago)).modified_count
    await look_after(store, group)
    assert await store.database["versions"].count_documents(group.owner) == 0
    await store.upkeep.run()
    await store.figures.in_flight()
    await store.reviews.add(owner, [{"job_id": "job-1", "status": "ok", "comment": "", "review_date": None}])
    for limit in (None, 1):
        reviews = await store.reviews.latest(owner, limit, None)
        assert [chunk async for chunk in reviews.chunks]
    await store.reviews.latest_of(owner, ["job-1"])
    await store.groups.one(owner)
    await group.jobs(store)
    assert await groups_of(store, group.organization)
    cookie = {
        "domain": "d",
        "name": "n",
        "value": "v",
        "path": "",
        "secure": False,
        "http_only": False,
        "expires": None,
    }
    entry = {"domain": "d", "path": "/", "key": "k", "value": "v", "expires": None}
    await store.cookies.set(group.organization, [cookie])
    await store.local_storage.set(group.organization, [entry])
    await store.origins.set(group.organization, [{"origin": "o", "domain": "d", "value": "v"}])
    some = Selection("d", subdomains=True, active_at=datetime.now(UTC))
    for state in store.browser_state:
        async for _ in state.records(group.organization, some):
            pass
        async for _ in (await state.page(group.organization, some, 1, None)).chunks:
            pass
        await state.delete(group.organization, Selection("d"))
    await notify(store, owner)
    await lease_sessions(store, group.organization)
    await store.groups.set(owner, {"rules": [{"min_items": 1}], "retention_days": 30})
    await store.groups.settings(owner)
    for said in ("running", "failed", "running", "finished"):
        await store.crawls.declare(owner, "job-9", {"state": said, "series": None})
    await group.write(store, make_output(60, root_job_id="job-9"))
    finished = await store.crawls.finish(owner, "job-9")
    await store.crawls.notify(owner, finished)
    missing = await store.missing.of(owner, "job-9")
    assert missing is not None
    await store.crawls.unknown_series(owner, "job-9", "lamps")
    await store.missing.delete(owner, "job-9")
    await store.crawls.one(owner, "job-9")
    for more in (
        {"missing": "a.b"},
        {"where": (("a", ":", "1"),)},
        {"rejected": True},
        {"missing_from": missing},
        {"missing_from": missing._replace(holders=None)},
    ):
        await group.read(store, **more)
    await group.remove(store)


async def notify(store: Store, group: StoredGroup) -> None:
    """Use every method of the webhooks."""
    organization_id = group.organization_id
    events = ["job.finished", "group.changed"]
    webhook = {"url": "https://hooks.example/", "events": events, "group_id": None, "label": ""}
    webhook_id = (await store.webhooks.create(organization_id, webhook))["webhook_id"]
    await store.webhooks.list(organization_id)
    await store.webhooks.find(organization_id, webhook_id)
    await store.webhooks.exists(organization_id, webhook_id)
    deliveries = store.webhooks.deliveries
    for last, outcome in ((0, Outcome(204)), (0, Outcome(500, "", "no")), (len(RETRIES), Outcome(500, "", "no"))):
        await store.outputs.patch(group, [Patch("key_hash", "key-3", is_approved=not last)])
        await store.webhooks.job_finished(group, {"job_id": f"job-{last}", "finish_date": last})
        await deliveries.due([1, 2], 10)
        where = {"organization_id": organization_id, "webhook_id": webhook_id}
        await store.database["webhooks"].update_one(where, {"$unset": {"look": ""}})
        lane = await deliveries.lease(organization_id, webhook_id)
        assert lane is not None
        lane = await deliveries.add_changes(lane)
        await store.database["deliveries"].update_many(where, {"$set": {"attempts": last}})
        while message := await deliveries.next(lane):
            await deliveries.record(lane, message, outcome)
        await deliveries.release(lane)
    message = new_message("webhook.test", {})
    await deliveries.record_test(organization_id, webhook_id, message, Outcome(204))
    await deliveries.recent(organization_id, webhook_id)
    await store.webhooks.delete(organization_id, webhook_id)


async def lease_sessions(store: Store, organization_id: int) -> None:
    """Use every method of the pools, sessions and leases."""
    sessions, secrets = store.sessions, {"storage_state": '{"cookies": [], "origins": []}', "user_data": "{}"}
    pool = await sessions.pools.set(organization_id, "shop", {"max_uses": 5})
    await sessions.pools.set(organization_id, "shop", {"max_uses": None})
    for name in ("anna", "ben"):
        await sessions.records.put(organization_id, "shop", name, dict(secrets), None)
    await sessions.records.put(organization_id, "shop", "anna", {"state": "ready"}, 1)
    assert [chunk async for chunk in (await sessions.records.listing(pool, "ready", 1, None)).chunks]
    session = await sessions.records.find(pool, "anna")
    assert session is not None and await sessions.secrets.read(organization_id, session)
    for outcome in ("good", "blocked"):
        request = wanted(lease_id=outcome * 6, name="anna")
        assert await sessions.queue.take(pool, request) is not None
        assert await sessions.leases.again(pool, request) is not None
        await sessions.leases.renew(organization_id, request.lease_id, 60, secrets)
        for _ in range(2):
            await sessions.leases.release(organization_id, request.lease_id, Release(outcome, secrets, None, "x"))
    request = wanted(name="anna")
    assert await sessions.queue.wait(pool, request, 0.1) is None
    request = wanted(shared=True)
    assert await sessions.queue.take(pool, request) is not None
    await sessions.leases.undo(pool, request)
    before = await sessions.pools.empty_notice(pool)
    assert before is not None
    await sessions.pools.note_empty(pool, before)
    await sessions.pools.seconds_until_due(pool)
    await sessions.pools.settle(pool)
    await sessions.pools.list(organization_id)
    assert await sessions.records.delete(pool, "ben")
    assert await sessions.pools.delete(organization_id, "shop") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_due")
async def test_every_command_carries_the_whole_shard_key(
    store: Store, other: Store, group: Group, commands: Commands
) -> None:
    await exercise(store, other, group)
    assert {command.collection for command in commands.sent} >= set(SHARD_KEYS)
    assert {"find", "insert", "update", "delete", "findAndModify", "aggregate"} <= {c.name for c in commands.sent}
    assert without_shard_key(commands) == []


async def test_the_test_sees_a_command_without_its_shard_key(store: Store, commands: Commands) -> None:
    await store.database["outputs"].find_one({"organization_id": {"$in": [1, 2]}, "group_id": "lamps"})
    await store.database["cookies"].update_one({"name": "n"}, {"$set": {"value": "v"}})
    assert [found[:2] for found in without_shard_key(commands)] == [("find", "outputs"), ("update", "cookies")]


# -- round trips ----------------------------------------------------------------------------------


async def slow_down(store: Store, commands: Commands) -> None:
    """Let each command take its time, on connections that are there: to make one takes long on a busy machine."""
    commands.delay = DELAY
    await asyncio.gather(*(store.database["meta"].find_one({"_id": n}) for n in range(4)))
    commands.clear()


@pytest.mark.slow
async def test_new_and_unchanged_items_take_three_round_trips(store: Store, group: Group, commands: Commands) -> None:
    await group.write(store, make_output(0))
    await slow_down(store, commands)
    for _ in ("new", "unchanged"):
        commands.clear()
        await group.write(store, *(make_output(n) for n in range(1, 101)))
        assert commands.rounds() == 3, [(c.name, c.collection) for c in commands.sent]
        assert len(commands.sent) == 4


@pytest.mark.slow
async def test_a_page_takes_one_round_trip_with_a_remembered_watermark_else_two(
    store: Store, other: Store, group: Group, commands: Commands
) -> None:
    await group.write(other, *(make_output(n) for n in range(30)))
    await slow_down(store, commands)
    for expected in (2, 1):
        commands.clear()
        assert len(await group.read(store, limit=10, cursor=1)) == 10
        assert commands.rounds() == len(commands.sent) == expected


@pytest.mark.slow
@pytest.mark.parametrize("history_days", [0, 30])
@pytest.mark.parametrize("of_tags", [False, True])
async def test_a_patch_takes_three_round_trips_one_of_tags_and_one_with_history_one_more(
    store: Store, group: Group, commands: Commands, of_tags: bool, history_days: int
) -> None:
    await group.write(store, *(make_output(n) for n in range(20)))
    await group.set(store, history_days=history_days)
    await slow_down(store, commands)
    patch: dict[str, Any] = {"tags": {"a": 1}} if of_tags else {"is_approved": True}
    await group.patch(store, *(Patch("key_hash", f"key-{n}", **patch) for n in range(20)))
    # The stored tags are measured before a round takes them; versions are copied before they are replaced.
    assert commands.rounds() == 3 + of_tags + (history_days > 0)
