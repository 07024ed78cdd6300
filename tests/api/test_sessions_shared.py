"""Shared leases: for reading only, many at once, none beside an exclusive one."""

from __future__ import annotations

import asyncio

import pytest

from service.store import Store
from tests.support.api import Api
from tests.support.sessions import OWN_ID, lapse, lease, lost, make_state, put, refused, release, session_of


async def test_shared_leases_stand_beside_each_other_and_save_nothing(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop/anna", {"storage_state": make_state("anna")})
    leases = [await lease(admin, "shop", shared=True, owner=str(n)) for n in range(3)]
    assert len({taken["lease_id"] for taken in leases}) == 3
    assert all(taken["session"]["storage_state"] == make_state("anna") for taken in leases)
    await refused(admin)
    renewed = await put(admin, f"/v1/leases/{leases[0]['lease_id']}", {"user_data": {"a": 1}})
    assert renewed["saved"] is False
    for left, taken in enumerate(reversed(leases)):
        ended = await release(admin, taken["lease_id"], "bad", storage_state=make_state("lost"), note="lost")
        assert (ended["saved"], ended["uses"], ended["errors"], ended["note"]) == (False, left + 1, 0, "")
        assert ended["state"] == ("leased" if left < 2 else "ready")
    found = await admin.ok("/v1/sessions/shop/anna")
    assert (found["storage_state"], found["user_data"], found["version"]) == (make_state("anna"), None, 1)


async def test_there_are_no_shared_leases_beside_an_exclusive_one(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop/anna", {})
    taken = await lease(admin, "shop")
    await refused(admin, shared=True)
    await release(admin, taken["lease_id"])
    await lease(admin, "shop", shared=True)
    await refused(admin)


async def test_a_shared_lease_takes_a_ready_session_first(admin: Api) -> None:
    for name in ("a", "b"):
        await put(admin, f"/v1/sessions/shop/{name}", {})
    names = [(await lease(admin, "shop", shared=True))["session"]["name"] for _ in range(3)]
    assert set(names[:2]) == {"a", "b"}


@pytest.mark.slow
async def test_a_hundred_shared_leases_are_the_most(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop/anna", {})
    responses = await asyncio.gather(*(admin.post("/v1/sessions/shop/lease", {"shared": True}) for _ in range(103)))
    taken = [response.json["lease_id"] for response in responses if response.status == 200]
    assert len(taken) == len(set(taken)) == 100
    await release(admin, taken[0])
    await lease(admin, "shop", shared=True)


async def test_shared_leases_end_by_themselves_one_by_one(admin: Api, store: Store) -> None:
    await put(admin, "/v1/sessions/shop/anna", {})
    short = await lease(admin, "shop", shared=True, seconds=10)
    long = await lease(admin, "shop", shared=True, seconds=1000)
    await lapse(store, admin.organization_id, seconds=11)
    await lost(admin, short["lease_id"])
    found = await session_of(admin, "shop", "anna")
    assert (found["state"], found["uses"], found["errors"]) == ("leased", 1, 1)
    ended = await release(admin, long["lease_id"])
    assert (ended["state"], ended["uses"]) == ("ready", 2)


@pytest.mark.slow
async def test_a_repeated_shared_request_returns_its_own_lease(admin: Api) -> None:
    await put(admin, "/v1/sessions/shop/anna", {})
    await lease(admin, "shop", shared=True)
    copies = [await lease(admin, "shop", shared=True, lease_id=OWN_ID) for _ in range(2)]
    assert copies[0]["lease_id"] == copies[1]["lease_id"]
    await release(admin, OWN_ID)
    await lost(admin, OWN_ID)


async def test_a_session_that_a_person_has_marked_gets_no_further_shared_lease(admin: Api) -> None:
    for mark in ("needs_login", "blocked", "retired"):
        await put(admin, "/v1/sessions/shop/anna", {"state": "ready"})
        taken = await lease(admin, "shop", shared=True)
        await put(admin, "/v1/sessions/shop/anna", {"state": mark})
        await refused(admin, shared=True)
        assert (await release(admin, taken["lease_id"]))["state"] == mark
    await put(admin, "/v1/sessions/shop/anna", {"state": "ready"})
    await lease(admin, "shop", shared=True)
    await put(admin, "/v1/sessions/shop/anna", {"storage_state": make_state("new")})
    assert (await lease(admin, "shop", shared=True))["session"]["storage_state"] == make_state("new")
