"""Every view on a desk and on a phone, light and dark, by eye, by keyboard and by screen reader."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.e2e.conftest import Caller
from tests.e2e.page import CONTRAST, GROUP, add_filter, axe_findings, expect_readable, opener, rows
from tests.support.sessions import make_state

pytestmark = pytest.mark.asyncio(loop_scope="session")


VIEWS = [
    "#/groups",
    f"#/groups/{GROUP}?limit=10&country=Germany&where=price.amount>=100&where=in_stock:true",
    f"#/groups/{GROUP}/jobs",
    f"#/groups/{GROUP}/fields",
    f"#/groups/{GROUP}/jobs/job-1",
    f"#/groups/{GROUP}/jobs/job-4",
    f"#/groups/{GROUP}/time",
    f"#/groups/{GROUP}/deleted",
    f"#/groups/{GROUP}/settings",
    "#/state",
    "#/state/shop.example",
    "#/sessions",
    "#/sessions/shop-de",
    "#/tokens",
    "#/groups/unknown",
]


@pytest.fixture
def busy(shop: Caller, make_caller: Callable[..., Caller]) -> Caller:
    """The shop after a crawl that changed prices and deleted items, with sessions and a webhook; it manages tokens."""
    items = shop.newest(GROUP, 30)
    kept = ("source_url", "key_hash", "tags", "files")
    changed = [
        {name: item[name] for name in kept} | {"data": {**item["data"], "price": {"amount": n, "currency": "EUR"}}}
        for n, item in enumerate(items)
    ]
    shop.call("PUT", f"groups/{GROUP}", {"rules": [{"path": "price.amount", "min": 5}, {"max_missing": 0.1}]})
    shop.post(f"outputs/{GROUP}", [{**item, "root_job_id": "job-4"} for item in changed])
    shop.call("PUT", f"groups/{GROUP}/jobs/job-4", {"state": "finished"})
    for item in items[:3]:
        shop.call("DELETE", f"outputs/{GROUP}/{item['output_id']}")
    shop.call("PATCH", f"outputs/{GROUP}/{items[3]['output_id']}", {"is_approved": True})
    shop.post("webhooks", {"url": "https://hooks.invalid/", "events": ["job.finished"], "label": "Our sync"})
    for name, more in {"anna": {"note": "main account"}, "ben": {"state": "needs_login"}}.items():
        shop.call("PUT", f"sessions/shop-de/{name}", {"storage_state": make_state("secret"), **more})
    return make_caller(shop.organization_id, "read", "write", "delete", "state", "admin", label="Grace")


# Modules that no view needs are loaded once the first view is there, whole; a heading is there before it.
WHOLE = "() => performance.getEntriesByType('resource').some(({ name }) => name.endsWith('items/versions.js'))"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
async def test_every_view_fits_the_screen_and_can_be_read(new_tab: Any, busy: Caller, width: int, dark: bool) -> None:
    tab = await new_tab(busy, width=width, height=740, dark=dark)
    for view in VIEWS:
        page = await tab.open(view)
        await page.reload()
        await page.wait_for_function(WHOLE)
        await expect(page.locator("h1")).to_be_visible()
        await expect(page.locator(".loading, .waiting")).to_have_count(0)
        await expect_readable(page)
    page = await tab.open(f"#/groups/{GROUP}?limit=10")
    await page.reload()
    await rows(page).first.get_by_role("link").first.click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_be_visible()
    box = await dialog.bounding_box()
    assert box is not None and box["width"] <= width and box["x"] >= 0
    await expect(dialog.locator("table.versions")).to_be_visible()
    assert await dialog.evaluate("node => node.scrollWidth - node.clientWidth") <= 0
    assert await page.evaluate(CONTRAST) == []
    assert await axe_findings(page) == []
    ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == dark


DIALOGS = {
    f"#/groups/{GROUP}": ["Columns", "Views", "Download", "Keys", "Grace"],
    f"#/groups/{GROUP}/jobs": ["Review job-1"],
    f"#/groups/{GROUP}/settings": ["Add a webhook", "Deliveries: Our sync", "Delete this group"],
    "#/state": ["Add cookie", "Import", "Delete expired"],
    "#/sessions/shop-de": ["Add a session", "Settings", "Mark: anna", "New state: anna", "Delete pool"],
    "#/tokens": ["Make a token"],
}


@pytest.mark.parametrize("view", DIALOGS)
async def test_dialogs_have_no_findings(new_tab: Any, busy: Caller, view: str) -> None:
    page = await (await new_tab(busy)).open(view)
    for name in DIALOGS[view]:
        await page.get_by_role("button", name=name).first.click()
        await expect(page.get_by_role("dialog")).to_be_visible()
        assert await axe_findings(page) == [], name
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_rejecting_and_its_message_have_no_findings(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}")
    await page.get_by_role("checkbox", name="Select all rows").check()
    assert await axe_findings(page) == []
    await page.get_by_role("button", name="Reject").click()
    assert await axe_findings(page) == []
    await page.get_by_label("Why").fill("Duplicate")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Undo")).to_be_visible()
    assert await page.evaluate(CONTRAST) == []
    assert await axe_findings(page) == []


async def test_the_sign_in_form_has_no_findings(new_tab: Any) -> None:
    page = await (await new_tab()).open()
    await expect(page.get_by_label("Access token")).to_be_visible()
    assert await axe_findings(page) == []


async def test_a_phone_shows_rows_as_cards_that_are_still_a_table(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop, width=360, height=740, has_touch=True)).open(f"#/groups/{GROUP}?limit=10")
    row = rows(page).first
    await expect(row).to_be_visible()
    boxes = [await cell.bounding_box() for cell in await row.get_by_role("cell").all()]
    assert len(boxes) > 5 and all(box and box["x"] + box["width"] <= 360 for box in boxes)
    box = await row.bounding_box()
    assert box is not None and 60 <= box["height"] <= 180  # several rows on one screen
    await row.get_by_role("cell").nth(2).tap()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.get_by_role("button", name="Close").tap()
    await add_filter(page, "Country", "Japan")
    await expect(page.locator(".filters")).to_contain_text("Country: Japan")


async def test_the_filters_fit_a_phone_beside_each_other(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop, width=360, height=740)).open(f"#/groups/{GROUP}?limit=10")
    controls = page.locator(".filter-form :is(select, input, button)")
    for kind, number in (("Field", 5), ("Job", 3), ("Approved", 3)):
        await page.get_by_label("Filter by").select_option(label=kind)
        await expect(controls).to_have_count(number)
        boxes = [box for control in await controls.all() if (box := await control.bounding_box())]
        assert all(box["width"] >= 60 and box["x"] + box["width"] <= 360 for box in boxes), (kind, boxes)
        for one, other in pairwise(boxes):
            beside = one["x"] + one["width"] <= other["x"]
            assert beside or one["y"] + one["height"] <= other["y"], (kind, one, other)


async def tab_to(page: Page, selector: str) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab does not lead to {selector}")


async def test_everything_can_be_reached_with_the_tab_key(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open("#/groups")
    keys = page.keyboard
    await expect(page.get_by_role("link", name=GROUP, exact=True)).to_be_visible()
    await keys.press("Tab")
    skip = page.get_by_role("link", name="Skip to content")
    await expect(skip).to_be_focused()
    await expect(skip).to_be_in_viewport()
    await keys.press("Enter")
    await expect(page.locator("main")).to_be_focused()
    await tab_to(page, f"a[href='#/groups/{GROUP}']")
    assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    await keys.press("Enter")
    await expect(page.get_by_role("heading", name=GROUP)).to_be_focused()
    await expect(rows(page)).to_have_count(25)

    await tab_to(page, f"a[href='#/groups/{GROUP}/time']")
    await keys.press("Enter")
    await tab_to(page, ".plot a")
    chart = page.locator(".chart").first
    await expect(chart.locator(".plot a").last).to_be_focused()
    await expect(chart.locator(".readout")).to_contain_text("60 created")
    await keys.press("ArrowLeft")
    await expect(chart.locator(".readout")).to_contain_text(": 0 created")
    await keys.press("ArrowRight")
    await keys.press("Enter")
    await expect(page.locator(".filters")).to_contain_text("Day")
    await expect(rows(page)).to_have_count(25)

    await tab_to(page, "a[data-open]")
    newest = opener(page, shop.newest(GROUP)[0]["id"])
    await expect(newest).to_be_focused()
    await keys.press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_be_visible()
    for _ in range(60):
        await keys.press("Tab")
        inside = "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
        assert await page.evaluate(inside)
    await keys.press("Escape")
    await expect(dialog).to_be_hidden()
    await expect(newest).to_be_focused()
    await expect(page).not_to_have_url(re.compile("item="))
    await page.get_by_role("button", name="Columns").focus()
    await keys.press("Enter")
    await expect(page.get_by_role("dialog", name="Columns")).to_be_visible()
    await keys.press("Escape")
    await expect(page.get_by_role("button", name="Columns")).to_be_focused()


async def test_the_controls_of_the_filters_and_above_the_table_have_one_height(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}")
    await expect(rows(page)).to_have_count(25)
    controls = page.locator(".filters :is(input, select, button), .toolbar :is(button, input[type=search])")
    for kind in ("Job", "Approved", "Field", "Changed since"):
        await page.get_by_label("Filter by").select_option(label=kind)
        heights = await controls.evaluate_all("nodes => nodes.map((node) => node.offsetHeight).filter(Boolean)")
        assert len(heights) > 6 and len(set(heights)) == 1, (kind, heights)
