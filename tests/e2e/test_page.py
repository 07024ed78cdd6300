"""The page at / as people use it: mouse and keyboard, desktop and phone, light and dark, and with hostile data."""

from __future__ import annotations

import random
import re
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from service.runtime.demo import item
from tests.e2e.conftest import Caller
from tests.support.api import make_cookie, make_entry, make_file, make_output, make_review
from tests.support.processes import run_command

pytestmark = pytest.mark.asyncio(loop_scope="session")

GROUP = "shop"


@pytest.fixture
def shop(caller: Caller) -> Caller:
    """A caller with a group of 60 lifelike outputs, reviews, cookies and local storage."""
    dice = random.Random(1)
    items = [item(dice, number, f"job-{number % 3 + 1}") for number in range(60)]
    caller.post(f"outputs/{GROUP}", items)
    caller.post(
        f"reviews/{GROUP}",
        [make_review(), make_review(job_id="job-2", status="rejected", comment="Half of it is the consent wall.")],
    )
    caller.post("cookies", [make_cookie(), make_cookie(name="old", value="gone", expires="2020-01-01")])
    caller.post("local-storage", [make_entry()])
    return caller


def rows(page: Page) -> Locator:
    return page.locator("table.rows tbody tr")


async def sign_in(page: Page, token: str) -> None:
    await page.get_by_label("Access token").fill(token)
    await page.get_by_role("button", name="Open").click()


async def test_a_person_signs_in_looks_at_a_group_and_reads_one_item(new_tab: Any, shop: Caller) -> None:
    tab = await new_tab()
    page = await tab.open()
    await sign_in(page, shop.token)
    await expect(page.get_by_role("heading", name="Groups")).to_be_visible()
    group = page.get_by_role("row", name=GROUP)
    await expect(group.get_by_role("img", name="Last 30 days: 60 created, 0 changed")).to_be_visible()
    await expect(group.get_by_role("cell").nth(1)).to_have_text("60")
    await expect(group.get_by_role("cell").nth(2)).to_have_text("3")

    await page.get_by_role("link", name=GROUP).click()
    await expect(page.get_by_text("60 items from 3 jobs")).to_be_visible()
    await expect(rows(page)).to_have_count(25)
    await expect(page.get_by_text("60 created, 0 changed since")).to_be_visible()
    assert await page.locator(".plot rect.created").count() == 1
    reviews = page.locator(".reviews li")
    await expect(reviews).to_have_count(2)
    await expect(reviews.filter(has_text="job-2")).to_contain_text("rejected")
    await expect(reviews.filter(has_text="job-2")).to_contain_text("consent wall")

    first = shop.get(f"outputs/{GROUP}?limit=1")["items"][0]
    await page.get_by_role("link", name="Open item 1", exact=True).click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("heading", name=first["data"]["title"])).to_be_visible()
    await expect(dialog.locator(".leaf", has_text="sku")).to_contain_text(first["data"]["sku"])
    await expect(dialog.get_by_text(str(first["data"]["price"]["amount"]), exact=True)).to_be_visible()
    picture = dialog.get_by_role("link", name=first["files"][0]["file_url"])
    assert await picture.get_attribute("href") == first["files"][0]["file_url"]
    assert "noopener" in (await picture.get_attribute("rel") or "")
    await dialog.get_by_role("button", name="Next").click()
    second = shop.get(f"outputs/{GROUP}?limit=2")["items"][1]
    await expect(dialog.get_by_role("heading", name=second["data"]["title"])).to_be_visible()
    await dialog.get_by_role("button", name="Close").click()
    await expect(dialog).to_be_hidden()


