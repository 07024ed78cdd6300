"""Cookies and local storage: hidden until asked for, copied, taken away as storageState, deleted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.async_api import expect

from tests.e2e.conftest import Caller
from tests.support.api import make_cookie

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_values_of_cookies_and_local_storage_are_hidden_until_asked_for(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open("#/cookies")
    await expect(page.get_by_role("cell", name="session", exact=True)).to_be_visible()
    await expect(page.get_by_text("expired", exact=True)).to_have_count(1)
    assert "s3cret" not in await page.content()
    await page.get_by_role("button", name="Show the value of session").click()
    await expect(page.get_by_text("s3cret")).to_be_visible()
    await expect(page.get_by_text("gone", exact=True)).to_have_count(0)
    await page.get_by_role("button", name="Hide the value of session").click()
    assert "s3cret" not in await page.content()
    await page.get_by_role("button", name="Show all values").click()
    await expect(page.get_by_text("s3cret")).to_be_visible()
    await expect(page.get_by_text("gone", exact=True)).to_be_visible()

    await page.get_by_label("Not expired only").check()
    await page.get_by_role("button", name="Apply").click()
    await expect(page.locator(".lead")).to_have_text("1 cookie")
    assert "s3cret" not in await page.content()

    await page.get_by_role("link", name="Local storage").click()
    await expect(page.get_by_role("cell", name="theme", exact=True)).to_be_visible()
    await expect(page.get_by_text("dark", exact=True)).to_have_count(0)
    await page.get_by_role("button", name="Show the value of theme").click()
    await expect(page.get_by_text("dark", exact=True)).to_be_visible()
    await page.get_by_label("Domain, exactly").fill("nobody.example")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Nothing matches these filters.")).to_be_visible()


async def test_all_values_at_once_are_short(new_tab: Any, caller: Caller) -> None:
    caller.post("cookies", [make_cookie(value="v" * 4000)])
    page = await (await new_tab(caller)).open("#/cookies")
    await page.get_by_role("button", name="Show all values").click()
    value = page.locator("code.secret")
    await expect(value).to_have_text("v" * 80 + "…")
    await page.get_by_role("button", name="Hide the value of session").click()
    await page.get_by_role("button", name="Show the value of session").click()
    await expect(value).to_have_text("v" * 4000)


async def test_one_cookie_is_copied(new_tab: Any, shop: Caller) -> None:
    tab = await new_tab(shop)
    await tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = await tab.open("#/cookies")
    await page.get_by_role("button", name="Copy session").click()
    await expect(page.get_by_text("Copied").first).to_be_visible()
    copied = json.loads(await page.evaluate("navigator.clipboard.readText()"))
    assert copied in shop.get("cookies") and copied["value"] == "s3cret"


async def test_the_storage_state_of_a_domain_is_a_file_that_playwright_loads(
    new_tab: Any, shop: Caller, browser: Any
) -> None:
    page = await (await new_tab(shop)).open("#/cookies?domain=.shop.example")
    async with page.expect_download() as download:
        await page.get_by_role("button", name="storageState of .shop.example").click()
    file = await (await download.value).path()
    assert (await download.value).suggested_filename == "storage-state-shop.example.json"
    context = await browser.new_context(storage_state=file)
    assert ("session", "s3cret") in [(cookie["name"], cookie["value"]) for cookie in await context.cookies()]
    await context.close()


@pytest.mark.parametrize(("view", "name"), [("cookies", "session"), ("local-storage", "theme")])
async def test_a_record_is_deleted_after_a_confirmation(new_tab: Any, shop: Caller, view: str, name: str) -> None:
    page = await (await new_tab(shop)).open(f"#/{view}")
    before = shop.get(view)
    await page.get_by_role("button", name=f"Delete {name}").click()
    question = page.get_by_role("dialog", name=f"Delete {name}?")
    await question.get_by_role("button", name="Keep").click()
    assert shop.get(view) == before
    await page.get_by_role("button", name=f"Delete {name}").click()
    await question.get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("button", name=f"Delete {name}")).to_have_count(0)
    assert shop.get(view) == [one for one in before if name not in (one.get("name"), one.get("key"))]
