"""A real Scrapy crawl with leased sessions: the accounts of a pool, taken and left by what the site answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from sds_client import Client
from tests.e2e.serving import Site
from tests.e2e.test_scrapy import crawl
from tests.support.processes import ServiceProcess, make_token

PAGES = 12

SPIDER = """
import scrapy

class Accounts(scrapy.Spider):
    name = "accounts"

    def __init__(self, site, **options):
        super().__init__(**options)
        self.site = site

    async def start(self):
        for number in range(12):
            jar = number % self.settings.getint("JARS", 1)
            yield scrapy.Request(f"{self.site}/order/{number}", meta={"cookiejar": jar})

    def parse(self, response):
        yield {"sku": response.css("b::text").get(), "account": response.css("i::text").get()}
"""


class Orders:
    """The site: pages for those who are logged in, with what it knows of their browser."""

    def __init__(self, statuses: dict[str, int] | None = None) -> None:
        self.statuses = statuses or {}
        self.agents: set[str] = set()

    def respond(self, site: Site, handler: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        cookies = dict(part.split("=") for part in handler.headers.get("Cookie", "=").split("; "))
        account = cookies.get("session", "")
        self.agents.add(handler.headers["User-Agent"])
        if not account or account in self.statuses:
            return self.statuses.get(account, 401), {}, b"no"
        text = f"<b>{handler.path}</b><i>{account}</i>"
        return 200, {"Content-Type": "text/html", "Set-Cookie": f"visited={account}; Path=/"}, text.encode()


@pytest.fixture(scope="module")
def running(mongo_url: str) -> Iterator[ServiceProcess]:
    with ServiceProcess(mongo_url) as process:
        yield process.wait_until_ready()


@pytest.fixture
def token(running: ServiceProcess, mongo_url: str, organization: int) -> str:
    return make_token(mongo_url, organization, "read", "write", "delete", "state")


@pytest.fixture
def client(running: ServiceProcess, token: str, tmp_path: Path) -> Iterator[Client]:
    (tmp_path / "lamps.py").write_text(SPIDER)
    with Client(running.url, token) as client:
        yield client


def put(client: Client, *accounts: str, **user_data: str) -> None:
    for account in accounts:
        cookie = {"name": "session", "value": account, "domain": "127.0.0.1", "path": "/", "expires": -1}
        state = {"cookies": [{**cookie, "httpOnly": True, "secure": False, "sameSite": "Lax"}], "origins": []}
        data = {"user_agent": f"agent of {account}", **user_data}
        client.put_session("orders", account, storage_state=state, user_data=data)


def states(client: Client) -> dict[str, str]:
    return {session["name"]: session["state"] for session in client.sessions("orders")}


def test_each_cookie_jar_works_with_a_session_of_its_own(client: Client, token: str, tmp_path: Path) -> None:
    put(client, "anna", "ben", "carl")
    orders = Orders()
    with Site(orders.respond) as site:
        crawl(tmp_path, site, client, token, SDS_SESSION_POOL="orders", JARS="3")
    accounts = Counter(item["data"]["account"] for item in client.outputs("lamps"))
    assert accounts == {"anna": 4, "ben": 4, "carl": 4}
    assert orders.agents == {"agent of anna", "agent of ben", "agent of carl"}
    assert states(client) == {"anna": "ready", "ben": "ready", "carl": "ready"}
    session = client.get_session("orders", "anna")
    assert session is not None and session["uses"] == 1 and session["storage_state"] is not None
    cookies = {cookie["name"]: cookie for cookie in session["storage_state"]["cookies"]}
    assert cookies["visited"]["value"] == "anna"
    assert (cookies["session"]["value"], cookies["session"]["sameSite"]) == ("anna", "Lax")


def test_an_account_that_the_site_refuses_is_replaced_by_the_next(client: Client, token: str, tmp_path: Path) -> None:
    orders = Orders({"anna": 401, "ben": 429})
    with Site(orders.respond) as site:
        put(client, "anna", proxy=site.url)
        put(client, "ben")
        put(client, "carl", user_agent="")
        log, stats = crawl(tmp_path, site, client, token, SDS_SESSION_POOL="orders")
    items = list(client.outputs("lamps"))
    assert len(items) == PAGES and {item["data"]["account"] for item in items} == {"carl"}
    assert states(client) == {"anna": "needs_login", "ben": "blocked", "carl": "ready"}
    assert (stats["sds/session_logged_out"], stats["sds/session_blocked"]) == ("1", "1")
    assert token not in log
    # The user agent and the proxy of an account are used for this account alone.
    assert {agent.split("/")[0] for agent in orders.agents} == {"agent of anna", "agent of ben", "Scrapy"}
    # A proxy is asked for a whole URL.
    proxied = {(path.startswith("http://"), "session=anna" in cookies) for _, path, cookies in site.requests}
    assert proxied == {(True, True), (False, False)}


def test_a_crawl_without_a_session_stops_and_says_why(client: Client, token: str, tmp_path: Path) -> None:
    put(client, "anna")
    client.put_session("orders", "anna", state="needs_login")
    with Site(Orders().respond) as site:
        log, stats = crawl(tmp_path, site, client, token, SDS_SESSION_POOL="orders", SDS_SESSION_WAIT="0")
        assert site.requests == []
    assert stats["finish_reason"] == "sds_no_session"
    assert "no session of the pool orders" in log