async def test_filters_narrow_the_outputs_and_pages_lead_on_and_back(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}")
    await page.get_by_label("Rows").select_option("10")
    await page.get_by_label("Country").fill("Germany")
    await page.get_by_role("button", name="Apply").click()
    expected = shop.get(f"outputs/{GROUP}?country=Germany&limit=10")
    await expect(rows(page)).to_have_count(10)
    await expect(rows(page).last.get_by_role("link", name=f"Open item {expected['items'][-1]['id']}")).to_be_visible()

    await page.get_by_role("link", name="Next").click()
    rest = shop.get(f"outputs/{GROUP}?country=Germany&limit=10&cursor={expected['metadata']['next_cursor']}")["items"]
    await expect(rows(page).first.get_by_role("link", name=f"Open item {rest[0]['id']}")).to_be_visible()
    await expect(rows(page)).to_have_count(len(rest))
    await page.get_by_role("link", name="Previous").click()
    await expect(rows(page).first.get_by_role("link", name="Open item 1", exact=True)).to_be_visible()

    await page.get_by_role("link", name="Remove the filter Country").click()
    await expect(page.get_by_role("textbox", name="Country")).to_have_value("")
    await page.get_by_role("link", name="Next").click()
    await expect(rows(page).first.get_by_role("link", name="Open item 11")).to_be_visible()


@pytest.mark.parametrize("name", ["Job", "Region", "Source URL", "Changed since"])
async def test_each_other_filter_of_the_api_has_a_control(new_tab: Any, shop: Caller, name: str) -> None:
    wanted = shop.get(f"outputs/{GROUP}?limit=60")["items"][7]
    values = {
        "Job": ("job_id", wanted["root_job_id"]),
        "Region": ("region", wanted["tags"]["region"]),
        "Source URL": ("url", wanted["source_url"]),
        "Changed since": ("created_after", wanted["update_date"][:10]),
    }
    parameter, value = values[name]
    query = urllib.parse.urlencode({parameter: value, "limit": 25})
    expected = [str(item["id"]) for item in shop.get(f"outputs/{GROUP}?{query}")["items"]]
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}")
    await page.get_by_label(name, exact=True).fill(value)
    await page.get_by_role("button", name="Apply").click()
    await expect(page.locator(".given")).to_contain_text(f"{name}: {value}")
    await expect(rows(page)).to_have_count(len(expected))
    assert await rows(page).locator("th").all_inner_texts() == expected


async def test_columns_are_chosen_from_the_data_and_kept_in_the_address(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}")
    head = page.locator("table.rows thead th")
    usual = ["Id", "title", "sku", "price.amount", "price.currency", "in_stock", "Job", "Approved", "Updated (UTC)"]
    await expect(head).to_have_text(usual)
    await page.get_by_role("button", name="Columns").click()
    for name in ("sku", "price.currency", "in_stock", "Approved"):
        await page.get_by_role("checkbox", name=name).uncheck()
    await page.get_by_role("checkbox", name="seller.name").check()
    await page.get_by_role("button", name="Show these").click()
    chosen = ["Id", "title", "price.amount", "Job", "Updated (UTC)", "seller.name"]
    await expect(head).to_have_text(chosen)
    await page.reload()
    await expect(head).to_have_text(chosen)
    await page.get_by_role("button", name="Columns").click()
    await page.get_by_role("button", name="Usual ones").click()
    await expect(head).to_have_text(usual)


async def test_a_link_shows_the_same_view_to_somebody_else(
    new_tab: Any, shop: Caller, make_caller: Callable[..., Caller]
) -> None:
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}?country=Germany&limit=10&columns=data.sku")
    await rows(page).nth(2).get_by_role("cell").first.click()
    title = page.get_by_role("dialog").get_by_role("heading", level=2)
    text = await title.inner_text()
    colleague = make_caller(shop.organization_id, "read")

    tab = await new_tab()
    await tab.page.goto(page.url)
    await sign_in(tab.page, colleague.token)
    await expect(tab.page.get_by_role("dialog").get_by_role("heading", level=2)).to_have_text(text)
    await expect(tab.page.locator("table.rows thead th")).to_have_text(["Id", "sku"])
    await expect(rows(tab.page)).to_have_count(10)


