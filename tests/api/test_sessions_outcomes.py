"""How a lease ends: the outcomes of a release, and a lease that ends by itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from service.store import Store
from tests.support.api import Api
from tests.support.sessions import lapse, lease, lost, make_state, moment, put, refused, release, session_of


async def test_a_good_release_saves_and_rests_the_session(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop", {"rest_seconds": 60})
    await put(admin, "/v1/sessions/shop/anna", {"storage_state": make_state("old")})
    taken = await lease(admin, "shop")
    ended = await release(admin, taken["lease_id"], storage_state=make_state("new"), note="fine")
    assert (ended["saved"], ended["state"], ended["uses"], ended["version"], ended["note"]) == (
        True,
        "resting",
        1,
        2,
        "fine",
    )
    assert (ended["owner"], ended["lease_expires"]) == (None, None) and "storage_state" not in ended
    assert moment(ended["rest_until"]) - moment(ended["last_used"]) == timedelta(seconds=60)
    assert (await admin.ok("/v1/sessions/shop/anna"))["storage_state"] == make_state("new")
    assert 1 <= int((await refused(admin)).headers["Retry-After"]) <= 60
    await lost(admin, taken["lease_id"])


async def test_rest_seconds_of_a_release_replace_those_of_the_pool(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop", {"rest_seconds": 60})
    await put(admin, "/v1/sessions/shop/anna", {})
    assert (await release(admin, (await lease(admin, "shop"))["lease_id"], rest_seconds=0))["state"] == "ready"
    ended = await release(admin, (await lease(admin, "shop"))["lease_id"], rest_seconds=600)
    assert moment(ended["rest_until"]) - moment(ended["last_used"]) == timedelta(seconds=600)


async def test_rest_seconds_of_a_blocked_release_replace_the_blocked_rest_of_the_pool(admin: Api, store: Store) -> None:
    await put(admin, "/v1/sessions/shop/anna", {})
    for seconds in (0, 600, 7200):
        ended = await release(admin, (await lease(admin, "shop"))["lease_id"], "blocked", rest_seconds=seconds)
        assert moment(ended["rest_until"]) - moment(ended["last_used"]) == timedelta(seconds=seconds), seconds
        await lapse(store, admin.organization_id, seconds=seconds + 1)
    await put(admin, "/v1/sessions/shop", {"blocked_rest_seconds": None})
    ended = await release(admin, (await lease(admin, "shop"))["lease_id"], "blocked", rest_seconds=600)
    assert (ended["state"], ended["rest_until"]) == ("retired", None)


async def test_a_rest_ends_by_itself(admin: Api, store: Store) -> None:
    await put(admin, "/v1/sessions/shop", {"rest_seconds": 60})
    await put(admin, "/v1/sessions/shop/anna", {})
    await release(admin, (await lease(admin, "shop"))["lease_id"])
    await lapse(store, admin.organization_id, seconds=61)
    found = await admin.ok("/v1/sessions/shop/anna")
    assert (found["state"], found["rest_until"]) == ("ready", None)
    await lease(admin, "shop")


async def test_a_bad_use_adds_an_error_and_a_good_one_takes_half_off(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop/anna", {})
    errors = []
    for outcome in ("bad", "good", "good", "good", "bad", "good", "bad"):
        errors.append((await release(admin, (await lease(admin, "shop"))["lease_id"], outcome))["errors"])
    assert errors == [1, 0.5, 0, 0, 1, 0.5, 1.5]


async def test_a_session_with_too_many_errors_is_blocked_for_a_while(admin: Api, store: Store) -> None:
    await put(admin, "/v1/sessions/shop", {"max_errors": 2, "blocked_rest_seconds": 600})
    await put(admin, "/v1/sessions/shop/anna", {})
    assert (await release(admin, (await lease(admin, "shop"))["lease_id"], "bad"))["state"] == "ready"
    ended = await release(admin, (await lease(admin, "shop"))["lease_id"], "bad", user_data={"saved": "too"})
    assert (ended["state"], ended["errors"], ended["saved"]) == ("blocked", 2, True)
    assert moment(ended["rest_until"]) - moment(ended["last_used"]) == timedelta(seconds=600)
    await lapse(store, admin.organization_id, seconds=601)
    found = await admin.ok("/v1/sessions/shop/anna")
    assert (found["state"], found["errors"], found["user_data"]) == ("ready", 0, {"saved": "too"})


@pytest.mark.parametrize(
    ("outcome", "state", "uses"),
    [("blocked", "blocked", 1), ("logged_out", "needs_login", 1), ("interrupted", "ready", 1), ("unused", "ready", 0)],
)
async def test_these_outcomes_save_nothing(admin: Api, outcome: str, state: str, uses: int) -> None:
    await put(admin, "/v1/sessions/shop/anna", {"storage_state": make_state("kept")})
    taken = await lease(admin, "shop")
    ended = await release(admin, taken["lease_id"], outcome, storage_state=make_state("lost"))
    assert (ended["state"], ended["uses"], ended["errors"], ended["saved"]) == (state, uses, 0, False)
    found = await admin.ok("/v1/sessions/shop/anna")
    assert (found["storage_state"], found["version"]) == (make_state("kept"), 1)


async def test_a_logged_out_session_waits_for_a_new_state(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop/anna", {})
    await release(admin, (await lease(admin, "shop"))["lease_id"], "logged_out")
    await refused(admin)
    await put(admin, "/v1/sessions/shop/anna", {"storage_state": make_state("new")})
    assert (await lease(admin, "shop"))["session"]["storage_state"] == make_state("new")


async def test_an_unused_session_neither_rests_nor_comes_next(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop", {"rest_seconds": 60})
    for name in ("a", "b"):
        await put(admin, f"/v1/sessions/shop/{name}", {})
    first = await lease(admin, "shop")
    ended = await release(admin, first["lease_id"], "unused")
    assert (ended["state"], ended["uses"], ended["last_used"]) == ("ready", 0, None)
    second = await lease(admin, "shop")
    assert second["session"]["name"] != first["session"]["name"]
    assert (await lease(admin, "shop"))["session"]["name"] == first["session"]["name"]


async def test_a_session_is_retired_after_its_uses(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop", {"max_uses": 2})
    await put(admin, "/v1/sessions/shop/anna", {})
    assert (await release(admin, (await lease(admin, "shop"))["lease_id"]))["state"] == "ready"
    assert (await release(admin, (await lease(admin, "shop"))["lease_id"], "bad"))["state"] == "retired"
    renewed = await put(admin, "/v1/sessions/shop/anna", {"storage_state": make_state("new")})
    assert (renewed["state"], renewed["uses"]) == ("ready", 0)


async def test_a_session_is_retired_at_its_age(admin: Api, store: Store) -> None:
    await put(admin, "/v1/sessions/shop", {"max_age_days": 2})
    await put(admin, "/v1/sessions/shop/anna", {})
    assert (await release(admin, (await lease(admin, "shop"))["lease_id"]))["state"] == "ready"
    begun = {"begun": datetime.now(UTC) - timedelta(days=2, seconds=1)}
    await store.database["sessions"].update_one({"organization_id": admin.organization_id}, {"$set": begun})
    assert (await release(admin, (await lease(admin, "shop"))["lease_id"]))["state"] == "retired"


async def test_a_lease_that_is_not_released_ends_by_itself(admin: Api, store: Store) -> None:
    await put(admin, "/v1/sessions/shop", {"rest_seconds": 60})
    await put(admin, "/v1/sessions/shop/anna", {"storage_state": make_state("kept")})
    taken = await lease(admin, "shop")
    await lapse(store, admin.organization_id, seconds=301)
    await lost(admin, taken["lease_id"])  # also before anybody has looked at the session
    found = await admin.ok("/v1/sessions/shop/anna")
    assert (found["state"], found["uses"], found["errors"], found["version"]) == ("resting", 1, 1, 1)
    assert found["storage_state"] == make_state("kept")
    await lost(admin, taken["lease_id"])
    await lapse(store, admin.organization_id, seconds=61)
    await lease(admin, "shop")


async def test_a_lease_that_ended_long_ago_does_not_rest_any_more(admin: Api, store: Store) -> None:
    await put(admin, "/v1/sessions/shop", {"rest_seconds": 60})
    await put(admin, "/v1/sessions/shop/anna", {})
    await lease(admin, "shop")
    await lapse(store, admin.organization_id, seconds=3600)
    assert (await lease(admin, "shop"))["session"]["uses"] == 1


async def test_leases_that_end_by_themselves_block_a_session_in_the_end(admin: Api, store: Store) -> None:
    await put(admin, "/v1/sessions/shop", {"max_errors": 2})
    await put(admin, "/v1/sessions/shop/anna", {})
    for _ in range(2):
        await lease(admin, "shop", seconds=10)
        await lapse(store, admin.organization_id, seconds=11)
    assert (await session_of(admin, "shop", "anna"))["state"] == "blocked"
