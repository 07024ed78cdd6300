"""The token: how it comes in, how long it stays, and where it never is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from playwright.async_api import TimeoutError, expect

from tests.e2e.conftest import Caller
from tests.e2e.page import GROUP, rows, sign_in
from tests.support.processes import run_command

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_token_stays_in_the_session_and_is_never_in_an_address(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab()).open()
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.on("framenavigated", lambda frame: addresses.append(frame.url))
    await sign_in(page, shop.token)
    await page.get_by_role("link", name=GROUP, exact=True).click()
    await expect(rows(page)).to_have_count(25)
    assert addresses and not any(shop.token in address for address in addresses)
    assert shop.token not in await page.content()
    assert await page.evaluate("JSON.stringify(localStorage)") == "{}"
    assert await page.context.cookies() == []

    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_label("Access token")).to_be_visible()
    assert await page.evaluate("JSON.stringify(sessionStorage)") == "{}"
    await page.reload()
    await expect(page.get_by_label("Access token")).to_be_visible()


async def test_a_new_tab_of_the_session_does_not_ask_again_and_all_forget_together(new_tab: Any, shop: Caller) -> None:
    tab = await new_tab()
    page = await tab.open()
    await sign_in(page, shop.token)
    await expect(page.get_by_role("link", name=GROUP, exact=True)).to_be_visible()
    other = await page.context.new_page()
    await other.goto(f"{tab.address}/#/groups/{GROUP}")
    await expect(rows(other)).to_have_count(25)
    await other.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_label("Access token")).to_be_visible()
    await page.close()
    await other.close()
    later = await tab.page.context.new_page()
    await later.goto(tab.address)
    await expect(later.get_by_label("Access token")).to_be_visible()


async def test_a_session_that_is_over_asks_again(new_tab: Any, shop: Caller) -> None:
    tab = await new_tab()
    page = await tab.open()
    await sign_in(page, shop.token)
    await expect(page.get_by_role("link", name=GROUP, exact=True)).to_be_visible()
    await page.close()
    later = await page.context.new_page()
    await later.goto(tab.address)
    await expect(later.get_by_label("Access token")).to_be_visible()


async def test_a_token_is_remembered_on_this_computer_only_when_asked_for(new_tab: Any, shop: Caller) -> None:
    tab = await new_tab()
    page = await tab.open()
    await page.get_by_label("Remember on this computer").check()
    await sign_in(page, shop.token)
    await expect(page.get_by_role("link", name=GROUP, exact=True)).to_be_visible()
    await page.close()
    later = await page.context.new_page()
    await later.goto(tab.address)
    await expect(later.get_by_role("link", name=GROUP, exact=True)).to_be_visible()
    await later.get_by_role("button", name="Sign out").click()
    await expect(later.get_by_label("Access token")).to_be_visible()
    assert await later.evaluate("JSON.stringify(localStorage)") == "{}"


async def test_a_link_signs_in_and_loses_its_token_at_once(new_tab: Any, shop: Caller) -> None:
    tab = await new_tab()
    requests: list[str] = []
    tab.page.on("request", lambda request: requests.append(request.url))
    page = await tab.open(f"#token={shop.token}")
    await expect(page.get_by_role("link", name=GROUP, exact=True)).to_be_visible()
    assert page.url == f"{tab.address}/#/groups"
    assert not any(shop.token in url for url in requests)
    await page.go_back()
    assert shop.token not in page.url


@pytest.mark.parametrize("accepted", [True, False])
async def test_a_link_asks_before_it_replaces_the_token_of_somebody_who_is_signed_in(
    new_tab: Any, shop: Caller, make_caller: Any, accepted: bool
) -> None:
    other = make_caller()
    tab = await new_tab(shop)
    page = await tab.open("#/groups")
    await expect(page.get_by_role("link", name=GROUP, exact=True)).to_be_visible()
    asked: list[str] = []

    async def answer(dialog: Any) -> None:
        asked.append(dialog.message)
        await (dialog.accept() if accepted else dialog.dismiss())

    page.on("dialog", answer)
    async with page.expect_event("dialog"):
        await page.evaluate("token => { location.hash = `#token=${token}`; }", other.token)
    await page.wait_for_function("location.hash === '#/groups'")
    assert len(asked) == 1 and other.token not in asked[0]
    assert tab.complaints.pop() == f"dialog: {asked[0]}"  # the only one that may be
    assert await page.evaluate("sessionStorage.getItem('token')") == (other.token if accepted else shop.token)


async def test_a_link_that_is_opened_in_another_tab_asks_too(new_tab: Any, shop: Caller, make_caller: Any) -> None:
    other = make_caller()
    tab = await new_tab()
    page = await tab.open(f"#token={shop.token}")
    await expect(page.get_by_role("link", name=GROUP, exact=True)).to_be_visible()
    second = await page.context.new_page()
    asked: list[str] = []

    async def refuse(dialog: Any) -> None:
        asked.append(dialog.message)
        await dialog.dismiss()

    second.on("dialog", refuse)
    await second.goto(f"{tab.address}/#token={other.token}")
    await expect(second.get_by_role("link", name=GROUP, exact=True)).to_be_visible()
    assert len(asked) == 1 and await second.evaluate("sessionStorage.getItem('token')") == shop.token


async def test_the_heading_has_the_focus_after_signing_in(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab()).open(f"#/groups/{GROUP}")
    await expect(page.get_by_label("Access token")).to_be_focused()
    await page.keyboard.type(shop.token)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name=GROUP)).to_be_focused()


async def test_a_refused_token_says_so_and_a_revoked_one_leads_back(
    new_tab: Any, shop: Caller, make_caller: Callable[..., Caller], mongo_url: str
) -> None:
    tab = await new_tab()
    tab.expected |= {401, 403}
    page = await tab.open(f"#/groups/{GROUP}")
    await sign_in(page, "not a token")
    await expect(page.get_by_role("alert")).to_contain_text("This is not a token")
    await sign_in(page, "sds_unknown")
    await expect(page.get_by_role("alert")).to_contain_text("The token does not work")
    await sign_in(page, make_caller(shop.organization_id, "write").token)
    await expect(page.get_by_role("alert")).to_contain_text("scope read")
    short_lived = make_caller(shop.organization_id, "read")
    await sign_in(page, f"Bearer {short_lived.token} ")
    await expect(rows(page)).to_have_count(25)
    assert run_command(mongo_url, "token", "revoke", short_lived.token).returncode == 0
    for _ in range(60):
        with suppress(TimeoutError):  # the form may have covered the button meanwhile
            await page.get_by_role("button", name="Reload").click(timeout=2000)
        await page.wait_for_timeout(100)
        if await page.get_by_label("Access token").is_visible():
            break
    await expect(page.get_by_role("alert")).to_contain_text("The token does not work")
    await sign_in(page, shop.token)
    await expect(rows(page)).to_have_count(25)
