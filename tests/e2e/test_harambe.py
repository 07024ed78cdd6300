"""A real harambe scraper in a real Chromium: what it saves lands in the service, and a run starts from there.

harambe pins old versions of what the other tests need new, so it has an environment of its own, made on first use.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from sds_client import Client
from tests.e2e.conftest import CHROMIUM_FLAGS, chromium_path
from tests.e2e.serving import Site
from tests.support.processes import ServiceProcess, free_port, make_token

ROOT = Path(__file__).parents[2]
# The current SDK; Python 3.11 cannot read it. And the last setuptools with what its playwright-stealth imports.
PACKAGES = ["harambe-sdk==0.77.5" if sys.version_info >= (3, 12) else "harambe-sdk==0.70.0", "setuptools<80"]

SCRAPER = """
import asyncio, sys
from harambe import SDK
from harambe_core.observer import OutputObserver
from sds_client.harambe import Observer

async def scraper(sdk, url, context):
    page = sdk.page
    if await page.query_selector("form"):
        await page.fill("input", "open sesame")
        await page.click("button")
        await page.wait_for_selector("h1")
        await page.evaluate("localStorage.setItem('theme', 'dark')")
        await sdk.save_cookies()
        await sdk.save_local_storage()
    meta = await sdk.capture_html(selector="article")
    again = await sdk.capture_html(selector="ul")
    print_ = await sdk.capture_pdf()
    rows = await page.query_selector_all("li")
    for row in rows:
        text = await row.inner_text()
        copies = {"copy": meta["url"], "name": meta["filename"], "list": again["url"], "print": print_["url"]}
        await sdk.save_data({"sku": text, "title": f"Lamp {text}", "page": copies})

async def main(url, token, site, endpoint):
    async with Observer(url, token, "lamps", key_fields=["sku"], job_id="monday", tags={"country": "Peru"}) as observer:
        assert isinstance(observer, OutputObserver)
        options = await observer.harness_options()
        run = SDK.scraper(domain="shop.example", stage="detail", observer=observer)(scraper)
        await SDK.run(run, site, observer=observer, cdp_endpoint=endpoint, **options)
        if "delete" in sys.argv:
            print("deleted", (await observer.finish(delete_missing=True))["deleted"])

asyncio.run(main(*sys.argv[1:5]))
"""


# Works with the account of a leased session; the path says what goes wrong.
LEASED = """
import asyncio, sys
from harambe import SDK
from sds_client.harambe import Observer

async def scraper(sdk, url, context):
    await sdk.save_data({"account": await sdk.page.inner_text("h1")})
    await sdk.page.goto(url + "/next")
    await sdk.save_cookies()
    await sdk.page.goto(url + "/last")
    if url.endswith("/fails"):
        raise ValueError("a mistake in the scraper")

async def main(url, token, site, endpoint):
    async with Observer(url, token, "orders", session_pool="orders", session_wait=5) as observer:
        run = SDK.scraper(domain="shop.example", stage="detail", observer=observer)(scraper)
        await SDK.run(run, site, observer=observer, cdp_endpoint=endpoint, **await observer.harness_options())

