"""Everything that matches at once: approved, rejected, tagged, downloaded, deleted; and rows sorted on the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.e2e.conftest import Caller
from tests.e2e.page import GROUP, intercept, rows
from tests.support.api import make_output

pytestmark = pytest.mark.asyncio(loop_scope="session")

ITEMS = 1200  # more than one request takes


@pytest.fixture
def many(caller: Caller) -> Caller:
    """A caller with a group of 1200 items, a third of them of Japan."""
    for first in (0, ITEMS // 2):
        numbers = range(first, first + ITEMS // 2)
        items = [
            make_output(
                n, tags={"country": "Japan" if n % 3 == 0 else "Brazil"}, data={"title": f"Lamp {n}", "price": n % 7}
            )
            for n in numbers
        ]
        caller.post(f"outputs/{GROUP}", items)
    return caller


def held(caller: Caller, query: str = "") -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    cursor = 0
    while True:
        page = caller.get(f"outputs/{GROUP}?limit=1000&cursor={cursor}&{query}")
        items += page["items"]
        if page["metadata"]["next_cursor"] is None:
            return items
        cursor = page["metadata"]["next_cursor"]


async def select_all(page: Page, number: int) -> None:
    await expect(rows(page)).to_have_count(25)
    await page.get_by_role("checkbox", name="Select all rows").check()
    await page.get_by_role("button", name="that match").click()
    await expect(page.locator(".selection")).to_contain_text(f"All {number:,} items selected")


async def test_all_that_match_are_approved_and_it_can_be_undone(new_tab: Any, many: Caller) -> None:
    page = await (await new_tab(many)).open(f"#/groups/{GROUP}")
    await expect(page.get_by_text("1,200 items from")).to_be_visible()
    await expect(rows(page)).to_have_count(25)
    await page.get_by_role("checkbox", name="Select all rows").check()
    await expect(page.get_by_role("button", name="Select all 1,200 that match")).to_be_visible()
    await select_all(page, 1200)
    await page.get_by_role("button", name="Approve", exact=True).click()
    await expect(page.locator("#notice")).to_contain_text("1,200 items approved.")
    assert all(item["is_approved"] for item in held(many))
    await expect(page.locator(".news")).to_be_hidden()
    await page.locator("#notice").get_by_role("button", name="Undo").click()
    await expect(page.locator("#notice")).to_contain_text("1,200 items are as before.")
    assert not any(item["is_approved"] for item in held(many))


async def test_only_what_the_filters_match_is_rejected_and_tagged(new_tab: Any, many: Caller) -> None:
    page = await (await new_tab(many)).open(f"#/groups/{GROUP}?country=Japan")
    await select_all(page, 400)
    await page.get_by_role("button", name="Tag").click()
    dialog = page.get_by_role("dialog", name="Tag 400 items")
    await dialog.get_by_label("Tag").fill("batch")
    await dialog.get_by_label("Value").fill("spring")
    await dialog.get_by_role("button", name="Tag").click()
    await expect(page.locator("#notice")).to_contain_text("400 items tagged.")
    tagged = [item for item in held(many) if item["tags"].get("batch") == "spring"]
    assert len(tagged) == 400 and all(item["tags"]["country"] == "Japan" for item in tagged)
    await select_all(page, 400)
    await page.get_by_role("button", name="Reject").click()
    await page.get_by_label("Why").fill("Wrong country")
    await page.keyboard.press("Enter")
    await expect(page.locator("#notice")).to_contain_text("400 items rejected.")
    rejected = [item for item in held(many) if item["tags"].get("rejected") == "Wrong country"]
    assert len(rejected) == 400 and all(item["tags"]["country"] == "Japan" for item in rejected)


async def test_all_that_match_are_deleted_once_their_number_is_typed(new_tab: Any, many: Caller) -> None:
    page = await (await new_tab(many)).open(f"#/groups/{GROUP}?country=Japan")
    await select_all(page, 400)
    await page.get_by_role("button", name="Delete", exact=True).click()
    dialog = page.get_by_role("dialog", name="Delete 400 items?")
    delete = dialog.get_by_role("button", name="Delete")
    await dialog.get_by_label("Type 400 to confirm").fill("40")
    await expect(delete).to_be_disabled()
    await dialog.get_by_label("Type 400 to confirm").fill("400")
    await delete.click()
    await expect(page.locator("#notice")).to_contain_text("400 items deleted.")
    await expect(page.get_by_text("800 items from")).to_be_visible()
    assert {item["tags"]["country"] for item in held(many)} == {"Brazil"}


async def test_what_comes_after_the_selection_is_not_deleted_with_it(new_tab: Any, many: Caller) -> None:
    page = await (await new_tab(many)).open(f"#/groups/{GROUP}?country=Japan")
    await select_all(page, 400)
    many.post(f"outputs/{GROUP}", [make_output(5000, key_hash="came-later", tags={"country": "Japan"})])
    await page.get_by_role("button", name="Delete", exact=True).click()
    await page.get_by_label("Type 400 to confirm").fill("400")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.locator("#notice")).to_contain_text("400 items deleted.")
    left = [item["key_hash"] for item in held(many) if item["tags"]["country"] == "Japan"]
    assert left == ["came-later"]


async def test_a_selection_goes_over_pages_and_is_downloaded_or_deleted_itself(new_tab: Any, many: Caller) -> None:
    page = await (await new_tab(many)).open(f"#/groups/{GROUP}")
    await rows(page).nth(2).get_by_role("checkbox").check()
    await page.get_by_role("link", name="Next", exact=True).click()
    await expect(page.locator(".pager")).to_contain_text("ids 1175 to")
    await rows(page).nth(0).get_by_role("checkbox").check()
    await expect(page.locator(".selection")).to_contain_text("2 items selected")
    async with page.expect_download() as download:
        await page.locator(".selection").get_by_role("button", name="Download").click()
    chosen = json.loads(Path(await (await download.value).path()).read_text())
    newest = many.newest(GROUP, 30)
    assert [item["output_id"] for item in chosen] == [newest[2]["output_id"], newest[25]["output_id"]]
    await page.get_by_role("button", name="Delete", exact=True).click()
    await page.get_by_label("Type 2 to confirm").fill("2")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.locator("#notice")).to_contain_text("2 items deleted.")
    left = {item["output_id"] for item in held(many)}
    assert len(left) == ITEMS - 2 and not left & {item["output_id"] for item in chosen}


async def test_all_that_match_are_downloaded(new_tab: Any, many: Caller) -> None:
    page = await (await new_tab(many)).open(f"#/groups/{GROUP}?country=Japan")
    await select_all(page, 400)
    await page.locator(".selection").get_by_role("button", name="Download").click()
    dialog = page.get_by_role("dialog", name="Download")
    await dialog.get_by_label("Format").select_option("ndjson")
    async with page.expect_download() as download:
        await dialog.get_by_role("button", name="Download").click()
    lines = Path(await (await download.value).path()).read_text().splitlines()
    assert {json.loads(line)["id"] for line in lines} == {item["id"] for item in held(many, "country=Japan")}


async def test_all_that_match_but_one_are_downloaded_with_their_data(new_tab: Any, many: Caller) -> None:
    page = await (await new_tab(many)).open(f"#/groups/{GROUP}?where=price:6")
    matching = held(many, "where=price:6")
    await select_all(page, len(matching))
    await rows(page).first.get_by_role("checkbox").uncheck()
    async with page.expect_download() as download:
        await page.locator(".selection").get_by_role("button", name="Download").click()
    items = json.loads(Path(await (await download.value).path()).read_text())
    assert sorted(items, key=lambda item: int(item["id"])) == matching[:-1]


async def test_a_long_run_can_be_stopped_and_says_what_is_left(new_tab: Any, many: Caller) -> None:
    page = await (await new_tab(many)).open(f"#/groups/{GROUP}")
    await select_all(page, 1200)

    async def slow(route: Any) -> None:
        if route.request.method == "PATCH":
            await page.get_by_role("button", name="Stop").click()
        await route.continue_()

    await intercept(page, f"**/v1/outputs/{GROUP}", slow)
    await page.get_by_role("button", name="Approve", exact=True).click()
    await expect(page.locator("#notice")).to_contain_text("Stopped: 200 items are left as before.")
    await expect(page.locator(".selection")).to_contain_text("200 items selected")
    await page.unroute(f"**/v1/outputs/{GROUP}")
    assert sum(item["is_approved"] for item in held(many)) == 1000


async def test_rows_selected_while_others_are_approved_stay_selected(new_tab: Any, many: Caller) -> None:
    page = await (await new_tab(many)).open(f"#/groups/{GROUP}")
    checks = [rows(page).nth(place).get_by_role("checkbox") for place in range(3)]
    for check in checks[:2]:
        await check.check()

    async def select_another(route: Any) -> None:
        if route.request.method == "PATCH":
            await checks[2].check()
        await route.continue_()

    await intercept(page, f"**/v1/outputs/{GROUP}", select_another)
    await page.get_by_role("button", name="Approve", exact=True).click()
    await expect(page.locator("#notice")).to_contain_text("2 items approved.")
    await expect(page.locator(".selection")).to_contain_text("1 item selected")
    for check, yes in zip(checks, (False, False, True), strict=True):
        await expect(check).to_be_checked(checked=yes)


async def test_a_click_on_a_column_sorts_the_page(new_tab: Any, many: Caller) -> None:
    page = await (await new_tab(many)).open(f"#/groups/{GROUP}")
    head = page.get_by_role("columnheader", name="price")
    prices = page.locator("td[data-label='price']")
    given = [item["data"]["price"] for item in many.newest(GROUP)]
    await expect(prices).to_have_text([str(price) for price in given])
    for order, expected in [("ascending", sorted(given)), ("descending", sorted(given, reverse=True)), (None, given)]:
        await head.get_by_role("link").click()
        await expect(prices).to_have_text([str(price) for price in expected])
        assert await head.get_attribute("aria-sort") == order
    await head.get_by_role("link").click()
    await page.reload()
    await expect(prices).to_have_text([str(price) for price in sorted(given)])


async def test_the_header_stays_in_sight_and_rows_per_page_are_chosen(new_tab: Any, many: Caller) -> None:
    page = await (await new_tab(many)).open(f"#/groups/{GROUP}")
    await page.locator("#limit").select_option("100")
    await expect(rows(page)).to_have_count(100)
    await rows(page).nth(90).scroll_into_view_if_needed()
    await expect(page.get_by_role("columnheader", name="title")).to_be_in_viewport()
