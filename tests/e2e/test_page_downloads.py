"""A view taken away as a file: exactly what the filters match."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from playwright.async_api import Page, expect

from tests.e2e.conftest import Caller
from tests.e2e.page import GROUP, intercept, rows
from tests.support.api import make_output

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def download(page: Page, file_format: str, columns: str) -> Path:
    """Return the file that the dialog leads to."""
    await page.get_by_role("button", name="Download").click()
    dialog = page.get_by_role("dialog", name="Download")
    await dialog.get_by_label("Format").select_option(file_format)
    await dialog.get_by_label("Columns").select_option(columns)
    async with page.expect_download() as started:
        await dialog.get_by_role("button", name="Download").click()
    ending = "csv" if file_format == "sheet" else file_format
    assert (await started.value).suggested_filename == f"{GROUP}.{ending}"
    await expect(dialog).to_be_hidden()
    return Path(await (await started.value).path())


async def test_a_downloaded_csv_is_the_view_and_pandas_reads_it(new_tab: Any, shop: Caller) -> None:
    view = "country=Germany&columns=data.title,data.price.amount,root_job_id"
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}?limit=10&{view}")
    await expect(rows(page)).to_have_count(10)
    table = pd.read_csv(await download(page, "csv", "shown"))
    expected = shop.newest(GROUP, 60, "country=Germany")
    assert table["id"].tolist() == [item["id"] for item in expected]
    assert table["data.title"].tolist() == [item["data"]["title"] for item in expected]
    assert table["data.price.amount"].tolist() == [item["data"]["price"]["amount"] for item in expected]
    assert set(table.columns) - {"other"} == {"id", "data.title", "data.price.amount", "root_job_id"}


async def test_ndjson_and_json_hold_whole_items(new_tab: Any, shop: Caller) -> None:
    page = await (await new_tab(shop)).open(f"#/groups/{GROUP}")
    expected = shop.newest(GROUP, 60)
    lines = (await download(page, "ndjson", "all")).read_text().splitlines()
    assert [json.loads(line) for line in lines] == expected
    assert json.loads((await download(page, "json", "all")).read_text()) == expected


async def test_a_csv_for_spreadsheets_has_no_formulas(new_tab: Any, caller: Caller) -> None:
    caller.post(f"outputs/{GROUP}", [make_output(data={"title": '=HYPERLINK("https://evil.example")'})])
    page = await (await new_tab(caller)).open(f"#/groups/{GROUP}")
    await expect(rows(page)).to_have_count(1)
    table = pd.read_csv(await download(page, "sheet", "shown"))
    assert table["data.title"].tolist() == ['\'=HYPERLINK("https://evil.example")']


async def test_a_download_that_fails_says_so_and_can_be_tried_again(new_tab: Any, shop: Caller) -> None:
    tab = await new_tab(shop)
    tab.expected |= {503}
    page = await tab.open(f"#/groups/{GROUP}")
    busy = {"detail": [{"loc": [], "msg": "Try again", "type": "unavailable"}]}
    await intercept(page, "**/export*", lambda route: route.fulfill(status=503, json=busy))
    await page.get_by_role("button", name="Download").click()
    dialog = page.get_by_role("dialog", name="Download")
    await dialog.get_by_role("button", name="Download").click()
    await expect(dialog.get_by_text("The service is busy")).to_be_visible()
    await page.unroute("**/export*")
    async with page.expect_download():
        await dialog.get_by_role("button", name="Download").click()
    await expect(dialog).to_be_hidden()
