"""GET, POST and DELETE /v1/tokens: an organization manages its own tokens."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from service.store import MAX_TOKENS, Store, is_token
from tests.conftest import MakeApi
from tests.support.api import Api
from tests.support.contract import HeldApi

PATH = "/v1/tokens"


@pytest.fixture
async def owner(make_api: MakeApi, organization: int) -> Api:
    """A caller who may manage the tokens of the organization, and nothing else."""
    api = await make_api(organization, ["admin"], label="ada")
    return HeldApi(api.client, api.token, api.organization_id)


async def make(owner: Api, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = await owner.ok(PATH, {"label": "crawler", "scopes": ["read"]} | changes)
    return made


async def test_a_token_that_was_made_works_and_is_shown_once(owner: Api) -> None:
    made = await make(owner, scopes=["write", "read", "read"], expires="2100-01-31")
    assert is_token(made["token"])
    caller = Api(owner.client, made["token"], owner.organization_id)
    assert (await caller.ok("/v1/token"))["scopes"] == ["read", "write"]
    listed = await owner.get(PATH)
    assert made["token"] not in listed.body.decode()
    assert [token["label"] for token in listed.json] == ["crawler", "ada"]
    (token, _) = listed.json
    assert {**token, "create_date": "", "last_used": ""} == {
        "token_id": made["token_id"],
        "label": "crawler",
        "scopes": ["read", "write"],
        "create_date": "",
        "last_used": "",
        "expires": "2100-01-31T00:00:00.000Z",
        "revoked": None,
    }


async def test_a_revoked_token_stops_working_and_stays_listed(owner: Api) -> None:
    made = await make(owner)
    caller = Api(owner.client, made["token"], owner.organization_id)
    revoked = await owner.delete(f"{PATH}/{made['token_id']}")
    assert (revoked.status, revoked.json["revoked"] is None) == (200, False)
    assert (await caller.get("/v1/outputs/shop")).status == 401
    again = await owner.delete(f"{PATH}/{made['token_id']}")
    assert (again.status, again.json["revoked"]) == (200, revoked.json["revoked"])
    assert [token["revoked"] is None for token in await owner.ok(PATH)] == [False, True]


async def test_a_token_cannot_revoke_itself(owner: Api) -> None:
    (own,) = await owner.ok(PATH)
    refused = await owner.delete(f"{PATH}/{own['token_id']}")
    assert (refused.status, refused.problems()) == (409, [(["path", "token_id"], "own_token")])
    assert (await owner.get(PATH)).status == 200


async def test_a_faulty_field_is_named_and_makes_no_token(owner: Api) -> None:
    for field, value, loc, kind in [
        ("scopes", ["read", "admin"], ["body", "scopes", "1"], "value_error"),
        ("scopes", ["everything"], ["body", "scopes", "0"], "value_error"),
        ("scopes", [], ["body", "scopes"], "value_error"),
        ("scopes", ["read"] * 5, ["body", "scopes"], "value_error"),
        ("scopes", "read", ["body", "scopes"], "list_type"),
        ("label", "", ["body", "label"], "string_too_short"),
        ("label", "x" * 257, ["body", "label"], "string_too_long"),
        ("expires", "2020-01-31", ["body", "expires"], "value_error"),
        ("token", "sds_mine", ["body", "token"], "unknown_field"),
    ]:
        refused = await owner.post(PATH, {"label": "crawler", "scopes": ["read"], field: value})
        assert (refused.status, refused.problems()) == (422, [(loc, kind)]), (field, value)
        assert len(await owner.ok(PATH)) == 1, (field, value)


async def test_tokens_of_another_organization_do_not_exist(owner: Api, make_api: MakeApi) -> None:
    made = await make(owner)
    stranger = await make_api(scopes=["admin"])
    assert (await stranger.delete(f"{PATH}/{made['token_id']}")).status == 404
    assert len(await stranger.ok(PATH)) == 1
    assert (await owner.delete(f"{PATH}/.*")).status == 404
    assert (await owner.ok(PATH))[0]["revoked"] is None


async def test_the_last_use_of_a_token_is_listed_and_its_first_one_logged(
    owner: Api, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="service"):
        before = datetime.now(UTC).replace(microsecond=0)
        made = await make(owner)
        assert (await owner.ok(PATH))[0]["last_used"] is None
        await Api(owner.client, made["token"], owner.organization_id).ok("/v1/token")
        async with asyncio.timeout(30):  # it is stored beside the request
            while (last_used := (await owner.ok(PATH))[0]["last_used"]) is None:
                await asyncio.sleep(0.01)
        assert datetime.fromisoformat(last_used) >= before
        await owner.delete(f"{PATH}/{made['token_id']}")
    events = [record for record in caplog.records if getattr(record, "token_id", "") == made["token_id"]]
    assert [event.getMessage() for event in events] == ["token made", "token used for the first time", "token revoked"]
    assert [getattr(event, "by_label", None) for event in events] == ["ada", None, "ada"]
    assert made["token"] not in caplog.text


async def test_tokens_that_no_longer_work_give_way_to_new_ones(owner: Api, store: Store) -> None:
    own = await store.database["tokens"].find_one({"organization_id": owner.organization_id})
    assert own is not None
    others = [
        {**own, "_id": f"{n:064x}", "label": str(n), "create_date": datetime(2020, 1, 1, tzinfo=UTC)}
        for n in range(MAX_TOKENS - 1)
    ]
    await store.database["tokens"].insert_many(others)
    refused = await owner.post(PATH, {"label": "crawler", "scopes": ["read"]})
    assert (refused.status, refused.problems()) == (422, [(["body"], "too_many")])
    revoked = await owner.delete(f"{PATH}/{'7'.zfill(64)[:12]}")
    assert revoked.status == 200
    await make(owner)
    assert len(await owner.ok(PATH)) == MAX_TOKENS
