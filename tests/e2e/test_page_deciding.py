"""Deciding in a hurry: no key, message or late response may decide about another item than the one looked at."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from tests.e2e.conftest import Caller
from tests.e2e.page import GROUP, add_filter, intercept, intercept_first, judged, reject, rows
from tests.support.api import make_output

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def reviewer(caller: Caller) -> Caller:
    """A caller with a group of 30 items, none of them judged."""
    caller.post(f"outputs/{GROUP}", [make_output(number, data={"title": f"Lamp {number}"}) for number in range(30)])
    return caller


async def open_group(tab: Any, view: str = "") -> Page:
    page: Page = await tab.open(f"#/groups/{GROUP}{view}")
    await expect(rows(page).first).to_be_visible()
    return page


async def press(page: Page, keys: str) -> None:
    for key in keys:
        await page.keyboard.press(key)


async def approve_and_reject_the_first(page: Page) -> None:
    await press(page, "ja")
    await expect(page.locator("table.rows .chip.good")).to_have_count(1)
    await press(page, "kx")
    await reject(page, "Duplicate")
    await expect(page.locator("table.rows .chip.bad")).to_have_count(1)


class Held:
    """Requests of one kind that wait until they are let go."""

    def __init__(self) -> None:
        self.go, self.sent = asyncio.Event(), 0

    async def __call__(self, route: Route) -> None:
        self.sent += 1
        await self.go.wait()
        await route.continue_()


async def test_after_a_rejection_the_next_row_is_the_current_one(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await press(page, "jx")
    await reject(page, "Duplicate")
    await expect(rows(page).nth(1)).to_have_class("current")
    await press(page, "a")
    await expect(rows(page).first.locator(".chip.bad")).to_be_visible()
    await expect(rows(page).nth(1).locator(".chip.good")).to_be_visible()
    assert judged(reviewer) == {"key-29": "Duplicate", "key-28": True}


async def test_keys_wait_for_the_rows_of_the_next_page(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await press(page, "k")  # from no row to the last one
    await expect(rows(page).last).to_have_class("current")
    reading = Held()
    # Not the request that waits for news.
    await intercept(page, lambda url: "/outputs/shop?" in url and "cursor=" in url and "wait=" not in url, reading)
    await press(page, "n")
    async with asyncio.timeout(30):
        while not reading.sent:
            await asyncio.sleep(0.01)
    await press(page, "ja")
    reading.go.set()
    await expect(rows(page)).to_have_count(5)
    await expect(rows(page).first).to_have_class("current")
    await press(page, "a")
    await expect(rows(page).first.locator(".chip.good")).to_be_visible()
    assert judged(reviewer) == {"key-4": True}


async def test_undo_goes_back_decision_by_decision(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await press(page, "jaa")
    await expect(page.locator("table.rows .chip.good")).to_have_count(2)
    await press(page, "z")
    await expect(page.locator("#notice")).to_have_text("Item 29 is as before.")
    await press(page, "z")
    await expect(page.locator("#notice")).to_have_text("Item 30 is as before.")
    await press(page, "z")
    await expect(page.locator("table.rows .chip.good")).to_have_count(0)
    assert judged(reviewer) == {}


async def test_two_decisions_about_one_item_are_undone_one_after_the_other(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await approve_and_reject_the_first(page)
    await press(page, "zz")
    await expect(page.locator("table.rows .chip")).to_have_count(0)
    assert judged(reviewer) == {}


async def test_undo_does_not_approve_what_somebody_else_changed_in_between(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await approve_and_reject_the_first(page)
    reviewer.post(f"outputs/{GROUP}", [make_output(29, data={"title": "Desk 29"})])
    await page.get_by_role("button", name="Reload").click()
    await expect(rows(page).first).to_contain_text("Desk 29")
    await press(page, "jx")
    await reject(page, "Wrong data")
    await expect(page.locator("table.rows .chip.bad")).to_have_count(1)
    await press(page, "zz")
    await expect(page.locator("#notice")).to_contain_text("was changed by somebody else")
    assert judged(reviewer) == {}


async def test_undo_waits_for_the_decision_that_is_on_its_way(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await press(page, "ja")
    await expect(page.locator("table.rows .chip.good")).to_have_count(1)
    saving = Held()
    await intercept(page, f"**/v1/outputs/{GROUP}", saving)
    await press(page, "az")
    saving.go.set()
    await expect(page.locator("#notice")).to_have_text("Item 29 is as before.")
    assert judged(reviewer) == {"key-29": True}


async def test_undo_drops_a_decision_that_could_not_be_saved(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await page.context.set_offline(True)
    await press(page, "ja")
    await expect(page.locator("#unsaved")).to_contain_text("1 change is not saved.")
    await press(page, "z")
    await expect(page.locator("#unsaved")).to_be_hidden()


async def test_the_item_dialog_walks_the_rows_that_the_search_leaves(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer), "?q=Lamp+29")
    await expect(rows(page)).to_have_count(1)
    await rows(page).first.locator("a[data-open]").click()
    await expect(page.get_by_role("button", name="Next", exact=True)).to_be_disabled()
    await press(page, "a")
    await expect(page.locator("#notice")).to_contain_text("1 item approved.")
    await press(page, "a")
    await page.keyboard.press("Escape")
    await page.get_by_role("checkbox", name="Select all rows").check()
    await expect(page.get_by_text("1 item selected")).to_be_visible()
    await expect(page.get_by_role("button", name="that match")).to_have_count(0)
    assert judged(reviewer) == {"key-29": True}


async def test_the_search_finds_text_with_quotes(new_tab: Any, reviewer: Caller) -> None:
    reviewer.post(f"outputs/{GROUP}", [make_output(30, data={"title": 'Screen 27" no 2\\3'})])
    page = await open_group(await new_tab(reviewer))
    await page.get_by_label("Find on this page").fill('27" no 2\\3')
    await expect(page.get_by_text("1 of 25 rows on this page")).to_be_visible()


async def test_many_approvals_whose_response_was_lost_are_ones_own(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await page.get_by_role("checkbox", name="Select all rows").check()
    await page.get_by_role("button", name="that match").click()
    await expect(page.get_by_text("All 30 items selected")).to_be_visible()

    async def lose_the_response(route: Route) -> None:
        await route.fetch()
        await route.abort()

    await intercept_first(page, f"**/v1/outputs/{GROUP}", lose_the_response)
    await press(page, "a")
    await expect(page.locator("#notice")).to_have_text("30 items were approved already.")
    assert len(judged(reviewer)) == 30


async def test_an_item_opened_by_a_link_is_shown_anew_when_somebody_else_changed_it(
    new_tab: Any, reviewer: Caller
) -> None:
    oldest = reviewer.get(f"outputs/{GROUP}?limit=1")["items"][0]["output_id"]
    page = await open_group(await new_tab(reviewer), f"?item={oldest}")
    dialog = page.locator("dialog.item")
    await expect(dialog).to_contain_text("Lamp 0")
    reviewer.post(f"outputs/{GROUP}", [make_output(0, data={"title": "Desk 0"})])
    await press(page, "a")
    await expect(dialog).to_contain_text("Desk 0")
    await press(page, "a")
    await expect(dialog.locator(".chip.good")).to_be_visible()
    assert judged(reviewer) == {"key-0": True}


async def test_the_message_about_a_change_by_somebody_else_stays_while_one_goes_on(
    new_tab: Any, reviewer: Caller
) -> None:
    page = await open_group(await new_tab(reviewer))
    reviewer.post(f"outputs/{GROUP}", [make_output(29, data={"title": "Desk 29"})])
    await press(page, "ja")
    await expect(page.locator("#notice")).to_contain_text("Item 30 was changed by somebody else")
    await press(page, "a")
    await expect(page.locator("#notice")).to_contain_text("1 item approved.")
    await expect(page.locator("#notice")).to_contain_text("Item 30 was changed by somebody else")


async def test_closing_the_tab_asks_while_a_decision_is_on_its_way(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    asks = "() => !dispatchEvent(new Event('beforeunload', { cancelable: true }))"
    saving = Held()
    await intercept(page, f"**/v1/outputs/{GROUP}", saving)
    assert not await page.evaluate(asks)
    await press(page, "ja")
    assert await page.evaluate(asks)
    saving.go.set()
    await expect(page.locator("#notice")).to_contain_text("1 item approved.")
    assert not await page.evaluate(asks)


async def test_signing_out_in_another_tab_asks_where_something_is_not_saved(new_tab: Any, reviewer: Caller) -> None:
    tab = await new_tab(reviewer)
    tab.expected |= {401}
    page = await open_group(tab)
    other = await page.context.new_page()
    await other.goto(page.url)
    await expect(rows(other).first).to_be_visible()
    saving = Held()
    await intercept(page, f"**/v1/outputs/{GROUP}", saving)
    await press(page, "ja")
    await other.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("dialog", name="Sign in again")).to_be_visible()
    saving.go.set()
    await expect(page.locator("#notice")).to_contain_text("1 item approved.")
    await page.get_by_role("button", name="Not now").click()
    await expect(page.get_by_role("heading", name="Look at your data")).to_be_visible()


async def test_tagging_says_which_items_were_not_tagged(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await page.get_by_role("checkbox", name="Select all rows").check()
    gone = reviewer.get(f"outputs/{GROUP}?key_hash=key-29")["items"][0]["output_id"]
    reviewer.call("DELETE", f"outputs/{GROUP}/{gone}")
    await page.get_by_role("button", name="Tag", exact=True).click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Tag").fill("  ")
    await dialog.get_by_role("button", name="Tag", exact=True).click()
    await dialog.get_by_label("Tag").fill("checked")
    await dialog.get_by_label("Value").fill("yes")
    await dialog.get_by_role("button", name="Tag", exact=True).click()
    await expect(page.locator("#notice")).to_have_text("24 items tagged. 1 item is deleted.")
    tags = [item["tags"] for item in reviewer.get(f"outputs/{GROUP}?limit=100")["items"]]
    assert sum(one.get("checked") == "yes" for one in tags) == 24 and not any("" in one for one in tags)


async def test_a_key_that_is_held_decides_once(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await press(page, "j")
    for _ in range(8):
        await page.keyboard.down("a")
    await page.keyboard.up("a")
    await expect(page.locator("#notice")).to_contain_text("1 item approved.")
    await expect(rows(page).nth(1)).to_have_class("current")
    assert judged(reviewer) == {"key-29": True}


async def test_the_keys_can_be_switched_off(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await press(page, "?")
    await page.get_by_label("Use these keys").uncheck()
    await page.get_by_role("dialog").get_by_role("button", name="Close", exact=True).last.click()
    await press(page, "ja?")
    await expect(page.locator("tr.current")).to_have_count(0)
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.get_by_role("button", name="Keys").click()
    await page.get_by_label("Use these keys").check()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await press(page, "j")
    await expect(rows(page).first).to_have_class("current")


async def test_a_download_after_a_failure_has_the_filters_that_are_shown(new_tab: Any, reviewer: Caller) -> None:
    tab = await new_tab(reviewer)
    tab.expected |= {503}
    page = await open_group(tab)

    async def fail(route: Route) -> None:
        await route.fulfill(status=503, json={"detail": []})

    await intercept(page, "**/v1/outputs/shop?*country=*", fail)
    await add_filter(page, "Country", "Germany")
    await expect(page.get_by_role("button", name="Try again")).to_be_visible()
    await page.get_by_role("button", name="Download").click()
    await expect(page.get_by_text("Every item that matches the filters")).to_be_visible()


async def test_a_late_failure_does_not_replace_another_page(new_tab: Any, reviewer: Caller) -> None:
    tab = await new_tab(reviewer)
    tab.expected |= {500}
    page = await open_group(tab)
    go = asyncio.Event()

    async def fail_late(route: Route) -> None:
        await go.wait()
        await route.fulfill(status=500, json={"detail": []})

    await intercept_first(page, "**/v1/outputs/shop?*order=desc*", fail_late)
    await page.get_by_role("button", name="Reload").click()
    await page.keyboard.press("n")
    await expect(rows(page)).to_have_count(5)
    go.set()
    await page.wait_for_timeout(500)
    await expect(rows(page)).to_have_count(5)


async def test_a_downloaded_item_has_only_what_the_service_has(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await press(page, "ja")
    await expect(rows(page).first.locator(".chip.good")).to_be_visible()
    await rows(page).first.get_by_role("checkbox").check()
    async with page.expect_download() as downloading:
        await page.get_by_role("group", name="Selected items").get_by_role("button", name="Download").click()
    path = await (await downloading.value).path()
    (item,) = json.loads(path.read_text())
    assert item.keys() == reviewer.get(f"outputs/{GROUP}?key_hash=key-29")["items"][0].keys()


async def test_the_button_that_goes_on_keeps_the_focus(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await rows(page).first.locator("a[data-open]").click()
    following = page.get_by_role("button", name="Next", exact=True)
    await following.focus()
    for number in (28, 27):
        await page.keyboard.press("Enter")
        await expect(page.locator("#item-title")).to_have_text(f"Lamp {number}")
        await expect(following).to_be_focused()
