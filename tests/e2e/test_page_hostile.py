"""Hostile data, and a service that fails: the page stays whole and says what to do."""

from __future__ import annotations

import urllib.parse
from typing import Any

import pytest
from playwright.async_api import expect

from tests.e2e.conftest import Caller
from tests.e2e.page import GROUP, add_filter, expect_ids, intercept, rows
from tests.support.api import make_cookie, make_entry, make_file, make_output, make_review

pytestmark = pytest.mark.asyncio(loop_scope="session")


OPEN_ALL = """async () => {
  for (let next; next = document.querySelector("dialog.item details:not([open])");) {
    const opened = new Promise((resolve) => next.addEventListener("toggle", resolve, { once: true }));
    next.open = true;
    await opened;
  }
}"""
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


async def test_hostile_data_is_shown_as_text_and_does_no_harm(new_tab: Any, caller: Caller) -> None:
    deep: dict[str, Any] = {"end": HOSTILE}
    for _ in range(50):
        deep = {"down": deep}
    data = {
        "title": HOSTILE,
        HOSTILE: HOSTILE,
        "link": "javascript:document.title='owned'",
        "padded": " \tjavascript:document.title='owned'",
        "page": "data:text/html,<script>alert(1)</script>",
        "good": "https://shop.example/?q=\"><script>document.title='owned'</script>",
        "__proto__": {"polluted": "yes"},
        "constructor": {"prototype": {"polluted": "yes"}},
        "a.b,c\\d": "dotted",
        "": "unnamed",
        "long": "x" * 5000,
        "override": "abc\u202egnp.exe",
        "large": 9007199254740993,
        "deep": deep,
        "list": list(range(500)),
        "wide": {f"key {n}": n for n in range(500)},
    }
    files = [make_file(file_url="javascript:alert(1)", blob_url=HOSTILE, source_url="//evil.example", field=HOSTILE)]
    output = make_output(data=data, source_url="javascript:document.title='owned'", root_job_id=HOSTILE, files=files)
    group = "<b>&group' \"/x"
    quoted = urllib.parse.quote(group, safe="")
    caller.post(f"outputs/{quoted}", [output | {"tags": {"country": HOSTILE}}])
    caller.post(f"reviews/{quoted}", [make_review(job_id=HOSTILE, status=HOSTILE[:64], comment=HOSTILE)])
    caller.post("cookies", [make_cookie(name=HOSTILE, value=HOSTILE, domain="<b>", path=HOSTILE)])
    caller.post("local-storage", [make_entry(key=HOSTILE, value=HOSTILE, domain="<b>")])

    page = await (await new_tab(caller)).open("#/groups")
    await page.get_by_role("link", name=group, exact=True).click()
    await expect(page.get_by_role("heading", name=group)).to_be_visible()
    await expect(rows(page)).to_have_count(1)  # its columns are known
    await page.get_by_role("button", name="Columns").click()
    await page.get_by_role("button", name="All", exact=True).click()
    await page.get_by_role("button", name="Show these").click()
    row = rows(page).first
    await expect(row).to_contain_text("dotted")
    await expect(row).to_contain_text("unnamed")
    await expect(row).to_contain_text("9007199254740993")
    assert len(await row.inner_text()) < 20_000
    await page.reload()
    await expect(row).to_contain_text("dotted")

    await row.get_by_role("link", name="Open item").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text(HOSTILE)
    await expect(dialog).to_contain_text("__proto__")
    await expect(dialog).to_contain_text("9007199254740993")
    await dialog.get_by_role("button", name="Show all 5,000 characters").click()
    await expect(dialog).to_contain_text("x" * 5000)
    await dialog.locator("summary", has_text="list").click()
    await dialog.get_by_role("button", name="Show 100 of 400 more").click()
    await expect(dialog.locator(".tree .tree > .leaf")).not_to_have_count(0)
    await page.evaluate(OPEN_ALL)
    end = dialog.get_by_text("end", exact=True)
    await end.scroll_into_view_if_needed()
    await expect(end).to_be_in_viewport()

    for view in (f"#/groups/{quoted}/jobs", f"#/groups/{quoted}/fields", f"#/groups/{quoted}/time"):
        await page.goto(f"{page.url.split('#')[0]}{view}")
        await expect(page.get_by_text("<img src=x").locator("visible=true").first).to_be_visible()
    await page.goto(f"{page.url.split('#')[0]}#/groups/{quoted}")
    await row.get_by_role("link", name="Open item").click()
    await expect(dialog).to_be_visible()

    await page.evaluate("location.hash = '#/state'")
    await page.get_by_role("link", name="<b>", exact=True).click()
    for kind in (0, 1):
        await page.get_by_role("button", name="Show all values").nth(0).click()
        await expect(page.locator("code.secret").nth(kind)).to_contain_text(HOSTILE[:70])

    await page.go_back()
    await page.go_back()
    await expect(dialog).to_be_visible()
    links = await page.eval_on_selector_all(
        "a:not(svg a)", "nodes => nodes.map(node => [node.protocol, node.host, node.rel])"
    )
    outside = [link for link in links if link[1] not in (urllib.parse.urlsplit(page.url).netloc, "")]
    assert all(protocol in ("http:", "https:") for protocol, _, _ in links if protocol), links
    assert outside and all("noopener" in rel for _, _, rel in outside)
    assert await page.locator("main img, main script, main b, main iframe").count() == 0
    assert await page.evaluate("({}).polluted") is None
    assert "owned" not in await page.title()


