"""What is new shows itself, without a reload."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from playwright.async_api import expect

from tests.e2e.conftest import Caller
from tests.e2e.page import GROUP, expect_ids, rows
from tests.support.api import make_output

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_bar_says_how_many_items_are_new_and_shows_them(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}")
    await expect(page.get_by_text("60 items from 3 jobs")).to_be_visible()
    await expect(rows(page)).to_have_count(25)
    shop.post(f"outputs/{GROUP}", [make_output(number) for number in range(12)])
    await expect(page.get_by_text("12 new items")).to_be_visible()
    await expect(page.get_by_text("72 items from 3 jobs")).to_be_visible()
    known = shop.newest(GROUP, 60)[-1]["key_hash"]
    shop.post(f"outputs/{GROUP}", [make_output(0, key_hash=known), make_output(100)])
    await expect(page.get_by_text("13 new items, 1 changed item")).to_be_visible()
    await page.locator(".news").get_by_role("link", name="Show").click()
    await expect_ids(page, [item["id"] for item in shop.newest(GROUP)])
    await expect(page.locator(".news")).to_be_hidden()


async def test_a_crawl_that_changes_an_item_all_the_time_is_one_item_and_few_requests(
    new_tab: Any, shop: Caller
) -> None:
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}")
    await expect(rows(page)).to_have_count(25)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    began = time.monotonic()
    for number in range(50):
        await asyncio.to_thread(shop.post, f"outputs/{GROUP}", [make_output(data={"number": number})])
        await asyncio.sleep(0.05)
    await expect(page.get_by_text("1 new item")).to_be_visible()
    calls = [url for url in requests if "/v1/" in url]  # for the items, and for the counts of the group
    assert len(calls) <= 2 * (time.monotonic() - began) + 4
    assert "changed" not in await page.locator(".news").inner_text()


async def test_the_bar_counts_only_what_the_filters_match(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}?country=Japan")
    await expect(rows(page)).not_to_have_count(0)
    shop.post(f"outputs/{GROUP}", [make_output(n, tags={"country": "Japan"} if n < 2 else {}) for n in range(5)])
    await expect(page.get_by_text("2 new items")).to_be_visible()


async def test_a_deeper_page_leads_to_what_is_new_on_the_first(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}?limit=10")
    await page.get_by_role("link", name="Next", exact=True).click()
    await expect_ids(page, list(range(50, 40, -1)))
    shop.post(f"outputs/{GROUP}", [make_output()])
    await expect(page.get_by_text("1 new item")).to_be_visible()
    await page.locator(".news").get_by_role("link", name="Show").click()
    await expect_ids(page, [item["id"] for item in shop.newest(GROUP, 10)])


async def test_the_groups_are_read_again_on_request(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open("#/groups")
    cell = page.get_by_role("row", name=GROUP).get_by_role("cell").nth(1)
    await expect(cell).to_have_text("60")
    shop.post(f"outputs/{GROUP}", [make_output()])
    await page.get_by_role("button", name="Reload").click()
    await expect(cell).to_have_text("61")
