"""The page with a keyboard and a screen reader: the focus is never lost, and what happens is said where it is heard."""

from __future__ import annotations

import time
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.e2e.conftest import Caller, Tab
from tests.e2e.page import GROUP, intercept, rows
from tests.support.api import make_output, make_review

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def reviewer(caller: Caller) -> Caller:
    """A caller with a group of 30 items, none of them approved."""
    caller.post(f"outputs/{GROUP}", [make_output(number) for number in range(30)])
    caller.post(f"reviews/{GROUP}", [make_review()])
    return caller


async def open_group(tab: Tab, view: str = "") -> Page:
    page = await tab.open(f"#/groups/{GROUP}{view}")
    await expect(rows(page)).to_have_count(25)
    return page


async def test_the_focus_stays_when_the_rows_are_shown_anew(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    column = page.locator("thead th a").first
    for order in ("ascending", "descending"):
        await column.focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("thead th").nth(1)).to_have_attribute("aria-sort", order)
        await expect(column).to_be_focused()
    await page.keyboard.press("n")
    await expect(rows(page)).to_have_count(5)
    await expect(rows(page).first.get_by_role("link").first).to_be_focused()
    await page.locator("#limit").focus()
    await page.keyboard.press("ArrowDown")
    await expect(rows(page)).to_have_count(30)
    await expect(page.locator("#limit")).to_be_focused()


