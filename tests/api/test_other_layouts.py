"""A database that another version of the service wrote: nothing is read from it, nothing is written."""

from __future__ import annotations

import pytest

from service.settings import Settings
from service.store import Store
from tests.support.api import Api, make_output


@pytest.fixture
def settings(organization: int) -> Settings:
    """A database that no other test uses."""
    return Settings(mongo_database=f"layout{organization}")


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 99], ids=["older", "newer"])
async def test_a_database_of_another_layout_is_refused_for_reads_and_writes(
    api: Api, store: Store, version: int
) -> None:
    await api.ok("/v1/outputs/g", [make_output(1)])
    await store.database.meta.update_one({"_id": "layout"}, {"$set": {"version": version}})
    store.layout._found = None  # as after a start on this database
    try:
        assert (await api.get("/v1/outputs/g")).status == 503
        assert (await api.get("/v1/groups")).status == 503
        assert (await api.post("/v1/outputs/g", [make_output(2)])).status == 503
    finally:
        await store.client.drop_database(store.database.name)
