"""Deletions by filter while other writers' batches are in flight."""

from __future__ import annotations

from service.store import Store
from tests.conftest import MakeApi
from tests.support.api import make_output


async def test_a_deletion_by_filter_finds_what_was_acknowledged_behind_a_batch_in_flight(
    make_api: MakeApi, store: Store, organization: int
) -> None:
    api = await make_api(organization, scopes=["read", "write", "delete"])
    path = "/v1/outputs/lamps"
    await store.outputs.ids.allocate(organization, "lamps", 1)  # a writer that is slow, or dead
    await api.ok(path, [make_output(1, root_job_id="gone"), make_output(2, root_job_id="kept")])
    deleted = await api.request("DELETE", f"{path}?job_id=gone")
    assert deleted.status == 200, deleted.body
    # Either all of it is deleted, or the caller is told to ask again.
    assert deleted.json["deleted"] == 1 or deleted.json["more"], deleted.json
