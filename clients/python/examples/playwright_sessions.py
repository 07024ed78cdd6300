"""Log accounts in once, and crawl with three of them at the same time, each leased to one worker.

    python playwright_sessions.py https://shop.example shop-orders 30

The accounts are sessions of the pool `shop-orders`, made before with their names and passwords:

    sds sessions put shop-orders anna --user-data anna.json      # {"user": "anna", "word": "…"}
    sds sessions mark shop-orders anna needs_login

SDS_URL and SDS_TOKEN name the service. For a site and a browser of a test, CHROMIUM names the browser and
CHROMIUM_FLAGS its flags.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from playwright.async_api import Browser, async_playwright

from sds_client import AsyncClient

WORKERS = 3


async def log_in(client: AsyncClient, browser: Browser, site: str, pool: str) -> None:
    """Log in each account of the pool that the site does not know, and store the state of its browser."""
    for listed in await client.sessions(pool, "needs_login"):
        session = await client.get_session(pool, listed["name"])
        if session is None or session["user_data"] is None:
            continue
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(f"{site}/")
        await page.fill("[name=user]", session["user_data"]["user"])
        await page.fill("[name=word]", session["user_data"]["word"])
        await page.click("button")
        await page.wait_for_selector("h1")
        await client.put_session(pool, session["name"], storage_state=dict(await context.storage_state()))
        await context.close()


async def work(client: AsyncClient, browser: Browser, pool: str, pages: asyncio.Queue[str], job: str) -> None:
    """Visit pages with one account until there are no more, or the site does not know the account any more."""
    while not pages.empty():
        async with client.session(pool, wait=60) as session:
            state: Any = session.storage_state
            context = await browser.new_context(storage_state=state)
            page = await context.new_page()
            while not pages.empty():
                url = pages.get_nowait()
                await page.goto(url)
                if await page.query_selector("form"):  # the login page
                    session.logged_out()
                    pages.put_nowait(url)
                    break
                data = {"account": session.name, "title": await page.inner_text("h1")}
                await client.push("orders", [{"source_url": url, "root_job_id": job, "key_hash": url, "data": data}])
                await session.save(dict(await context.storage_state()))  # a worker that dies later loses nothing
            await context.close()


async def main(site: str, pool: str, count: int) -> None:
    pages: asyncio.Queue[str] = asyncio.Queue()
    for number in range(count):
        pages.put_nowait(f"{site}/order/{number}")
    async with AsyncClient() as client, async_playwright() as playwright:
        flags = os.environ.get("CHROMIUM_FLAGS", "").splitlines()
        browser = await playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM"), args=flags)
        await log_in(client, browser, site, pool)
        async with asyncio.TaskGroup() as workers:
            for _ in range(WORKERS):
                workers.create_task(work(client, browser, pool, pages, "orders-today"))
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
