"""Compare the first view of a large group in Chromium with that of a small one.

    SDS_URL=… SDS_TOKEN=… python -m scripts.page_speed --items 100000

Each view is a new tab that does not use the cache. Network time is the time with a request in flight until the view
is shown; script time is Chromium's `ScriptDuration`. Their sum counts time twice in which both happened.
Writes the groups `page-small` and `page-large` where they have too few items. Needs the extra `e2e` and Chromium.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
from typing import NamedTuple

from playwright.sync_api import BrowserContext, sync_playwright

from sds_client import Client

SMALL = 1000
MAX_RATIO = 1.5
_NOTE_WHEN_SHOWN = """
window.shown = new Promise((resolve) => new MutationObserver((_, observer) => {
  const lead = document.querySelector(".lead")?.textContent ?? "";
  if (!lead.includes("items from") || !document.querySelector("table.rows tbody tr:nth-child(25)")) return;
  resolve(performance.now());
  observer.disconnect();
}).observe(document, { subtree: true, childList: true }));
"""
_TIMES = """async () => {
  const shown = await window.shown;
  const entries = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  let network = 0, until = 0;
  for (const { startTime, responseEnd } of entries.sort((a, b) => a.startTime - b.startTime)) {
    const end = Math.min(responseEnd || shown, shown);
    network += Math.max(0, end - Math.max(startTime, until));
    until = Math.max(until, end);
  }
  return [shown, network];
}"""


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


class View(NamedTuple):
    """Milliseconds of one first view."""

    shown: float
    network: float
    script: float


def first_view(context: BrowserContext, address: str, group: str) -> View:
    """Measure a group's view in a new tab without the cache, until its rows and counts are there."""
    page = context.new_page()
    devtools = context.new_cdp_session(page)
    devtools.send("Performance.enable")
    devtools.send("Network.enable")
    devtools.send("Network.setCacheDisabled", {"cacheDisabled": True})
    page.goto(f"{address}/#/groups/{group}", wait_until="commit")
    shown, network = page.evaluate(_TIMES)
    metrics = {one["name"]: one["value"] for one in devtools.send("Performance.getMetrics")["metrics"]}
    page.close()
    return View(shown, network, metrics["ScriptDuration"] * 1000)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--views", type=int, default=25)
    options = parser.parse_args()
    address, token = os.environ["SDS_URL"].rstrip("/"), os.environ["SDS_TOKEN"]
    with Client(address, token) as client:
        fill(client, "page-small", SMALL)
        fill(client, "page-large", options.items)
    views: dict[str, list[View]] = {"page-small": [], "page-large": []}
    with sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        context.add_init_script(f"sessionStorage.setItem('token', {json.dumps(token)}); {_NOTE_WHEN_SHOWN}")
        first_view(context, address, "page-small")  # the first one starts processes of the browser
        for _ in range(options.views):
            for group, measured in views.items():
                measured.append(first_view(context, address, group))
        browser.close()
    medians = {group: View(*map(statistics.median, zip(*measured, strict=True))) for group, measured in views.items()}
    for items, view in zip((SMALL, options.items), medians.values(), strict=True):
        work = f"network {view.network:.0f} ms and script {view.script:.0f} ms, {view.network + view.script:.0f} ms"
        print(f"{items} items: shown after {view.shown:.0f} ms; {work}")
    return int(medians["page-large"].shown / medians["page-small"].shown > MAX_RATIO)


if __name__ == "__main__":
    raise SystemExit(main())
