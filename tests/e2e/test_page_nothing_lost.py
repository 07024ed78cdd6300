"""Work is never lost in silence: tokens that end, services that stop, two reviewers at once, deletions that stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.e2e.conftest import Caller, Tab
from tests.e2e.page import GROUP, intercept, intercept_first, judged, reject, rows, sign_in
from tests.support.api import make_output
from tests.support.processes import run_command

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def reviewer(caller: Caller) -> Caller:
    """A caller with a group of 30 items, none of them approved."""
    caller.post(f"outputs/{GROUP}", [make_output(number) for number in range(30)])
    return caller


async def open_group(tab: Tab, view: str = "") -> Page:
    page = await tab.open(f"#/groups/{GROUP}{view}")
    await expect(rows(page)).to_have_count(25)
    await expect(page.locator(".lead")).to_contain_text("30 items")  # the view is whole
    return page


async def test_approvals_after_the_token_ended_are_saved_once_signed_in_again(
    new_tab: Any, reviewer: Caller, make_caller: Callable[..., Caller], mongo_url: str
) -> None:
    short_lived = make_caller(reviewer.organization_id)
    tab = await new_tab(short_lived)
    tab.expected |= {401, 403}
    page = await open_group(tab)
    assert run_command(mongo_url, "token", "revoke", short_lived.token).returncode == 0
    await expect(page.locator("#connection")).to_contain_text("The token does not work")
    for key in "jaaa":
        await page.keyboard.press(key)
    dialog = page.get_by_role("dialog", name="Sign in again")
    await expect(dialog).to_contain_text("Nothing is lost")
    await sign_in(page, make_caller().token)
    await expect(dialog).to_contain_text("another organization")
    assert judged(reviewer) == {}
    await sign_in(page, reviewer.token)
    await expect(dialog).to_be_hidden()
    # One to three: a key that was pressed after the dialog was there is a letter in it.
    await expect(rows(page).first.locator(".chip.good")).to_be_visible()
    await expect(page.locator("#connection")).to_have_text("Live")
    chips, saved = rows(page).locator(".chip.good"), judged(reviewer)
    async with asyncio.timeout(30):
        while await chips.count() != len(saved):
            await asyncio.sleep(0.1)
            saved = judged(reviewer)
    assert "key-29" in saved and saved.keys() <= {"key-29", "key-28", "key-27"}


async def test_a_bulk_approval_without_a_token_keeps_the_selection_and_says_so(
    new_tab: Any, reviewer: Caller, make_caller: Callable[..., Caller], mongo_url: str
) -> None:
    short_lived = make_caller(reviewer.organization_id)
    tab = await new_tab(short_lived)
    tab.expected |= {401}
    page = await open_group(tab)
    assert run_command(mongo_url, "token", "revoke", short_lived.token).returncode == 0
    await expect(page.locator("#connection")).to_contain_text("The token does not work")
    await page.get_by_role("checkbox", name="Select all rows").check()
    await page.get_by_role("button", name="Approve", exact=True).click()
    await page.get_by_role("button", name="Not now").click()
    await expect(page.get_by_text("25 items selected")).to_be_visible()
    unsaved = page.locator("#unsaved")
    await expect(unsaved).to_contain_text("25 changes are not saved. The token does not work.")
    await page.get_by_role("link", name="Jobs", exact=True).click()
    await page.get_by_role("button", name="Not now").click()
    await unsaved.get_by_role("button", name="Save again").click()
    await sign_in(page, reviewer.token)
    await expect(unsaved).to_be_hidden()
    await expect(page.locator("#notice")).to_contain_text("25 items approved.")
    assert len(judged(reviewer)) == 25


async def test_what_could_not_be_saved_while_the_service_was_away_is_saved_when_it_is_back(
    new_tab: Any, reviewer: Caller
) -> None:
    page = await open_group(await new_tab(reviewer))
    await page.context.set_offline(True)
    for key in "jaa":
        await page.keyboard.press(key)
    await expect(page.locator("#connection")).to_have_text("Connection lost, retrying")
    await expect(page.locator("#unsaved")).to_contain_text("2 changes are not saved.")
    await page.context.set_offline(False)
    await expect(page.locator("#connection")).to_have_text("Live")
    await expect(page.locator("#unsaved")).to_be_hidden()
    await expect(rows(page).locator(".chip.good")).to_have_count(2)
    assert judged(reviewer) == {"key-29": True, "key-28": True}


async def test_keys_decide_nothing_about_rows_that_a_failure_took_from_the_screen(
    new_tab: Any, reviewer: Caller
) -> None:
    tab, shown = await new_tab(reviewer), asyncio.Event()
    tab.expected |= {503}

    async def fail_late(route: Any) -> None:
        await shown.wait()
        await route.fulfill(status=503, body="{}")

    await intercept_first(tab.page, "**/stats", fail_late)
    page = await tab.open(f"#/groups/{GROUP}")
    await expect(rows(page)).to_have_count(25)
    methods: list[str] = []
    page.on("request", lambda request: methods.append(request.method))
    shown.set()
    await expect(page.get_by_role("heading", name="The service is busy")).to_be_visible()
    for key in "jaa":
        await page.keyboard.press(key)
    await expect(page.locator(".lead")).to_contain_text("30 items")
    assert "PATCH" not in methods and judged(reviewer) == {}


# The other views are loaded after the first one is there.
ALL_LOADED = "performance.getEntriesByType('resource').some(({ name }) => name.endsWith('state/formats.js'))"


async def wait_for_all_views(page: Page) -> None:
    while not await page.evaluate(ALL_LOADED):
        await page.wait_for_timeout(50)


async def test_a_view_that_comes_back_with_the_service_shows_what_was_decided_before(
    new_tab: Any, reviewer: Caller
) -> None:
    page = await open_group(await new_tab(reviewer))
    await wait_for_all_views(page)
    await page.context.set_offline(True)
    for key in "jaa":
        await page.keyboard.press(key)
    await expect(page.locator("#unsaved")).to_contain_text("2 changes are not saved.")
    await page.get_by_role("link", name="Jobs", exact=True).click()
    await expect(page.get_by_role("main")).to_contain_text("The service cannot be reached")
    await page.go_back()

    async def save_slowly(route: Any) -> None:
        await asyncio.sleep(0.5)
        await route.continue_()

    await intercept(page, f"**/v1/outputs/{GROUP}", save_slowly)
    await page.context.set_offline(False)
    await expect(rows(page).locator(".chip.good")).to_have_count(2)
    await expect(page.locator(".news")).to_be_hidden()


async def test_decisions_that_are_saved_while_a_view_is_made_again_are_shown_in_it(
    new_tab: Any, reviewer: Caller
) -> None:
    page = await open_group(await new_tab(reviewer))
    shown = asyncio.Event()

    async def save_later(route: Any) -> None:
        if route.request.method == "PATCH":
            await shown.wait()
        await route.continue_()

    await intercept(page, f"**/v1/outputs/{GROUP}*", save_later)
    for key in "jaa":
        await page.keyboard.press(key)
    for _ in range(2):
        await page.get_by_role("link", name="Jobs", exact=True).click()
        await expect(page.get_by_role("button", name="Review job-1")).to_be_visible()
        await page.go_back()
        await expect(rows(page)).to_have_count(25)
    await expect(rows(page).locator(".chip.good")).to_have_count(0)
    shown.set()
    await expect(rows(page).locator(".chip.good")).to_have_count(2)
    await expect(page.locator("#notice")).to_contain_text("1 item approved.")
    await page.wait_for_timeout(1_500)  # in which the news of others would be shown
    await expect(page.locator(".news")).to_be_hidden()


async def test_what_is_discarded_while_decisions_are_saved_again_is_not_saved(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await page.context.set_offline(True)
    for key in "jaa":
        await page.keyboard.press(key)
    unsaved, discarded = page.locator("#unsaved"), asyncio.Event()
    await expect(unsaved).to_contain_text("2 changes are not saved.")

    async def save_later(route: Any) -> None:
        await discarded.wait()
        await route.continue_()

    await intercept(page, f"**/v1/outputs/{GROUP}", save_later)
    async with page.expect_request(lambda request: request.method == "PATCH"):
        await page.context.set_offline(False)
    await expect(unsaved).to_contain_text("1 change is not saved.")
    await page.get_by_role("button", name="Discard").click()
    discarded.set()
    await expect(rows(page).locator(".chip.good")).to_have_count(1)
    await expect(page.locator("#notice")).to_contain_text("1 item approved.")
    assert judged(reviewer) == {"key-29": True}


@pytest.mark.parametrize("view", ["#/groups", f"#/groups/{GROUP}", f"#/groups/{GROUP}/jobs"])
async def test_a_view_says_when_the_service_is_away_and_comes_back_by_itself(
    new_tab: Any, reviewer: Caller, view: str
) -> None:
    page = await (await new_tab(reviewer)).open(view)
    await wait_for_all_views(page)
    await expect(page.locator("#connection")).to_have_text("Live")
    await page.context.set_offline(True)
    await expect(page.locator("#connection")).to_have_text("Connection lost, retrying")
    await page.get_by_role("link", name="Browser state").click()
    await expect(page.get_by_role("alert")).to_contain_text("The service cannot be reached")
    await page.context.set_offline(False)
    await expect(page.locator("#connection")).to_have_text("Live")
    await expect(page.get_by_text("No browser state")).to_be_visible()


@pytest.mark.parametrize(
    ("module", "shown", "role"),
    [
        # Not the message that a slow page shows while it still loads.
        ("base/dom.js", "#not-loaded.now", "link"),
        ("items/table.js", "h1:text('A part of the page could not be loaded')", "button"),
    ],
)
async def test_a_module_that_does_not_load_leaves_a_message_and_a_reload(
    new_tab: Any, reviewer: Caller, module: str, shown: str, role: Any
) -> None:
    tab = await new_tab(reviewer)
    tab.expected |= {503}
    await intercept(tab.page, f"**/page/{module}", lambda route: route.fulfill(status=503))
    page = await tab.open(f"#/groups/{GROUP}")
    await expect(page.locator(shown)).to_be_visible()
    tab.complaints = [one for one in tab.complaints if "dynamically imported module" not in one]
    await page.unroute(f"**/page/{module}")
    await page.get_by_role(role, name="Reload").click()
    await expect(rows(page)).to_have_count(25)


async def test_without_any_script_the_message_appears_after_some_seconds(new_tab: Any, reviewer: Caller) -> None:
    tab = await new_tab(reviewer)
    tab.expected |= {503}
    await intercept(tab.page, "**/page/main.js", lambda route: route.fulfill(status=503))
    page = await tab.open(f"#/groups/{GROUP}")
    heading = page.get_by_role("heading", name="The page has not loaded")
    await expect(heading).to_be_visible()


async def test_items_that_were_never_approved_are_rejected_with_a_reason(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await page.get_by_role("checkbox", name="Select all rows").check()
    await page.get_by_role("button", name="Reject").click()
    await reject(page, "The consent wall")
    await expect(page.locator("#notice")).to_contain_text("25 items rejected.")
    await expect(rows(page).locator(".chip.bad")).to_have_count(25)
    assert judged(reviewer) == {f"key-{number}": "The consent wall" for number in range(5, 30)}
    await page.keyboard.press("j")
    await page.keyboard.press("a")
    await expect(rows(page).locator(".chip.good")).to_have_count(1)
    assert judged(reviewer)["key-29"] is True
    assert "rejected" not in reviewer.get(f"outputs/{GROUP}?key_hash=key-29")["items"][0]["tags"]


async def test_an_approval_and_a_rejection_can_be_undone_from_their_message(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    notice = page.locator("#notice")
    await page.keyboard.press("j")
    await page.keyboard.press("a")
    await expect(notice).to_contain_text("1 item approved.")
    await notice.get_by_role("button", name="Undo").click()
    await expect(notice).to_contain_text("Item 30 is as before.")
    assert judged(reviewer) == {}
    await page.get_by_role("checkbox", name="Select all rows").check()
    await page.keyboard.press("x")
    await reject(page, "Duplicate")
    await expect(notice).to_contain_text("25 items rejected.")
    await page.keyboard.press("z")
    await expect(notice).to_contain_text("25 items are as before.")
    await expect(rows(page).locator(".chip.bad")).to_have_count(0)
    assert judged(reviewer) == {}


async def test_of_two_decisions_that_wait_for_the_service_the_later_one_counts(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await page.context.set_offline(True)
    unsaved = page.locator("#unsaved")
    for key in "ja":
        await page.keyboard.press(key)
    await expect(unsaved).to_contain_text("1 change is not saved.")
    for key in "kx":
        await page.keyboard.press(key)
    async with page.expect_event("requestfailed", lambda request: request.method == "PATCH"):
        await reject(page, "Duplicate")
    await expect(unsaved).to_contain_text("1 change is not saved.")
    await page.context.set_offline(False)
    await expect(page.locator("#notice")).to_contain_text("1 item rejected.")
    await expect(unsaved).to_be_hidden()
    assert judged(reviewer) == {"key-29": "Duplicate"}


async def test_an_approval_whose_response_was_lost_is_not_taken_for_somebody_elses(
    new_tab: Any, reviewer: Caller
) -> None:
    page = await open_group(await new_tab(reviewer))

    async def lose_the_response(route: Any) -> None:
        await route.fetch()
        await route.abort()

    await intercept_first(page, f"**/v1/outputs/{GROUP}", lose_the_response)
    await page.keyboard.press("j")
    await page.keyboard.press("a")
    await expect(page.locator("#notice")).to_contain_text("1 item was approved already.")
    assert judged(reviewer) == {"key-29": True}


async def test_a_decision_whose_connection_died_in_silence_is_saved_again(new_tab: Any, reviewer: Caller) -> None:
    tab = await new_tab(reviewer)
    await tab.page.clock.install()
    page = await open_group(tab)

    async def hold(route: Any) -> None:
        pass

    await intercept_first(page, f"**/v1/outputs/{GROUP}", hold)
    async with page.expect_request(lambda request: request.method == "PATCH"):
        for key in "ja":
            await page.keyboard.press(key)
    await page.clock.fast_forward(61_000)
    await expect(page.locator("#notice")).to_contain_text("1 item approved.")
    await expect(page.locator("#unsaved")).to_be_hidden()
    assert judged(reviewer) == {"key-29": True}


async def test_a_decision_whose_response_broke_off_is_saved_again(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await page.evaluate("""() => {
      const { text } = Response.prototype;
      Response.prototype.text = function () {
        if (this.url.includes("?") || !this.url.includes("/v1/outputs/")) return text.call(this);
        Response.prototype.text = text;
        return Promise.reject(new TypeError("network error"));
      };
    }""")
    for key in "ja":
        await page.keyboard.press(key)
    await expect(page.locator("#notice")).to_contain_text("1 item was approved already.")
    await expect(page.locator("#unsaved")).to_be_hidden()
    assert judged(reviewer) == {"key-29": True}


async def test_an_item_that_changed_since_it_was_selected_is_not_deleted(new_tab: Any, reviewer: Caller) -> None:
    tab = await new_tab(reviewer)
    tab.expected |= {412}
    page = await open_group(tab)
    for row in range(2):
        await rows(page).nth(row).get_by_role("checkbox").check()
    reviewer.post(f"outputs/{GROUP}", [make_output(29, data={"new": True})])
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_label("Type 2 to confirm").fill("2")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.locator("#notice")).to_contain_text("1 item deleted. 1 item was changed meanwhile and kept.")
    kept = {item["key_hash"] for item in reviewer.get(f"outputs/{GROUP}?limit=100")["items"]}
    assert kept == {f"key-{number}" for number in range(30)} - {"key-28"}


async def test_keys_work_on_the_row_that_has_the_focus(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    for key in ("j", "j", "Enter"):
        await page.keyboard.press(key)
    dialog = page.locator("dialog.item")
    await expect(dialog).to_be_visible()
    for following in (2, 3):
        await page.keyboard.press("a")
        item = await rows(page).nth(following).get_attribute("data-item")
        await expect(dialog).to_have_attribute("data-item", str(item))
    await page.keyboard.press("Escape")
    await expect(dialog).to_be_hidden()
    await page.keyboard.press("s")
    await expect(rows(page).nth(3)).to_have_attribute("aria-selected", "true")
    await expect(page.get_by_text("1 item selected")).to_be_visible()


async def select_all(page: Page) -> None:
    await page.get_by_role("checkbox", name="Select all rows").check()
    await page.get_by_role("button", name="that match").click()
    await expect(page.get_by_text("All 30 items selected")).to_be_visible()


async def test_items_of_other_pages_are_whole_after_an_undo(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer), "?order=asc")
    await select_all(page)
    await page.keyboard.press("a")
    await expect(page.locator("#notice")).to_contain_text("30 items approved.")
    await page.keyboard.press("n")
    await expect(rows(page).first.locator("a[data-open]")).to_have_text("31")
    await page.keyboard.press("z")
    await expect(page.locator("#notice")).to_contain_text("30 items are as before.")
    await rows(page).first.locator("a[data-open]").click()
    await expect(page.locator("dialog.item")).to_contain_text("Last scraped")


async def test_what_comes_after_everything_was_selected_is_not_deleted(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    await select_all(page)
    reviewer.post(f"outputs/{GROUP}", [make_output(30)])
    await rows(page).first.locator("a[data-open]").click()
    await expect(page.locator("dialog.item")).to_be_visible()
    await page.keyboard.press("a")  # its id is now higher than that of the new item
    await expect(page.locator("#notice")).to_contain_text("1 item approved.")
    await page.keyboard.press("Escape")
    await expect(page.locator("dialog.item")).to_be_hidden()
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_label("Type 30 to confirm").fill("30")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.locator("#notice")).to_contain_text("deleted.")
    kept = {item["key_hash"] for item in reviewer.get(f"outputs/{GROUP}?limit=100")["items"]}
    assert kept == {"key-30", "key-29"}


async def test_approving_again_says_that_it_changed_nothing(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    for key, said in (("a", "1 item approved."), ("a", "1 item was approved already.")):
        await page.keyboard.press("j")
        await page.keyboard.press("k")
        await rows(page).first.get_by_role("checkbox").check()
        await page.keyboard.press(key)
        await expect(page.locator("#notice")).to_contain_text(said)


async def test_ids_stay_in_order_while_one_approves(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    ids = await page.locator("table.rows tbody th a").all_inner_texts()
    for key in "jaaa":
        await page.keyboard.press(key)
    await expect(rows(page).locator(".chip.good")).to_have_count(3)
    assert await page.locator("table.rows tbody th a").all_inner_texts() == ids


async def test_a_page_that_was_read_before_a_decision_was_saved_is_read_again(new_tab: Any, reviewer: Caller) -> None:
    page = await open_group(await new_tab(reviewer))
    was_read, is_saved = asyncio.Event(), asyncio.Event()

    async def save_after_reading(route: Any) -> None:
        await was_read.wait()
        await route.continue_()

    async def respond_after_saving(route: Any) -> None:
        response = await route.fetch()
        was_read.set()
        await is_saved.wait()
        await route.fulfill(response=response)

    await intercept(page, f"**/v1/outputs/{GROUP}", save_after_reading)
    await intercept(page, f"**/v1/outputs/{GROUP}?order=desc*", respond_after_saving)
    for key in "ja":
        await page.keyboard.press(key)
    await page.get_by_role("button", name="Reload").click()
    await expect(page.locator("#notice")).to_contain_text("1 item approved.")
    is_saved.set()
    await expect(page.get_by_text("25 items, ids 31 to")).to_be_visible()
    await expect(rows(page).locator(".chip.good")).to_have_count(1)


async def test_of_two_reviewers_the_slower_one_learns_what_the_other_did(
    new_tab: Any, reviewer: Caller, make_caller: Callable[..., Caller]
) -> None:
    first = await open_group(await new_tab(reviewer))
    second = await open_group(await new_tab(make_caller(reviewer.organization_id)))
    await first.keyboard.press("j")
    await first.keyboard.press("x")
    await reject(first, "Wrong data")
    await expect(first.locator("#notice")).to_contain_text("1 item rejected.")
    await expect(second.locator(".news")).to_contain_text("1 changed item")
    await second.keyboard.press("j")
    await second.keyboard.press("a")
    await expect(second.locator("#notice")).to_contain_text("Item 30 was changed by somebody else meanwhile")
    await expect(rows(second).first.locator(".chip.bad")).to_have_text("rejected")
    assert judged(reviewer) == {"key-29": "Wrong data"}
    await first.get_by_role("checkbox", name="Select all rows").check()
    await first.get_by_role("button", name="Approve", exact=True).click()
    await expect(first.locator("#notice")).to_contain_text("25 items approved.")
    await second.get_by_role("checkbox", name="Select all rows").check()
    await second.get_by_role("button", name="Reject").click()
    await reject(second, "Duplicate")
    await expect(second.locator("#notice")).to_contain_text("25 items were changed by somebody else")
    assert set(judged(reviewer).values()) <= {True, "Duplicate"} and len(judged(reviewer)) == 25


async def test_a_typed_review_survives_a_failure_and_a_click_beside_it(new_tab: Any, reviewer: Caller) -> None:
    tab = await new_tab(reviewer)
    tab.expected |= {503}
    page = await tab.open(f"#/groups/{GROUP}/jobs")
    await page.get_by_role("button", name="Review job-1").click()
    dialog = page.get_by_role("dialog", name="Review job-1")
    await dialog.get_by_label("Comment").fill("Half of it is the consent wall.")
    await page.mouse.click(5, 5)
    await dialog.get_by_role("radio", name="Other").check()
    await dialog.get_by_label("Other status").fill("on hold")
    await intercept(page, "**/v1/reviews/*", lambda route: route.fulfill(status=503, body="{}"))
    await dialog.get_by_role("button", name="Save review").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("The service is busy")
    await page.unroute("**/v1/reviews/*")
    await dialog.get_by_role("button", name="Save review").click()
    await expect(dialog).to_be_hidden()
    [review] = reviewer.get(f"reviews/{GROUP}")
    assert (review["status"], review["comment"]) == ("on hold", "Half of it is the consent wall.")


async def test_a_typed_review_is_dropped_by_the_second_escape_only(new_tab: Any, reviewer: Caller) -> None:
    page = await (await new_tab(reviewer)).open(f"#/groups/{GROUP}/jobs")
    dialog = page.get_by_role("dialog", name="Review job-1")
    await page.get_by_role("button", name="Review job-1").click()
    await page.keyboard.press("Escape")  # nothing is typed yet
    await expect(dialog).to_be_hidden()
    await page.get_by_role("button", name="Review job-1").click()
    await dialog.get_by_label("Comment").press_sequentially("Half of it")
    await page.keyboard.press("Escape")
    await expect(dialog.get_by_role("alert")).to_have_text("Press Esc again to drop what you typed.")
    await expect(dialog.get_by_label("Comment")).to_have_value("Half of it")
    await page.keyboard.press("Escape")
    await expect(dialog).to_be_hidden()


async def test_empty_views_say_what_is_true(new_tab: Any, reviewer: Caller) -> None:
    items = [make_output(number, root_job_id="job-2") for number in range(30)]
    assert reviewer.post(f"outputs/{GROUP}", items)["unchanged"] == 30
    page = await (await new_tab(reviewer)).open(f"#/groups/{GROUP}?job_id=job-1")
    await expect(page.get_by_text("This job wrote 30 items (30 created")).to_be_visible()
    await expect(page.get_by_text("Later crawls saw them again")).to_be_visible()
    await page.goto(f"{page.url.split('#')[0]}#/groups/{GROUP}?after=1")
    await page.reload()
    await expect(page.get_by_text("There is nothing on this page.")).to_be_visible()
    assert await page.get_by_text("All items of this group were deleted").count() == 0
    reviewer.call("DELETE", f"outputs/{GROUP}?all=true")
    await page.goto(f"{page.url.split('#')[0]}#/groups/{GROUP}")
    await page.reload()
    await expect(page.get_by_text("All items of this group were deleted").first).to_be_visible()
    assert await page.get_by_text("Nothing has been written").count() == 0


async def test_a_few_of_many_are_not_zero_percent(new_tab: Any, caller: Caller) -> None:
    caller.post(f"outputs/{GROUP}", [make_output(number, is_approved=number == 0) for number in range(1000)])
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}")
    await expect(page.locator(".lead")).to_contain_text("1 approved (< 1 %)")


async def test_the_field_that_broke_is_a_column_and_the_one_that_is_always_the_same_is_not(
    new_tab: Any, caller: Caller
) -> None:
    items = [
        make_output(
            n,
            data={
                "title": f"Lamp {n}",
                "price": {**({"amount": n} if n % 3 == 0 else {}), "currency": "EUR"},
                "a": n,
                "b": n,
                "c": n,
            },
        )
        for n in range(25)
    ]
    caller.post(f"outputs/{GROUP}", items)
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}")
    head = page.locator("table.rows thead th")
    await expect(head.nth(2)).to_have_text("price.amount")
    await expect(head.filter(has_text="price.currency")).to_have_count(0)


async def test_who_one_is_stands_behind_the_account(new_tab: Any, reviewer: Caller, mongo_url: str) -> None:
    expires = datetime.now(UTC) + timedelta(days=2, hours=1)
    made = ["--organization", str(reviewer.organization_id), "--label", "Ada", "--expires", f"{expires:%FT%TZ}"]
    reviewer.token = run_command(mongo_url, "token", "create", "--scope", "read", *made).stdout.split()[-1]
    page = await (await new_tab(reviewer)).open("#/groups")
    await page.get_by_role("button", name="Ada").click()
    dialog = page.get_by_role("dialog", name="Your token")
    for text in (str(reviewer.organization_id), "Ada", "read: look", f"{expires:%Y}", "in 2 days"):
        await expect(dialog).to_contain_text(text)
    await dialog.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_label("Access token")).to_be_visible()
