"""The API description at /docs."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import expect

from tests.e2e.conftest import Caller
from tests.e2e.page import GROUP

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_try_it_out_in_the_api_description_answers_with_data(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab()).open("docs")
    await page.get_by_role("button", name="Authorize").first.click()
    await page.locator(".auth-container input").fill(shop.token)
    await page.locator(".auth-container").get_by_role("button", name="Authorize").click()
    await page.locator(".auth-container").get_by_role("button", name="Close").click()
    operation = page.locator("#operations-outputs-outputs_get")
    await operation.locator(".opblock-summary").click()
    await operation.get_by_role("button", name="Try it out").click()
    await operation.get_by_placeholder("group_id").fill(GROUP)
    async with page.expect_response(lambda response: f"/v1/outputs/{GROUP}" in response.url) as answer:
        await operation.get_by_role("button", name="Execute").click()
    assert (await answer.value).status == 200
    await expect(operation.locator(".live-responses-table .response-col_status").last).to_contain_text("200")
    await expect(operation.locator(".live-responses-table")).to_contain_text("output_id")
