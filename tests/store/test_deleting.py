"""Deletions by filter while others write."""

from __future__ import annotations

import asyncio

import pytest

from service.store import Query, Store
from tests.conftest import MakeApi
from tests.support.api import make_output
from tests.support.groups import Group, at, open_batch
from tests.support.limits import Small


async def test_a_deletion_by_filter_finds_what_was_acknowledged_behind_a_batch_in_flight(
    make_api: MakeApi, store: Store, organization: int
) -> None:
    api = await make_api(organization, scopes=["read", "write", "delete", "state"])
    path = "/v1/outputs/lamps"
    await open_batch(store, Group(organization), 1)  # a writer that is slow, or dead
    await api.ok(path, [make_output(1, root_job_id="gone"), make_output(2, root_job_id="kept")])
    deleted = await api.request("DELETE", f"{path}?job_id=gone")
    assert deleted.status == 200, deleted.body
    # Either all of it is deleted, or the caller is told to ask again.
    assert deleted.json["deleted"] == 1 or deleted.json["more"], deleted.json


@pytest.mark.parametrize("others_write", [True, False])
async def test_a_deletion_pauses_between_its_rounds_while_others_write(
    store: Store, group: Group, small: Small, others_write: bool
) -> None:
    small(deleted_at_once=1, deleted_beside_others=1, deletion_pause=10**6, deletion_seconds=60)
    await group.write(store, *(make_output(n) for n in range(3)))
    written = asyncio.Event()

    async def write() -> None:
        await Group(group.key[0], "another").write(store, make_output(1))
        written.set()

    if others_write:
        store.outputs.ids.step = at("before write", write)
    place = await store.outputs.deletion.begin(group.key)
    deleting = asyncio.ensure_future(store.outputs.deletion.run(group.key, Query(), place))
    if not others_write:
        assert await asyncio.wait_for(deleting, 60) == (3, None)
        return
    await asyncio.wait_for(written.wait(), 60)
    async with asyncio.timeout(60):
        while len(await group.read(store)) == 3:
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)
    assert not deleting.done() and len(await group.read(store)) == 2
    deleting.cancel()
