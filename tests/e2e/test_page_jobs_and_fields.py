"""Jobs with their counts, and fields compared with the job before."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import expect

from tests.e2e.conftest import Caller
from tests.e2e.page import GROUP, expect_ids, rows
from tests.support.api import make_output, make_review

pytestmark = pytest.mark.asyncio(loop_scope="session")


def crawl(caller: Caller, job: str, prices: list[float | None], first: int = 0) -> None:
    """Write one item per price; None is what a broken selector finds."""
    items = [
        make_output(n, root_job_id=job, data={"title": f"Lamp {n}", **({} if price is None else {"price": price})})
        for n, price in enumerate(prices, first)
    ]
    caller.post(f"outputs/{GROUP}", items)


async def test_jobs_are_listed_with_their_counts_and_lead_to_their_items(new_tab: Any, caller: Caller) -> None:
    crawl(caller, "monday", [1.0, 2.0, 3.0, 4.0])
    crawl(caller, "tuesday", [1.0, 2.5, 3.5, 4.0, 5.0])
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}/jobs")
    row = page.get_by_role("row", name="tuesday")
    await expect(row.get_by_role("img", name="1 created, 2 changed, 2 unchanged")).to_be_visible()
    names = page.locator("table.jobs tbody th")
    await expect(names).to_have_text(["tuesday running", "monday running"])
    await expect(page.get_by_role("row", name="monday")).to_contain_text("Later crawls saw its items again.")
    await page.get_by_role("link", name="Items of tuesday").click()
    await expect(page.locator(".filters")).to_contain_text("Job: tuesday")
    await expect(rows(page)).to_have_count(5)


async def test_a_job_older_than_the_newest_1000_is_shown(new_tab: Any, caller: Caller) -> None:
    for numbers in (range(1), range(1, 1001)):
        caller.post(f"outputs/{GROUP}", [make_output(n, root_job_id=f"crawl-{n}") for n in numbers])
    tab = await new_tab(caller)
    page = await tab.open(f"#/groups/{GROUP}/jobs/crawl-0")
    await expect(page.get_by_role("heading", name="crawl-0")).to_be_visible()
    await expect(page.get_by_role("link", name="1 created", exact=True)).to_be_visible()
    tab.expected.add(404)
    await tab.open(f"#/groups/{GROUP}/jobs/crawl-none")
    await expect(page.get_by_text("No such job")).to_be_visible()


async def test_the_newest_reviews_are_read_not_all_of_them(new_tab: Any, caller: Caller) -> None:
    reviews = [make_review(job_id=f"job-{n}", review_date=f"2026-01-01T00:00:{n % 60:02}Z") for n in range(100)]
    caller.post(f"outputs/{GROUP}", [make_output()])
    caller.post(f"reviews/{GROUP}", reviews)
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}/time")
    await expect(page.locator(".reviews li")).to_have_count(60)
    await expect(page.locator(".reviews li").first).to_contain_text("job-59")


async def test_a_broken_selector_is_seen_at_once(new_tab: Any, caller: Caller) -> None:
    crawl(caller, "monday", [float(n) for n in range(1, 101)])
    crawl(caller, "tuesday", [float(n) if n <= 41 else None for n in range(1, 101)], first=100)
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}/fields")
    await expect(page.get_by_text("1 field filled less than before: price")).to_be_visible()
    price = page.get_by_role("row", name="price")
    await expect(price).to_contain_text("100 % → 41 %")
    await expect(price).to_contain_text("number")
    await expect(price.get_by_role("cell").nth(3)).to_have_text("1")
    await expect(price.get_by_role("cell").nth(4)).to_have_text("41")
    await expect(price.get_by_role("link", name="Items without price")).to_have_text("59 items")
    await expect(page.get_by_role("row", name="title")).to_contain_text("100 %")

    await page.get_by_label("Job", exact=True).select_option("monday")
    await expect(page.get_by_text("filled less than before")).to_have_count(0)
    await expect(price).to_contain_text("100 %")
    await page.reload()
    await expect(page.get_by_label("Job", exact=True)).to_have_value("monday")


async def test_a_field_can_be_added_as_a_column(new_tab: Any, caller: Caller) -> None:
    caller.post(f"outputs/{GROUP}", [make_output(n, data={"title": "x", "long": "y" * 500}) for n in range(3)])
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}/fields")
    await page.get_by_role("link", name="Show the column long").click()
    head = page.locator("table.rows thead th")
    await expect(head.filter(has_text="long")).to_have_count(1)
    await expect_ids(page, [item["id"] for item in caller.newest(GROUP)])
