"""Requests that outlast their token are ended: all of them, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from service.http.errors import ApiError
from service.http.middleware.auth import Authenticator
from tests.support.limits import Small

SOON = 30  # seconds, for a busy machine


class Revocable:
    """Tokens that are valid until they are revoked."""

    def __init__(self) -> None:
        self.revoked: set[str] = set()

    async def find(self, digest: str) -> Any:
        return None if digest in self.revoked else SimpleNamespace(digest=digest, valid_at=lambda moment: True)


@pytest.fixture
def tokens(small: Small) -> Iterator[Revocable]:
    small(token_watch_seconds=0.01)
    yield Revocable()


@pytest.fixture
async def authenticator(tokens: Revocable) -> AsyncIterator[Authenticator]:
    authenticator = Authenticator(tokens, 0.01)  # type: ignore[arg-type]
    watching = asyncio.create_task(authenticator.watch())
    yield authenticator
    watching.cancel()


def token(digest: str) -> Any:
    return SimpleNamespace(digest=digest)


async def test_a_request_that_takes_long_to_end_does_not_keep_others_alive(
    tokens: Revocable, authenticator: Authenticator
) -> None:
    """To end it once more raised an error, which ended the check of all tokens after it."""
    cancelled, release = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        async with authenticator.while_valid(token("slow")):
            try:
                await asyncio.sleep(2 * SOON)
            finally:
                cancelled.set()
                await release.wait()

    async def other() -> None:
        async with authenticator.while_valid(token("other")):
            await asyncio.sleep(2 * SOON)

    first, second = asyncio.create_task(slow()), asyncio.create_task(other())
    await asyncio.sleep(0)
    async with asyncio.timeout(SOON):
        tokens.revoked.add("slow")
        await cancelled.wait()
        await asyncio.sleep(0.1)  # several checks find it still there
        tokens.revoked.add("other")
        with pytest.raises(ApiError) as ended:
            await second
        assert ended.value.status == 401
        release.set()
        with pytest.raises(ApiError):
            await first


async def test_a_thousand_requests_of_one_token_do_not_end_in_one_turn_of_the_event_loop(
    tokens: Revocable, authenticator: Authenticator
) -> None:
    ended = 0

    async def wait() -> None:
        nonlocal ended
        try:
            async with authenticator.while_valid(token("a")):
                await asyncio.sleep(2 * SOON)
        finally:
            ended += 1

    waiting = [asyncio.create_task(wait()) for _ in range(1000)]
    await asyncio.sleep(0)
    tokens.revoked.add("a")
    in_one_turn = []
    async with asyncio.timeout(SOON):
        while ended < len(waiting):
            before = ended
            await asyncio.sleep(0)
            in_one_turn.append(ended - before)
    assert max(in_one_turn) <= 100
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert {error.status for error in found if isinstance(error, ApiError)} == {401}
    assert sum(isinstance(error, ApiError) for error in found) == 1000
