"""Compare the first view of a large group in Chromium with that of a small one.

    SDS_URL=… SDS_TOKEN=… python -m scripts.page_speed --items 1000000

Writes the groups `page-small` and `page-large` where they have too few items. Needs the extra `e2e` and Chromium.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time

from playwright.sync_api import Page, sync_playwright

from sds_client import Client

SMALL = 1000
MAX_RATIO = 1.5


def fill(client: Client, group: str, items: int) -> None:
    """Write a group up to a number of items."""
    have = client.group(group)["items"]
    client.push(group, (_item(number) for number in range(have, items)), concurrency=4)


def _item(number: int) -> dict[str, object]:
    return {
        "source_url": f"https://shop.example/p/{number}",
        "root_job_id": f"job-{number // 50_000}",
        "key_hash": f"key-{number}",
        "data": {"title": f"Lamp {number}", "price": {"amount": number % 900, "currency": "EUR"}},
        "tags": {"country": ["France", "Germany"][number % 2]},
    }


def first_view(page: Page, address: str, group: str) -> float:
    """Return the seconds until a reload of a group's view shows its rows and counts."""
    page.goto(f"{address}/#/groups/{group}")
    _wait(page)
    started = time.perf_counter()
    page.reload(wait_until="commit")
    _wait(page)
    return time.perf_counter() - started


def _wait(page: Page) -> None:
    page.wait_for_selector("table.rows tbody tr:nth-child(25)")
    page.wait_for_selector(".lead:has-text('items from')")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--views", type=int, default=25)
    options = parser.parse_args()
    address, token = os.environ["SDS_URL"].rstrip("/"), os.environ["SDS_TOKEN"]
    with Client(address, token) as client:
        fill(client, "page-small", SMALL)
        fill(client, "page-large", options.items)
    seconds: dict[str, list[float]] = {"page-small": [], "page-large": []}
    with sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"{address}/#token={token}")
        page.wait_for_selector("table")
        for _ in range(options.views):
            for group in seconds:
                seconds[group].append(first_view(page, address, group))
        browser.close()
    small, large = (statistics.median(values) for values in seconds.values())
    print(
        f"{SMALL} items: {small * 1000:.0f} ms; {options.items} items: {large * 1000:.0f} ms; {large / small:.2f} times"
    )
    return int(large / small > MAX_RATIO)


if __name__ == "__main__":
    raise SystemExit(main())
