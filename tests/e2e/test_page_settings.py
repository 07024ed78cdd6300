"""The settings of a group: retention, history, ignored fields, rules, webhooks, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from playwright.async_api import expect

from tests.e2e.conftest import Caller
from tests.e2e.page import GROUP
from tests.support.chats import CHECKS, STATUS
from tests.support.processes import ServiceProcess
from tests.support.receiver import receiving

pytestmark = pytest.mark.asyncio(loop_scope="session")

SETTINGS = f"#/groups/{GROUP}/settings"


async def test_a_webhook_is_added_shows_its_secret_once_and_is_deleted(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open(SETTINGS)
    await page.get_by_role("button", name="Add a webhook").click()
    dialog = page.get_by_role("dialog", name="Add a webhook")
    await dialog.get_by_label("Address").fill("https://hooks.example/sds")
    await dialog.get_by_label("Label").fill("Our sync")
    await dialog.get_by_label("Items changed").check()
    await dialog.get_by_role("button", name="Add").click()
    secret = page.get_by_role("dialog", name="The webhook's secret")
    await expect(secret.locator("code")).to_contain_text("whsec_")
    await page.mouse.click(5, 5)  # beside it: the secret would be lost
    await secret.get_by_role("button", name="Close").last.click()
    [stored] = shop.get("webhooks")
    assert (stored["url"], stored["label"], stored["group_id"]) == ("https://hooks.example/sds", "Our sync", GROUP)
    assert stored["events"] == ["job.finished", "group.changed"]
    row = page.get_by_role("row", name="Our sync")
    await expect(row).to_contain_text("not called yet")
    await row.get_by_role("button", name="Deliveries").click()
    await expect(page.get_by_role("dialog", name="Deliveries to Our sync")).to_contain_text("It was not called yet.")
    await page.keyboard.press("Escape")
    await row.get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog", name="Delete Our sync?").get_by_role("button", name="Delete").click()
    await expect(page.get_by_text("Nobody is told.")).to_be_visible()
    assert shop.get("webhooks") == []


async def test_the_boxes_of_the_webhook_dialog_stand_before_their_words(new_tab: Any, shop: Caller) -> None:
    for width in (1280, 360):
        page = await (await new_tab(shop, width=width)).open(SETTINGS)
        await page.get_by_role("button", name="Add a webhook").click()
        checks = page.get_by_role("dialog").locator(".check")
        await expect(checks).to_have_count(8)
        for check in await checks.all():
            box, label = await check.locator("input").bounding_box(), await check.locator("label").bounding_box()
            assert box is not None and label is not None
            assert (box["width"], box["height"]) == (17, 17)
            assert 4 <= label["x"] - box["x"] - box["width"] <= 12
            assert abs(box["y"] + box["height"] / 2 - label["y"] - label["height"] / 2) <= 3
        edges = [page.get_by_label("Address"), page.get_by_role("button", name="Add", exact=True)]
        rights = [box["x"] + box["width"] for one in edges if (box := await one.bounding_box())]
        assert abs(rights[0] - rights[1]) <= 1


async def test_the_address_of_a_chat_sets_the_format_and_the_events_for_people(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open(SETTINGS)
    await page.get_by_role("button", name="Add a webhook").click()
    dialog = page.get_by_role("dialog", name="Add a webhook")
    kind = dialog.get_by_label("For", exact=True)
    await dialog.get_by_label("Address").fill("https://hooks.slack.invalid/services/T/B/x")
    await expect(kind).to_have_value("standard")
    for host, format in (
        ("hooks.slack.com", "slack"),
        ("discord.com", "discord"),
        ("prod-1.westeurope.logic.azure.com:443", "teams"),
    ):
        await dialog.get_by_label("Address").fill(f"https://{host}/x")
        await expect(kind).to_have_value(format)
        await expect(dialog.get_by_label("A crawl has failed")).to_be_checked()
        await expect(dialog.get_by_label("A crawl is finished")).not_to_be_checked()


async def test_a_chat_is_told_of_failed_crawls_after_a_minute_on_the_page(
    new_tab: Any, shop: Caller, mongo_url: str
) -> None:
    with ServiceProcess(mongo_url, webhook_private=True) as private:
        await asyncio.to_thread(private.wait_until_ready)
        tab = await new_tab(shop)
        tab.address = private.url
        page = await tab.open(SETTINGS)
        for format, title in (("slack", "Slack"), ("discord", "Discord"), ("teams", "Microsoft Teams")):
            async with receiving() as receiver:
                receiver.status = STATUS[format]
                await page.get_by_role("button", name="Add a webhook").click()
                dialog = page.get_by_role("dialog", name="Add a webhook")
                await dialog.get_by_label("Address").fill(receiver.url)
                await dialog.get_by_label("For", exact=True).select_option(title)
                await dialog.get_by_role("button", name="Add").click()
                await page.get_by_role("button", name="Send a test").click()
                await expect(page.locator("#notice")).to_contain_text(f"The address responded with {STATUS[format]}.")
                [test] = receiver.received
                assert "Test of a webhook" in CHECKS[format](test.message)
                await expect(page.get_by_role("row", name=receiver.url)).to_contain_text(title)
    stored = {webhook["format"]: webhook["events"] for webhook in shop.get("webhooks")}
    assert stored == {format: ["job.failed", "group.silent"] for format in STATUS}


async def test_a_test_call_says_what_the_address_responded(new_tab: Any, shop: Caller) -> None:
    shop.post("webhooks", {"url": "https://hooks.invalid/", "events": ["job.finished"], "label": "Gone"})
    page = await (await new_tab(shop)).open(SETTINGS)
    row = page.get_by_role("row", name="Gone")
    await expect(row).to_contain_text("For all groups")
    await row.get_by_role("button", name="Test").click()
    await expect(page.locator("#notice")).to_contain_text("The address did not respond")
    await expect(row.locator(".chip.bad")).to_be_visible()
    await row.get_by_role("button", name="Deliveries").click()
    await expect(page.get_by_role("dialog").locator("li")).to_have_count(1)


async def test_an_address_that_is_refused_stays_in_the_dialog(new_tab: Any, shop: Caller) -> None:
    tab = await new_tab(shop)
    tab.expected |= {422}
    page = await tab.open(SETTINGS)
    await page.get_by_role("button", name="Add a webhook").click()
    dialog = page.get_by_role("dialog", name="Add a webhook")
    await dialog.get_by_label("Address").fill("http://hooks.example/")
    await dialog.get_by_role("button", name="Add").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("https")
    await expect(dialog.get_by_label("Address")).to_have_value("http://hooks.example/")


async def test_changed_settings_are_kept_until_they_are_saved_or_discarded(new_tab: Any, shop: Caller) -> None:
    tab = await new_tab(shop)
    page = await tab.open(SETTINGS)
    history = page.get_by_label("Keep earlier versions for (days)")
    await history.fill("30")
    await page.get_by_role("button", name="Add a rule").click()
    await page.get_by_label("Field", exact=True).fill("price")
    await page.get_by_role("link", name="Jobs", exact=True).click()
    await expect(page.locator("#notice")).to_contain_text(f"The changed settings of {GROUP} are not saved.")
    async with page.expect_event("dialog") as asked:
        await page.close(run_before_unload=True)
    await (await asked.value).dismiss()
    tab.complaints.clear()
    await page.get_by_role("button", name="Sign out").click()
    await page.get_by_role("dialog", name="Sign out?").get_by_role("button", name="Keep").click()
    shop.call("PUT", f"groups/{GROUP}", {"ignore": ["rank"]})  # somebody else

    await page.locator("#notice").get_by_role("button", name="Go back").click()
    await expect(history).to_have_value("30")
    await page.get_by_role("button", name="Save settings").click()
    await expect(page.locator("#notice")).to_contain_text("The settings are saved")
    settings = shop.get(f"groups/{GROUP}")
    assert (settings["history_days"], settings["ignore"]) == (30, ["rank"])
    assert settings["rules"] == [{"path": "price", "min_fill": 0.9}]

    await history.fill("7")
    await page.go_back()
    await expect(history).to_be_hidden()  # else the page may see both steps as one
    await page.go_forward()
    await expect(history).to_have_value("7")
    await page.get_by_role("button", name="Discard changes").click()
    await expect(history).to_have_value("30")
    await page.get_by_role("link", name="Jobs", exact=True).click()
    await page.get_by_role("link", name="job-1", exact=True).click()
    await page.reload()  # asks nothing
    await expect(page.get_by_role("heading", name="job-1")).to_be_visible()


async def test_rules_that_were_not_touched_stay_as_they_are(new_tab: Any, shop: Caller) -> None:
    rules = [{"path": "title", "min_fill": 0.9999}, {"path": "price", "max_drop": 0.123}, {"max_missing": 0.0005}]
    shop.call("PUT", f"groups/{GROUP}", {"rules": rules})
    page = await (await new_tab(shop)).open(SETTINGS)
    await page.get_by_role("button", name="Add a rule").click()
    await page.get_by_label("Field", exact=True).last.fill("sku")
    await page.get_by_role("button", name="Save settings").click()
    await expect(page.locator("#notice")).to_contain_text("The settings are saved")
    assert shop.get(f"groups/{GROUP}")["rules"] == [*rules, {"path": "sku", "min_fill": 0.9}]


async def test_a_group_is_deleted_once_its_name_is_typed(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open(SETTINGS)
    await page.get_by_role("button", name="Delete this group").click()
    dialog = page.get_by_role("dialog", name=f"Delete {GROUP}?")
    await expect(dialog.get_by_role("button", name="Delete the group")).to_be_disabled()
    await dialog.get_by_label(f"Type {GROUP} to confirm").fill(GROUP)
    await dialog.get_by_role("button", name="Delete the group").click()
    await expect(page.get_by_text("No group yet")).to_be_visible()
    assert shop.get("groups") == []


async def test_a_token_that_may_only_read_is_offered_no_changes(
    new_tab: Any, shop: Caller, make_caller: Callable[..., Caller]
) -> None:
    page = await (await new_tab(make_caller(shop.organization_id, "read"))).open(SETTINGS)
    await expect(page.get_by_label("Keep earlier versions for (days)")).to_be_visible()
    for name in ("Save settings", "Add a rule", "Add a webhook", "Delete this group"):
        assert await page.get_by_role("button", name=name).count() == 0
