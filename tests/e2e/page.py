"""What the tests of the page share: how to sign in, where its rows are, how to wait for them."""

from __future__ import annotations

from playwright.async_api import Locator, Page, expect

GROUP = "shop"


def rows(page: Page) -> Locator:
    return page.locator("table.rows tbody tr:visible")


def opener(page: Page, item_id: int) -> Locator:
    return page.get_by_role("link", name=f"Open item {item_id}", exact=True)


async def shown_ids(page: Page) -> list[int]:
    """Return the ids of the rows, from top to bottom."""
    return [int(text) for text in await page.locator("table.rows tbody th a").all_inner_texts()]


async def expect_ids(page: Page, ids: list[int]) -> None:
    """Wait until exactly these rows are shown, in this order."""
    await expect(page.locator("table.rows tbody th a")).to_have_text([str(item_id) for item_id in ids])


async def sign_in(page: Page, token: str) -> None:
    """Give a token to the form, whether it fills the page or is a dialog over it."""
    await page.get_by_label("Access token").fill(token)
    await page.get_by_label("Access token").press("Enter")


async def add_filter(page: Page, name: str, value: str) -> None:
    """Filter by what the control `Filter by` calls `name`."""
    await page.get_by_label("Filter by").select_option(label=name)
    control = page.locator("#filter-value")
    if await control.evaluate("node => node.tagName") == "SELECT":
        await control.select_option(label=value)
    else:
        await control.fill(value)
    await page.get_by_role("button", name="Filter", exact=True).click()
