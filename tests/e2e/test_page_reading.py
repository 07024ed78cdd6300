"""Finding things in a group: pages, filters, columns, one item, and links that show the same to somebody else."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import expect

from tests.e2e.conftest import Caller
from tests.e2e.page import GROUP, add_filter, expect_ids, intercept, opener, rows, shown_ids, sign_in
from tests.support.api import make_output

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_person_signs_in_looks_at_a_group_and_reads_one_item(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab()).open()
    await sign_in(page, shop.token)
    group = page.get_by_role("row", name=GROUP)
    await expect(group.get_by_role("img", name="Last 30 days: 60 created, 0 changed")).to_be_visible()
    await expect(group.get_by_role("cell").nth(1)).to_have_text("60")
    await expect(group.get_by_role("cell").nth(2)).to_have_text("3")

    await page.get_by_role("link", name=GROUP, exact=True).click()
    await expect(page.get_by_text("60 items from 3 jobs")).to_be_visible()
    newest = shop.newest(GROUP)
    await expect_ids(page, [item["id"] for item in newest])
    await opener(page, newest[0]["id"]).click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("heading", name=newest[0]["data"]["title"])).to_be_visible()
    await expect(dialog.locator(".leaf", has_text="sku")).to_contain_text(newest[0]["data"]["sku"])
    await dialog.get_by_role("button", name="Next").click()
    await expect(dialog.get_by_role("heading", name=newest[1]["data"]["title"])).to_be_visible()
    await dialog.get_by_role("button", name="Close").click()
    await expect(dialog).to_be_hidden()


async def test_the_first_screen_shows_at_least_ten_rows(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop, width=1280, height=800)).open(f"#/groups/{GROUP}")
    await expect(rows(page)).to_have_count(25)
    box = await rows(page).nth(9).bounding_box()
    assert box is not None and box["y"] + box["height"] <= 800


async def test_wide_screens_are_used(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop, width=1800, height=900)).open(f"#/groups/{GROUP}")
    box = await page.locator("table.rows").bounding_box()
    assert box is not None and box["width"] > 1700


@pytest.mark.parametrize("order", ["desc", "asc"])
async def test_pages_lead_forth_and_back_and_survive_a_reload(new_tab: Any, shop: Caller, order: str) -> None:
    every = [item["id"] for item in shop.newest(GROUP, 60)]
    every = every if order == "desc" else every[::-1]
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}?limit=25")
    await expect(page.get_by_role("button", name="Newest first")).to_be_visible()
    if order == "asc":
        await page.get_by_role("button", name="Newest first").click()
    await expect_ids(page, every[:25])
    for name, expected in [
        ("Next", every[25:50]),
        ("Next", every[50:]),
        ("Previous", every[25:50]),
        ("Last", every[35:]),
        ("Previous", every[10:35]),
        ("Previous", every[:25]),
        ("Next", every[25:50]),
        ("First", every[:25]),
    ]:
        await page.get_by_role("link", name=name, exact=True).click()
        await expect_ids(page, expected)
        await page.reload()
        await expect_ids(page, expected)
    for name in ("First", "Previous"):
        assert await page.get_by_role("link", name=name, exact=True).count() == 0


async def test_a_shared_link_to_the_last_page_shows_it_with_a_way_back(
    new_tab: Any, shop: Caller, make_caller: Callable[..., Caller]
) -> None:
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}?limit=10")
    await page.get_by_role("link", name="Last", exact=True).click()
    await expect_ids(page, list(range(10, 0, -1)))
    tab = await new_tab()
    await tab.page.goto(page.url)
    await sign_in(tab.page, make_caller(shop.organization_id, "read").token)
    await expect_ids(tab.page, list(range(10, 0, -1)))
    await tab.page.get_by_role("link", name="Previous", exact=True).click()
    await expect_ids(tab.page, list(range(20, 10, -1)))


async def test_filters_narrow_the_items_on_every_page(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}?limit=10")
    await add_filter(page, "Country", "Germany")
    expected = [item["id"] for item in shop.newest(GROUP, 60, "country=Germany")]
    assert 10 < len(expected) < 60
    await expect_ids(page, expected[:10])
    await page.get_by_role("link", name="Next", exact=True).click()
    await expect_ids(page, expected[10:20])
    await page.get_by_role("link", name="Remove the filter Country").click()
    await expect_ids(page, [item["id"] for item in shop.newest(GROUP, 10)])


@pytest.mark.parametrize("name", ["Job", "Region", "Source URL", "Changed since", "Key", "Approved"])
async def test_each_other_filter_of_the_api_has_a_control(new_tab: Any, shop: Caller, name: str) -> None:
    wanted = shop.newest(GROUP, 60)[7]
    approved = "yes" if wanted["is_approved"] else "no"
    parameter, value, shown = {
        "Job": ("job_id", wanted["root_job_id"], wanted["root_job_id"]),
        "Region": ("region", wanted["tags"]["region"], wanted["tags"]["region"]),
        "Source URL": ("url", wanted["source_url"], wanted["source_url"]),
        "Changed since": ("created_after", wanted["update_date"][:10], wanted["update_date"][:10]),
        "Key": ("key_hash", wanted["key_hash"], wanted["key_hash"][:60]),
        "Approved": ("is_approved", str(wanted["is_approved"]).lower(), approved),
    }[name]
    expected = [item["id"] for item in shop.newest(GROUP, 25, urllib.parse.urlencode({parameter: value}))]
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}")
    await add_filter(page, name, approved if name == "Approved" else value)
    await expect(page.locator(".filters")).to_contain_text(f"{name}: {shown}")
    await expect_ids(page, expected)


async def test_filters_suggest_what_exists(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}")
    await page.get_by_label("Filter by").focus()
    await expect(page.locator("#job_id-known option")).to_have_count(3)
    tags = [item["tags"] for item in shop.newest(GROUP, 60)]
    for place, tag in (("country-known", "country"), ("region-known", "region")):
        values = await page.eval_on_selector_all(f"#{place} option", "options => options.map(option => option.value)")
        assert values == sorted({one[tag] for one in tags})


async def test_a_click_on_a_cell_filters_by_it(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}?columns=data.title,root_job_id,tags.country,is_approved")
    first = shop.newest(GROUP)[0]
    for label, parameter, value in [
        ("Job", "job_id", first["root_job_id"]),
        ("tags.country", "country", first["tags"]["country"]),
        ("Judged", "is_approved", str(first["is_approved"]).lower()),
    ]:
        await rows(page).first.locator(f"td[data-label='{label}']").get_by_role("link").click()
        query = urllib.parse.urlencode({parameter: value})
        expected = [item["id"] for item in shop.newest(GROUP, 25, query)]
        await expect_ids(page, expected)
        await page.get_by_role("link", name="Remove the filter").click()
        await expect(page.locator(".filters .chip")).to_have_count(0)


async def test_the_search_looks_at_the_loaded_page_and_says_so(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}")
    await expect(rows(page)).to_have_count(25)
    wanted = shop.newest(GROUP)[3]
    await page.get_by_label("Find on this page").fill(wanted["data"]["sku"].lower())
    await expect(rows(page)).to_have_count(1)
    await expect(rows(page).first).to_contain_text(wanted["data"]["sku"])
    await expect(page.get_by_text("1 of 25 rows on this page")).to_be_visible()
    await page.reload()
    await expect(rows(page)).to_have_count(1)


async def test_a_day_in_the_chart_shows_the_items_of_that_day(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}/time")
    await expect(page.get_by_text("60 created, 0 changed since")).to_be_visible()
    await expect(page.locator(".reviews li").filter(has_text="job-2")).to_contain_text("consent wall")
    await page.locator(".chart").first.locator(".plot a").last.click()
    await expect(page.locator(".filters")).to_contain_text("Day: ")
    await expect_ids(page, [item["id"] for item in shop.newest(GROUP)])
    await page.go_back()
    await page.locator(".chart").first.locator(".plot a").nth(-2).click()
    await expect(page.get_by_text("Nothing matches these filters.")).to_be_visible()


async def test_the_items_held_are_shown_for_every_day(new_tab: Any, shop: Caller) -> None:
    shop.call("DELETE", f"outputs/{GROUP}?job_id=job-1")
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}/time")
    held = page.locator("section", has=page.get_by_role("heading", name="Items held"))
    await expect(held.locator(".readout")).to_have_text("40 items today")

    async def of_three_days(route: Any) -> None:
        dates = {net: f"{datetime.now(UTC) - timedelta(days=ago):%Y-%m-%d}" for ago, net in ((3, 30), (2, 37), (0, -7))}
        days = [{"date": date, "created": 40, "changed": 5, "net": net} for net, date in dates.items()]
        await route.fulfill(json=shop.get(f"groups/{GROUP}/stats") | {"days": days})

    await intercept(page, "**/stats", of_three_days)
    await page.reload()
    bars = held.locator(".plot a")
    for bar, said in ((-1, ": 60"), (-2, ": 67"), (-3, ": 67"), (-4, ": 30"), (-5, ": 0")):
        await bars.nth(bar).hover()
        await expect(held.locator(".readout")).to_have_text(re.compile(f"{said}$"))
    await held.get_by_text("As a table").click()
    await expect(held.get_by_role("row")).to_have_count(1 + 4)


async def test_columns_are_chosen_ordered_and_kept_in_the_address(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}")
    head = page.locator("table.rows thead th:not(.picture-cell)")
    usual = ["Id", "title", "sku", "price.amount", "in_stock", "rating.average", "Job", "Judged", "Updated"]
    await expect(head).to_have_text(usual)
    await page.get_by_role("button", name="Columns").click()
    dialog = page.get_by_role("dialog", name="Columns")
    for name in ("sku", "in_stock", "rating.average", "Judged"):
        await dialog.get_by_role("checkbox", name=name).uncheck()
    await dialog.get_by_label("Search columns").fill("seller.name")
    await expect(dialog.get_by_role("checkbox")).to_have_count(1)
    await dialog.get_by_role("checkbox", name="seller.name").check()
    await dialog.get_by_label("Search columns").fill("")
    for _ in range(3):
        await dialog.get_by_role("checkbox", name="Job").press("Alt+ArrowUp")
    await dialog.get_by_role("button", name="Show these").click()
    chosen = ["Id", "title", "Job", "price.amount", "Updated", "seller.name"]
    await expect(head).to_have_text(chosen)
    await page.reload()
    await expect(head).to_have_text(chosen)

    await page.get_by_role("button", name="Columns").click()
    lines = dialog.locator(".choices li")
    await lines.nth(2).drag_to(lines.nth(0), target_position={"x": 40, "y": 4})
    await dialog.get_by_role("button", name="Show these").click()
    await expect(head).to_have_text(["Id", "price.amount", "title", "Job", "Updated", "seller.name"])
    await page.get_by_role("button", name="Columns").click()
    await dialog.get_by_role("button", name="Usual ones").click()
    await expect(head).to_have_text(usual)


async def test_sixty_columns_do_not_break_lines(new_tab: Any, caller: Caller) -> None:
    data = {f"field number {n}": f"some words for column {n}" for n in range(60)}
    caller.post("outputs/wide", [make_output(n, data=data) for n in range(5)])
    page = await (await new_tab(caller)).open("#/groups/wide")
    await expect(rows(page)).to_have_count(5)
    await page.get_by_role("button", name="Columns").click()
    await page.get_by_role("button", name="All", exact=True).click()
    await page.get_by_role("button", name="Show these").click()
    await expect(page.locator("table.rows thead th")).to_have_count(60 + 13, timeout=20_000)
    box = await rows(page).first.bounding_box()
    assert box is not None and box["height"] < 50
    assert await page.evaluate("document.documentElement.scrollWidth") <= 1280


async def test_a_link_shows_the_same_view_to_somebody_else(
    new_tab: Any, shop: Caller, make_caller: Callable[..., Caller]
) -> None:
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}?country=Germany&limit=10&columns=data.sku")
    await rows(page).nth(2).get_by_role("cell").first.click()
    title = page.get_by_role("dialog").get_by_role("heading", level=2)
    text = await title.inner_text()
    tab = await new_tab()
    await tab.page.goto(page.url)
    await sign_in(tab.page, make_caller(shop.organization_id, "read").token)
    await expect(tab.page.get_by_role("dialog").get_by_role("heading", level=2)).to_have_text(text)
    await expect(tab.page.locator("table.rows thead th:not(.picture-cell)")).to_have_text(["Id", "sku"])
    await expect(rows(tab.page)).to_have_count(10)


async def test_a_link_to_an_item_still_leads_to_it_after_it_changed(new_tab: Any, shop: Caller) -> None:
    tab = await new_tab(shop)
    page = await tab.open(f"#/groups/{GROUP}?limit=10&before=end")
    await rows(page).last.get_by_role("link").first.click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    link = page.url
    old = shop.get(f"outputs/{GROUP}?limit=1")["items"][0]
    fields = ("source_url", "root_job_id", "key_hash", "data")
    changed = {name: old[name] for name in fields} | {"data": {"title": "A new name"}}
    assert shop.post(f"outputs/{GROUP}", [changed])["updated"] == 1
    await page.goto("about:blank")
    tab.complaints.clear()
    await page.goto(link)
    await expect(page.get_by_role("dialog").get_by_role("heading", name="A new name")).to_be_visible()


async def test_the_browsers_back_button_leads_through_the_views(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open("#/groups")
    await page.get_by_role("link", name=GROUP, exact=True).click()
    await rows(page).first.get_by_role("link").first.click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.go_back()
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await expect(rows(page)).to_have_count(25)
    await page.go_back()
    await expect(page.get_by_role("heading", name="Groups")).to_be_visible()
    await page.go_forward()
    await expect(rows(page)).to_have_count(25)


async def test_a_page_of_1000_rows_is_shown_with_ids_that_can_be_pasted(new_tab: Any, caller: Caller) -> None:
    caller.post("outputs/large", [make_output(number, data={"title": "y" * 5000}) for number in range(1000)])
    page = await (await new_tab(caller)).open("#/groups/large?limit=1000")
    await expect(rows(page)).to_have_count(1000)
    ids = await shown_ids(page)
    assert ids == sorted(ids, reverse=True)
    await expect(page.get_by_text(f"1,000 items, ids {ids[0]} to {ids[-1]}")).to_contain_text("the end")
    await rows(page).nth(999).get_by_role("link", name="Open item").click()
    await expect(page.get_by_role("dialog")).to_be_visible()


async def test_a_group_is_found_by_a_part_of_its_name(new_tab: Any, caller: Caller) -> None:
    for group in ("hotel-prices", "hotel-reviews", "jobs"):
        caller.post(f"outputs/{group}", [make_output()])
    page = await (await new_tab(caller)).open("#/groups")
    await page.get_by_label("Find a group").fill("HOTEL")
    await expect(page.locator("tbody tr:visible")).to_have_count(2)
    await page.reload()
    await expect(page.locator("tbody tr:visible")).to_have_count(2)
    await page.get_by_label("Find a group").fill("nowhere")
    await expect(page.get_by_text("No group has this in its name.")).to_be_visible()


async def test_nothing_yet_is_said_in_words(new_tab: Any, caller: Caller) -> None:
    page = await (await new_tab(caller)).open("#/groups")
    await expect(page.get_by_text("No group yet")).to_be_visible()
    await page.evaluate("location.hash = '#/groups/unknown'")
    await expect(page.get_by_text("Nothing has been written to this group, or")).to_be_visible()
    await expect(page.get_by_role("heading", name="No items")).to_be_visible()
    for tab, text in (("jobs", "No jobs"), ("fields", "There is no data"), ("time", "No job of this group")):
        await page.evaluate(f"location.hash = '#/groups/unknown/{tab}'")
        await expect(page.get_by_text(text).first).to_be_visible()
    await page.evaluate("location.hash = '#/state'")
    await expect(page.get_by_text("Scrapers store cookies and local storage with")).to_be_visible()
    for address in ("#/somewhere/else", "#/groups/a/b", "#/groups/%E0%A4%A"):
        await page.evaluate(f"location.hash = {address!r}")
        await expect(page.get_by_role("alert")).to_contain_text("This address leads to no view")
