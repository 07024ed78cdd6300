"""The tokens of an organization, for a token with the scope admin."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import expect

from tests.e2e.conftest import Caller
from tests.e2e.page import expect_readable

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def admin(make_caller: Callable[..., Caller]) -> Caller:
    """A caller who manages the tokens of an organization."""
    return make_caller(None, "read", "admin", label="Grace")


async def test_a_token_is_made_shown_once_used_and_revoked(new_tab: Any, admin: Caller) -> None:
    page = await (await new_tab(admin)).open("#/groups")
    await page.get_by_role("link", name="Tokens").click()
    tokens = page.locator("table.tokens tbody tr")
    await expect(tokens).to_have_count(1)
    await expect(tokens).to_contain_text("Grace")
    await expect(tokens).to_contain_text("yours")
    await expect(page.get_by_role("button", name="Revoke")).to_have_count(0)  # not one's own
    await page.get_by_role("button", name="Make a token").click()
    dialog = page.get_by_role("dialog", name="Make a token")
    await expect(dialog.get_by_label("admin")).to_have_count(0)  # no token can grant it
    await expect_readable(page)
    last = datetime.now(UTC).date() + timedelta(days=30)
    await dialog.get_by_label("Who uses it").fill("warehouse")
    await dialog.get_by_label("write").check()
    await dialog.get_by_label("Last day").fill(str(last))
    await dialog.get_by_role("button", name="Make", exact=True).click()
    secret = page.get_by_role("dialog", name="The new token")
    text = await secret.locator(".secret-text").inner_text()
    assert text.startswith("sds_")
    await expect_readable(page)
    await page.mouse.click(5, 5)  # beside it: the token would be lost
    await expect(secret).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(secret).to_be_hidden()

    made = Caller(admin.address, text, admin.organization_id)
    described = made.get("token")
    assert (described["label"], set(described["scopes"])) == ("warehouse", {"read", "write"})
    assert described["expires"].startswith(str(last))
    await page.reload()
    line = page.get_by_role("row", name="warehouse")
    await expect(line).to_contain_text("just now")  # it was used
    assert text not in await page.content()

    await line.get_by_role("button", name="Revoke warehouse").click()
    await page.get_by_role("dialog").get_by_role("button", name="Keep").click()
    assert made.get("token")["label"] == "warehouse"
    await line.get_by_role("button", name="Revoke warehouse").click()
    await page.get_by_role("dialog").get_by_role("button", name="Revoke", exact=True).click()
    await expect(line).to_contain_text("revoked")
    await expect(line.get_by_role("button")).to_have_count(0)
    await expect_readable(page)
    with pytest.raises(AssertionError, match="401"):
        for _ in range(600):  # every process learns it within 5 seconds
            made.get("token")
            await page.wait_for_timeout(100)


async def test_a_token_without_a_label_says_so(new_tab: Any, admin: Caller, make_caller: Callable[..., Caller]) -> None:
    make_caller(admin.organization_id, "read")
    page = await (await new_tab(admin)).open("#/tokens")
    line = page.get_by_role("row", name="no label")
    await expect(line.get_by_role("rowheader")).to_have_text(re.compile(r"^no label[0-9a-f]+$"))


async def test_a_token_without_any_scope_is_refused_in_the_dialog(new_tab: Any, admin: Caller) -> None:
    tab = await new_tab(admin)
    tab.expected |= {422}
    page = await tab.open("#/tokens")
    await page.get_by_role("button", name="Make a token").click()
    dialog = page.get_by_role("dialog", name="Make a token")
    await dialog.get_by_label("Who uses it").fill("nobody")
    await dialog.get_by_label("read").uncheck()
    await dialog.get_by_role("button", name="Make", exact=True).click()
    await expect(dialog.get_by_role("alert")).not_to_be_empty()
    await expect(dialog.get_by_label("Who uses it")).to_have_value("nobody")
    assert len(admin.get("tokens")) == 1


async def test_without_the_scope_admin_the_view_says_how_to_get_it(new_tab: Any, caller: Caller) -> None:
    page = await (await new_tab(caller)).open("#/groups")
    await expect(page.get_by_role("link", name="Groups").first).to_be_visible()
    await expect(page.get_by_role("link", name="Tokens")).to_be_hidden()
    await page.goto(f"{page.url.split('#')[0]}#/tokens")
    await expect(page.get_by_text("needs the scope admin")).to_be_visible()
    await expect_readable(page)
