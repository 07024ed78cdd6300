"""Leases: one holder at a time, renewed and released with an outcome."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from service.store import Store, wanted
from tests.conftest import MakeApi
from tests.support.api import Api
from tests.support.fault_proxy import FaultProxy, Refused
from tests.support.raw import connect
from tests.support.sessions import OWN_ID, lapse, lease, lost, make_state, moment, put, refused, release, session_of


async def test_a_lease_returns_the_session_with_its_secrets(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop/anna", {"storage_state": make_state("anna"), "user_data": {"agent": "x"}})
    taken = await lease(admin, "shop", owner="worker 7")
    session = taken["session"]
    assert set(taken) == {"lease_id", "seconds", "expires", "session"} and taken["seconds"] == 300
    assert (session["storage_state"], session["user_data"]) == (make_state("anna"), {"agent": "x"})
    assert (session["state"], session["owner"], session["uses"], session["version"]) == ("leased", "worker 7", 0, 1)
    assert session["lease_expires"] == taken["expires"]
    left = (moment(taken["expires"]) - datetime.now(UTC)).total_seconds()
    assert 290 < left <= 301
    listed = await admin.get("/v1/sessions/shop")
    assert listed.json[0]["owner"] == "worker 7" and taken["lease_id"].encode() not in listed.body


async def test_a_leased_session_is_given_to_nobody_else(admin: Api) -> None:
    for name in ("anna", "ben"):
        await put(admin, f"/v1/sessions/shop/{name}", {})
    leases = [await lease(admin, "shop", seconds=10), await lease(admin, "shop", seconds=100)]
    assert {taken["session"]["name"] for taken in leases} == {"anna", "ben"}
    assert 1 <= int((await refused(admin)).headers["Retry-After"]) <= 10
    assert 90 <= int((await refused(admin, name=leases[1]["session"]["name"])).headers["Retry-After"]) <= 100


async def test_without_anything_that_ends_there_is_no_retry_after(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop/anna", {"state": "needs_login"})
    assert "Retry-After" not in (await refused(admin)).headers


async def test_many_at_once_get_different_sessions(admin: Api) -> None:
    await asyncio.gather(*(put(admin, f"/v1/sessions/shop/{n}", {}) for n in range(10)))
    responses = await asyncio.gather(*(admin.post("/v1/sessions/shop/lease", {}) for _ in range(15)))
    taken = [response.json["session"]["name"] for response in responses if response.status == 200]
    assert sorted(taken) == [str(n) for n in range(10)]


async def test_the_session_used_longest_ago_comes_first(admin: Api) -> None:
    for name in ("a", "b", "c"):
        await put(admin, f"/v1/sessions/shop/{name}", {})
    for name in ("c", "a", "b"):
        await release(admin, (await lease(admin, "shop", name=name))["lease_id"])
    await put(admin, "/v1/sessions/shop/new", {})
    assert [(await lease(admin, "shop"))["session"]["name"] for _ in range(4)] == ["new", "c", "a", "b"]


async def test_a_name_gets_this_session_and_no_other(admin: Api) -> None:
    for name in ("a", "b"):
        await put(admin, f"/v1/sessions/shop/{name}", {})
    assert (await lease(admin, "shop", name="b"))["session"]["name"] == "b"
    await refused(admin, name="b")
    response = await admin.post("/v1/sessions/shop/lease", {"name": "c"})
    assert (response.status, response.problems()) == (404, [(["body", "name"], "not_found")])


async def test_a_lease_request_that_is_repeated_returns_the_same_lease(admin: Api) -> None:
    for name in ("a", "b"):
        await put(admin, f"/v1/sessions/shop/{name}", {"user_data": {"name": name}})
    body = {"lease_id": OWN_ID, "owner": "w"}
    first, second = await lease(admin, "shop", **body), await lease(admin, "shop", **body)
    assert first["lease_id"] == second["lease_id"] == OWN_ID
    assert first["session"] == second["session"] and first["expires"] == second["expires"]
    copies = await asyncio.gather(*(lease(admin, "shop", **body) for _ in range(8)))
    assert {copy["session"]["name"] for copy in copies} == {first["session"]["name"]}
    assert (await admin.ok("/v1/sessions"))[0]["sessions"]["leased"] == 1


async def test_copies_of_a_first_request_get_one_session(admin: Api) -> None:
    for number in range(10):
        await put(admin, f"/v1/sessions/shop/{number}", {})
    copies = await asyncio.gather(*(lease(admin, "shop", lease_id=OWN_ID) for _ in range(8)))
    assert len({copy["session"]["name"] for copy in copies}) == 1
    assert (await admin.ok("/v1/sessions"))[0]["sessions"]["leased"] == 1


async def test_a_late_copy_of_a_lease_request_takes_no_second_session(admin: Api) -> None:
    for name in ("a", "b"):
        await put(admin, f"/v1/sessions/shop/{name}", {})
    await lease(admin, "shop", lease_id=OWN_ID)
    await release(admin, OWN_ID)
    response = await admin.post("/v1/sessions/shop/lease", {"lease_id": OWN_ID})
    assert (response.status, response.problems()) == (409, [(["body", "lease_id"], "lease_lost")])
    assert (await admin.ok("/v1/sessions"))[0]["sessions"]["ready"] == 2


async def test_a_copy_of_a_request_whose_lease_ended_by_itself_takes_no_second_session(
    admin: Api, store: Store
) -> None:
    for name in ("a", "b"):
        await put(admin, f"/v1/sessions/shop/{name}", {})
    await lease(admin, "shop", lease_id=OWN_ID)
    await lapse(store, admin.organization_id, seconds=301)
    response = await admin.post("/v1/sessions/shop/lease", {"lease_id": OWN_ID})
    assert (response.status, response.problems()) == (409, [(["body", "lease_id"], "lease_lost")])
    assert (await admin.ok("/v1/sessions"))[0]["sessions"]["ready"] == 2


async def test_a_late_copy_that_is_undone_does_not_end_the_lease_that_was_delivered(admin: Api, store: Store) -> None:
    """Found by the checker: the copy in a paused process found its client gone, and took the lease back."""
    await put(admin, "/v1/sessions/shop/anna", {})
    pool = await store.sessions.pools.find(admin.organization_id, "shop")
    assert pool
    first, late = wanted(OWN_ID), wanted(OWN_ID)
    assert await store.sessions.queue.take(pool, first)
    await lease(admin, "shop", lease_id=OWN_ID)
    assert await store.sessions.queue.take(pool, late)
    for copy in (first, late):
        assert not await store.sessions.leases.undo(pool, copy)
    await release(admin, OWN_ID)


async def test_a_lease_id_of_another_request_is_refused(admin: Api, stranger: Api) -> None:
    for name in ("a", "b"):
        await put(admin, f"/v1/sessions/shop/{name}", {})
    await put(admin, "/v1/sessions/other/a", {})
    name = (await lease(admin, "shop", lease_id=OWN_ID))["session"]["name"]
    for pool, body in (("other", {}), ("shop", {"name": "b" if name == "a" else "a"}), ("shop", {"shared": True})):
        response = await admin.post(f"/v1/sessions/{pool}/lease", {"lease_id": OWN_ID, **body})
        assert (response.status, response.problems()) == (409, [(["body", "lease_id"], "lease_in_use")])
    await put(stranger, "/v1/sessions/shop/a", {})
    await lease(stranger, "shop", lease_id=OWN_ID)


async def test_the_old_holder_never_touches_the_next_ones_session(admin: Api, store: Store) -> None:
    await put(admin, "/v1/sessions/shop/anna", {"user_data": {"of": "first"}})
    old = await lease(admin, "shop", seconds=10)
    await lapse(store, admin.organization_id, seconds=11)
    new = await lease(admin, "shop")
    await lost(admin, old["lease_id"])
    found = await admin.ok("/v1/sessions/shop/anna")
    assert (found["user_data"], found["state"]) == ({"of": "first"}, "leased")
    await release(admin, new["lease_id"], user_data={"of": "second"})


async def test_a_lease_that_a_former_primary_takes_for_over_goes_on(
    wired_api: Api, wired: Store, wire: FaultProxy
) -> None:
    """Cut off from the others, it has not heard of the renewal, and responds to who has not heard of its successor."""
    await put(wired_api, "/v1/sessions/shop/anna", {})
    taken = await lease(wired_api, "shop", seconds=10)
    (session,) = await wired.database["sessions"].find({"organization_id": wired_api.organization_id}).to_list(None)
    over = datetime.now(UTC) - timedelta(seconds=1)
    stale = {"_id": session["_id"], "due": over, "leases": [{"id": taken["lease_id"], "until": over}], "now": over}

    async def respond() -> None:
        raise Refused(ok=1.0, cursor={"id": 0, "ns": "test.sessions", "firstBatch": [stale]})

    def is_outside_of_transactions(body: dict[str, Any]) -> bool:  # such a member takes part in none
        return "$expr" in body["filter"] and "autocommit" not in body

    act = wire.before("find", "sessions", respond, times=math.inf, where=is_outside_of_transactions)
    await wired_api.ok("/v1/sessions/shop")
    assert act.reached.is_set()
    wire.clear()
    assert (await put(wired_api, f"/v1/leases/{taken['lease_id']}", {}))["seconds"] > 200


async def test_a_lease_that_ends_while_its_renewal_is_on_its_way_goes_on(
    wired_api: Api, store: Store, wire: FaultProxy
) -> None:
    await put(wired_api, "/v1/sessions/shop/anna", {})
    path = f"/v1/leases/{(await lease(wired_api, 'shop'))['lease_id']}"
    await lapse(store, wired_api.organization_id, seconds=300 - 2)
    go_on = asyncio.Event()
    renewed = wire.before("commitTransaction", "", go_on.wait)
    saving = asyncio.create_task(wired_api.put(path, {"user_data": {"save": 1}}))
    async with asyncio.timeout(60):
        await renewed.reached.wait()
    await asyncio.sleep(2.1)
    pool = await store.sessions.pools.find(wired_api.organization_id, "shop")
    assert pool is not None
    settling = asyncio.ensure_future(store.sessions.pools.settle(pool))
    await asyncio.sleep(0.3)
    go_on.set()
    assert (await saving).status == 200
    await settling
    assert (await put(wired_api, path, {}))["seconds"] > 200


async def test_a_save_that_its_client_gave_up_never_replaces_a_later_one(wired_api: Api, wire: FaultProxy) -> None:
    await put(wired_api, "/v1/sessions/shop/anna", {})
    path = f"/v1/leases/{(await lease(wired_api, 'shop'))['lease_id']}"
    later = asyncio.Event()
    look = wire.before("find", "sessions", later.wait, where=lambda body: "leases.id" in body["filter"])
    async with connect(wired_api) as connection:
        body = b'{"user_data": {"save": 1}}'
        head = f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {wired_api.token}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        await connection.send(head.encode() + body)
        async with asyncio.timeout(60):
            await look.reached.wait()
    wire.clear()
    for number in (1, 2):
        assert (await put(wired_api, path, {"user_data": {"save": number}}))["saved"]
    later.set()
    await asyncio.sleep(0.2)
    assert (await wired_api.ok("/v1/sessions/shop/anna"))["user_data"] == {"save": 2}


async def test_renewing_never_shortens_and_ends_at_the_limit(admin: Api, store: Store) -> None:
    await put(admin, "/v1/sessions/shop", {"max_lease_seconds": 400})
    await put(admin, "/v1/sessions/shop/anna", {})
    taken = await lease(admin, "shop", seconds=200)
    shorter = await put(admin, f"/v1/leases/{taken['lease_id']}", {"seconds": 10})
    assert shorter["expires"] == taken["expires"] and shorter["saved"] is False
    assert 195 <= shorter["seconds"] <= 200
    longer = await put(admin, f"/v1/leases/{taken['lease_id']}", {})
    assert 298 <= longer["seconds"] <= 300 and longer["expires"] > taken["expires"]
    longest = await put(admin, f"/v1/leases/{taken['lease_id']}", {"seconds": 3600})
    assert 395 <= longest["seconds"] <= 400
    assert (await session_of(admin, "shop", "anna"))["lease_expires"] == longest["expires"]
    await lapse(store, admin.organization_id, seconds=390)
    last = await put(admin, f"/v1/leases/{taken['lease_id']}", {"seconds": 3600})
    assert last["seconds"] <= 10


async def test_a_lease_is_never_longer_than_the_pool_allows(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop", {"max_lease_seconds": 20})
    await put(admin, "/v1/sessions/shop/anna", {})
    assert (await lease(admin, "shop", seconds=3600))["seconds"] == 20


async def test_settings_count_at_once(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop/anna", {})
    for seconds in (30, 40, 50):
        await put(admin, "/v1/sessions/shop", {"lease_seconds": seconds, "rest_seconds": 0})
        taken = await lease(admin, "shop")
        assert taken["seconds"] == seconds
        await put(admin, "/v1/sessions/shop", {"rest_seconds": seconds})
        ended = await release(admin, taken["lease_id"])
        assert moment(ended["rest_until"]) - moment(ended["last_used"]) == timedelta(seconds=seconds)
        await put(admin, "/v1/sessions/shop/anna", {"state": "ready"})


async def test_saving_during_a_lease(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop/anna", {"user_data": {"n": 0}})
    taken = await lease(admin, "shop")
    for number in (1, 2):
        saved = await put(admin, f"/v1/leases/{taken['lease_id']}", {"user_data": {"n": number}})
        assert saved["saved"] is True
        found = await admin.ok("/v1/sessions/shop/anna")
        assert (found["user_data"], found["version"], found["state"]) == ({"n": number}, number + 1, "leased")


async def test_a_release_that_is_repeated_word_for_word_gets_the_same_response(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop/anna", {})
    taken = await lease(admin, "shop")
    body = {"outcome": "good", "storage_state": make_state("mine"), "note": "done"}
    path = f"/v1/leases/{taken['lease_id']}/release"
    first = await admin.ok(path, body)
    next_one = await lease(admin, "shop")
    await admin.ok(
        f"/v1/leases/{next_one['lease_id']}/release", {"outcome": "good", "storage_state": make_state("next")}
    )
    assert await admin.ok(path, body) == first
    found = await admin.ok("/v1/sessions/shop/anna")
    assert (found["storage_state"], found["uses"], found["version"]) == (make_state("next"), 2, 3)
    for other in ({**body, "note": "other"}, {"outcome": "good"}, {**body, "storage_state": make_state("other")}):
        response = await admin.post(path, other)
        assert (response.status, response.problems()) == (409, [(["path", "lease_id"], "lease_lost")])
    await lost(admin, taken["lease_id"])


async def test_a_release_sent_many_times_at_once_counts_once(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop/anna", {})
    taken = await lease(admin, "shop")
    copies = await asyncio.gather(*(release(admin, taken["lease_id"], "bad", user_data={"a": 1}) for _ in range(8)))
    assert all(copy == copies[0] for copy in copies)
    assert (copies[0]["uses"], copies[0]["errors"], copies[0]["version"]) == (1, 1, 2)


@pytest.mark.parametrize("given", [{"storage_state": make_state("person")}, {"user_data": {"by": "person"}}])
async def test_what_a_person_puts_on_a_leased_session_wins(admin: Api, given: dict[str, Any]) -> None:
    await put(admin, "/v1/sessions/shop/anna", {"storage_state": make_state("old"), "user_data": {}})
    taken = await lease(admin, "shop")
    put_one = await put(admin, "/v1/sessions/shop/anna", given)
    assert (put_one["state"], put_one["version"]) == ("leased", 2)
    await refused(admin)
    saving = {"storage_state": make_state("late"), "user_data": {"by": "worker"}}
    assert (await put(admin, f"/v1/leases/{taken['lease_id']}", saving))["saved"] is False
    ended = await release(admin, taken["lease_id"], "bad", **saving, note="late")
    assert (ended["saved"], ended["state"], ended["errors"], ended["version"]) == (False, "ready", 0, 2)
    found = await admin.ok("/v1/sessions/shop/anna")
    assert {name: found[name] for name in given} == given and found["note"] == ""


@pytest.mark.parametrize("mark", ["needs_login", "retired", "blocked", "ready"])
@pytest.mark.parametrize("ends", ["released", "by itself"])
async def test_a_mark_on_a_leased_session_wins(admin: Api, store: Store, mark: str, ends: str) -> None:
    await put(admin, "/v1/sessions/shop", {"rest_seconds": 60})
    await put(admin, "/v1/sessions/shop/anna", {})
    taken = await lease(admin, "shop", seconds=10)
    assert (await put(admin, "/v1/sessions/shop/anna", {"state": mark}))["state"] == "leased"
    if ends == "released":
        assert (await release(admin, taken["lease_id"], "blocked"))["state"] == mark
    await lapse(store, admin.organization_id, seconds=11)
    assert (await session_of(admin, "shop", "anna"))["state"] == mark


async def test_a_note_alone_does_not_take_a_session_from_its_worker(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop/anna", {})
    taken = await lease(admin, "shop")
    await put(admin, "/v1/sessions/shop/anna", {"note": "look at this"})
    ended = await release(admin, taken["lease_id"], user_data={"a": 1})
    assert (ended["saved"], ended["note"]) == (True, "look at this")


async def test_a_lease_belongs_to_its_organization(admin: Api, stranger: Api) -> None:
    await put(admin, "/v1/sessions/shop/anna", {})
    taken = await lease(admin, "shop")
    await lost(stranger, taken["lease_id"])
    await release(admin, taken["lease_id"])


async def test_a_lease_id_that_was_never_given_is_lost(admin: Api) -> None:
    await lost(admin, "x" * 22)


@pytest.mark.parametrize("lease_id", ["x", "x" * 65, "ä" * 22])
async def test_a_lease_id_that_none_can_have_is_refused(admin: Api, lease_id: str) -> None:
    for response in (
        await admin.put(f"/v1/leases/{lease_id}", {}),
        await admin.post(f"/v1/leases/{lease_id}/release", {"outcome": "good"}),
    ):
        assert (response.status, response.problems()) == (422, [(["path", "lease_id"], "value_error")])


async def test_a_repeated_lease_has_the_time_that_is_left(admin: Api, store: Store, make_api: MakeApi) -> None:
    await put(admin, "/v1/sessions/shop/anna", {})
    taken = await lease(admin, "shop", lease_id=OWN_ID, seconds=100)
    await lapse(store, admin.organization_id, seconds=40)
    again = await lease(admin, "shop", lease_id=OWN_ID, seconds=100)
    left = (moment(again["expires"]) - datetime.now(UTC)).total_seconds()
    assert 55 <= again["seconds"] <= 60 and math.isclose(again["seconds"], left, abs_tol=2)
    assert taken["session"]["name"] == again["session"]["name"]