async def test_a_link_to_an_item_still_leads_to_it_after_it_changed(new_tab: Any, shop: Caller) -> None:
    tab = await new_tab(shop)
    page = await tab.open(f"#/groups/{GROUP}?limit=10")
    await rows(page).first.get_by_role("link").first.click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    link = page.url
    old = shop.get(f"outputs/{GROUP}?limit=1")["items"][0]
    fields = ("source_url", "root_job_id", "key_hash", "data")
    changed = {name: old[name] for name in fields} | {"data": {"title": "A new name"}}
    assert shop.post(f"outputs/{GROUP}", [changed])["updated"] == 1
    await page.goto("about:blank")
    tab.complaints.clear()
    await page.goto(link)
    await expect(page.get_by_role("dialog").get_by_role("heading", name="A new name")).to_be_visible()


async def test_the_token_is_nowhere_but_in_the_tab(new_tab: Any, shop: Caller) -> None:
    tab = await new_tab()
    page = await tab.open()
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.on("framenavigated", lambda frame: addresses.append(frame.url))
    await sign_in(page, shop.token)
    await page.get_by_role("link", name=GROUP).click()
    await expect(rows(page)).to_have_count(25)
    assert addresses and not any(shop.token in address for address in addresses)
    assert shop.token not in await page.content()
    assert await page.evaluate("JSON.stringify(localStorage)") == "{}"
    assert await page.context.cookies() == []
    other = await page.context.new_page()
    await other.goto(tab.address)
    await expect(other.get_by_label("Access token")).to_be_visible()

    await page.get_by_role("button", name="Forget token").click()
    await expect(page.get_by_label("Access token")).to_be_visible()
    assert await page.evaluate("JSON.stringify(sessionStorage)") == "{}"
    await page.reload()
    await expect(page.get_by_label("Access token")).to_be_visible()


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


async def test_everything_can_be_done_with_the_keyboard(new_tab: Any, shop: Caller) -> None:
    tab = await new_tab()
    page = await tab.open()
    keys = page.keyboard
    await expect(page.get_by_label("Access token")).to_be_focused()
    await keys.type(shop.token)
    await keys.press("Enter")
    await expect(page.get_by_role("heading", name="Groups")).to_be_visible()
    await page.evaluate("document.activeElement.blur()")
    await page.reload()
    await expect(page.get_by_role("link", name=GROUP)).to_be_visible()

    await keys.press("Tab")
    skip = page.get_by_role("link", name="Skip to content")
    await expect(skip).to_be_focused()
    await expect(skip).to_be_in_viewport()
    await keys.press("Enter")
    await expect(page.locator("main")).to_be_focused()
    await keys.press("Tab")
    await expect(page.get_by_role("link", name=GROUP)).to_be_focused()
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert await page.evaluate(outline) == "solid"
    await keys.press("Enter")
    await expect(page.get_by_role("heading", name=GROUP)).to_be_focused()
    await expect(rows(page)).to_have_count(25)

    today = page.locator(".plot a").last
    await keys.press("Tab")
    await expect(today).to_be_focused()
    await expect(page.locator(".readout")).to_contain_text("60 created")
    await keys.press("ArrowLeft")
    await expect(page.locator(".plot a").nth(-2)).to_be_focused()
    await expect(page.locator(".readout")).to_contain_text(": 0 created")
    await keys.press("ArrowRight")
    await keys.press("Enter")
    await expect(page.locator(".given")).to_contain_text("Changed since")

    for _ in range(40):
        await keys.press("Tab")
        if await page.evaluate("document.activeElement.matches('a[data-item]')"):
            break
    opener = page.get_by_role("link", name="Open item 1", exact=True)
    await expect(opener).to_be_focused()
    await keys.press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_be_visible()
    for _ in range(60):
        await keys.press("Tab")
        inside = "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
        assert await page.evaluate(inside)
    await keys.press("Escape")
    await expect(dialog).to_be_hidden()
    await expect(opener).to_be_focused()
    assert "item=" not in page.url
    await page.get_by_role("button", name="Columns").focus()
    await keys.press("Enter")
    await expect(page.get_by_role("dialog", name="Columns")).to_be_visible()
    await keys.press("Escape")
    await expect(page.get_by_role("button", name="Columns")).to_be_focused()


