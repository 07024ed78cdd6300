"""Demo data: every view of the page has something to show."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from service.runtime import demo
from service.settings import Settings
from service.store import Query, Store, now


@pytest.fixture
def settings() -> Settings:
    return Settings(mongo_database=f"demo_{uuid.uuid4().hex}")


@pytest.mark.slow
async def test_demo_data_has_five_weeks_with_changes_deletions_reviews_and_a_broken_selector(store: Store) -> None:
    await demo._write(store)
    group = await store.groups.one(demo.GROUP)
    assert group["items"] == 1000
    assert 0 < group["approved"] < 1000
    assert group["days"][0]["date"] <= (now() - timedelta(days=32)).strftime("%Y-%m-%d")
    assert len(group["days"]) >= 15 and sum(day["changed"] for day in group["days"]) > 100
    assert group["last_change"] < now()

    jobs = [job async for some in store.jobs.batches(demo.GROUP, 100) for job in some]
    reviews = await store.reviews.latest_of(demo.GROUP, [job["job_id"] for job in jobs])
    assert jobs[0]["last_write"] < now() - timedelta(hours=1)
    assert jobs[-1]["last_write"] < now() - timedelta(days=30)
    assert len(jobs) == 20 and set(reviews) == {job["job_id"] for job in jobs[2:]}

    every = Query(newest_first=True, deleted=True)
    items = [item async for page in store.outputs.pages(demo.GROUP, every) for item in page.items()]
    assert sum("deleted" in item for item in items) >= 1
    newest = [item for item in items if item["root_job_id"] == jobs[0]["job_id"]]
    with_price = [item for item in newest if "amount" in item["data"]["price"]]
    assert 0.3 < len(with_price) / len(newest) < 0.5
    assert all(item["data"]["thumbnail"].startswith("data:image/svg+xml,") for item in newest)
