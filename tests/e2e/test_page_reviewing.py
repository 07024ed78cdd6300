"""Judging items and jobs: one or many, by mouse or keyboard, and what happens when somebody else was faster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from tests.e2e.conftest import Caller
from tests.e2e.page import GROUP, intercept, rows
from tests.support.api import make_output

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def reviewer(caller: Caller) -> Caller:
    """A caller with a group of 30 items, none of them approved."""
    caller.post(f"outputs/{GROUP}", [make_output(number) for number in range(30)])
    return caller


def approved(caller: Caller) -> set[str]:
    return {item["key_hash"] for item in caller.get(f"outputs/{GROUP}?limit=100")["items"] if item["is_approved"]}


def change_title(caller: Caller, number: int) -> None:
    """Write an item anew, as a crawl does that found something else."""
    changed = make_output(number, data={"title": "Changed meanwhile"}, root_job_id="job-2")
    assert caller.post(f"outputs/{GROUP}", [changed])["updated"] == 1


async def open_group(new_tab: Any, caller: Caller, view: str = "") -> Page:
    page: Page = await (await new_tab(caller)).open(f"#/groups/{GROUP}{view}")
    await expect(rows(page)).to_have_count(25)
    return page


async def test_a_reviewer_approves_25_items_by_keyboard(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(new_tab, reviewer)
    await page.keyboard.press("j")
    await expect(rows(page).first).to_have_class("current")
    for _ in range(25):
        await page.keyboard.press("a")
    await expect(page.locator("table.rows .chip.good")).to_have_count(25)
    await expect(page.get_by_text("25 approved (83 %)")).to_be_visible()
    assert approved(reviewer) == {f"key-{number}" for number in range(5, 30)}
    await expect(page.locator(".news")).to_be_hidden()  # what one did oneself is no news


async def test_keys_move_open_reject_select_and_explain_themselves(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(new_tab, reviewer)
    keys = page.keyboard
    for key in ("j", "j", "j", "k"):
        await keys.press(key)
    await expect(rows(page).nth(1)).to_have_class("current")
    await keys.press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("heading", name="Lamp 28")).to_be_visible()
    await keys.press("a")  # approves and moves on
    await expect(dialog.get_by_role("heading", name="Lamp 27")).to_be_visible()
    await keys.press("k")
    await expect(dialog.get_by_role("button", name="Approved")).to_be_visible()
    assert approved(reviewer) == {"key-28"}
    await keys.press("x")
    await page.get_by_label("Why").fill("Wrong data")
    await keys.press("Enter")
    await expect(dialog.get_by_role("heading", name="Lamp 27")).to_be_visible()
    await keys.press("k")
    await expect(dialog.get_by_role("button", name="Rejected")).to_be_visible()
    await keys.press("Escape")
    await expect(dialog).to_be_hidden()
    assert approved(reviewer) == set()

    await keys.press("s")
    await keys.press("j")
    await keys.press("s")
    await expect(page.get_by_text("2 items selected")).to_be_visible()
    await keys.press("a")
    await expect(page.locator("table.rows .chip.good")).to_have_count(2)
    await keys.press("/")
    await expect(page.get_by_label("Find on this page")).to_be_focused()
    await keys.type("jax")  # letters in a field are letters
    await expect(page.get_by_label("Find on this page")).to_have_value("jax")
    await page.get_by_label("Find on this page").fill("")
    await page.get_by_role("button", name="Reload").focus()
    await keys.press("?")
    await expect(page.get_by_role("dialog", name="Keys")).to_contain_text("Approve the row")
    await keys.press("Escape")
    await keys.press("n")
    await expect(rows(page)).to_have_count(5)
    await keys.press("p")
    await expect(rows(page)).to_have_count(25)


async def test_the_keys_lead_on_to_the_next_page_and_back(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(new_tab, reviewer)
    current = page.locator("table.rows tr.current")
    for _ in range(25):
        await page.keyboard.press("j")
    await page.keyboard.press("a")
    await expect(current.locator(".chip.good")).to_be_visible()
    await expect(rows(page)).to_have_count(25)  # nobody approves the next page unseen
    await page.keyboard.press("j")
    await expect(rows(page)).to_have_count(5)
    await expect(current).to_contain_text("Lamp 4")
    await page.keyboard.press("k")
    await expect(current).to_contain_text("Lamp 6")
    await page.keyboard.press("n")
    await expect(current).to_contain_text("Lamp 4")
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("heading", name="Lamp 4")).to_be_visible()
    await page.keyboard.press("k")
    await expect(dialog.get_by_role("heading", name="Lamp 6")).to_be_visible()
    await dialog.get_by_role("button", name="Next").click()
    await expect(dialog.get_by_role("heading", name="Lamp 4")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(dialog).to_be_hidden()
    await expect(rows(page)).to_have_count(5)


async def test_approving_the_last_item_twice_is_no_conflict_with_oneself(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(new_tab, reviewer)
    pressed, sent = asyncio.Event(), []

    async def hold(route: Route) -> None:
        if route.request.method == "PATCH":
            sent.append(route.request.post_data)
            await pressed.wait()
        await route.continue_()

    await intercept(page, f"**/outputs/{GROUP}", hold)
    await rows(page).last.locator("a[data-open]").click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    for _ in range(2):
        await page.keyboard.press("a")
    pressed.set()
    await expect(page.locator("#notice")).to_have_text("1 item approved.Undo")
    assert (len(sent), approved(reviewer)) == (1, {"key-5"})


async def test_many_are_approved_and_rejected_with_checkboxes(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(new_tab, reviewer)
    await page.get_by_role("checkbox", name="Select all rows").check()
    await expect(page.get_by_text("25 items selected")).to_be_visible()
    await rows(page).nth(0).get_by_role("checkbox").uncheck()
    await page.get_by_role("button", name="Approve", exact=True).click()
    await expect(page.locator("#notice").get_by_text("24 items approved.")).to_be_visible()
    await expect(page.locator("table.rows .chip.good")).to_have_count(24)
    assert len(approved(reviewer)) == 24
    await rows(page).nth(1).get_by_role("checkbox").check()
    await page.get_by_role("button", name="Reject").click()
    await page.get_by_label("Why").fill("Duplicate")
    await page.get_by_role("dialog").get_by_role("button", name="Reject").click()
    await expect(page.locator("#notice")).to_contain_text("1 item rejected.")
    assert len(approved(reviewer)) == 23


async def test_an_item_that_somebody_else_changed_is_not_approved_but_shown_anew(
    new_tab: Any, reviewer: Caller
) -> None:
    tab = await new_tab(reviewer)
    tab.expected |= {412}
    page = await tab.open(f"#/groups/{GROUP}?limit=10")
    await expect(rows(page)).to_have_count(10)
    change_title(reviewer, 29)
    await page.keyboard.press("j")
    await page.keyboard.press("a")
    notice = page.locator("#notice")
    await expect(notice).to_contain_text("changed by somebody else meanwhile (job job-2")
    await expect(rows(page).first).to_contain_text("Changed meanwhile")
    assert approved(reviewer) == set()
    await page.keyboard.press("k")
    await page.keyboard.press("a")
    await expect(rows(page).first.locator(".chip.good")).to_be_visible()
    assert approved(reviewer) == {"key-29"}


async def test_an_item_whose_tags_have_no_room_for_the_reason_is_not_shown_as_rejected(
    new_tab: Any, reviewer: Caller
) -> None:
    full = make_output(30, data={}, files=[], tags={"note": "x" * 1_048_480})
    assert reviewer.post(f"outputs/{GROUP}", [full])["created"] == 1
    page = await open_group(new_tab, reviewer)
    await page.keyboard.press("j")
    await page.keyboard.press("x")
    await page.get_by_label("Why").fill("r" * 200)
    await page.get_by_role("dialog").get_by_role("button", name="Reject").click()
    await expect(page.locator("#notice")).to_contain_text("The reason does not fit into the tags of 1 item")
    await expect(rows(page).first).not_to_contain_text("rejected")


async def test_of_many_only_those_are_approved_that_are_as_they_were_seen(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(new_tab, reviewer)
    change_title(reviewer, 28)
    reviewer.call(
        "DELETE", f"outputs/{GROUP}/{reviewer.get(f'outputs/{GROUP}?key_hash=key-27')['items'][0]['output_id']}"
    )
    await page.get_by_role("checkbox", name="Select all rows").check()
    await page.get_by_role("button", name="Approve", exact=True).click()
    notice = page.locator("#notice")
    await expect(notice).to_contain_text("23 items approved. Item 29 was changed by somebody else")
    await expect(notice).to_contain_text("1 item is deleted.")
    await expect(rows(page).nth(1)).to_contain_text("Changed meanwhile")
    assert approved(reviewer) == {f"key-{number}" for number in range(5, 30)} - {"key-27", "key-28"}


async def test_what_the_token_may_not_do_is_not_offered(
    new_tab: Any, shop: Caller, make_caller: Callable[..., Caller]
) -> None:
    page = await (await new_tab(make_caller(shop.organization_id, "read", "state"))).open(f"#/groups/{GROUP}")
    await expect(rows(page)).to_have_count(25)
    await page.keyboard.press("j")
    await page.keyboard.press("a")
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("heading", level=2)).to_be_visible()
    for name in ("Approve", "Approved", "Reject", "Delete"):
        assert await dialog.get_by_role("button", name=name, exact=True).count() == 0
    await page.goto(page.url.split("#")[0] + f"#/groups/{GROUP}/jobs")
    await expect(page.get_by_role("columnheader", name="What it did")).to_be_visible()
    await expect(page.get_by_role("link", name="job-1", exact=True)).to_be_visible()
    assert await page.get_by_role("button", name="Review job-1").count() == 0
    await page.goto(page.url.split("#")[0] + "#/state/shop.example")
    await expect(page.get_by_role("button", name="Show the value of session")).to_be_visible()
    for name in ("Delete", "Edit", "Add", "Import"):
        assert await page.get_by_role("button", name=name).count() == 0


async def test_an_item_is_deleted_after_a_confirmation(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(new_tab, reviewer)
    await rows(page).first.get_by_role("link").first.click()
    item = page.get_by_role("dialog", name="Lamp 29")
    await item.get_by_role("button", name="Delete").click()
    question = page.get_by_role("dialog", name="Delete this item?")
    await question.get_by_role("button", name="Keep").click()
    await expect(question).to_be_hidden()
    assert len(reviewer.get(f"outputs/{GROUP}?limit=100")["items"]) == 30
    await item.get_by_role("button", name="Delete").click()
    await expect(question).to_contain_text("there is a way back, while the group keeps its history (30 days)")
    await question.get_by_role("button", name="Delete").click()
    await expect(item).to_be_hidden()
    await expect(rows(page)).to_have_count(24)
    await expect(page.get_by_text("29 items from")).to_be_visible()
    assert len(reviewer.get(f"outputs/{GROUP}?limit=100")["items"]) == 29
    await page.locator("#notice").get_by_role("button", name="Restore").click()
    await expect(page.get_by_text("30 items from")).to_be_visible()
    await expect(rows(page).first).to_contain_text("Lamp 29")


async def test_after_the_last_item_of_a_page_is_deleted_the_page_says_what_is_left(
    new_tab: Any, caller: Caller
) -> None:
    caller.post(f"outputs/{GROUP}", [make_output()])
    caller.call("PUT", f"groups/{GROUP}", {"history_days": 0})
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}")
    await rows(page).first.get_by_role("link").first.click()
    await page.locator("dialog.item").get_by_role("button", name="Delete").click()
    question = page.get_by_role("dialog", name="Delete this item?")
    await expect(question).to_contain_text("This cannot be undone: the group keeps no history.")
    await question.get_by_role("button", name="Delete").click()
    await expect(page.locator("#notice")).to_have_text("The item is deleted")
    await expect(page.locator(".outputs")).to_contain_text("All items of this group were deleted.")
    await expect(page.locator(".pager")).not_to_contain_text("1 item")


async def test_a_review_is_written_for_a_job(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}/jobs")
    await page.get_by_role("button", name="Review job-3").click()
    dialog = page.get_by_role("dialog", name="Review job-3")
    assert await dialog.get_by_role("radio", checked=True).count() == 0
    await dialog.get_by_role("button", name="Save review").click()
    await expect(dialog).to_be_visible()  # nothing is chosen for anybody
    await dialog.get_by_role("radio", name="Needs changes").check()
    await dialog.get_by_label("Comment").fill("The currency is missing.")
    await dialog.get_by_role("button", name="Save review").click()
    row = page.get_by_role("row", name="job-3")
    await expect(row).to_contain_text("needs changes")
    await expect(row).to_contain_text("The currency is missing.")
    written = [one for one in shop.get(f"reviews/{GROUP}") if one["job_id"] == "job-3"]
    assert [(one["status"], one["comment"]) for one in written] == [("needs_changes", "The currency is missing.")]
