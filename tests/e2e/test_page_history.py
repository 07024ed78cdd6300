"""What a crawl changed, deleted items and their way back, tags, saved views, tokens: in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.async_api import expect

from tests.e2e.conftest import Caller
from tests.e2e.page import expect_readable, rows
from tests.support.api import make_output

pytestmark = pytest.mark.asyncio(loop_scope="session")

GROUP = "history"


@pytest.fixture
def changed(caller: Caller) -> Caller:
    """A caller with a group of three items, two of which a second crawl has changed."""
    for job, price in (("one", 10), ("two", 12)):
        items = [make_output(n, data={"title": f"Lamp {n}", "price": price if n < 2 else 10}) for n in range(3)]
        caller.post(f"outputs/{GROUP}", [{**item, "root_job_id": job, "files": []} for item in items])
    return caller


async def test_a_crawl_says_what_it_changed_and_shows_before_and_after(new_tab: Any, changed: Caller) -> None:
    page = await (await new_tab(changed)).open(f"#/groups/{GROUP}/jobs/two")
    section = page.get_by_label("What it changed")
    await expect(section).to_contain_text("price changed in 2 items")
    await expect(section.locator("tbody tr")).to_have_count(2)
    await expect(section.locator("tbody tr").first).to_contain_text("10")
    await section.get_by_role("link", name="price", exact=True).click()
    await expect(section.get_by_role("link", name="Remove the filter price")).to_be_visible()
    await expect_readable(page)


async def test_deleted_items_are_listed_and_restored(new_tab: Any, changed: Caller) -> None:
    for item in changed.newest(GROUP):
        changed.call("DELETE", f"outputs/{GROUP}/{item['output_id']}")
    page = await (await new_tab(changed)).open(f"#/groups/{GROUP}/deleted")
    await expect(page.locator("table.deleted tbody tr")).to_have_count(3)
    await expect_readable(page)
    await page.get_by_label("Select all rows").check()
    await page.get_by_role("button", name="Restore 3 selected").click()
    await expect(page.get_by_role("heading", name="Nothing was deleted")).to_be_visible()
    assert len(changed.newest(GROUP)) == 3


async def test_conditions_add_up_and_are_removed_one_by_one(new_tab: Any, changed: Caller) -> None:
    page = await (await new_tab(changed)).open(f"#/groups/{GROUP}?where=title~lamp")
    await page.get_by_label("Filter by").select_option(label="Field")
    await page.get_by_label("Field", exact=True).fill("price")
    await page.get_by_label("Operator").select_option(label="is greater than")
    await page.get_by_label("Value", exact=True).fill("11")
    await page.get_by_role("button", name="Filter", exact=True).click()
    await expect(rows(page)).to_have_count(2)
    await page.get_by_role("link", name="Remove the filter price is greater than 11").click()
    await expect(rows(page)).to_have_count(3)


async def test_tokens_are_made_and_revoked(new_tab: Any, make_caller: Callable[..., Caller]) -> None:
    admin = make_caller(None, "read", "admin")
    page = await (await new_tab(admin)).open("#/tokens")
    await expect(page.locator("table.tokens tbody tr")).to_have_count(1)
    await page.get_by_role("button", name="Make a token").click()
    await page.get_by_label("Who uses it").fill("warehouse")
    await page.get_by_role("button", name="Make", exact=True).click()
    await expect(page.locator(".secret-text")).to_contain_text("sds_")
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Revoke warehouse").click()
    await page.get_by_role("button", name="Revoke", exact=True).click()
    await expect(page.locator("table.tokens tbody tr").first).to_contain_text("revoked")
    await expect_readable(page)
