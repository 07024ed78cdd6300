"""Tokens: which requests they allow. On mongomock: nothing here depends on the database."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from service.settings import Settings
from service.store import TOKEN_PREFIX, Store, is_token, new_secret
from tests.conftest import MakeApi
from tests.support.api import Api, make_cookie
from tests.support.fault_proxy import FaultProxy


@pytest.fixture
def store(mock_store: Store) -> Store:
    return mock_store


@pytest.fixture
def anyone(api: Api) -> Api:
    return api


READ = "/v1/reviews/g"
CACHE_SECONDS = 0.5


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, token_cache_seconds=CACHE_SECONDS)


async def test_a_request_without_a_token_is_refused(api: Api) -> None:
    async with api.client.get(READ) as response:
        assert response.status == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert (await response.json())["detail"][0]["type"] == "auth_missing"


NOT_TOKENS = [
    "Bearer",
    "Bearer ",
    "Bearer    ",
    "Bearer two words",
    "Bearer nöt-ascii",
    "Basic dXNlcjpwYXNz",
    "Token abc",
    "Bearer " + "x" * 5000,
    "Bearer {unknown}",
    "Bearer {token}x",
]


async def test_a_token_that_is_not_one_is_refused(api: Api) -> None:
    for header in NOT_TOKENS:
        header = header.replace("{token}", api.token).replace("{unknown}", new_secret())
        response = await api.get(READ, headers={"Authorization": header})
        assert response.status == 401, header
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert response.problems() == [(["header", "Authorization"], "auth_invalid")], header


async def test_two_authorization_headers_are_refused(api: Api) -> None:
    headers = [("Authorization", f"Bearer {api.token}")] * 2
    async with api.client.get(READ, headers=headers) as response:
        assert response.status == 401


async def test_a_token_in_the_query_does_not_count(api: Api) -> None:
    async with api.client.get(f"{READ}?access_token={api.token}&token={api.token}") as response:
        assert response.status == 401


async def test_the_scheme_is_read_without_regard_to_case(api: Api) -> None:
    response = await api.get(READ, headers={"Authorization": f"bearer {api.token}"})
    assert response.status != 401


async def test_reading_needs_the_scope_read(make_api: MakeApi) -> None:
    writer = await make_api(scopes=["write"])
    response = await writer.get(READ)
    assert (response.status, response.problems()) == (403, [(["header", "Authorization"], "scope_missing")])


async def test_writing_needs_the_scope_write(make_api: MakeApi) -> None:
    reader = await make_api(scopes=["read"])
    response = await reader.post("/v1/cookies", [make_cookie()])
    assert (response.status, response.problems()) == (403, [(["header", "Authorization"], "scope_missing")])


async def test_an_expired_token_is_refused(make_api: MakeApi) -> None:
    late = await make_api(expires=datetime.now(UTC) - timedelta(seconds=1))
    assert (await late.get(READ)).status == 401


async def test_a_token_works_until_it_expires(make_api: MakeApi) -> None:
    early = await make_api(expires=datetime.now(UTC) + timedelta(hours=1))
    assert (await early.get(READ)).status == 200


async def test_a_revoked_token_stops_working_when_it_is_looked_up_again(api: Api, store: Store) -> None:
    assert (await api.get(READ)).status != 401
    assert await store.tokens.revoke(api.token)
    async with asyncio.timeout(CACHE_SECONDS + 10):  # the rest is for the machine
        while (await api.get(READ)).status != 401:
            await asyncio.sleep(0.05)


async def test_a_token_can_be_revoked_by_its_id(api: Api, store: Store) -> None:
    (token,) = await store.tokens.list(api.organization_id)
    assert await store.tokens.revoke(token.id)
    assert not await store.tokens.revoke(token.id)
    assert (await api.get(READ)).status == 401


async def test_a_token_without_the_word_bearer_gets_told_how_to_send_it(api: Api) -> None:
    response = await api.get(READ, headers={"Authorization": api.token})
    assert (response.status, response.json["detail"][0]["type"]) == (401, "auth_invalid")
    assert response.json["detail"][0]["msg"] == "Send the header Authorization: Bearer <ACCESS_TOKEN>"


@pytest.mark.slow
async def test_tokens_are_asked_of_the_database_only_now_and_then(wired_api: Api, wire: FaultProxy) -> None:
    asked = wire.noting("find", "tokens")
    started = time.monotonic()
    for _ in range(20):
        await wired_api.get(READ)
    assert 1 <= len(asked.bodies) <= 1 + (time.monotonic() - started) / CACHE_SECONDS


async def test_only_the_hash_of_a_token_is_stored(api: Api, store: Store) -> None:
    stored = await store.database["tokens"].find({}).to_list(None)
    assert stored
    assert api.token not in repr(stored)


def test_tokens_have_a_prefix_and_a_checksum_for_secret_scanners() -> None:
    secret = new_secret()
    assert secret.startswith(TOKEN_PREFIX)
    assert is_token(secret)
    assert not is_token(secret[:-1] + ("a" if secret[-1] != "a" else "b"))
    assert new_secret() != secret
