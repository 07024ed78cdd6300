"""The API description at /docs."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.e2e.conftest import Caller
from tests.e2e.page import GROUP, intercept, rows, sign_in

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def execute(page: Page, group: str) -> None:
    """Try out the operation that reads outputs, and wait for data."""
    operation = page.locator("#operations-outputs-outputs_get")
    await operation.locator(".opblock-summary-control").click()
    await operation.get_by_role("button", name="Try it out").click()
    await operation.get_by_placeholder("group_id").fill(group)
    async with page.expect_response(lambda response: f"/v1/outputs/{group}" in response.url) as received:
        await operation.get_by_role("button", name="Execute").click()
    assert (await received.value).status == 200
    await expect(operation.locator(".live-responses-table")).to_contain_text("output_id")


async def test_what_is_authorized_holds_for_the_tab(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab()).open("docs")
    await page.get_by_role("button", name="Authorize").first.click()
    await page.locator(".auth-container input").fill(shop.token)
    await page.locator(".auth-container .authorize").click()
    await page.locator(".auth-container .btn-done").click()
    await execute(page, GROUP)
    await page.reload()
    await execute(page, GROUP)
    assert await page.evaluate("JSON.stringify(localStorage)") == "{}"


async def test_who_is_signed_in_on_the_page_is_signed_in_here(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open("#/groups")
    await page.get_by_role("link", name="API", exact=True).click()
    await execute(page, GROUP)


async def test_operations_have_texts_and_real_examples(new_tab: Any) -> None:
    page = await (await new_tab()).open("docs")
    await expect(page.get_by_text("in the order of change with a cursor")).to_be_visible()
    operation = page.locator("#operations-outputs-outputs_post")
    await operation.locator(".opblock-summary-control").click()
    await expect(operation.locator(".body-param__example, .body-param").first).to_contain_text("Folding oak chair")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_it_fits_a_phone_and_follows_the_colour_scheme(new_tab: Any, dark: bool) -> None:
    page = await (await new_tab(width=390, height=844, dark=dark)).open("docs")
    operation = page.locator("#operations-outputs-outputs_get")
    await operation.locator(".opblock-summary-control").click(timeout=60_000)  # it renders for seconds
    await expect(operation.get_by_role("button", name="Try it out")).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390
    box = await operation.locator("td.parameters-col_description").first.bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390
    ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    red = int(ground.split("(")[1].split(",")[0])
    assert (red < 80) == dark


async def test_both_pages_work_behind_a_path_prefix(new_tab: Any, shop: Caller) -> None:
    tab = await new_tab()
    page = tab.page

    async def strip(route: Any) -> Any:
        if "wait=25" in route.request.url:
            return await route.abort()  # would hold the test up
        response = await route.fetch(url=route.request.url.replace("/inside/", "/", 1))
        await route.fulfill(response=response)

    await intercept(page, "**/inside/**", strip)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    await tab.open("inside/")
    await sign_in(page, shop.token)
    await page.get_by_role("link", name=GROUP, exact=True).click()
    await expect(rows(page)).to_have_count(25)
    await page.get_by_role("link", name="API", exact=True).click()
    await execute(page, GROUP)
    assert requests and all("/inside/" in url or url.startswith("data:") for url in requests)
