"""What the tests of the page share: signing in, its rows and how to wait for them, judging."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Locator, Page, Route, expect

if TYPE_CHECKING:
    from tests.e2e.conftest import Caller

GROUP = "shop"

CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const color = rgba(getComputedStyle(node).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255];
  };
  const faults = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
    if (node.closest(".off, :disabled, .unseen")) continue;
    const style = getComputedStyle(node);
    const color = node.namespaceURI.endsWith("svg") ? style.fill : style.color;
    const [a, b] = [light(rgba(color)), light(ground(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) faults.add(`${ratio.toFixed(2)} ${node.className} ${walker.currentNode.data.trim().slice(0, 30)}`);
  }
  return [...faults];
}"""


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


async def intercept(page: Page, url: str | Callable[[str], bool], handle: Callable[[Route], Any]) -> None:
    """Let `handle` respond to the requests to a URL, from now on.

    Chromium confirms this before a page that is open keeps to it: on a busy machine one request of 300 got through.
    """
    await page.route(url, handle)
    if page.url == "about:blank":
        return
    probe = "**/page/icon.svg"
    await page.route(probe, lambda route: route.fulfill(status=204))
    fetched = "async () => (await fetch('page/icon.svg', { cache: 'no-store' }).catch(() => ({ status: 0 }))).status"
    while await page.evaluate(fetched) != 204:
        pass
    await page.unroute(probe)


async def intercept_first(page: Page, url: str, handle: Callable[[Route], Awaitable[None]]) -> None:
    """Let `handle` respond to the first request to a URL; others go on.

    Playwright's `times=1` ends the route when its handler begins.
    """
    requests = itertools.count()

    async def respond(route: Route) -> None:
        await (route.continue_() if next(requests) else handle(route))

    await intercept(page, url, respond)


async def sign_in(page: Page, token: str) -> None:
    """Give a token to the form, whether it fills the page or is a dialog over it."""
    await page.get_by_label("Access token").fill(token)
    await page.get_by_label("Access token").press("Enter")


async def reject(page: Page, reason: str) -> None:
    """Give the reason in the dialog that asks for it."""
    await page.get_by_label("Why").fill(reason)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog", name="Reject")).to_be_hidden()


def judged(caller: Caller) -> dict[str, Any]:
    """Return what became of each judged item, by key: True for approved, or the reason why it is rejected."""
    items = caller.get(f"outputs/{GROUP}?limit=100")["items"]
    states = {item["key_hash"]: item["is_approved"] or item["tags"].get("rejected") for item in items}
    return {key: state for key, state in states.items() if state}


async def add_filter(page: Page, name: str, value: str) -> None:
    """Filter by what the control `Filter by` calls `name`."""
    await page.get_by_label("Filter by").select_option(label=name)
    control = page.locator("#filter-value")
    if await control.evaluate("node => node.tagName") == "SELECT":
        await control.select_option(label=value)
    else:
        await control.fill(value)
    await page.get_by_role("button", name="Filter", exact=True).click()


async def axe_findings(page: Page) -> list[str]:
    """Return what axe-core finds."""
    found = (await Axe().run(page)).response["violations"]
    return [f"{one['id']} ({one['impact']}): {node['html'][:200]}" for one in found for node in one["nodes"]]


async def expect_readable(page: Page) -> None:
    """Check that what is shown fits the width of the screen, has enough contrast, and that axe-core finds nothing."""
    width = page.viewport_size["width"] if page.viewport_size else 0
    assert await page.evaluate("document.documentElement.scrollWidth") <= width, page.url
    assert await page.evaluate(CONTRAST) == [], page.url
    assert await axe_findings(page) == [], page.url
