"""The running service, callers of it, and a real browser that complains about everything it should not see."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, BrowserType, Page, async_playwright, expect

from service.runtime.demo_items import item
from tests.e2e.page import GROUP
from tests.support.api import make_cookie, make_entry, make_review
from tests.support.processes import ServiceProcess, run_command

# Without these, Chromium calls home at every start; as root it has no sandbox.
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # The small site of test_browser_state is called by name.
    "--host-resolver-rules=MAP *.example 127.0.0.1",
]
# Machines are shared: a wait is long, and ends as soon as what it waits for is there.
expect.set_options(timeout=20_000)
_organizations = itertools.count(1)


@dataclass
class Caller:
    """Somebody with a token of an organization of their own."""

    address: str
    token: str
    organization_id: int

    def call(self, method: str, path: str, value: Any = None) -> Any:
        """Return the JSON of a successful response."""
        request = urllib.request.Request(
            f"{self.address}/v1/{path}",
            method=method,
            data=None if value is None else json.dumps(value).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from None

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def post(self, path: str, value: Any) -> Any:
        return self.call("POST", path, value)

    def newest(self, group: str, limit: int = 25, query: str = "") -> list[dict[str, Any]]:
        """Return the newest outputs of a group, as the page shows them first."""
        items: list[dict[str, Any]] = self.get(f"outputs/{group}?order=desc&limit={limit}&{query}")["items"]
        return items


@dataclass
class Tab:
    """A tab of the browser. What it `complains` about fails the test, unless the test expects the status."""

    page: Page
    address: str
    expected: set[int] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)

    def watch(self) -> None:
        self.page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.page.on("console", lambda message: self._on_console(message.type, message.text))
        self.page.on("request", lambda request: self._on_request(request.url))
        self.page.on("response", lambda response: self._on_response(response.status, response.url))

    def _on_console(self, kind: str, text: str) -> None:
        # What failed to load is judged by its status.
        if kind in ("error", "warning") and not text.startswith("Failed to load resource"):
            self.complaints.append(f"console: {text}")

    def _on_request(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob") and f"{parts.scheme}://{parts.netloc}" != self.address:
            self.complaints.append(f"request to {url}")

    def _on_response(self, status: int, url: str) -> None:
        if status >= 400 and status not in self.expected:
            self.complaints.append(f"{status} from {url}")

    async def open(self, view: str = "") -> Page:
        """Show a view, such as `#/groups`."""
        await self.page.goto(f"{self.address}/{view}")
        return self.page


@pytest.fixture(scope="session")
def service(mongo_url: str) -> Iterator[ServiceProcess]:
    """The service as a process."""
    with ServiceProcess(mongo_url) as process:
        yield process.wait_until_ready()


@pytest.fixture
def document(service: ServiceProcess, tmp_path: Path) -> Path:
    """The OpenAPI document as it is served."""
    with urllib.request.urlopen(f"{service.url}/openapi.json", timeout=30) as response:
        (tmp_path / "openapi.json").write_bytes(response.read())
    return tmp_path / "openapi.json"


@pytest.fixture(scope="session")
def make_caller(mongo_url: str, service: ServiceProcess) -> Callable[..., Caller]:
    """Return a function that makes a caller, of a new organization unless one is given."""

    def make(organization_id: int | None = None, *scopes: str, label: str = "") -> Caller:
        organization_id = organization_id or next(_organizations)
        given = [word for scope in scopes or ("read", "write", "delete", "state") for word in ("--scope", scope)]
        given += ["--label", label] if label else []
        done = run_command(mongo_url, "token", "create", "--organization", str(organization_id), *given)
        return Caller(service.url, done.stdout.split()[-1], organization_id)

    return make


@pytest.fixture
def caller(make_caller: Callable[..., Caller]) -> Caller:
    """A caller of a new organization."""
    return make_caller()


@pytest.fixture
def shop(caller: Caller) -> Caller:
    """A caller with a group of 60 lifelike outputs, reviews, cookies and local storage."""
    dice = random.Random(1)
    caller.post(f"outputs/{GROUP}", [item(dice, number, f"job-{number % 3 + 1}") for number in range(60)])
    caller.post(
        f"reviews/{GROUP}",
        [make_review(), make_review(job_id="job-2", status="rejected", comment="Half of it is the consent wall.")],
    )
    caller.post("cookies", [make_cookie(), make_cookie(name="old", value="gone", expires="2020-01-01")])
    caller.post("local-storage", [make_entry()])
    return caller


def chromium_path() -> str:
    """Return the Chromium that `CHROMIUM` names, else one of Debian; the headless shell is quicker."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium-headless-shell") or shutil.which("chromium")
    assert path, "There is no Chromium: `make test-e2e` says how to get one."
    return path


async def launch(chromium: BrowserType) -> Browser:
    """Start Chromium, headless."""
    return await chromium.launch(executable_path=chromium_path(), args=CHROMIUM_FLAGS)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """A browser for all tests; each takes a profile of its own in it."""
    async with async_playwright() as playwright:
        browser = await launch(playwright.chromium)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def new_tab(browser: Browser, service: ServiceProcess) -> AsyncIterator[Callable[..., Any]]:
    """Return a function that opens a tab in a browser profile of its own: `new_tab(caller, dark=True)`.

    With a caller, the tab has its token already, as if it had been pasted before.
    """
    tabs: list[Tab] = []
    contexts: list[BrowserContext] = []

    async def make(
        caller: Caller | None = None, *, width: int = 1280, height: int = 900, dark: bool = False, **options: Any
    ) -> Tab:
        context = await browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", **options
        )
        context.set_default_timeout(20_000)
        contexts.append(context)
        if caller is not None:
            await context.add_init_script(
                f"if (!sessionStorage.getItem('seen')) {{ sessionStorage.setItem('seen', '1');"
                f" sessionStorage.setItem('token', {json.dumps(caller.token)}); }}"
            )
        tab = Tab(await context.new_page(), service.url)
        tab.watch()
        tabs.append(tab)
        return tab

    yield make
    for context in contexts:
        await context.close()
    assert [complaint for tab in tabs for complaint in tab.complaints] == []
