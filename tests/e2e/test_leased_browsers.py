"""The example with Playwright: accounts that are logged in once, and three browsers, each with one of them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from sds_client import Client
from tests.e2e.conftest import CHROMIUM_FLAGS, Caller, chromium_path
from tests.e2e.serving import Site

EXAMPLE = Path(__file__).parents[2] / "clients/python/examples/playwright_sessions.py"
ACCOUNTS = ("anna", "ben", "carl")
FORM = b"<form method=post action=/login><input name=user><input name=word type=password><button>In</button></form>"


class Orders:
    """A site that knows three accounts, serves each page once, and tells who works with an account at the same time."""

    def __init__(self) -> None:
        self.lock, self.logins, self.pages = threading.Lock(), Counter[str](), Counter[str]()
        self.logged_out: set[str] = set()

    def respond(self, site: Site, handler: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        html = {"Content-Type": "text/html"}
        if handler.command == "POST":
            form = handler.rfile.read(int(handler.headers["Content-Length"])).decode()
            user = form.partition("user=")[2].partition("&")[0]
            with self.lock:
                self.logins[user] += 1
            return 303, {"Location": "/", "Set-Cookie": f"session={user}; Path=/; HttpOnly"}, b""
        cookies = dict(part.partition("=")[::2] for part in handler.headers.get("Cookie", "").split("; "))
        user = cookies.get("session", "")
        if not user or user in self.logged_out:
            return 200, html, FORM
        visits = int(cookies.get("visits", "0")) + 1
        with self.lock:
            self.pages[handler.path] += 1
        return 200, {**html, "Set-Cookie": f"visits={visits}; Path=/; Max-Age=3600"}, f"<h1>of {user}</h1>".encode()


def run(site: Site, caller: Caller, count: int) -> None:
    environment = {
        **os.environ,
        "SDS_URL": caller.address,
        "SDS_TOKEN": caller.token,
        "CHROMIUM": chromium_path(),
        "CHROMIUM_FLAGS": "\n".join(CHROMIUM_FLAGS),
    }
    command = [sys.executable, str(EXAMPLE), site.url, "orders", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment, check=False)
    assert done.returncode == 0, done.stderr


def test_three_browsers_crawl_with_accounts_that_log_in_once(caller: Caller) -> None:
    with Client(caller.address, caller.token) as client:
        for account in ACCOUNTS:
            client.put_session("orders", account, user_data={"user": account, "word": "s3cret"}, state="needs_login")
        orders = Orders()
        with Site(orders.respond) as site:
            run(site, caller, 12)
            assert orders.logins == dict.fromkeys(ACCOUNTS, 1)
            items = list(client.outputs("orders"))
            assert len(items) == 12
            assert all(item["data"]["title"] == f"of {item['data']['account']}" for item in items)
            assert {item["data"]["account"] for item in items} == set(ACCOUNTS)
            before = {session["name"]: visits(client, session["name"]) for session in client.sessions("orders")}
            assert sum(before.values()) >= 12  # each state was saved with the visits of its account

            # Another day: nobody logs in again but the one whom the site has forgotten, and each continues.
            orders.logged_out.add("ben")
            run(site, caller, 13)
            assert orders.logins == dict.fromkeys(ACCOUNTS, 1)
        states = {session["name"]: session["state"] for session in client.sessions("orders")}
        assert states == {"anna": "ready", "ben": "needs_login", "carl": "ready"}
        assert visits(client, "anna") + visits(client, "carl") >= before["anna"] + before["carl"] + 13


def visits(client: Client, name: str) -> int:
    session = client.get_session("orders", name)
    assert session is not None and session["storage_state"] is not None
    return next(int(cookie["value"]) for cookie in session["storage_state"]["cookies"] if cookie["name"] == "visits")
