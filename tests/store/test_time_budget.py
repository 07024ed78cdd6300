"""The time limit of the database is for all calls of a request together."""

from __future__ import annotations

import time

import pytest

from service.store import Store, StoreUnavailable, time_budget
from tests.support.commands import Commands
from tests.support.groups import Group


async def test_calls_that_are_each_quick_enough_are_too_slow_together(
    listening: Store, group: Group, commands: Commands
) -> None:
    await group.stats(listening)
    commands.delay = 0.2
    began = time.monotonic()
    with time_budget(0.5), pytest.raises(StoreUnavailable):
        for _ in range(8):
            await listening.groups.settings(group.key)
    assert time.monotonic() - began < 8 * 0.2
