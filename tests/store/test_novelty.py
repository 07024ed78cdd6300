"""A group that has only seen new items is written without looking their keys up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.store import Patch, Store
from tests.support.api import make_output
from tests.support.commands import Commands
from tests.support.groups import Group

# As many new items in a row as it takes.
FIRST = range(200)


@pytest.fixture
def store(listening: Store) -> Store:
    return listening


@pytest.fixture
async def filled(store: Store, group: Group, commands: Commands) -> Group:
    """A group that has seen new items only."""
    await group.write(store, *map(make_output, FIRST))
    commands.clear()
    return group


def look_ups(commands: Commands) -> int:
    """Return how often the content of known items was looked up."""
    found = [command.body.get("projection", {}) for command in commands.sent if command.name == "find"]
    return sum("content_hash" in projection for projection in found)


async def results(store: Store, group: Group, *items: dict[str, Any]) -> list[str]:
    return [result["result"] for result in await group.write(store, *items)]


async def test_keys_are_looked_up_until_enough_items_in_a_row_were_new(
    store: Store, group: Group, commands: Commands
) -> None:
    for size in (100, 99, 1):
        await group.write(store, *(make_output(n + 1000 * size) for n in range(size)))
    assert look_ups(commands) == 3
    await group.write(store, make_output(1))
    assert look_ups(commands) == 3


async def test_known_items_among_new_ones_are_found_all_the_same(
    store: Store, filled: Group, commands: Commands
) -> None:
    written = [make_output(1000), make_output(1), make_output(2, data={"name": "other"}), make_output(1001)]
    assert await results(store, filled, *written) == ["created", "unchanged", "updated", "created"]
    assert look_ups(commands) == 1
    items = {item["key_hash"]: item for item in await filled.read(store)}
    assert len(items) == 202 and items["key-2"]["data"] == {"name": "other"}
    await filled.assert_counts_are_exact(store)


async def test_after_a_known_item_keys_are_looked_up_again(store: Store, filled: Group, commands: Commands) -> None:
    await filled.write(store, make_output(1))
    commands.clear()
    assert await results(store, filled, make_output(1000)) == ["created"]
    assert look_ups(commands) == 1


async def test_a_second_crawl_right_after_the_first_keeps_approvals_and_moves_to_its_job(
    store: Store, filled: Group
) -> None:
    await filled.patch(store, Patch("key_hash", "key-1", is_approved=True))
    again = [make_output(n, root_job_id="second") for n in FIRST]
    assert set(await results(store, filled, *again)) == {"unchanged"}
    items = {item["key_hash"]: item for item in await filled.read(store, job_id="second")}
    assert len(items) == len(FIRST) and items["key-1"]["is_approved"]
    await filled.assert_counts_are_exact(store)


async def test_a_deleted_item_that_is_written_again_is_created(store: Store, filled: Group) -> None:
    item = (await filled.read(store, limit=1))[0]
    assert await filled.delete(store, item) == ["updated"]
    assert await results(store, filled, make_output(0)) == ["created"]
    await filled.assert_counts_are_exact(store)


async def test_an_item_that_another_process_has_just_written_is_not_stored_twice(
    store: Store, other: Store, filled: Group
) -> None:
    await filled.write(other, *(make_output(n + 1000) for n in FIRST))
    both = await asyncio.gather(
        *(results(process, filled, *(make_output(n + 2000) for n in FIRST)) for process in (store, other))
    )
    assert all(sorted(pair) == ["created", "unchanged"] for pair in zip(*both, strict=True))
    await filled.assert_counts_are_exact(store)


async def test_patches_beside_new_items_are_looked_up(store: Store, filled: Group, commands: Commands) -> None:
    patched, written = await asyncio.gather(
        filled.patch(store, Patch("key_hash", "key-1", is_approved=True)), results(store, filled, make_output(1000))
    )
    assert (patched[0]["result"], written) == ("updated", ["created"])
    assert look_ups(commands) == 1
