"""Cookies and local storage by domain: hidden until asked for, added, edited, imported, taken away, deleted."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.e2e.conftest import Caller
from tests.e2e.page import intercept
from tests.support.api import make_cookie, make_entry

pytestmark = pytest.mark.asyncio(loop_scope="session")

DOMAIN = "#/state/shop.example"


async def test_cookies_and_local_storage_of_a_domain_are_one_view_with_hidden_values(
    new_tab: Any, shop: Caller
) -> None:
    page = await (await new_tab(shop)).open("#/state")
    await page.get_by_role("link", name="shop.example", exact=True).click()
    await expect(page.get_by_role("rowheader", name="session")).to_be_visible()
    await expect(page.get_by_role("rowheader", name="theme")).to_be_visible()
    await expect(page.get_by_text("expired", exact=False).filter(has_text="ago")).not_to_have_count(0)
    assert "s3cret" not in await page.content()
    await page.get_by_role("button", name="Show the value of session").click()
    await expect(page.get_by_text("s3cret")).to_be_visible()
    await expect(page.get_by_text("gone", exact=True)).to_have_count(0)
    await page.get_by_role("button", name="Hide the value of session").click()
    assert "s3cret" not in await page.content()
    await page.get_by_role("button", name="Show all values").first.click()
    await expect(page.get_by_text("s3cret")).to_be_visible()
    await expect(page.get_by_text("gone", exact=True)).to_be_visible()
    await expect(page.get_by_text("dark", exact=True)).to_have_count(0)
    await page.get_by_role("button", name="Show the value of theme").click()
    await expect(page.get_by_text("dark", exact=True)).to_be_visible()


async def test_a_domain_is_found_by_a_part_of_its_name(new_tab: Any, shop: Caller) -> None:
    shop.post("cookies", [make_cookie(domain=f"{name}.example") for name in ("hotel", "motel")])
    page = await (await new_tab(shop)).open("#/state")
    await page.get_by_label("Find a domain").fill("OTEL")
    await expect(page.locator("tbody tr:visible")).to_have_count(2)
    await page.reload()
    await expect(page.locator("tbody tr:visible")).to_have_count(2)
    await page.get_by_label("Find a domain").fill("nowhere")
    await expect(page.get_by_text("No domain has this in its name.")).to_be_visible()


async def test_all_values_at_once_are_short(new_tab: Any, caller: Caller) -> None:
    caller.post("cookies", [make_cookie(value="v" * 4000)])
    page = await (await new_tab(caller)).open(DOMAIN)
    await page.get_by_role("button", name="Show all values").click()
    value = page.locator("code.secret")
    await expect(value).to_have_text("v" * 80 + "…")
    await page.get_by_role("button", name="Hide the value of session").click()
    await page.get_by_role("button", name="Show the value of session").click()
    await expect(value).to_have_text("v" * 4000)


async def test_expiry_is_said_in_words_and_sorts(new_tab: Any, caller: Caller) -> None:
    def after(**span: int) -> str:
        return (datetime.now(UTC) + timedelta(**span)).isoformat()

    cookies = [("later", after(days=40)), ("soon", after(days=2, hours=1)), ("never", None), ("over", after(days=-3))]
    caller.post("cookies", [make_cookie(name=name, expires=expires) for name, expires in cookies])
    page = await (await new_tab(caller)).open(DOMAIN)
    await expect(page.get_by_role("row", name="soon")).to_contain_text("in 2 days")
    await expect(page.get_by_role("row", name="over")).to_contain_text("expired 3 days ago")
    await expect(page.get_by_role("row", name="never")).to_contain_text("session")
    names = page.locator("table.state tbody th")
    await page.get_by_role("link", name="Expires").click()
    await expect(names).to_have_text(["over", "soon", "later", "never"])
    await page.get_by_role("link", name="Expires").click()
    await expect(names).to_have_text(["never", "later", "soon", "over"])


async def test_a_cookie_is_added_and_edited(new_tab: Any, caller: Caller) -> None:
    page = await (await new_tab(caller)).open("#/state")
    await page.get_by_role("button", name="Add cookie").click()
    dialog = page.get_by_role("dialog", name="Add a cookie")
    await dialog.get_by_label("Domain").fill(".shop.example")
    await dialog.get_by_label("Name").fill("basket")
    await dialog.get_by_label("Value").fill(" 3 ")
    await dialog.get_by_label("Expires").fill("2030-01-31T12:00")
    await dialog.get_by_label("HttpOnly").check()
    await dialog.get_by_role("button", name="Save").click()
    await page.get_by_role("link", name="shop.example").click()
    [stored] = caller.get("cookies")
    assert (stored["domain"], stored["name"], stored["value"]) == (".shop.example", "basket", " 3 ")
    assert (stored["http_only"], stored["secure"], stored["expires"]) == (True, False, 1896091200)
    await page.get_by_role("button", name="Edit basket").click()
    dialog = page.get_by_role("dialog", name="Edit basket")
    await expect(dialog.get_by_label("Expires")).to_have_value(re.compile("2030-01-31T12:00(:00)?"))
    await dialog.get_by_label("Value").fill("4")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog).to_be_hidden()
    assert caller.get("cookies") == [stored | {"value": "4"}]


async def test_an_edited_cookie_keeps_what_only_its_browser_knows(new_tab: Any, caller: Caller) -> None:
    cookie = {"name": "sid", "value": "7", "domain": ".shop.example", "path": "/", "expires": 1896091230}
    browser = {"httpOnly": True, "secure": True, "sameSite": "None", "partitionKey": "https://top.example"}
    caller.post("storage-state", {"cookies": [{**cookie, **browser}], "origins": []})
    page = await (await new_tab(caller)).open(DOMAIN)
    await page.get_by_role("button", name="Edit sid").click()
    dialog = page.get_by_role("dialog", name="Edit sid")
    await dialog.get_by_label("Value").fill("8")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog).to_be_hidden()
    assert caller.get("storage-state")["cookies"] == [{**cookie, **browser, "value": "8"}]


async def test_an_entry_that_cannot_be_saved_stays_in_its_dialog(new_tab: Any, caller: Caller) -> None:
    tab = await new_tab(caller)
    tab.expected |= {503}
    page = await tab.open("#/state")
    await page.get_by_role("button", name="Add entry").click()
    dialog = page.get_by_role("dialog", name="Add an entry")
    await dialog.get_by_label("Domain").fill("shop.example")
    await dialog.get_by_label("Key").fill("theme")
    await dialog.get_by_label("Value").fill("a long text that nobody wants to type again")
    await intercept(page, "**/v1/local-storage", lambda route: route.fulfill(status=503, body="{}"))
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("The service is busy")
    await page.mouse.click(5, 5)  # beside the dialog
    await page.unroute("**/v1/local-storage")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog).to_be_hidden()
    assert [one["value"] for one in caller.get("local-storage")] == ["a long text that nobody wants to type again"]


NETSCAPE = "# Netscape HTTP Cookie File\n#HttpOnly_.shop.example\tTRUE\t/\tTRUE\t1896091200\tsession\ts3cret\n"
EDIT_THIS_COOKIE = [
    {
        "domain": ".shop.example",
        "expirationDate": 1896091200.5,
        "hostOnly": False,
        "httpOnly": True,
        "name": "session",
        "path": "/",
        "sameSite": "no_restriction",
        "secure": True,
        "session": False,
        "storeId": "0",
        "value": "s3cret",
        "id": 1,
    }
]
CDP = {
    "id": 7,
    "result": {
        "cookies": [
            {
                "name": "session",
                "value": "s3cret",
                "domain": ".shop.example",
                "path": "/",
                "expires": 1896091200,
                "size": 13,
                "httpOnly": True,
                "secure": True,
                "session": False,
            }
        ]
    },
}
STORAGE_STATE = {
    "cookies": [CDP["result"]["cookies"][0] | {"sameSite": "Lax"}],  # type: ignore[index]
    "origins": [{"origin": "https://shop.example", "localStorage": [{"name": "theme", "value": "dark"}]}],
}


@pytest.mark.parametrize(
    "text",
    [NETSCAPE, json.dumps(EDIT_THIS_COOKIE), json.dumps(CDP), json.dumps(STORAGE_STATE)],
    ids=["cookies.txt", "EditThisCookie", "CDP", "storageState"],
)
async def test_what_a_browser_exported_is_imported(new_tab: Any, caller: Caller, text: str) -> None:
    page = await (await new_tab(caller)).open("#/state")
    await page.get_by_role("button", name="Import").click()
    dialog = page.get_by_role("dialog", name="Import browser state")
    await dialog.get_by_label("File").set_input_files({"name": "x", "mimeType": "text/plain", "buffer": text.encode()})
    await dialog.get_by_role("button", name="Import").click()
    await expect(page.get_by_role("link", name="shop.example")).to_be_visible()
    [cookie] = caller.get("cookies")
    assert (cookie["domain"], cookie["name"], cookie["value"]) == (".shop.example", "session", "s3cret")
    assert (cookie["expires"], cookie["http_only"], cookie["secure"]) == (1896091200, True, True)
    assert len(caller.get("local-storage")) == (1 if "origins" in text else 0)


async def test_a_partition_and_the_flags_of_the_api_are_imported(new_tab: Any, caller: Caller) -> None:
    partition = {"sourceOrigin": "https://top.example", "hasCrossSiteAncestor": False}
    cookie = {"name": "a", "value": "b", "domain": "shop.example", "http_only": True, "partitionKey": partition}
    page = await (await new_tab(caller)).open("#/state")
    await page.get_by_role("button", name="Import").click()
    dialog = page.get_by_role("dialog", name="Import browser state")
    await dialog.get_by_label("Or paste it").fill("\ufeff" + json.dumps([cookie]))
    await dialog.get_by_role("button", name="Import").click()
    await expect(page.get_by_role("link", name="shop.example")).to_be_visible()
    [stored] = caller.get("storage-state")["cookies"]
    assert (stored["httpOnly"], stored["partitionKey"]) == (True, "https://top.example")
    assert stored["_crHasCrossSiteAncestor"] is False and "http_only" not in stored


async def test_what_cannot_be_imported_is_explained_and_kept(new_tab: Any, caller: Caller) -> None:
    page = await (await new_tab(caller)).open("#/state")
    await page.get_by_role("button", name="Import").click()
    dialog = page.get_by_role("dialog", name="Import browser state")
    for text, explained in [
        ("hello", "Line 1 is not one of cookies.txt"),
        ("[{]", "not valid JSON"),
        ('[{"name": "a", "value": "b"}]', "Cookie 1 (a): domain must be a text"),
        ('[{"name": "a", "value": "b", "domain": "c", "expires": 1896091200000}]', "milliseconds"),
        ('[{"name": "a", "value": "b", "domain": "c", "httpOnly": "true"}]', "httpOnly must be true or false"),
        ('[{"name": "a", "value": "b", "domain": "c", "sameSite": "weird"}]', "sameSite is not"),
        ("c\tYES\t/\tTRUE\t0\ta\tb", "TRUE or FALSE"),
        ('{"cookies": [], "credentials": [{}]}', "credentials"),
    ]:
        await dialog.get_by_label("Or paste it").fill(text)
        await dialog.get_by_role("button", name="Import").click()
        await expect(dialog.get_by_role("alert")).to_contain_text(explained)
        await expect(dialog.get_by_label("Or paste it")).to_have_value(text)
    assert caller.get("cookies") == []


async def test_one_cookie_is_copied(new_tab: Any, shop: Caller) -> None:
    tab = await new_tab(shop)
    await tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = await tab.open(DOMAIN)
    await page.get_by_role("button", name="Copy session").click()
    await expect(page.get_by_text("Copied").first).to_be_visible()
    copied = json.loads(await page.evaluate("navigator.clipboard.readText()"))
    assert copied in shop.get("cookies") and copied["value"] == "s3cret"


async def test_the_storage_state_of_a_domain_is_a_file_that_playwright_loads(
    new_tab: Any, shop: Caller, browser: Any
) -> None:
    page = await (await new_tab(shop)).open(DOMAIN)
    async with page.expect_download() as download:
        await page.get_by_role("button", name="storageState").click()
    file = await (await download.value).path()
    assert (await download.value).suggested_filename == "storage-state-shop.example.json"
    context = await browser.new_context(storage_state=file)
    assert ("session", "s3cret") in [(cookie["name"], cookie["value"]) for cookie in await context.cookies()]
    await context.close()


async def delete(page: Page, name: str, question: str) -> None:
    """Keep at first, then delete."""
    dialog = page.get_by_role("dialog", name=question)
    for answer in ("Keep", "Delete"):
        await page.get_by_role("button", name=name, exact=True).click()
        await dialog.get_by_role("button", name=answer).click()
        await expect(dialog).to_be_hidden()


@pytest.mark.parametrize(("kind", "name"), [("cookies", "session"), ("local-storage", "theme")])
async def test_a_record_is_deleted_after_a_confirmation(new_tab: Any, shop: Caller, kind: str, name: str) -> None:
    page = await (await new_tab(shop)).open(DOMAIN)
    before = shop.get(kind)
    await delete(page, f"Delete {name}", f"Delete {name}?")
    await expect(page.get_by_role("button", name=f"Delete {name}")).to_have_count(0)
    assert shop.get(kind) == [one for one in before if name not in (one.get("name"), one.get("key"))]


async def test_what_has_expired_and_a_whole_domain_are_deleted(new_tab: Any, shop: Caller) -> None:
    shop.post("cookies", [make_cookie(domain="other.example")])
    shop.post("local-storage", [make_entry(key="old", expires="2020-01-01")])
    page = await (await new_tab(shop)).open(DOMAIN)
    await delete(page, "Delete expired", "Delete what has expired?")
    await expect(page.get_by_role("button", name="Delete expired")).to_have_count(0)
    assert [one["name"] for one in shop.get("cookies")] == ["session", "session"]
    assert [one["key"] for one in shop.get("local-storage")] == ["theme"]
    await delete(page, "Delete domain", "Delete shop.example?")
    await expect(page.get_by_text("No cookies and no local storage")).to_be_visible()
    assert [one["domain"] for one in shop.get("cookies")] == ["other.example"]
    assert shop.get("local-storage") == []