async def test_a_service_that_is_busy_or_away_can_be_tried_again(new_tab: Any, shop: Caller) -> None:
    tab = await new_tab(shop)
    tab.expected |= {503}
    page = tab.page
    busy = '{"detail":[{"loc":[],"msg":"The service is unavailable: try again later","type":"unavailable"}]}'

    async def refuse(route: Any) -> None:
        await route.fulfill(status=503, body=busy, content_type="application/json")

    await intercept(page, "**/v1/**", refuse)
    await tab.open(f"#/groups/{GROUP}")
    await expect(page.get_by_role("alert")).to_contain_text("The service is busy")
    await page.unroute("**/v1/**")
    await page.get_by_role("button", name="Try again").click()
    await expect(rows(page)).to_have_count(25)

    await page.context.set_offline(True)
    await page.get_by_role("link", name="Next", exact=True).click()
    await expect(page.get_by_role("alert")).to_contain_text("The service cannot be reached")
    await page.context.set_offline(False)  # then it is tried again without a click
    await expect_ids(page, [item["id"] for item in shop.newest(GROUP, 50)[25:]])


async def test_a_faulty_filter_is_explained_beside_the_filters(new_tab: Any, shop: Caller) -> None:
    tab = await new_tab(shop)
    tab.expected |= {422}
    page = await tab.open(f"#/groups/{GROUP}?created_after=yesterday&limit=5000")
    alert = page.get_by_role("alert")
    await expect(alert).to_contain_text("created_after: Must be ISO 8601")
    await expect(alert).to_contain_text("limit: ")
    await page.evaluate("location.hash = location.hash.replace('5000', '10')")
    await add_filter(page, "Changed since", "2020-01-01")
    await expect(rows(page)).to_have_count(10)


@pytest.mark.parametrize("limit", ["abc", "0", "-1"])
async def test_a_limit_that_is_none_is_explained_and_does_not_look_like_an_empty_group(
    new_tab: Any, shop: Caller, limit: str
) -> None:
    tab = await new_tab(shop)
    tab.expected |= {422}
    page = await tab.open(f"#/groups/{GROUP}?limit={limit}")
    await expect(page.get_by_role("alert")).to_contain_text("limit: ")
    await page.get_by_role("link", name="Without filters").click()
    await expect(rows(page)).to_have_count(25)


async def test_an_empty_limit_is_the_usual_one(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}?limit=")
    await expect(rows(page)).to_have_count(25)
