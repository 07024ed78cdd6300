"""Pictures of items: those inside the data at once, others only when asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.async_api import expect

from tests.e2e.conftest import Caller
from tests.e2e.page import GROUP, intercept, rows
from tests.support.api import make_file, make_output

pytestmark = pytest.mark.asyncio(loop_scope="session")


INLINE = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 4 3'/%3E"


async def test_pictures_elsewhere_are_loaded_only_when_asked_for_and_without_a_referrer(
    new_tab: Any, caller: Caller
) -> None:
    files = [make_file(), make_file(file_type="application/pdf", file_url="https://files.example/manual.pdf")]
    caller.post(f"outputs/{GROUP}", [make_output(files=files)])
    tab = await new_tab(caller)
    page = tab.page
    asked: list[str | None] = []

    async def serve(route: Any) -> None:
        asked.append(await route.request.header_value("referer"))
        await route.fulfill(body="<svg xmlns='http://www.w3.org/2000/svg'/>", content_type="image/svg+xml")

    await intercept(page, "https://files.example/**", serve)
    await tab.open(f"#/groups/{GROUP}")
    await expect(rows(page)).to_have_count(1)
    assert await page.locator("main img").count() == 0 and asked == []
    await page.get_by_label("Pictures").check()
    await expect(rows(page).first.locator("img")).to_have_attribute("referrerpolicy", "no-referrer")
    await page.reload()
    await rows(page).first.get_by_role("link").first.click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.locator("img")).to_have_count(1)
    await expect(dialog.get_by_role("link", name="https://files.example/manual.pdf")).to_be_visible()
    assert asked and set(asked) == {None}
    tab.complaints = [one for one in tab.complaints if "files.example" not in one]


async def test_pictures_inside_the_data_are_shown_at_once(new_tab: Any, caller: Caller) -> None:
    caller.post(f"outputs/{GROUP}", [make_output(data={"title": "Lamp", "thumbnail": INLINE})])
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}")
    picture = rows(page).first.locator("img")
    await expect(picture).to_have_attribute("src", INLINE)
    await expect(picture).to_have_js_property("complete", True)
    await rows(page).first.get_by_role("link").first.click()
    await expect(page.get_by_role("dialog").locator("img")).to_have_attribute("src", INLINE)


@pytest.mark.parametrize("images", [["{}"], [{"alt": "A lamp", "url": "{}"}]], ids=["addresses", "objects"])
async def test_pictures_in_lists_are_found(new_tab: Any, caller: Caller, images: list[Any]) -> None:
    address = "https://files.example/lamp.jpg?width=80"
    data = json.loads(json.dumps({"title": "Lamp", "images": images}).replace("{}", address))
    caller.post(f"outputs/{GROUP}", [make_output(data=data, files=[])])
    tab = await new_tab(caller)
    await intercept(tab.page, "https://files.example/**", lambda route: route.fulfill(status=204))
    page = await tab.open(f"#/groups/{GROUP}")
    await page.get_by_label("Pictures").check()
    await expect(rows(page).first.locator("img")).to_have_attribute("src", address)
    tab.complaints = [one for one in tab.complaints if "files.example" not in one]
