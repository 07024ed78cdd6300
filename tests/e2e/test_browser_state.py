"""Browser state from the service in a real browser: what was logged in stays logged in."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from playwright.async_api import Browser, BrowserContext, expect

from tests.e2e.conftest import Caller, launch
from tests.support.api import make_cookie
from tests.support.processes import free_port
from tests.support.tls import make_certificate

pytestmark = pytest.mark.asyncio(loop_scope="session")

FORM = """<form method="post" action="/login">
<input name="user"><input name="word" type="password"><button>Log in</button>
</form>"""
# Half of what makes a person known here is a cookie that scripts cannot see, the other half is kept by a script.
INSIDE = """<h1>Hello <span id="user"></span></h1><p id="basket"></p><script>
if (location.search === "?first") {
  localStorage.setItem("user", "Ada");
  const request = indexedDB.open("shop", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("basket").add("lamp", "first");
}
document.getElementById("user").textContent = localStorage.getItem("user") ?? "nobody";
const request = indexedDB.open("shop", 1);
request.onupgradeneeded = () => request.transaction.abort();
request.onsuccess = () => request.result.transaction("basket").objectStore("basket").get("first").onsuccess =
  (event) => document.getElementById("basket").textContent = event.target.result;
</script>"""


async def _home(request: web.Request) -> web.Response:
    if request.cookies.get("session") == "s3cret" and request.cookies.get("checked") == "yes":
        return web.Response(text=INSIDE, content_type="text/html")
    return web.Response(text=FORM, content_type="text/html")


async def _login(request: web.Request) -> web.Response:
    form = await request.post()
    if (form["user"], form["word"]) != ("ada", "lovelace"):
        raise web.HTTPForbidden
    response = web.Response(status=303, headers={"Location": "/?first"})
    response.set_cookie("session", "s3cret", domain="shop.example", httponly=True, secure=True, max_age=3600)
    response.set_cookie("checked", "yes", secure=True, samesite="Strict")
    return response


async def _echo(request: web.Request) -> web.Response:
    return web.json_response(dict(request.cookies))


@pytest_asyncio.fixture(loop_scope="session")
async def site(tmp_path: Path) -> AsyncIterator[str]:
    """A small site behind a login; return its host and port, which the browser finds on this machine."""
    app = web.Application()
    app.router.add_get("/", _home)
    app.router.add_post("/login", _login)
    app.router.add_get("/echo", _echo)
    runner = web.AppRunner(app)
    await runner.setup()
    port, tls = free_port(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*make_certificate(tmp_path, "shop.example"))
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
    yield f"shop.example:{port}"
    await runner.cleanup()


@pytest_asyncio.fixture(loop_scope="session")
async def other_browser(browser: Browser) -> AsyncIterator[Browser]:
    """A second browser, with nothing of the first."""
    launched = await launch(browser.browser_type)
    yield launched
    await launched.close()


async def fresh(browser: Browser, state: Any = None) -> BrowserContext:
    return await browser.new_context(storage_state=state, ignore_https_errors=True)


async def test_a_login_saved_here_is_a_login_in_another_browser(
    browser: Browser, other_browser: Browser, site: str, caller: Caller
) -> None:
    context = await fresh(browser)
    page = await context.new_page()
    await page.goto(f"https://{site}/")
    await page.locator("[name=user]").fill("ada")
    await page.locator("[name=word]").fill("lovelace")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("heading")).to_have_text("Hello Ada")
    await expect(page.locator("#basket")).to_have_text("lamp")
    saved = await context.storage_state(indexed_db=True)
    await context.close()
    assert len(saved["cookies"]) == 2 and len(saved["origins"]) == 1

    written = caller.post("storage-state", saved)
    assert written == {"cookies": {"created": 2, "updated": 0}, "local_storage": {"created": 1, "updated": 0}}
    loaded = caller.get("storage-state?domain=shop.example")
    by_name = lambda cookie: cookie["name"]
    assert sorted(loaded["cookies"], key=by_name) == sorted(saved["cookies"], key=by_name)
    assert loaded["origins"] == saved["origins"]

    stranger = await (await fresh(other_browser)).new_page()
    await stranger.goto(f"https://{site}/")
    await expect(stranger.get_by_role("button", name="Log in")).to_be_visible()
    known = await (await fresh(other_browser, loaded)).new_page()
    await known.goto(f"https://{site}/")
    await expect(known.get_by_role("heading")).to_have_text("Hello Ada")
    await expect(known.locator("#basket")).to_have_text("lamp")
    await known.goto(f"https://www.{site}/echo")
    assert await known.evaluate("JSON.parse(document.body.innerText)") == {"session": "s3cret"}


# Browsers keep no cookie for longer than 400 days.
EXPIRES = datetime.datetime.now(datetime.UTC).replace(microsecond=0) + datetime.timedelta(days=300)
COOKIES = [
    make_cookie(name="everywhere", value="a%20b", expires=EXPIRES.isoformat()),
    {"domain": "shop.example", "name": "here", "value": "1"},
    {"domain": "shop.example", "name": "old", "value": "1", "expires": "2020-01-01"},
]


async def check_cookies(context: BrowserContext, site: str) -> None:
    """Check that the browser has the cookies, each where it belongs."""
    kept = {cookie["name"]: cookie for cookie in await context.cookies()}
    assert set(kept) == {"everywhere", "here"}
    assert (kept["everywhere"]["domain"], kept["everywhere"]["expires"]) == (".shop.example", EXPIRES.timestamp())
    assert (kept["everywhere"]["httpOnly"], kept["everywhere"]["secure"]) == (True, True)
    assert (kept["here"]["domain"], kept["here"]["expires"]) == ("shop.example", -1)
    page = await context.new_page()
    await page.goto(f"https://{site}/echo")
    sent = "JSON.parse(document.body.innerText)"
    assert await page.evaluate(sent) == {"everywhere": "a%20b", "here": "1"}
    assert await page.evaluate("document.cookie") == "here=1"
    await page.goto(f"https://www.{site}/echo")
    assert await page.evaluate(sent) == {"everywhere": "a%20b"}


async def test_cookies_as_get_returns_them_load_into_a_context(browser: Browser, site: str, caller: Caller) -> None:
    caller.post("cookies", COOKIES)
    context = await fresh(browser)
    await context.add_cookies(
        [
            {
                "name": cookie["name"],
                "value": cookie["value"],
                "domain": cookie["domain"],
                "path": cookie["path"] or "/",
                "expires": cookie["expires"],
                "httpOnly": cookie["http_only"],
                "secure": cookie["secure"],
            }
            for cookie in caller.get("cookies?active=true")
        ]
    )
    await check_cookies(context, site)
    await context.close()


async def test_the_url_of_a_cookie_is_one_that_the_browser_takes(browser: Browser, site: str, caller: Caller) -> None:
    caller.post("cookies", COOKIES)
    context = await fresh(browser)
    await context.add_cookies([{k: c[k] for k in ("name", "value", "url")} for c in caller.get("cookies?active=true")])
    assert {(c["name"], c["domain"], c["secure"]) for c in await context.cookies()} == {
        ("everywhere", "shop.example", True),
        ("here", "shop.example", False),
    }
    await context.close()


async def test_local_storage_as_get_returns_it_loads_into_a_context(
    browser: Browser, site: str, caller: Caller
) -> None:
    values = {"theme": "dark", "basket": '{"lamp":2}', "empty": "", "ключ": "значение ✓"}
    caller.post("local-storage", [{"domain": site, "key": key, "value": value} for key, value in values.items()])
    entries = caller.get("local-storage")
    origins = [
        {
            "origin": f"https://{site}",
            "localStorage": [{"name": entry["key"], "value": entry["value"]} for entry in entries],
        }
    ]
    context = await fresh(browser, {"cookies": [], "origins": origins})
    page = await context.new_page()
    await page.goto(f"https://{site}/echo")
    assert await page.evaluate("({...localStorage})") == values
    await context.close()
