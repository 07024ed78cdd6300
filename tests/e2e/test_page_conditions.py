"""Fields as filters with every operator, the address that shares them, saved views, honest words about sorting."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import pytest
from playwright.async_api import Page, expect

from tests.e2e.conftest import Caller
from tests.e2e.page import GROUP, expect_readable, rows
from tests.support.api import make_output

pytestmark = pytest.mark.asyncio(loop_scope="session")

PRICES = (5, 10, 15, 20)


@pytest.fixture
def lamps(caller: Caller) -> Caller:
    """A caller with a group of lamps: each has a price, two have a shelf that is no usual column."""
    data = [
        {"title": f"Lamp {price}", "a": price, "b": price, "c": price, "price": price, "stock": {"shelf": price // 10}}
        for price in PRICES
    ]
    caller.post(f"outputs/{GROUP}", [make_output(n, data=one, files=[]) for n, one in enumerate(data)])
    return caller


async def add_condition(page: Page, path: str, operator: str, value: str) -> None:
    """Build a condition with the controls of the filters."""
    await page.get_by_label("Filter by").select_option(label="Field")
    await page.get_by_label("Field", exact=True).fill(path)
    await page.get_by_label("Operator").select_option(label=operator)
    await page.get_by_label("Value", exact=True).fill(value)
    await page.get_by_role("button", name="Filter", exact=True).click()


def conditions(page: Page) -> list[str]:
    """Return the conditions in the address bar."""
    return parse_qs(page.url.partition("?")[2]).get("where", [])


async def test_every_operator_is_built_from_field_operator_and_value(new_tab: Any, lamps: Caller) -> None:
    page = await (await new_tab(lamps)).open(f"#/groups/{GROUP}")
    await page.get_by_label("Filter by").focus()
    await expect(page.locator("#missing-known option[value='stock.shelf']")).to_have_count(1)  # a known field
    operators = {
        "equals": (":", "10", 1),
        "is not": ("!=", "10", 3),
        "is greater than": (">", "10", 2),
        "is at least": (">=", "10", 3),
        "is less than": ("<", "10", 1),
        "is at most": ("<=", "10", 2),
    }
    for words, (sign, value, number) in operators.items():
        await add_condition(page, "price", words, value)
        remove = page.get_by_role("link", name=f"Remove the filter price {words} {value}", exact=True)
        await expect(remove).to_be_visible()
        await expect(rows(page)).to_have_count(number)
        assert conditions(page) == [f"price{sign}{value}"]
        await remove.click()
        await expect(rows(page)).to_have_count(len(PRICES))
    await add_condition(page, "title", "contains", "LAMP 1")
    await expect(rows(page)).to_have_count(2)
    assert conditions(page) == ["title~LAMP 1"]


async def test_conditions_add_up_and_are_removed_one_by_one(new_tab: Any, lamps: Caller) -> None:
    page = await (await new_tab(lamps)).open(f"#/groups/{GROUP}?where=title~lamp")
    await add_condition(page, "price", "is greater than", "5")
    await expect(rows(page)).to_have_count(3)
    await add_condition(page, "price", "is less than", "20")
    await expect(rows(page)).to_have_count(2)
    await expect_readable(page)
    await page.get_by_role("link", name="Remove the filter price is greater than 5").click()
    await expect(rows(page)).to_have_count(3)
    await page.get_by_role("link", name="Remove all").click()
    await expect(rows(page)).to_have_count(4)
    assert conditions(page) == []


async def test_a_filtered_view_is_shared_by_its_address(new_tab: Any, lamps: Caller) -> None:
    page = await (await new_tab(lamps)).open(f"#/groups/{GROUP}")
    await add_condition(page, "price", "is at least", "10")
    await add_condition(page, "title", "contains", "a&b = 100%, ü")
    await expect(page.get_by_text("Nothing matches these filters.")).to_be_visible()
    await page.go_back()
    await add_condition(page, "title", "is not", "Lamp 15")
    await expect(rows(page)).to_have_count(2)
    address = page.url[page.url.index("#") :]
    other = await (await new_tab(lamps)).open(address)
    await expect(rows(other)).to_have_count(2)
    for words in ("price is at least 10", "title is not Lamp 15"):
        await expect(other.get_by_role("link", name=f"Remove the filter {words}", exact=True)).to_be_visible()


async def test_a_list_filtered_by_a_field_shows_that_field(new_tab: Any, lamps: Caller) -> None:
    page = await (await new_tab(lamps)).open(f"#/groups/{GROUP}")
    await expect(rows(page)).to_have_count(4)
    shelf = page.get_by_role("columnheader", name="stock.shelf")
    await page.get_by_role("button", name="Columns").click()
    await page.get_by_role("dialog").get_by_role("button", name="None").click()
    await page.get_by_role("dialog").get_by_label("title").check()
    await page.get_by_role("button", name="Show these").click()
    await expect(shelf).to_have_count(0)
    await add_condition(page, "stock.shelf", "is at least", "1")
    await expect(shelf).to_be_visible()
    await expect(page.locator("td[data-label='stock.shelf']")).to_have_text(["2", "1", "1"])


async def test_views_are_saved_for_each_group_in_this_browser(new_tab: Any, lamps: Caller) -> None:
    lamps.post("outputs/other", [make_output(1, files=[])])
    page = await (await new_tab(lamps)).open(f"#/groups/{GROUP}?columns=data.title,data.price&order=asc&q=lamp")
    await add_condition(page, "price", "is at least", "10")
    await expect(rows(page)).to_have_count(3)
    views = page.get_by_role("dialog", name="Views")
    await page.get_by_role("button", name="Views").click()
    await expect(views).to_contain_text("No view is saved yet")
    await expect_readable(page)
    await views.get_by_label("Save this view as").fill("Dear ones")
    await views.get_by_role("button", name="Save").click()
    await expect(page.locator("#notice")).to_contain_text("The view Dear ones is saved")

    await page.goto(f"{page.url.split('#')[0]}#/groups/other")
    await page.get_by_role("button", name="Views").click()
    await expect(views).to_contain_text("No view is saved yet")  # it belongs to its group
    await page.keyboard.press("Escape")

    await page.goto(f"{page.url.split('#')[0]}#/groups/{GROUP}")
    await page.reload()
    await expect(rows(page)).to_have_count(4)
    await page.get_by_role("button", name="Views").click()
    await views.get_by_role("link", name="Dear ones").click()
    await expect(views).to_be_hidden()
    await expect(page.locator("td[data-label='price']")).to_have_text(["10", "15", "20"])
    assert "q=" not in page.url  # of that moment
    await page.get_by_role("button", name="Views").click()
    await expect_readable(page)
    await views.get_by_role("button", name="Remove the view Dear ones").click()
    await expect(views.get_by_role("link")).to_have_count(0)


async def test_views_of_another_organization_are_not_shown(new_tab: Any, lamps: Caller, make_caller: Any) -> None:
    stranger = make_caller()
    stranger.post(f"outputs/{GROUP}", [make_output(1, files=[])])
    page = await (await new_tab(lamps)).open(f"#/groups/{GROUP}?where=price>5")
    await page.get_by_role("button", name="Views").click()
    await page.get_by_label("Save this view as").fill("Ours")
    await page.get_by_role("dialog").get_by_role("button", name="Save").click()
    await page.evaluate("token => sessionStorage.setItem('token', token)", stranger.token)
    await page.reload()
    await page.get_by_role("button", name="Views").click()
    await expect(page.get_by_role("dialog", name="Views")).to_contain_text("No view is saved yet")


async def test_sorting_says_that_it_sorts_only_what_is_loaded(new_tab: Any, lamps: Caller) -> None:
    page = await (await new_tab(lamps)).open(f"#/groups/{GROUP}?limit=2")
    head = page.get_by_role("columnheader", name="price").get_by_role("link")
    assert await head.get_attribute("title") == "Sort the 2 rows of this page by data.price: other pages are not sorted"
    await expect(page.locator(".pager")).not_to_contain_text("sorted")
    await head.click()
    await expect(page.locator(".pager")).to_contain_text("Only these rows are sorted, not the other pages")
