"""Figures of the database as a whole: read at most once per second, however many ask."""

from __future__ import annotations

import asyncio

from service.store import Store
from tests.support.commands import Commands
from tests.support.groups import Group, open_batch
from tests.support.limits import Small


async def test_many_who_ask_share_one_read(listening: Store, commands: Commands, small: Small) -> None:
    small(figures_seconds=3600)
    first = await listening.figures.current()
    sent = len(commands.sent)
    assert sent > 0
    assert await asyncio.gather(*(listening.figures.current() for _ in range(20))) == [first] * 20
    assert len(commands.sent) == sent


async def test_older_figures_are_read_again(store: Store, group: Group, small: Small) -> None:
    small(figures_seconds=0)
    before, _ = await store.figures.current()
    await open_batch(store, group, 1)
    after, _ = await store.figures.current()
    assert before is not None and after is not None
    assert after.batches > before.batches


async def test_who_leaves_does_not_end_the_read_of_the_others(listening: Store) -> None:
    leaving, staying = (asyncio.ensure_future(listening.figures.current()) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    in_flight, sessions = await staying
    assert in_flight is not None
    assert "ready" in sessions