async def test_the_browsers_back_button_leads_through_the_views(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open("#/groups")
    await page.get_by_role("link", name=GROUP).click()
    await rows(page).first.get_by_role("link").first.click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.go_back()
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await expect(rows(page)).to_have_count(25)
    await page.go_back()
    await expect(page.get_by_role("heading", name="Groups")).to_be_visible()
    await page.go_forward()
    await expect(rows(page)).to_have_count(25)


VIEWS = ["#/groups", f"#/groups/{GROUP}?limit=10&country=Germany", "#/cookies", "#/local-storage", "#/groups/unknown"]

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


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
async def test_every_view_fits_the_screen_and_can_be_read(new_tab: Any, shop: Caller, width: int, dark: bool) -> None:
    tab = await new_tab(shop, width=width, height=740, dark=dark)
    for view in VIEWS:
        page = await tab.open(view)
        await page.reload()
        await expect(page.locator(".loading")).to_have_count(0)
        await expect(page.locator("h1")).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, view
        assert await page.evaluate(CONTRAST) == [], view
    page = await tab.open(f"#/groups/{GROUP}?limit=10")
    await page.reload()
    await rows(page).first.get_by_role("link").first.click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_be_visible()
    box = await dialog.bounding_box()
    assert box is not None and box["width"] <= width and box["x"] >= 0
    assert await dialog.evaluate("node => node.scrollWidth - node.clientWidth") <= 0
    assert await page.evaluate(CONTRAST) == []
    ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == dark


async def test_a_phone_shows_rows_as_cards_that_are_still_a_table(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop, width=360, height=740, has_touch=True)).open(f"#/groups/{GROUP}?limit=10")
    row = rows(page).first
    await expect(row).to_be_visible()
    boxes = [await cell.bounding_box() for cell in await row.get_by_role("cell").all()]
    tops = [box["y"] for box in boxes if box]
    assert tops == sorted(tops) and len(set(tops)) == len(tops) > 5
    await row.get_by_role("cell").first.tap()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.get_by_role("button", name="Close").tap()
    await page.get_by_text("Filters", exact=True).tap()
    await page.get_by_label("Country").fill("Japan")
    await page.get_by_role("button", name="Apply").tap()
    await expect(page.locator(".given")).to_contain_text("Country: Japan")


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
    await page.get_by_role("link", name=group).click()
    await expect(page.get_by_role("heading", name=group)).to_be_visible()
    await page.get_by_role("button", name="Columns").click()
    await page.eval_on_selector_all("dialog.columns input", "boxes => boxes.forEach(box => { box.checked = true; })")
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

    for view in ("#/cookies", "#/local-storage"):
        await page.evaluate(f"location.hash = {view!r}")
        await page.get_by_role("button", name="Show all values").click()
        await expect(page.locator("code.secret")).to_have_text(HOSTILE)

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


async def test_a_page_of_1000_rows_is_shown(new_tab: Any, caller: Caller) -> None:
    caller.post("outputs/large", [make_output(number, data={"title": "y" * 5000}) for number in range(1000)])
    page = await (await new_tab(caller)).open("#/groups/large?limit=1000")
    await expect(rows(page)).to_have_count(1000)
    await expect(page.get_by_text("1,000 outputs, ids")).to_contain_text("the end")
    await rows(page).nth(999).get_by_role("link", name="Open item").click()
    await expect(page.get_by_role("dialog")).to_be_visible()


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
    await expect(page.get_by_role("alert")).to_contain_text("does not have the scope read")
    short_lived = make_caller(shop.organization_id, "read")
    await sign_in(page, f"Bearer {short_lived.token} ")
    await expect(rows(page)).to_have_count(25)
    assert run_command(mongo_url, "token", "revoke", short_lived.token).returncode == 0
    for _ in range(60):
        await page.get_by_role("button", name="Reload").click()
        await page.wait_for_timeout(100)
        if await page.get_by_label("Access token").is_visible():
            break
    await expect(page.get_by_role("alert")).to_contain_text("The token does not work")
    await sign_in(page, shop.token)
    await expect(rows(page)).to_have_count(25)


