"""A MongoDB without replica set has no majority snapshots and no change streams: it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.settings import Settings
from service.store import DatabaseRefused, Store, StoreUnavailable
from tests.support.api import make_output
from tests.support.groups import Group
from tests.support.mongod import standalone

pytestmark = pytest.mark.slow


async def test_a_mongodb_without_replica_set_is_refused_and_stays_empty(
    settings: Settings, tmp_path: Path, group: Group
) -> None:
    with standalone(tmp_path) as url:
        store = Store.connect(settings, url)
        with pytest.raises(DatabaseRefused, match=r"without a replica set.*--replSet"):
            await store.ensure_indexes()
        with pytest.raises(DatabaseRefused, match="replica set"):  # what every request asks first
            await store.layout.require()
        with pytest.raises(StoreUnavailable):
            await group.write(store, make_output(1))
        assert await store.database.list_collection_names() == []
        await store.close()
