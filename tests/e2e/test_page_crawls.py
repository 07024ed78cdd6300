"""What a crawl did, how it was judged, what of an item changed, and fields as filters."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.e2e.conftest import Caller
from tests.e2e.page import GROUP, add_filter, expect_ids, expect_readable, intercept, rows
from tests.support.api import make_output

pytestmark = pytest.mark.asyncio(loop_scope="session")


def crawl(caller: Caller, job: str, prices: list[float | None], **finished: Any) -> None:
    """Write one item per price and finish the job; None is what a broken selector finds."""
    items = [
        make_output(n, root_job_id=job, data={"title": f"Lamp {n}", **({} if price is None else {"price": price})})
        for n, price in enumerate(prices)
    ]
    caller.post(f"outputs/{GROUP}", items)
    caller.call("PUT", f"groups/{GROUP}/jobs/{job}", {"state": "finished", **finished})


@pytest.fixture
def crawls(caller: Caller) -> Caller:
    """A group with rules and a history: on monday all was well, on tuesday half of the prices were not found."""
    caller.post(f"outputs/{GROUP}", [make_output(0, root_job_id="sunday", data={"title": "Lamp 0", "price": 1.0})])
    rules = [{"path": "price", "min_fill": 0.9}, {"max_missing": 0.5}]
    caller.call("PUT", f"groups/{GROUP}", {"history_days": 30, "rules": rules})
    crawl(caller, "monday", [float(n + 1) for n in range(20)])
    crawl(caller, "tuesday", [float(n + 1) if n < 8 else 99.0 if n < 9 else None for n in range(16)])
    return caller


async def names(page: Page) -> list[str]:
    await expect(page.locator(".loading, .waiting")).to_have_count(0)
    return sorted(await page.locator("td[data-label='title']").all_inner_texts())


async def test_what_a_crawl_did_is_a_bar_with_links_to_the_items(new_tab: Any, crawls: Caller) -> None:
    page = await (await new_tab(crawls)).open(f"#/groups/{GROUP}/jobs")
    row = page.get_by_role("row", name="tuesday")
    await expect(row).to_contain_text("failed")
    await expect(row.get_by_role("img", name="0 created, 8 changed, 8 unchanged, 4 missing")).to_be_visible()
    await row.get_by_role("link", name="4 missing").click()
    await expect(page.locator(".filters")).to_contain_text("In that job: missing")
    await expect(rows(page)).to_have_count(4)
    assert await names(page) == [f"Lamp {n}" for n in range(16, 20)]
    await page.go_back()
    await row.get_by_role("link", name="8 changed").click()
    changes = page.get_by_label("What it changed").locator("tbody tr")
    await expect(changes).to_have_count(8)
    assert sorted(await changes.locator("th").all_inner_texts()) == sorted(f"key-{n}" for n in range(8, 16))


async def test_a_job_says_its_problems_in_words_and_leads_to_the_items_behind_them(
    new_tab: Any, crawls: Caller
) -> None:
    page = await (await new_tab(crawls)).open(f"#/groups/{GROUP}/jobs")
    await page.get_by_role("link", name="tuesday", exact=True).click()
    problems = page.locator(".problems")
    await expect(problems).to_contain_text("1 problem")
    await expect(problems).to_contain_text("price is filled in 56.25 %")
    await expect(page.get_by_role("link", name="monday")).to_be_visible()
    await problems.get_by_role("link", name="Show the items without it").click()
    await expect(page.locator(".filters")).to_contain_text("Without: price")
    await expect(rows(page)).to_have_count(7)


async def test_a_crawl_is_compared_with_the_last_finished_one(new_tab: Any, caller: Caller) -> None:
    crawl(caller, "monday", [1.0] * 4)
    crawl(caller, "tuesday", [2.0] * 2, state="failed")
    crawl(caller, "wednesday", [None] * 4)
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}/jobs/wednesday")
    await expect(page.get_by_role("link", name="monday")).to_be_visible()
    await expect(page.get_by_text("Filled less than in the crawl before")).to_be_visible()
    await page.get_by_role("link", name="Fields", exact=True).last.click()
    await expect(page.get_by_label("Compared with")).to_have_value("monday")


async def test_the_groups_show_the_verdict_of_the_newest_crawl_and_fields_that_dropped(
    new_tab: Any, crawls: Caller
) -> None:
    page = await (await new_tab(crawls)).open("#/groups")
    await expect(page.get_by_role("row", name=GROUP)).to_contain_text("failed")
    await page.get_by_role("link", name="price filled less").click()
    await expect(page.get_by_text("1 field filled less than before: price")).to_be_visible()


async def test_an_item_is_shown_before_and_after(new_tab: Any, crawls: Caller) -> None:
    page = await (await new_tab(crawls)).open(f"#/groups/{GROUP}")
    await rows(page).filter(has_text="Lamp 8").get_by_role("link").first.click()
    versions = page.locator("table.versions")
    price = versions.get_by_role("row", name="price")
    await expect(price.locator(".old")).to_have_text("9")
    await expect(price.locator(".new")).to_have_text("99")
    await expect(page.get_by_text("1 field changed")).to_be_visible()
    await price.get_by_role("button", name="Ignore this field").click()
    await expect(page.locator("#notice")).to_contain_text("price is ignored")
    assert crawls.get(f"groups/{GROUP}")["ignore"] == ["price"]
    await page.locator("#notice").get_by_role("button", name="Undo").click()
    await expect(page.locator("#notice")).to_contain_text("It counts again.")
    assert crawls.get(f"groups/{GROUP}")["ignore"] == []


async def test_a_group_without_history_says_how_to_switch_it_on(new_tab: Any, shop: Caller) -> None:
    shop.call("PUT", f"groups/{GROUP}", {"history_days": 0})
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}")
    await rows(page).first.get_by_role("link").first.click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("This group keeps no history.")
    await dialog.get_by_role("link", name="Switch it on in its settings").click()
    await page.get_by_label("Keep earlier versions for (days)").fill("30")
    await page.get_by_label("Delete items not scraped for (days)").fill("365")
    await page.get_by_label("Ignored fields, one per line").fill("scraped_at\nrank")
    await page.get_by_role("button", name="Save settings").click()
    await expect(page.locator("#notice")).to_contain_text("The settings are saved")
    settings = shop.get(f"groups/{GROUP}")
    assert (settings["history_days"], settings["retention_days"]) == (30, 365)
    assert settings["ignore"] == ["scraped_at", "rank"]


async def test_rules_are_proposed_from_the_last_good_crawl_and_saved(new_tab: Any, crawls: Caller) -> None:
    crawls.call("PUT", f"groups/{GROUP}", {"rules": []})
    page = await (await new_tab(crawls)).open(f"#/groups/{GROUP}/settings")
    await page.get_by_role("button", name="Propose from the last good crawl").click()
    await expect(page.locator("#notice")).to_contain_text("proposed from monday")
    await page.get_by_role("button", name="Add a rule").click()
    added = page.locator(".rule").last
    await added.get_by_label("Check").select_option("min")
    await added.get_by_label("Field").fill("price")
    await added.get_by_label("Value").fill("0.5")
    await page.get_by_role("button", name="Save settings").click()
    await expect(page.locator("#notice")).to_contain_text("The settings are saved")
    rules = crawls.get(f"groups/{GROUP}")["rules"]
    assert {"path": "title", "min_fill": 0.9} in rules
    assert {"max_missing": 0.2} in rules
    assert rules[-1] == {"path": "price", "min": 0.5}


async def test_items_are_filtered_by_the_value_of_a_field(new_tab: Any, crawls: Caller) -> None:
    page = await (await new_tab(crawls)).open(f"#/groups/{GROUP}")
    await page.get_by_label("Filter by").select_option(label="Field")
    await page.get_by_label("Field", exact=True).fill("price")
    await page.get_by_label("Value", exact=True).fill("99")
    await page.get_by_role("button", name="Filter", exact=True).click()
    await expect(page.locator(".filters")).to_contain_text("price equals 99")
    await expect(rows(page)).to_have_count(1)
    await page.get_by_role("link", name="Remove the filter").click()
    await add_filter(page, "Field is empty", "price")
    await expect(rows(page)).to_have_count(7)
    await expect_ids(page, [item["id"] for item in crawls.newest(GROUP, 25, "missing=price")])
    await page.get_by_role("link", name="Remove the filter").click()
    await rows(page).filter(has_text="Lamp 3").get_by_role("link").first.click()
    await page.get_by_role("link", name="Only items with this title").click()
    await expect(page.locator(".filters")).to_contain_text("title equals Lamp 3")
    await expect(rows(page)).to_have_count(1)


async def test_rejected_items_are_a_filter(new_tab: Any, crawls: Caller) -> None:
    page = await (await new_tab(crawls)).open(f"#/groups/{GROUP}")
    await rows(page).nth(3).get_by_role("checkbox").check()
    await page.get_by_role("button", name="Reject").click()
    await page.get_by_label("Why").fill("Wrong data")
    await page.keyboard.press("Enter")
    await rows(page).locator(".chip.bad").click()
    await expect(page.locator(".filters")).to_contain_text("Rejected: yes")
    await expect(rows(page)).to_have_count(1)


async def test_a_field_over_the_crawls_is_a_chart(new_tab: Any, crawls: Caller) -> None:
    page = await (await new_tab(crawls)).open(f"#/groups/{GROUP}/time")
    panel = page.locator("section", has_text="How well a field was filled")
    await expect(panel.get_by_label("Field", exact=True)).to_have_value("price")
    await expect(panel.locator(".plot a")).to_have_count(2)
    await panel.locator(".plot a").last.hover()
    await expect(panel.locator(".readout")).to_have_text("tuesday: 56 %")
    did = page.locator("section", has_text="What each crawl did")
    await did.get_by_text("As a table").click()
    await expect(did.get_by_role("row", name="tuesday")).to_contain_text("4")


async def test_the_bar_of_a_week_does_not_lead_to_the_items_of_its_first_day(new_tab: Any, shop: Caller) -> None:
    tab = await new_tab(shop)
    stats = shop.get(f"groups/{GROUP}/stats")
    first = {"date": str(date.today() - timedelta(days=100)), "created": 5, "changed": 0, "net": 5}
    chart = tab.page.get_by_role("group", name="Items by day")
    await intercept(tab.page, "**/stats", lambda route: route.fulfill(json=stats))
    await tab.open(f"#/groups/{GROUP}/time")
    await expect(chart.get_by_role("link", name="Show its items.")).to_have_count(30)
    stats["days"].insert(0, first)
    await tab.page.reload()
    await expect(tab.page.get_by_text("since week of")).to_be_visible()
    await expect(chart.locator("a").first).to_be_visible()
    await expect(chart.get_by_role("link")).to_have_count(0)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
async def test_a_failed_crawl_and_what_it_changed_can_be_read(
    new_tab: Any, crawls: Caller, width: int, dark: bool
) -> None:
    for label, url in (("Our sync", "https://hooks.invalid/"), ("", f"https://hooks.invalid/{'long' * 40}")):
        crawls.post("webhooks", {"url": url, "events": ["job.finished", "group.changed"], "label": label})
    every = {"type": "number", "min": 1, "max": 50, "max_drop": 0.2}
    rules = [{"path": "price", name: value} for name, value in every.items()] + [{"min_items": 20}]
    crawls.call("PUT", f"groups/{GROUP}", {"rules": rules})
    crawl(crawls, "wednesday", [None] * 10)
    page = await (await new_tab(crawls, width=width, height=740, dark=dark)).open(f"#/groups/{GROUP}/jobs/wednesday")
    await expect(page.locator(".problems")).to_contain_text("problems")
    await expect(page.get_by_text("Filled less than in the crawl before")).to_be_visible()
    await expect_readable(page)
    for view, shown in (
        ("/jobs", "table.jobs"),
        ("/fields", "table.fields-table"),
        ("/time", ".plot a"),
        ("", "table.rows"),
    ):
        await page.evaluate("hash => { location.hash = hash; }", f"#/groups/{GROUP}{view}")
        await expect(page.locator(shown).first).to_be_visible()
        await expect_readable(page)
    await page.evaluate("hash => { location.hash = hash; }", f"#/groups/{GROUP}/settings")
    await page.get_by_role("button", name="Test: Our sync").click()
    await expect(page.locator("table.webhooks .chip.bad").first).to_be_visible()
    await expect(page.locator(".rule")).to_have_count(5)
    await expect_readable(page)
    await page.get_by_role("button", name="Deliveries: Our sync").click()
    await expect(page.get_by_role("dialog").locator("li").first).to_be_visible()
    await expect_readable(page)
    await page.evaluate("hash => { location.hash = hash; }", f"#/groups/{GROUP}?url=https://shop.example/p/8")
    await rows(page).first.get_by_role("link").first.click()
    await expect(page.locator("table.versions .old").first).to_be_visible()
    await expect_readable(page)


async def test_a_crawl_shows_its_series_its_state_and_how_long_it_took(new_tab: Any, caller: Caller) -> None:
    crawl(caller, "beds", [1.0], series="furniture")
    crawl(caller, "lamps", [1.0], series="lights")
    jobs = caller.get(f"groups/{GROUP}/jobs")
    jobs[1]["first_write"], jobs[1]["last_write"] = "2026-11-15T06:00:00.000Z", "2026-11-15T08:05:00.000Z"
    tab = await new_tab(caller)
    await intercept(tab.page, f"**/groups/{GROUP}/jobs", lambda route: route.fulfill(json=jobs))
    page = await tab.open(f"#/groups/{GROUP}/jobs")
    await expect(page.get_by_role("row", name="lamps")).to_contain_text("Series lights")
    await page.get_by_role("link", name="beds", exact=True).click()
    facts = page.locator("dl.facts")
    for text in ("finished", "furniture", "2 h 5 min"):
        await expect(facts).to_contain_text(text)
    await expect(facts).not_to_contain_text("Crawl before")
    await page.get_by_role("link", name="Over time").click()
    took = page.locator("section", has_text="How long each crawl took")
    await expect(took.locator(".legend")).to_contain_text("First to last write")
    await took.locator(".plot a").first.hover()
    await expect(took.locator(".readout")).to_have_text("beds: 2 h 5 min")
    did = page.locator("section", has_text="What each crawl did")
    await expect(did.locator(".key")).to_have_text(["Created", "Changed", "Unchanged", "Missing"])


async def test_a_field_that_differs_in_every_crawl_can_be_ignored_from_the_fields(new_tab: Any, caller: Caller) -> None:
    caller.post(f"outputs/{GROUP}", [make_output(data={"title": "Lamp", "scraped_at": "2026-11-16T06:00:00Z"})])
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}/fields")
    await page.get_by_role("button", name="Ignore scraped_at").click()
    await expect(page.get_by_role("button", name="Ignore title")).to_have_count(0)
    await expect(page.locator("#notice")).to_contain_text("scraped_at is ignored")
    assert caller.get(f"groups/{GROUP}")["ignore"] == ["scraped_at"]