async def test_a_service_that_is_busy_or_away_can_be_tried_again(new_tab: Any, shop: Caller) -> None:
    tab = await new_tab(shop)
    tab.expected |= {503}
    page = tab.page
    busy = '{"detail":[{"loc":[],"msg":"The service cannot answer now; try again","type":"unavailable"}]}'

    async def refuse(route: Any) -> None:
        await route.fulfill(status=503, body=busy, content_type="application/json")

    await page.route("**/v1/**", refuse)
    await tab.open(f"#/groups/{GROUP}")
    await expect(page.get_by_role("alert")).to_contain_text("The service is busy")
    await page.unroute("**/v1/**")
    await page.get_by_role("button", name="Try again").click()
    await expect(rows(page)).to_have_count(25)

    await page.context.set_offline(True)
    await page.get_by_role("link", name="Next").click()
    await expect(page.get_by_role("alert")).to_contain_text("The service cannot be reached")
    await page.context.set_offline(False)
    await page.get_by_role("button", name="Try again").click()
    await expect(rows(page).first.get_by_role("link", name="Open item 26")).to_be_visible()


async def test_a_faulty_filter_is_explained_beside_the_filters(new_tab: Any, shop: Caller) -> None:
    tab = await new_tab(shop)
    tab.expected |= {422}
    page = await tab.open(f"#/groups/{GROUP}?created_after=yesterday&limit=5000")
    alert = page.get_by_role("alert")
    await expect(alert).to_contain_text("created_after: Must be ISO 8601")
    await expect(alert).to_contain_text("limit: ")
    await page.get_by_label("Changed since", exact=True).fill("2020-01-01")
    await page.get_by_label("Rows").select_option("10")
    await page.get_by_role("button", name="Apply").click()
    await expect(rows(page)).to_have_count(10)


async def test_nothing_yet_is_said_in_words(new_tab: Any, caller: Caller) -> None:
    page = await (await new_tab(caller)).open("#/groups")
    await expect(page.get_by_text("No group yet")).to_be_visible()
    await page.evaluate("location.hash = '#/groups/unknown'")
    await expect(page.get_by_text("Nothing has been written to this group")).to_be_visible()
    await expect(page.get_by_text("No outputs")).to_be_visible()
    await page.evaluate("location.hash = '#/cookies'")
    await expect(page.get_by_role("heading", name="No cookies")).to_be_visible()
    await page.evaluate("location.hash = '#/somewhere/else'")
    await expect(page.get_by_role("alert")).to_contain_text("This address leads to no view")
    await page.evaluate("location.hash = '#/groups/%E0%A4%A'")
    await expect(page.get_by_role("alert")).to_contain_text("This address leads to no view")


async def test_a_group_is_found_by_a_part_of_its_name(new_tab: Any, caller: Caller) -> None:
    for group in ("hotel-prices", "hotel-reviews", "jobs"):
        caller.post(f"outputs/{group}", [make_output()])
    page = await (await new_tab(caller)).open("#/groups")
    await page.get_by_label("Find a group").fill("HOTEL")
    await expect(page.locator("tbody tr:visible")).to_have_count(2)
    await page.reload()
    await expect(page.locator("tbody tr:visible")).to_have_count(2)
    await page.get_by_label("Find a group").fill("nowhere")
    await expect(page.get_by_text("No group has this in its name.")).to_be_visible()


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
