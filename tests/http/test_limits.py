"""How much is taken on: the rate of a token, requests in flight, and who may call from a browser."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from service.capacity.gate import Holder
from service.http.keys import GATES
from service.http.middleware.rate import RATE
from service.settings import Settings
from tests.conftest import MakeApi
from tests.support.api import Api, make_cookie
from tests.support.capacity import bytes_held

READ = "/v1/cookies"


@pytest.fixture
def clock(app: web.Application) -> SimpleNamespace:
    """The clock of the rates, which goes on only when a test says so."""
    clock = SimpleNamespace(now=1000.0)
    app[RATE].clock = lambda: clock.now
    return clock


@pytest.mark.usefixtures("clock")
class TestRate:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(mongo_database="test", rate_limit=5)

    async def test_more_requests_a_second_than_allowed_are_429(self, api: Api) -> None:
        responses = [await api.get(READ) for _ in range(10)]
        refused = [response for response in responses if response.status == 429]
        assert len(refused) == 5
        for response in refused:
            assert response.problems() == [([], "rate_limited")]
            assert int(response.headers["Retry-After"]) >= 1

    async def test_after_the_time_it_was_told_to_wait_a_client_gets_in(self, api: Api, clock: SimpleNamespace) -> None:
        while (response := await api.get(READ)).status == 200:
            pass
        clock.now += int(response.headers["Retry-After"])
        assert (await api.get(READ)).status == 200

    async def test_each_token_has_a_rate_of_its_own(self, make_api: MakeApi) -> None:
        first = await make_api()
        second = await make_api(first.organization_id)
        while (await first.get(READ)).status == 200:
            pass
        assert (await second.get(READ)).status == 200

    async def test_routes_without_a_token_have_no_rate_limit(self, api: Api) -> None:
        for path in ("/healthz", "/metrics", "/openapi.json", "/"):
            for _ in range(8):
                assert (await api.get(path)).status == 200

    async def test_requests_that_are_refused_still_count(self, api: Api) -> None:
        statuses = [(await api.post(READ, [{}])).status for _ in range(8)]
        assert statuses == [422] * 5 + [429] * 3


@pytest.mark.usefixtures("clock")
class TestSlowRate:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(mongo_database="test", rate_limit=0.25)

    async def test_a_rate_below_one_tells_how_long_to_wait(self, api: Api) -> None:
        assert (await api.get(READ)).status == 200
        response = await api.get(READ)
        assert response.status == 429
        assert int(response.headers["Retry-After"]) == 4


async def test_without_a_rate_there_is_no_limit(api: Api) -> None:
    assert {(await api.get(READ)).status for _ in range(50)} == {200}


class TestCapacity:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(mongo_database="test", max_bytes_in_flight=64 * 2**20, mongo_timeout=0.5)

    async def test_a_request_that_gets_no_capacity_in_time_is_503_and_health_checks_pass(
        self, api: Api, app: web.Application, make_api: MakeApi
    ) -> None:
        working, other = app[GATES].working, await make_api()
        holder = Holder(api.organization_id, (await api.ok("/v1/token"))["id"])
        assert working.take(holder, working.share)
        async with asyncio.timeout(60):
            responses = await asyncio.gather(*(api.get("/v1/reviews/g") for _ in range(5)))
        for response in responses:
            assert (response.status, response.problems()) == (503, [([], "unavailable")])
            assert int(response.headers["Retry-After"]) >= 1
        for path in ("/healthz", "/metrics", "/openapi.json", "/"):
            assert (await api.get(path)).status == 200
        metrics = (await api.get("/metrics")).body.decode()
        assert re.search(r'sds_unavailable_total{reason="working"} [1-9]', metrics)
        assert (await other.get("/v1/reviews/g")).status == 200
        waiting = asyncio.create_task(api.get("/v1/reviews/g"))
        await asyncio.sleep(0.05)
        working.put_back(holder, working.share)
        assert (await waiting).status == 200

    async def test_requests_that_fail_return_what_they_reserved(self, api: Api, app: web.Application) -> None:
        for _ in range(10):
            assert (await api.post(READ, [{}])).status == 422
            assert (await api.get(READ, headers={"Authorization": "Bearer wrong"})).status == 401
        assert (await api.get(READ)).status == 200
        assert bytes_held(app) == 0


# -- CORS ---------------------------------------------------------------------------------------------

PAGE = "https://app.example"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


def cors_headers(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower().startswith("access-control-")}


async def test_no_origin_may_call_unless_it_is_set(api: Api) -> None:
    response = await api.get(READ, headers={"Origin": PAGE})
    assert cors_headers(response.headers) == {}
    async with api.client.options(READ, headers=PREFLIGHT) as preflight:
        assert preflight.status == 405
        assert cors_headers(preflight.headers) == {}


class TestCors:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(mongo_database="test", cors_origins=f"{PAGE}, http://localhost:3000")

    @pytest.mark.parametrize("path", ["/v1/cookies", "/v1/outputs/g", "/nowhere"])
    async def test_a_listed_origin_may_ask_without_a_token(self, api: Api, path: str) -> None:
        async with api.client.options(path, headers=PREFLIGHT) as response:
            assert response.status == 204
            assert response.headers["Access-Control-Allow-Origin"] == PAGE
            assert "POST" in response.headers["Access-Control-Allow-Methods"]
            allowed = response.headers["Access-Control-Allow-Headers"].lower()
            assert {"authorization", "content-type", "if-match", "if-none-match", "last-event-id"} <= set(
                allowed.split(", ")
            )
            methods = set(response.headers["Access-Control-Allow-Methods"].split(", "))
            assert methods == {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}
            assert "Origin" in response.headers["Vary"]
            assert "Access-Control-Allow-Credentials" not in response.headers

    @pytest.mark.parametrize("origin", [PAGE, "http://localhost:3000"])
    async def test_a_listed_origin_may_read_responses_and_errors(self, api: Api, origin: str) -> None:
        for response in (
            await api.get(READ, headers={"Origin": origin}),
            await api.get("/nowhere", headers={"Origin": origin}),
            await api.get(READ, headers={"Origin": origin, "Authorization": "Bearer wrong"}),
            await api.post(READ, [{}], headers={"Origin": origin}),
        ):
            assert response.headers["Access-Control-Allow-Origin"] == origin
            exposed = response.headers["Access-Control-Expose-Headers"].split(", ")
            assert {"ETag", "Link", "X-Cursor", "X-Request-ID", "Retry-After"} <= set(exposed)
            assert "Origin" in response.headers["Vary"]

    async def test_other_origins_may_not(self, api: Api) -> None:
        for origin in [
            "https://evil.example",
            "https://app.example.evil.example",
            "https://app.example:444",
            "http://app.example",
            "null",
            "https://APP.example",
            "*",
            "",
        ]:
            response = await api.get(READ, headers={"Origin": origin})
            assert cors_headers(response.headers) == {}, origin
            assert "Origin" in response.headers["Vary"]  # no cache may mix the two
            async with api.client.options(READ, headers={**PREFLIGHT, "Origin": origin}) as preflight:
                assert preflight.status == 405, origin
                assert cors_headers(preflight.headers) == {}, origin

    async def test_a_call_without_an_origin_is_served_as_before(self, api: Api) -> None:
        assert (await api.get(READ)).status == 200


class TestAnyOrigin:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(mongo_database="test", cors_origins="*")

    async def test_a_star_lets_every_page_call(self, api: Api) -> None:
        response = await api.get(READ, headers={"Origin": "https://any.example"})
        assert response.headers["Access-Control-Allow-Origin"] == "*"


async def test_a_token_is_still_needed(api: Api) -> None:
    async with api.client.post(READ, json=[make_cookie()], headers={"Origin": PAGE}) as response:
        assert response.status == 401