asyncio.run(main(*sys.argv[1:5]))
"""


@pytest.fixture(scope="session")
def harambe() -> Path:
    """The Python of an environment with harambe in it."""
    folder = ROOT / ".venv-harambe"
    python, mark = folder / "bin" / "python", folder / ".installed"
    if not mark.exists() or mark.read_text() != " ".join(PACKAGES):
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        mark.write_text(" ".join(PACKAGES))
    return python


@pytest.fixture(scope="module")
def running(mongo_url: str) -> Iterator[ServiceProcess]:
    with ServiceProcess(mongo_url) as process:
        yield process.wait_until_ready()


@pytest.fixture
def token(running: ServiceProcess, mongo_url: str, organization: int) -> str:
    return make_token(mongo_url, organization, "read", "write", "delete", "state")


@pytest.fixture
def client(running: ServiceProcess, token: str) -> Iterator[Client]:
    with Client(running.url, token) as client:
        yield client


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[str]:
    """The address of a headless Chromium: harambe's own Playwright knows no browser on this machine."""
    port = free_port()
    flags = [
        "--headless",
        *CHROMIUM_FLAGS,
        f"--remote-debugging-port={port}",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    process = subprocess.Popen(
        [chromium_path(), *flags, "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    for _ in range(300):
        try:
            urllib.request.urlopen(f"{url}/json/version", timeout=2).close()
            break
        except OSError:
            time.sleep(0.1)
    yield url
    os.killpg(process.pid, signal.SIGTERM)  # Debian's command is a script that starts the browser
    process.wait(20)


def shop(_: Site, handler: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
    """Three lamps, for those who said the word."""
    html = {"Content-Type": "text/html"}
    if handler.command == "POST":
        handler.rfile.read(int(handler.headers["Content-Length"]))
        return 303, {"Location": "/", "Set-Cookie": "session=4f1c; Path=/; HttpOnly; Max-Age=2592000"}, b""
    if "session=4f1c" not in handler.headers.get("Cookie", ""):
        return 200, html, b"<form method=post><input name=word><button>In</button></form><article></article>"
    return 200, html, b"<h1>Lamps</h1><article><ul><li>A1<li>B2<li>C3</ul></article>"


def run(python: Path, client: Client, token: str, site: Site, chromium: str, *options: str) -> str:
    """Run the scraper to its end and return what it printed."""
    done = start(python, SCRAPER, client.url, token, f"{site.url}/", chromium, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(python: Path, scraper: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-c", scraper, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT / "clients" / "python")


def test_a_scraper_saves_data_cookies_and_local_storage_and_the_next_run_starts_logged_in(
    harambe: Path, client: Client, token: str, chromium: str
) -> None:
    old = {"source_url": "https://shop.example/", "root_job_id": "sunday", "data": {"sku": "Z9"}}
    client.push("lamps", [old])
    with Site(shop) as site:
        run(harambe, client, token, site, chromium)
        items = {item["data"]["sku"]: item for item in client.outputs("lamps")}
        assert sorted(items) == ["A1", "B2", "C3", "Z9"]
        lamp = items["B2"]
        assert (lamp["data"]["title"], lamp["root_job_id"], lamp["tags"]) == ("Lamp B2", "monday", {"country": "Peru"})
        assert lamp["source_url"].rstrip("/") == site.url
        files = {file["field"]: file["file_type"] for file in lamp["files"]}
        assert files == {
            "data.page.copy": "text/html",
            "data.page.list": "text/html",
            "data.page.print": "application/pdf",
        }
        client.patch("lamps", lamp["output_id"], is_approved=True)
        [cookie] = client.cookies()
        assert (cookie["name"], cookie["value"], cookie["domain"], cookie["http_only"]) == (
            "session",
            "4f1c",
            "127.0.0.1",
            True,
        )
        assert [(entry["domain"], entry["key"], entry["value"]) for entry in client.local_storage()] == [
            ("shop.example", "theme", "dark")
        ]
        assert [method for method, _, _ in site.requests].count("POST") == 1
        run(harambe, client, token, site, chromium)
        assert [method for method, _, _ in site.requests].count("POST") == 1  # logged in from the start
        assert client.group("lamps")["items"] == 4
        again = client.get("lamps", lamp["output_id"])
        assert again is not None and again["is_approved"]
        assert again["data"] == lamp["data"] and again["files"] == lamp["files"]  # unchanged, captures included
        assert "deleted 1" in run(harambe, client, token, site, chromium, "delete")
        assert sorted(item["data"]["sku"] for item in client.outputs("lamps")) == ["A1", "B2", "C3"]


class Orders:
    """A site for those who are logged in; its cookie tells the last page, and what it saw of the saves so far."""

    def __init__(self, client: Client) -> None:
        self.client, self.agents, self.versions = client, set[str](), dict[str, int]()

    def respond(self, _: Site, handler: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        cookies = dict(part.partition("=")[::2] for part in handler.headers.get("Cookie", "").split("; "))
        status = {"/blocked": 429, "/logged-out": 401}.get(handler.path, 200 if "session" in cookies else 401)
        self.agents.add(handler.headers["User-Agent"])
        (session,) = self.client.sessions("orders")
        self.versions[handler.path] = session["version"]
        headers = {"Content-Type": "text/html", "Set-Cookie": f"page={handler.path}; Path=/"}
        return status, headers, f"<h1>{cookies.get('session')}</h1>".encode()


def page_of(client: Client) -> str | None:
    """Return the last page of which the stored state of the session knows."""
    session = client.get_session("orders", "anna")
    assert session is not None and session["storage_state"] is not None
    cookies = {cookie["name"]: cookie["value"] for cookie in session["storage_state"]["cookies"]}
    assert cookies["session"] == "of anna"
    return cookies.get("page")


@pytest.mark.parametrize(
    ("path", "state", "errors", "last_page"),
    [
        ("/works", "ready", 0, "/works/last"),
        ("/fails", "ready", 1, "/fails/last"),
        ("/blocked", "blocked", 0, None),
        ("/logged-out", "needs_login", 0, None),
    ],
)
def test_a_scraper_works_with_a_leased_session(
    harambe: Path, client: Client, token: str, chromium: str, path: str, state: str, errors: float, last_page: str
) -> None:
    cookie = {"name": "session", "value": "of anna", "domain": "127.0.0.1", "path": "/", "expires": -1}
    stored = {"cookies": [{**cookie, "httpOnly": True, "secure": False, "sameSite": "Lax"}], "origins": []}
    client.put_session("orders", "anna", storage_state=stored, user_data={"user_agent": "agent of anna"})
    orders = Orders(client)
    with Site(orders.respond) as site:
        done = start(harambe, LEASED, client.url, token, f"{site.url}{path}", chromium)
    assert (done.returncode == 0) == (path == "/works"), done.stderr
    (session,) = client.sessions("orders")
    assert (session["state"], session["uses"], session["errors"]) == (state, 1, errors), done.stderr
    assert orders.agents == {"agent of anna"}
    assert page_of(client) == last_page
    if last_page is not None:
        assert orders.versions == {path: 1, f"{path}/next": 1, f"{path}/last": 2}  # saved during the lease
        assert [item["data"]["account"] for item in client.outputs("orders")] == ["of anna"]
    assert client.cookies() == []  # nothing of it is the organization's