async def test_the_focus_stays_when_the_selection_is_judged_or_cleared(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    bar = page.get_by_role("group", name="Selected items")
    for name in ("Clear", "Approve"):
        await page.keyboard.press("j")
        await page.keyboard.press("s")
        await bar.get_by_role("button", name=name).focus()
        await page.keyboard.press("Enter")
        await expect(bar).to_be_hidden()
        await expect(page.locator("#outputs-title")).to_be_focused()
    await page.keyboard.press("j")
    await page.locator("#notice").get_by_role("button", name="Undo").focus()
    await page.keyboard.press("Enter")
    await expect(rows(page).locator(".chip.good")).to_have_count(0)
    await expect(page.locator("tr.current a[data-open]")).to_be_focused()


async def test_the_focus_stays_in_an_item_that_is_shown_anew(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await rows(page).last.locator("a[data-open]").click()
    await expect(page.locator("#item-title")).to_be_focused()
    await page.keyboard.press("a")
    await expect(page.get_by_role("button", name="Approved", exact=True)).to_be_visible()
    await expect(page.locator("#item-title")).to_be_focused()


async def test_the_focus_stays_on_what_was_chosen_in_other_views(new_tab: Any, reviewer: Caller) -> None:
    page = await (await new_tab(reviewer)).open(f"#/groups/{GROUP}/settings")
    await page.get_by_role("button", name="Add a rule").click()
    check = page.get_by_label("Check")
    await check.focus()
    for value in ("max_drop", "type", "min"):
        await page.keyboard.press("ArrowDown")
        await expect(check).to_have_value(value)
        await expect(check).to_be_focused()
    await page.get_by_label("Remove this rule").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Add a rule")).to_be_focused()
    await page.goto(page.url.replace("settings", "jobs"))
    again = page.get_by_role("button", name="Review job-1")
    await again.focus()
    await page.keyboard.press("Enter")
    await page.get_by_label("Needs changes").check()
    await page.get_by_role("button", name="Save review").click()
    await expect(page.get_by_text("needs changes")).to_be_visible()
    await expect(again).to_be_focused()


async def test_a_dialog_over_another_one_has_its_own_name(new_tab: Any, reviewer: Caller) -> None:
    tab = await new_tab(reviewer)
    tab.expected |= {401}
    page = await tab.open(f"#/groups/{GROUP}/jobs")
    await page.get_by_role("button", name="Review job-1").click()
    await page.get_by_label("Approved", exact=True).check()
    await page.evaluate("sessionStorage.setItem('token', 'sds_gone')")
    await page.get_by_role("button", name="Save review").click()
    await expect(page.get_by_role("dialog", name="Sign in again")).to_be_visible()


async def test_what_is_said_while_a_dialog_is_open_is_said_in_it(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await page.get_by_role("button", name="Columns").click()
    await page.locator("ul.choices input").nth(1).press("Alt+ArrowUp")
    await expect(page.get_by_role("dialog").locator("#status")).to_contain_text("place 1")
    await page.keyboard.press("Escape")
    await expect(page.locator("body > #status")).to_be_attached()


async def test_an_open_item_says_that_a_decision_is_not_saved(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer, width=390))
    await rows(page).first.locator("a[data-open]").click()
    await page.context.set_offline(True)
    title = page.locator("#item-title")
    for text in ("1 change is not saved.", "2 changes are not saved."):
        before = await title.inner_text()
        await page.keyboard.press("a")
        await expect(page.get_by_role("dialog").locator("#notice")).to_contain_text(text)
        await expect(title).not_to_have_text(before)  # the next item
    await page.context.set_offline(False)
    await expect(page.locator("#unsaved")).to_be_hidden()


async def test_a_service_that_takes_requests_and_does_not_respond_is_a_lost_connection(
    new_tab: Any, reviewer: Caller
) -> None:
    page = await open_group(await new_tab(reviewer))
    await intercept(page, "**/v1/**", lambda _: None)
    await page.keyboard.press("j")
    await page.keyboard.press("a")
    await expect(page.locator("#connection")).to_have_text("Connection lost, retrying", timeout=40_000)
    await page.unroute_all()
    await expect(page.locator("#connection")).to_have_text("Live")


async def test_items_that_were_opened_and_closed_are_not_in_the_way_back(new_tab: Any, reviewer: Caller) -> None:
    page = await (await new_tab(reviewer)).open("#/groups")
    await page.get_by_role("link", name=GROUP, exact=True).click()
    await expect(rows(page)).to_have_count(25)
    for _ in range(3):
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await expect(page.locator("#item-title")).to_be_focused()
        await page.keyboard.press("j")
        await page.keyboard.press("Escape")
        await expect(page.locator("tr.current a[data-open]")).to_be_focused()
        await expect(page).to_have_url(f"{page.url.split('#')[0]}#/groups/{GROUP}")
    await page.go_back()
    await expect(page.get_by_role("heading", name="Groups")).to_be_visible()


async def test_approving_reads_the_counts_once_per_second(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/stats") else None)
    began = time.monotonic()
    await page.keyboard.press("j")
    for _ in range(25):
        await page.keyboard.press("a")
    await expect(page.get_by_text("25 approved (83 %)")).to_be_visible()
    assert 0 < len(asked) <= time.monotonic() - began + 3


async def test_a_key_that_has_nothing_to_undo_says_so(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await page.keyboard.press("z")
    await expect(page.locator("#notice")).to_have_text("There is nothing to undo in this view.")


async def test_a_long_title_is_a_column_and_an_object_beside_its_fields_is_not(new_tab: Any, caller: Caller) -> None:
    data: list[dict[str, Any]] = [
        {"title": "A long title " * 8, "price": {"amount": n}, "sku": f"S{n}"} for n in range(6)
    ]
    data[0]["price"] = None
    caller.post(f"outputs/{GROUP}", [make_output(n, data=one) for n, one in enumerate(data)])
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}")
    await expect(rows(page)).to_have_count(6)
    names = await page.locator("thead th a").all_inner_texts()
    assert names[0] == "title" and "price.amount" in names and "price" not in names


async def test_an_item_of_another_page_is_named_by_the_id_that_was_seen(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    for key in "ja":
        await page.keyboard.press(key)
    await expect(rows(page).locator(".chip.good")).to_have_count(1)
    await page.keyboard.press("n")
    await expect(rows(page)).to_have_count(5)
    await page.keyboard.press("z")
    await expect(page.locator("#notice")).to_have_text("Item 30 is as before.")
