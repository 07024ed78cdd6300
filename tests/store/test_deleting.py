"""Deletions by filter while others write."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from service.store import Query, Store, outputs
from tests.conftest import MakeApi
from tests.support.api import make_output
from tests.support.groups import Group, at, open_batch


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


@pytest.mark.parametrize("same_caller", [True, False])
async def test_a_deletion_of_a_job_finds_what_a_crawl_moves_into_it_behind_the_place_it_has_reached(
    store: Store, group: Group, monkeypatch: pytest.MonkeyPatch, same_caller: bool
) -> None:
    monkeypatch.setattr(outputs, "_DELETED_BESIDE_OTHERS", 2)
    monkeypatch.setattr(outputs, "_DELETE_SECONDS", 0.001)  # a round for each call
    early = [make_output(n) for n in range(5)]
    await group.write(store, *early)
    await group.write(store, *(make_output(n, root_job_id="gone") for n in range(5, 9)))
    query = Query(job_id="gone")
    assert await store.outputs.delete_matching(group.key, query, "one") == (2, True)
    await group.write(store, *(dict(item, root_job_id="gone") for item in early))  # unchanged: they keep their low ids
    calls = 0
    while (await store.outputs.delete_matching(group.key, query, "one" if same_caller else "another"))[1]:
        calls += 1
        assert calls < 20
    assert await group.read(store) == []


@pytest.mark.parametrize("others_write", [True, False])
async def test_a_deletion_pauses_between_its_rounds_while_others_write(
    store: Store, group: Group, monkeypatch: pytest.MonkeyPatch, others_write: bool
) -> None:
    monkeypatch.setattr(outputs, "_DELETED_AT_ONCE", 1)
    monkeypatch.setattr(outputs, "_DELETED_BESIDE_OTHERS", 1)
    monkeypatch.setattr(outputs, "_PAUSE", 10**6)
    monkeypatch.setattr(outputs, "_DELETE_SECONDS", 60)
    await group.write(store, *(make_output(n) for n in range(3)))
    written = asyncio.Event()

    async def write() -> None:
        await Group(group.key[0], "another").write(store, make_output(1))
        written.set()

    if others_write:
        store.outputs.ids.step = at("before write", write)
    deleting = asyncio.ensure_future(store.outputs.delete_matching(group.key, Query()))
    if not others_write:
        assert await asyncio.wait_for(deleting, 60) == (3, False)
        return
    await asyncio.wait_for(written.wait(), 60)
    async with asyncio.timeout(60):
        while len(await group.read(store)) == 3:
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)
    assert not deleting.done() and len(await group.read(store)) == 2
    deleting.cancel()


async def test_unfinished_deletions_that_name_many_jobs_take_little_memory(
    store: Store, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "_DELETE_SECONDS", 0.0)
    tracemalloc.start()
    try:
        for n in range(20):
            jobs = tuple(f"{job}-{n}" + "x" * 240 for job in range(1000))
            assert await store.outputs.delete_matching(group.key, Query(of_jobs=jobs)) == (0, True)
        del jobs
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2**20
