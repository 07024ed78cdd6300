"""What a crawl changed, who did what and when, deleted items and their way back: in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from playwright.async_api import Locator, Page, expect

from tests.e2e.conftest import Caller
from tests.e2e.page import expect_readable, intercept, rows
from tests.support.api import make_output

pytestmark = pytest.mark.asyncio(loop_scope="session")

GROUP = "history"


def crawl(caller: Caller, job: str, data: list[dict[str, Any]], **more: Any) -> None:
    """Write one item per data."""
    items = [make_output(n, data={"title": f"Lamp {n}", **one}) for n, one in enumerate(data)]
    caller.post(f"outputs/{GROUP}", [{**item, "root_job_id": job, "files": [], **more} for item in items])


def finish(caller: Caller, job: str, **more: Any) -> None:
    caller.call("PUT", f"groups/{GROUP}/jobs/{job}", {"state": "finished", **more})


@pytest.fixture
def changed(caller: Caller) -> Caller:
    """A caller with a group of three items, two of which a second crawl has changed."""
    crawl(caller, "one", [{"price": 10}] * 3)
    crawl(caller, "two", [{"price": 12}, {"price": 12, "title": "Lantern"}, {"price": 10}])
    return caller


def changes(page: Page) -> Locator:
    return page.get_by_label("What it changed").locator("tbody tr")


async def open_item(page: Page, text: str) -> Locator:
    """Open the item in whose row a text stands; return its dialog."""
    await rows(page).filter(has_text=text).get_by_role("link").first.click()
    dialog = page.locator("dialog.item")
    await expect(dialog).to_be_visible()
    return dialog


async def test_a_crawl_says_what_it_changed_and_shows_before_and_after(new_tab: Any, changed: Caller) -> None:
    page = await (await new_tab(changed)).open(f"#/groups/{GROUP}/jobs/two")
    section = page.get_by_label("What it changed")
    await expect(section).to_contain_text("price changed in 2 items, title in 1.")
    await expect(changes(page)).to_have_count(3)
    await section.get_by_role("link", name="title", exact=True).click()
    await expect(section.get_by_role("link", name="Remove the filter title")).to_be_visible()
    await expect(changes(page)).to_have_count(1)
    await expect(changes(page).locator("td")).to_have_text(["title", "Lamp 1", "Lantern"])
    await expect_readable(page)
    await page.reload()  # the filter is in the address
    await expect(changes(page)).to_have_count(1)


async def test_what_a_crawl_changed_stays_complete_after_later_crawls(new_tab: Any, changed: Caller) -> None:
    crawl(changed, "three", [{"price": 14}] * 3)
    crawl(changed, "four", [{"price": 14}] * 3)
    page = await (await new_tab(changed)).open(f"#/groups/{GROUP}/jobs/two?path=price")
    await expect(changes(page)).to_have_count(2)
    for line in range(2):
        await expect(changes(page).nth(line).locator("td")).to_have_text(["price", "10", "12"])


async def test_the_changed_items_are_listed_with_the_columns_that_changed(new_tab: Any, caller: Caller) -> None:
    url = "https://shop.example/p/1"
    for job, rank in (("one", 1), ("two", 2)):
        item = make_output(1, source_url=url, key_hash="0" * 64, root_job_id=job, files=[])
        caller.post(f"outputs/{GROUP}", [{**item, "data": {"title": "Lamp", "deep": {"rank": rank}, "more": [1]}}])
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}/jobs/two")
    await expect(changes(page).get_by_role("link")).to_have_text("shop.example/p/1")  # nobody knows a hash
    await page.get_by_role("link", name="Show the items").click()
    await expect(page.locator(".filters")).to_contain_text("In that job: changed")
    await expect(page.locator("td[data-label='deep.rank']")).to_have_text("2")


async def test_many_changes_come_page_by_page(new_tab: Any, caller: Caller) -> None:
    for job, price in (("one", 1), ("two", 2)):
        crawl(caller, job, [{"price": price}] * 40)
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}/jobs/two")
    await expect(page.get_by_label("What it changed")).to_contain_text("price changed in 40 items.")
    await expect(changes(page)).to_have_count(25)
    await page.get_by_role("link", name="Next", exact=True).click()
    await expect(changes(page)).to_have_count(15)
    await page.get_by_role("link", name="First", exact=True).click()
    await expect(changes(page)).to_have_count(25)


async def test_without_history_the_changed_items_are_shown_as_they_are(new_tab: Any, caller: Caller) -> None:
    caller.call("PUT", f"groups/{GROUP}", {"history_days": 0})
    crawl(caller, "one", [{"price": 10}] * 3)
    crawl(caller, "two", [{"price": 12}, {"price": 10}, {"price": 10}])
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}/jobs/two")
    await expect(page.get_by_text("Its earlier versions are not kept")).to_be_visible()
    await page.get_by_role("link", name="Show the items as they are now").click()
    await expect(page.locator(".filters")).to_contain_text("In that job: changed")
    await expect(rows(page)).to_have_count(1)


async def test_the_counts_of_a_crawl_lead_to_the_items_behind_them(new_tab: Any, caller: Caller) -> None:
    crawl(caller, "one", [{"price": 10}] * 6)
    finish(caller, "one")
    crawl(caller, "two", [{"price": 12}] * 2 + [{"price": 10}] * 2)
    caller.post(f"outputs/{GROUP}", [make_output(9, root_job_id="two", files=[])])
    finish(caller, "two")
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}/jobs")
    for count, number in (("1 created", 1), ("2 unchanged", 2), ("2 missing", 2)):
        await page.get_by_role("row", name="two").get_by_role("link", name=count).click()
        await expect(page.locator(".filters")).to_contain_text(f"In that job: {count.split()[1]}")
        await expect(rows(page)).to_have_count(number)
        await page.go_back()
    await page.get_by_role("row", name="two").get_by_role("link", name="2 changed").click()
    await expect(changes(page)).to_have_count(2)
    await page.get_by_role("link", name="Items (5)").click()
    await expect(rows(page)).to_have_count(5)


async def test_a_count_whose_items_later_crawls_took_over_is_no_empty_list(new_tab: Any, caller: Caller) -> None:
    crawl(caller, "one", [{"price": 10}] * 2)
    finish(caller, "one")
    crawl(caller, "two", [{"price": 10}] * 3)
    finish(caller, "two")
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}/jobs")
    first = page.get_by_role("row", name=re.compile("^one "))
    await expect(first).to_contain_text("Later crawls saw its items again.")
    await expect(first).to_contain_text("2 created")
    await expect(first.get_by_role("link", name="2 created")).to_have_count(0)
    crawl(caller, "three", [{"price": 10}] * 2)
    caller.post(f"outputs/{GROUP}", [make_output(5, root_job_id="three", files=[])])
    finish(caller, "three")
    caller.post(f"outputs/{GROUP}", [make_output(5, root_job_id="four", files=[])])
    await page.reload()
    await page.get_by_role("row", name="three").get_by_role("link", name="1 created").click()
    await expect(page.get_by_text("This job had 1 item created. Later crawls saw them again")).to_be_visible()


async def test_missing_items_that_a_crawl_deleted_are_found_and_come_back(new_tab: Any, caller: Caller) -> None:
    crawl(caller, "one", [{"price": 10}] * 4)
    finish(caller, "one")
    crawl(caller, "two", [{"price": 10}] * 2)
    finish(caller, "two", missing="delete")
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}/jobs")
    await page.get_by_role("row", name="two").get_by_role("link", name="2 missing").click()
    await expect(page.locator("table.deleted tbody tr")).to_have_count(2)
    await page.get_by_role("button", name="Restore Lamp 3").click()
    await expect(page.locator("#notice")).to_contain_text("1 item is restored")
    await expect(page.locator("table.deleted tbody tr")).to_have_count(1)
    assert {item["data"]["title"] for item in caller.newest(GROUP)} == {"Lamp 0", "Lamp 1", "Lamp 3"}


async def test_deleted_items_are_listed_with_their_last_data_and_restored_at_once(
    new_tab: Any, changed: Caller, make_caller: Callable[..., Caller]
) -> None:
    ada = make_caller(changed.organization_id, label="Ada")
    for item in changed.newest(GROUP):
        ada.call("DELETE", f"outputs/{GROUP}/{item['output_id']}")
    page = await (await new_tab(changed)).open(f"#/groups/{GROUP}")
    await page.get_by_role("link", name="Deleted", exact=True).click()
    await expect(page.locator("table.deleted tbody tr")).to_have_count(3)
    line = page.get_by_role("row", name="Lantern")
    await expect(line).to_contain_text("12")
    await expect(line).to_contain_text("Ada")
    await expect(line.locator("time")).to_be_visible()
    await expect_readable(page)
    await page.get_by_label("Select Lamp 0").check()
    await expect(page.get_by_role("button", name="Restore 1 selected")).to_be_visible()
    await page.get_by_label("Select all rows").check()
    await page.get_by_role("button", name="Restore 3 selected").click()
    await expect(page.get_by_role("heading", name="Nothing was deleted")).to_be_visible()
    await expect(page.locator("#notice")).to_contain_text("3 items are restored")
    await expect(page.locator(".lead")).to_contain_text("3 items")
    assert len(changed.newest(GROUP)) == 3


async def test_many_deleted_items_come_back_at_once(new_tab: Any, caller: Caller) -> None:
    crawl(caller, "one", [{"price": 10}] * 30)
    caller.call("DELETE", f"outputs/{GROUP}?all=true")
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}/deleted")
    lines = page.locator("table.deleted tbody tr")
    await expect(lines).to_have_count(25)
    await page.locator("#deleted-rows").select_option("100")
    await expect(lines).to_have_count(30)
    await page.get_by_label("Select all rows").check()
    await page.get_by_role("button", name="Restore 30 selected").click()
    await expect(page.locator("#notice")).to_contain_text("30 items are restored")
    await expect(page.get_by_text("Nothing was deleted")).to_be_visible()
    assert len(caller.newest(GROUP, 100)) == 30


async def test_a_token_that_may_only_read_sees_deleted_items_and_cannot_restore_them(
    new_tab: Any, changed: Caller, make_caller: Callable[..., Caller]
) -> None:
    changed.call("DELETE", f"outputs/{GROUP}?all=true")
    page = await (await new_tab(make_caller(changed.organization_id, "read"))).open(f"#/groups/{GROUP}/deleted")
    await expect(page.locator("table.deleted tbody tr")).to_have_count(3)
    assert await page.get_by_role("button", name="Restore").count() == 0
    assert await page.get_by_role("checkbox").count() == 0


async def test_an_earlier_version_says_who_replaced_it_and_is_restored(new_tab: Any, changed: Caller) -> None:
    page = await (await new_tab(changed)).open(f"#/groups/{GROUP}")
    dialog = await open_item(page, "Lantern")
    await expect(dialog).to_contain_text("Replaced by a token without a label")
    await expect(dialog.locator("table.versions").get_by_role("row", name="price")).to_contain_text("10")
    await dialog.get_by_role("button", name="Restore this version").click()
    await expect(page.locator("#notice")).to_contain_text("The version is restored")
    await expect(rows(page).filter(has_text="Lantern")).to_have_count(0)
    assert {item["data"]["title"] for item in changed.newest(GROUP)} == {"Lamp 0", "Lamp 1", "Lamp 2"}


async def test_who_judged_and_when_stands_beside_item_crawl_and_review(
    new_tab: Any, changed: Caller, make_caller: Callable[..., Caller]
) -> None:
    ada = make_caller(changed.organization_id, label="Ada")
    newest, other, _ = changed.newest(GROUP)
    ada.call("PATCH", f"outputs/{GROUP}/{newest['output_id']}", {"is_approved": True})
    changed.call("PATCH", f"outputs/{GROUP}/{other['output_id']}", {"tags": {"rejected": "Duplicate"}})
    ada.post(f"reviews/{GROUP}", [{"job_id": "two", "status": "needs_changes", "comment": "Prices?"}])
    ada.post(f"reviews/{GROUP}", [{"job_id": "two", "status": "approved", "comment": "Fine."}])
    page = await (await new_tab(changed)).open(f"#/groups/{GROUP}?item={newest['output_id']}")
    judged = page.locator("dialog.item dl.facts > div").filter(has_text="Judged")
    await expect(judged).to_contain_text("Ada, ")
    await expect(judged.locator("time")).to_be_visible()
    await expect(page.locator("dialog.item")).to_contain_text("Replaced by Ada")
    await page.goto(f"{page.url.split('#')[0]}#/groups/{GROUP}?item={other['output_id']}")
    await expect(judged).to_contain_text("a token without a label, ")
    await expect(judged).to_contain_text("Duplicate")
    for view in ("jobs", "jobs/two"):
        await page.goto(f"{page.url.split('#')[0]}#/groups/{GROUP}/{view}")
        await expect(page.get_by_text("Ada, ")).to_be_visible()
        await expect(page.get_by_text("Fine.")).to_be_visible()
    await page.goto(f"{page.url.split('#')[0]}#/groups/{GROUP}/time")
    await expect(page.locator(".reviews li")).to_have_count(2)
    for line in range(2):
        await expect(page.locator(".reviews li").nth(line)).to_contain_text("Ada, ")


async def test_tags_are_edited_in_the_item(new_tab: Any, caller: Caller) -> None:
    tags = {"country": "Germany", "checked": True, "old": "x", "rejected": "Duplicate"}
    caller.post(f"outputs/{GROUP}", [make_output(1, tags=tags, files=[])])
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}")
    dialog = await open_item(page, "1")
    await dialog.get_by_role("button", name="Edit tags").click()
    editor = page.get_by_role("dialog", name="Edit tags")
    await expect(editor.get_by_label("Value of rejected")).to_have_count(0)  # it has a button of its own
    await expect(editor.get_by_label("Value of checked")).to_have_value("true")
    await editor.get_by_label("Value of country").fill("France")
    await editor.get_by_label("Value of old").fill("")
    await editor.get_by_label("Tag", exact=True).last.fill("shelf")
    await editor.get_by_label("Value", exact=True).last.fill('{"row": 3}')
    await editor.get_by_role("button", name="Add a tag").click()
    await editor.get_by_label("Tag", exact=True).last.fill("floor")
    await editor.get_by_label("Value", exact=True).last.fill("2")
    await editor.get_by_role("button", name="Save tags").click()
    await expect(editor).to_be_hidden()
    await expect(dialog).to_contain_text("France")
    [item] = caller.newest(GROUP)
    assert item["tags"] == {
        "country": "France",
        "checked": True,
        "rejected": "Duplicate",
        "shelf": {"row": 3},
        "floor": 2,
    }


async def test_tags_that_somebody_else_changed_meanwhile_are_not_overwritten(new_tab: Any, caller: Caller) -> None:
    caller.post(f"outputs/{GROUP}", [make_output(1, tags={"country": "Germany"}, files=[])])
    [item] = caller.newest(GROUP)
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}?item={item['output_id']}")
    await page.get_by_role("button", name="Edit tags").click()
    editor = page.get_by_role("dialog", name="Edit tags")
    await editor.get_by_label("Value of country").fill("France")
    caller.call("PATCH", f"outputs/{GROUP}/{item['output_id']}", {"tags": {"country": "Japan"}})
    await editor.get_by_role("button", name="Save tags").click()
    await expect(editor.get_by_role("alert")).to_contain_text("The item was changed meanwhile")
    await expect(editor.get_by_label("Value of country")).to_have_value("France")
    assert caller.newest(GROUP)[0]["tags"]["country"] == "Japan"


async def test_times_are_local_and_in_utc_when_pointed_at(new_tab: Any, changed: Caller) -> None:
    page = await (await new_tab(changed, timezone_id="Asia/Kolkata")).open(f"#/groups/{GROUP}")
    newest = changed.newest(GROUP)[0]
    written = datetime.fromisoformat(newest["update_date"])
    local = written.astimezone(ZoneInfo("Asia/Kolkata"))
    shown = rows(page).first.locator("time")
    await expect(shown).to_have_text(f"{local.day} {local:%b} {local.year}, {local:%H:%M}")
    assert await shown.get_attribute("title") == f"{written.day} {written:%b} {written.year}, {written:%H:%M:%S} UTC"
    assert await shown.get_attribute("datetime") == newest["update_date"]


async def test_rules_are_not_proposed_for_ignored_fields(new_tab: Any, changed: Caller) -> None:
    crawl(
        changed, "three", [{"price": 14, "scraped_at": "now", "meta": {"rank": n, "shop": "north"}} for n in range(3)]
    )
    finish(changed, "three")
    changed.call("PUT", f"groups/{GROUP}", {"ignore": ["scraped_at", "data.meta"]})
    page = await (await new_tab(changed)).open(f"#/groups/{GROUP}/settings")
    await page.get_by_role("button", name="Propose from the last good crawl").click()
    await expect(page.locator("#notice")).to_contain_text("proposed from three")
    fields = page.locator(".rule [data-path]")
    assert [await field.input_value() for field in await fields.all()] == ["price", "title"]


async def test_a_chart_repeats_no_label(new_tab: Any, changed: Caller) -> None:
    [job, *_] = changed.get(f"groups/{GROUP}/jobs")
    dates = [f"2026-11-{day:02}T{hour:02}:00:00.000Z" for day in (18, 17, 16) for hour in (20, 12, 6, 1)]
    jobs = [{**job, "job_id": f"job {date}", "first_write": date, "last_write": date} for date in dates]
    tab = await new_tab(changed)
    await intercept(tab.page, f"**/groups/{GROUP}/jobs", lambda route: route.fulfill(json=jobs))
    page = await tab.open(f"#/groups/{GROUP}/time")
    did = page.locator("section", has_text="What each crawl did")
    await expect(did.locator(".plot a")).to_have_count(len(dates))
    labels = await page.locator(".plot svg").evaluate_all(
        """charts => charts.map((chart) => [...chart.querySelectorAll("text.tick")].map((tick) => [
             tick.getAttribute("x") < 48 && tick.getAttribute("text-anchor") === "end" ? "y" : "x", tick.textContent,
           ].join(" ")))"""
    )
    assert len(labels) >= 3
    for ticks in labels:
        assert len(set(ticks)) == len(ticks) > 2, ticks
    assert [tick for tick in labels[2] if tick.startswith("x")] == ["x 16 Nov", "x 17 Nov", "x 18 Nov"]


async def test_the_label_of_a_single_crawl_stands_below_its_bar(new_tab: Any, changed: Caller) -> None:
    finish(changed, "two")
    page = await (await new_tab(changed)).open(f"#/groups/{GROUP}/time")
    filled = page.locator("section", has_text="How well a field was filled").last
    await expect(filled.locator(".readout")).to_have_text("1 crawl")
    bar, label = filled.locator(".plot rect.filled"), filled.locator(".plot text.tick").last
    middles = [box["x"] + box["width"] / 2 for one in (bar, label) if (box := await one.bounding_box())]
    assert abs(middles[0] - middles[1]) <= 2


async def test_what_is_read_at_once_does_not_flicker(new_tab: Any, changed: Caller) -> None:
    """The box that stands for what is being read is seen only when that takes longer than the eye notices."""
    tab = await new_tab(changed)
    await intercept(tab.page, f"**/groups/{GROUP}/jobs", lambda route: None)  # never answered
    page = await tab.open(f"#/groups/{GROUP}/jobs")
    await expect(page.locator(".loading")).to_be_visible()
    seen = await page.locator(".loading").evaluate(
        """box => {
             const fresh = box.cloneNode();
             box.after(fresh);
             return [0, 100, 250, 400].map((ms) => {
               for (const animation of fresh.getAnimations()) { animation.pause(); animation.currentTime = ms; }
               return getComputedStyle(fresh).visibility;
             });
           }"""
    )
    assert seen == ["hidden", "hidden", "hidden", "visible"]
