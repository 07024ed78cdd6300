"""What a failing database looks like from outside: 503, whatever its code; 500 is for defects of the service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from service.settings import Settings
from service.store import Store
from tests.support.api import Api, make_cookie, make_output, make_review

# Server codes that nobody lists: no disk space, a lost lock, a collection in the wrong state, shard errors, and one
# that no version has yet.
CODES = [24, 46, 112, 175, 217, 225, 237, 279, 14031, 99999]

Failing = Callable[[int], AbstractAsyncContextManager[None]]


@pytest.fixture
def settings() -> Settings:
    """A write is tried until its time is over: little time."""
    return Settings(mongo_database="test", mongo_timeout=1.0, lease_seconds=60.0)


@pytest.fixture
async def failing(store: Store) -> Failing:
    """Let the database refuse every command of the service with a code."""

    @asynccontextmanager
    async def fail(code: int) -> AsyncIterator[None]:
        commands = ["find", "insert", "update", "delete", "findAndModify", "aggregate", "count", "getMore"]
        data = {"errorCode": code, "failCommands": commands}
        await store.client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=data)
        try:
            yield
        finally:
            await store.client.admin.command("configureFailPoint", "failCommand", mode="off")

    return fail


@pytest.mark.slow
async def test_an_unknown_error_code_is_a_503_on_every_path(api: Api, failing: Failing) -> None:
    await api.ok("/v1/outputs/g", [make_output()])
    for code in CODES:
        async with failing(code):
            responses = [
                await api.get("/v1/groups"),
                await api.get("/v1/groups/g/jobs"),
                await api.get("/v1/groups/g/fields"),
                await api.get("/v1/reviews/g"),
                await api.get("/v1/cookies"),
                await api.get("/v1/storage-state"),
                await api.get("/v1/outputs/g"),
                await api.get("/v1/outputs/g/export"),
                await api.post("/v1/cookies", [make_cookie()]),
                await api.post("/v1/reviews/g", [make_review()]),
                await api.delete("/v1/cookies?all=true"),
            ]
            if code == CODES[-1]:  # it is tried until its time is over
                responses.append(await api.post("/v1/outputs/g", [make_output(2)]))
        for response in responses:
            assert (response.status, response.problems()) == (503, [([], "unavailable")]), code
