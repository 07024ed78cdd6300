"""Pools and sessions on the page: looked at, added, marked and deleted; their secrets are nowhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from tests.e2e.conftest import Caller
from tests.e2e.page import expect_readable, intercept
from tests.support.sessions import make_state

pytestmark = pytest.mark.asyncio(loop_scope="session")

POOL = "#/sessions/shop-de"


@pytest.fixture
def pool(caller: Caller) -> Caller:
    """A caller with a pool of three sessions, one of them leased."""
    for name, more in {"anna": {"note": "main account"}, "ben": {}, "carl": {"state": "needs_login"}}.items():
        caller.call("PUT", f"sessions/shop-de/{name}", {"storage_state": make_state("s3cret-of-it"), **more})
    caller.post("sessions/shop-de/lease", {"name": "ben", "owner": "worker 7"})
    return caller


def states(caller: Caller) -> dict[str, str]:
    return {session["name"]: session["state"] for session in caller.get("sessions/shop-de")}


def line(page: Page, name: str) -> Any:
    return page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=name))


async def test_pools_lead_to_their_sessions_without_any_secret(new_tab: Any, pool: Caller) -> None:
    tab = await new_tab(pool)
    page = await tab.open("#/groups")
    bodies: list[str] = []
    page.on("response", lambda response: bodies.append(response.url))
    await page.get_by_role("link", name="Sessions").click()
    await expect(page.get_by_role("paragraph").filter(has_text="1 pool, 3 sessions")).to_be_visible()
    await page.get_by_role("link", name="shop-de").click()
    await expect(line(page, "ben").get_by_text("worker 7")).to_be_visible()
    await expect(line(page, "ben").get_by_text("Leased")).to_be_visible()
    await expect(line(page, "anna").get_by_text("main account")).to_be_visible()
    await page.get_by_label("Show sessions in the state").select_option("Needs login")
    await expect(page.get_by_role("rowheader")).to_have_count(1)
    assert page.url.endswith(f"{POOL}?state=needs_login")
    assert "s3cret-of-it" not in await page.content()
    assert not [url for url in bodies if "/sessions/shop-de/" in url]  # the route with the secrets is not called


async def test_a_session_is_added_by_pasting_and_gets_a_new_state_by_a_file(
    new_tab: Any, pool: Caller, tmp_path: Path
) -> None:
    page = await (await new_tab(pool)).open(POOL)
    await page.get_by_role("button", name="Add a session").click()
    await page.get_by_label("Name: the account").fill("dora")
    await page.get_by_label("State; without one").fill(json.dumps(make_state("pasted")))
    await page.get_by_role("button", name="Save").click()
    await expect(line(page, "dora").get_by_text("Ready")).to_be_visible()
    assert pool.get("sessions/shop-de/dora")["storage_state"]["cookies"][0]["value"] == "pasted"

    file = tmp_path / "cookies.txt"
    file.write_text("# Netscape HTTP Cookie File\n.shop.example\tTRUE\t/\tTRUE\t0\tsession\tof-a-file\n")
    await page.get_by_role("button", name="New state: carl").click()
    await page.get_by_label("File").set_input_files(file)
    await expect(page.get_by_label("State", exact=True)).to_have_value(file.read_text())
    await page.get_by_role("button", name="Save").click()
    await expect(line(page, "carl").get_by_text("Ready")).to_be_visible()
    assert pool.get("sessions/shop-de/carl")["storage_state"]["cookies"][0]["value"] == "of-a-file"


async def test_a_state_can_be_dropped_on_the_text(new_tab: Any, pool: Caller) -> None:
    page = await (await new_tab(pool)).open(POOL)
    await page.get_by_role("button", name="New state: carl").click()
    await page.get_by_label("State", exact=True).evaluate(
        """(area, text) => {
          const data = new DataTransfer();
          data.items.add(new File([text], "state.json"));
          area.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
        }""",
        json.dumps(make_state("dropped")),
    )
    await page.get_by_role("button", name="Save").click()
    await expect(line(page, "carl").get_by_text("Ready")).to_be_visible()
    assert pool.get("sessions/shop-de/carl")["storage_state"]["cookies"][0]["value"] == "dropped"


async def test_a_wrong_state_is_refused_in_the_dialog_and_nothing_is_lost(new_tab: Any, pool: Caller) -> None:
    page = await (await new_tab(pool)).open(POOL)
    await page.get_by_role("button", name="Add a session").click()
    await page.get_by_label("Name: the account").fill("dora")
    await page.get_by_label("State; without one").fill('{"neither": 1}')
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("alert").filter(has_text="neither a storageState")).to_be_visible()
    await expect(page.get_by_label("Name: the account")).to_have_value("dora")
    assert "dora" not in states(pool)


async def test_a_session_is_added_marked_and_deleted_by_keyboard_alone(new_tab: Any, pool: Caller) -> None:
    page = await (await new_tab(pool)).open(POOL)
    await page.get_by_role("button", name="Add a session").focus()
    await page.keyboard.press("Enter")
    await page.keyboard.type("dora")
    await page.keyboard.press("Enter")
    await expect(line(page, "dora").get_by_text("Needs login")).to_be_visible()
    await page.get_by_role("button", name="Mark: anna").focus()
    await page.keyboard.press("Enter")
    await page.get_by_label("Retired").focus()
    await page.keyboard.press("Space")
    await page.keyboard.press("Enter")
    await expect(line(page, "anna").get_by_text("Retired")).to_be_visible()
    assert states(pool)["anna"] == "retired"
    await page.get_by_role("button", name="Delete: anna").focus()
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Delete", exact=True).focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("rowheader", name="anna")).to_have_count(0)
    assert "anna" not in states(pool)


async def test_a_mark_says_how_long_a_blocked_session_rests(new_tab: Any, pool: Caller) -> None:
    page = await (await new_tab(pool)).open(POOL)
    await page.get_by_role("button", name="Mark: anna").click()
    await expect(page.get_by_role("dialog")).to_contain_text("it rests for 1 h, then it is ready")
    await page.get_by_label("Blocked").check()
    await expect_readable(page)
    for state in ("Ready", "Blocked"):
        radio, label = page.get_by_label(state, exact=True), page.get_by_role("dialog").get_by_text(state, exact=True)
        middles = [box["y"] + box["height"] / 2 for one in (radio, label) if (box := await one.bounding_box())]
        assert abs(middles[0] - middles[1]) <= 2
    await page.get_by_role("button", name="Save").click()
    await expect(line(page, "anna")).to_contain_text("ends in 60 minutes")
    ends = await line(page, "anna").get_by_text("ends in").bounding_box()
    assert ends is not None and ends["height"] < 30  # in one line
    pool.call("PUT", "sessions/shop-de", {"blocked_rest_seconds": None})
    await page.reload()
    await page.get_by_role("button", name="Mark: carl").click()
    await expect(page.get_by_role("dialog")).to_contain_text("it is retired, as the pool says")


async def test_a_large_pool_comes_page_by_page(new_tab: Any, pool: Caller) -> None:
    tab = await new_tab(pool)

    async def two_per_page(route: Route) -> None:
        await route.continue_(url=route.request.url.replace("limit=200", "limit=2"))

    await intercept(tab.page, lambda url: "/v1/sessions/shop-de?" in url, two_per_page)
    page = await tab.open(POOL)
    await expect(page.get_by_role("rowheader")).to_have_text([re.compile("anna"), "ben"])
    await page.get_by_role("link", name="Next").click()
    await expect(page.get_by_role("rowheader")).to_have_text(["carl"])
    await expect(page.locator(".lead")).to_have_text("3 sessions")
    await page.get_by_role("link", name="First").click()
    await expect(page.get_by_role("rowheader")).to_have_count(2)


async def test_the_settings_of_a_pool_are_changed_and_the_pool_deleted(new_tab: Any, pool: Caller) -> None:
    page = await (await new_tab(pool)).open(POOL)
    await page.get_by_role("button", name="Settings").click()
    await page.get_by_label("A session rests after each use, seconds").fill("60")
    await page.get_by_label("A blocked session rests, seconds").fill("")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator("#notice").get_by_text("The settings are saved")).to_be_visible()
    (settings,) = pool.get("sessions")
    assert (settings["rest_seconds"], settings["blocked_rest_seconds"], settings["max_uses"]) == (60, None, None)
    await page.get_by_role("button", name="Delete pool").click()
    await page.get_by_label("Type shop-de to confirm").fill("shop-de")
    await page.get_by_role("button", name="Delete", exact=True).click()
    await expect(page.get_by_role("heading", name="No sessions")).to_be_visible()
    assert pool.get("sessions") == []


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)], ids=["wide", "phone, dark"])
async def test_the_views_fit_and_are_accessible(new_tab: Any, pool: Caller, width: int, dark: bool) -> None:
    page = await (await new_tab(pool, width=width, dark=dark)).open(POOL)
    await expect(line(page, "ben").get_by_text("worker 7")).to_be_visible()
    await expect_readable(page)
    await page.goto(page.url.partition("#")[0] + "#/sessions")
    await expect(page.get_by_role("rowheader").first).to_be_visible()
    await expect_readable(page)


async def test_a_token_without_the_scope_state_has_no_such_view(new_tab: Any, make_caller: Any) -> None:
    page = await (await new_tab(make_caller(None, "read", "write"))).open("#/groups")
    await expect(page.get_by_role("link", name="Groups").first).to_be_visible()
    await expect(page.get_by_role("link", name="Sessions")).to_be_hidden()
