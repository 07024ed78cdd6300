"""The upgrade of a database while the new version runs already and a consumer follows a group."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pymongo import MongoClient

from sds_client import AsyncClient
from tests.support import database_v1
from tests.support.api import make_output
from tests.support.processes import ServiceProcess, make_token, run_command, wait_until

pytestmark = pytest.mark.slow


async def test_a_consumer_that_follows_across_the_upgrade_misses_nothing(mongo_url: str) -> None:
    database = "test_upgrade"
    with MongoClient[dict[str, Any]](mongo_url, tz_aware=True) as mongo:
        mongo.drop_database(database)
        old = database_v1.restore(mongo[database])
    documents = [d for d in old["collections"]["outputs"]["documents"] if "key_hash" in d]
    first = documents[0]
    ids = sorted(d["id"] for d in documents if all(d[k] == first[k] for k in ("organization_id", "group_id")))
    cursor = ids[len(ids) // 2]  # so far the consumer came with the old version
    expected = [id for id in ids if id > cursor]
    token = await asyncio.to_thread(make_token, mongo_url, first["organization_id"], database=database)

    with ServiceProcess(mongo_url, mongo_database=database) as service:
        await asyncio.to_thread(service.wait_until_listening)
        async with AsyncClient(service.url, token) as client:
            seen: list[int] = []

            async def follow() -> None:
                async for item in client.follow(first["group_id"], cursor=cursor):
                    seen.append(item["id"])
                    if len(seen) > len(expected):
                        return

            following = asyncio.create_task(follow())
            await asyncio.to_thread(wait_until, lambda: "python -m service upgrade" in service.log(), service.log)
            assert not seen and not following.done()
            upgraded = await asyncio.to_thread(run_command, mongo_url, "upgrade", MONGO_DATABASE=database)
            assert upgraded.returncode == 0, upgraded.stderr
            pushed = await client.push(first["group_id"], [make_output(1, key_hash="after the upgrade")])
            async with asyncio.timeout(60):
                await following
    assert pushed.created == 1
    assert seen[:-1] == expected and seen[-1] > ids[-1]
