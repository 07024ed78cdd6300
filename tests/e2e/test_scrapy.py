"""A real Scrapy crawl of a small site: its items land in the service, its cookies come from there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from sds_client import Client
from tests.e2e.serving import Site
from tests.support.processes import ServiceProcess, make_token

ROOT = Path(__file__).parents[2]
PAGES = 40

SPIDER = """
import scrapy

class Lamps(scrapy.Spider):
    name = "lamps"

    def __init__(self, site, **options):
        super().__init__(**options)
        self.start_urls = [site + "/"]

    def parse(self, response):
        for link in response.css("a::attr(href)"):
            yield response.follow(link, self.parse_lamp)

    def parse_lamp(self, response):
        yield {
            "sku": response.css("b::text").get(),
            "title": response.css("h1::text").get(),
            "price": {"amount": float(response.css("i::text").get())},
            **({"tags": {"shop": "north"}} if self.settings.get("SDS_TAGS_FIELD") else {}),
            **({"file_urls": [response.url + ".txt"]} if self.settings.get("FILES_STORE") else {}),
        }
"""

# A project's own components, one of each kind, and the settings that enable them.
OWN = """
class Shout:
    def process_item(self, item):
        item["title"] = item["title"].upper()
        return item

class Count:
    def __init__(self, stats):
        self.stats = stats

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler.stats)

class CountRequests(Count):
    def process_request(self, request):
        self.stats.inc_value("own/requests")

class CountItems(Count):
    async def process_spider_output(self, response, result):
        async for one in result:
            self.stats.inc_value("own/results")
            yield one

COMPONENTS = {
    "ITEM_PIPELINES": {"own.Shout": 300},
    "SPIDER_MIDDLEWARES": {"own.CountItems": 500},
    "DOWNLOADER_MIDDLEWARES": {"own.CountRequests": 500},
}
"""

# Fails on one item.
FAIL = """
class Fail:
    def process_item(self, item):
        assert item["sku"] != "SKU-3"
        return item
"""


DROP = """
from scrapy.exceptions import DropItem

class Drop:
    def process_item(self, item):
        if item["sku"] == "SKU-4":
            raise DropItem("too dim")
        return item
"""


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


class Shop:
    """The site: a list of lamps, one page each, only for those with the session cookie."""

    def __init__(self, all_seen: threading.Event | None = None) -> None:
        self.title, self.at_once, self.max_at_once = "Lamp", 0, 0
        self.gone: set[str] = set()
        self.gone_status = 404
        self._all_seen = all_seen or threading.Event()

    def respond(self, site: Site, handler: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        with site.lock:
            self.at_once += 1
            self.max_at_once = max(self.max_at_once, self.at_once)
        time.sleep(0.03)
        with site.lock:
            self.at_once -= 1
            if len([path for _, path, _ in site.requests if path.startswith("/lamp/")]) == PAGES:
                self._all_seen.set()
        if "session=4f1c" not in handler.headers.get("Cookie", ""):
            return 403, {}, b"log in first"
        html = {"Content-Type": "text/html"}
        if handler.path == "/robots.txt":
            return 200, {"Content-Type": "text/plain"}, b"User-agent: *\nDisallow: /lamp/5\n"
        if handler.path == "/":
            return 200, html, "".join(f'<a href="/lamp/{n}">{n}</a>' for n in range(PAGES)).encode()
        number = handler.path.rpartition("/")[2]
        if number.endswith(".txt"):
            return 200, {"Content-Type": "text/plain"}, f"manual of lamp {number}".encode()
        if number in self.gone:
            return self.gone_status, html, b"gone"
        text = f"<h1>{self.title} {number}</h1><b>SKU-{number}</b><i>{number}.5</i>"
        return 200, html, text.encode()


def crawl(folder: Path, site: Site, client: Client, token: str, **settings: str) -> tuple[str, dict[str, str]]:
    """Run the crawl to its end; return its log and its stats."""
    if not (folder / "lamps.py").exists():
        (folder / "lamps.py").write_text(SPIDER)
    given = {
        "ADDONS": json.dumps({"sds_client.scrapy.Addon": 500}),
        "SDS_URL": client.url,
        "SDS_TOKEN": token,
        "SDS_GROUP": "lamps",
        "SDS_KEY_FIELDS": "sku",
        "CONCURRENT_REQUESTS": "8",
        "CONCURRENT_REQUESTS_PER_DOMAIN": "8",
        "DOWNLOAD_DELAY": "0",
        "ROBOTSTXT_OBEY": "False",
        "TELNETCONSOLE_ENABLED": "False",
    } | settings
    command = [sys.executable, "-m", "scrapy", "runspider", str(folder / "lamps.py"), "-a", f"site={site.url}"]
    for name, value in given.items():
        command += ["-s", f"{name}={value}"]
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    if (folder / "project.py").exists():
        environ["SCRAPY_SETTINGS_MODULE"] = "project"
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, env=environ)
    found = re.search(r"Dumping Scrapy stats:\n(\{.*?\})\n", done.stderr, re.DOTALL)
    if settings.get("LOG_LEVEL") == "CRITICAL":
        return done.stderr, {}
    assert found, done.stderr
    return done.stderr, dict(re.findall(r"'([\w/]+)': '?(\w+)", found[1]))


def log_in(client: Client) -> None:
    client.set_cookies([{"domain": "127.0.0.1", "name": "session", "value": "4f1c", "http_only": True}])


def test_a_crawl_stores_every_item_with_its_page_and_starts_logged_in(
    client: Client, token: str, tmp_path: Path
) -> None:
    log_in(client)
    shop = Shop()
    with Site(shop.respond) as site:
        log, stats = crawl(tmp_path, site, client, token, SDS_JOB_ID="monday", SDS_TAGS='{"country": "Germany"}')
        items = {item["data"]["sku"]: item for item in client.outputs("lamps")}
        assert len(items) == PAGES
        lamp = items["SKU-7"]
        assert lamp["data"] == {"sku": "SKU-7", "title": "Lamp 7", "price": {"amount": 7.5}}
        assert (lamp["source_url"], lamp["root_job_id"]) == (f"{site.url}/lamp/7", "monday")
        assert lamp["tags"] == {"country": "Germany"}
        assert stats["item_scraped_count"] == stats["sds/created"] == str(PAGES)
        assert shop.max_at_once > 1
        assert token not in log

        # Another day: nothing new but what changed, known by its key.
        shop.title = "Lantern"
        _, stats = crawl(tmp_path, site, client, token, SDS_JOB_ID="tuesday")
        assert (stats["sds/updated"], stats.get("sds/created")) == (str(PAGES), "0")
        again = {item["data"]["sku"]: item for item in client.outputs("lamps", job_id="tuesday")}
        assert len(again) == PAGES and again["SKU-7"]["output_id"] == lamp["output_id"]


def test_the_crawl_goes_on_while_the_service_takes_its_time(client: Client, token: str, tmp_path: Path) -> None:
    log_in(client)
    all_seen = threading.Event()
    in_time = []

    def slow(_: Site, handler: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        """Pass a request on; a write only when the crawl has seen all pages, which it cannot if it waits for us."""
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0))) or None
        if handler.command == "POST":
            in_time.append(all_seen.wait(30))
        headers = {k: v for k, v in handler.headers.items() if k not in ("Host", "Accept-Encoding")}
        request = urllib.request.Request(client.url + handler.path, body, headers, method=handler.command)
        with urllib.request.urlopen(request) as response:
            return response.status, {"Content-Type": "application/json"}, response.read()

    shop = Shop(all_seen)
    with Site(shop.respond) as site, Site(slow) as way:
        crawl(tmp_path, site, client, token, SDS_URL=way.url, SDS_BATCH_SECONDS="0.01", SDS_BATCH_ITEMS="3")
    assert in_time and all(in_time)
    assert len(list(client.outputs("lamps"))) == PAGES


def test_a_rejected_item_is_dropped_alone_and_said(client: Client, token: str, tmp_path: Path) -> None:
    log_in(client)
    shop = Shop()

    def respond(site: Site, handler: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        # Too large for an item, and too large for a body.
        shop.title = {"/lamp/3": "x" * 1_100_000, "/lamp/5": "x" * 17_000_000}.get(handler.path, "Lamp")
        return shop.respond(site, handler)

    with Site(respond) as site:
        log, stats = crawl(tmp_path, site, client, token, CONCURRENT_REQUESTS="1", SDS_BATCH_SECONDS="5")
    kept = {item["data"]["sku"] for item in client.outputs("lamps")}
    assert kept == {f"SKU-{n}" for n in range(PAGES)} - {"SKU-3", "SKU-5"}
    assert stats["item_dropped_count"] == "2"
    assert "the service rejects it: The item is too large\n" in log
    assert "the service rejects it: The item is too large for a body\n" in log


def test_an_item_without_its_key_is_dropped_and_said(client: Client, token: str, tmp_path: Path) -> None:
    log_in(client)
    with Site(Shop().respond) as site:
        log, stats = crawl(tmp_path, site, client, token, SDS_KEY_FIELDS="sku,price.currency")
    assert stats["item_dropped_count"] == str(PAGES)
    assert "it has no price.currency, which is one of SDS_KEY_FIELDS" in log


def test_a_crawl_without_its_cookies_does_not_begin(client: Client, token: str, tmp_path: Path) -> None:
    with Site(Shop().respond) as site:
        log, stats = crawl(tmp_path, site, client, "wrong")
        assert [path for _, path, _ in site.requests] == []
    assert stats["finish_reason"] == "sds_cookies_unavailable"
    assert "the cookies could not be loaded: 401" in log


def test_a_crawl_that_cannot_store_ends(
    client: Client, token: str, mongo_url: str, organization: int, tmp_path: Path
) -> None:
    log_in(client)
    reader = make_token(mongo_url, organization, "read", "state")
    with Site(Shop().respond) as site:
        log, stats = crawl(tmp_path, site, client, reader)
    assert stats["finish_reason"] == "sds_failed"
    assert "items could not be stored: 403" in log
    assert "item_scraped_count" not in stats


def test_an_item_has_the_tags_of_the_crawl_and_its_own(client: Client, token: str, tmp_path: Path) -> None:
    log_in(client)
    with Site(Shop().respond) as site:
        crawl(tmp_path, site, client, token, SDS_TAGS='{"country": "Peru"}', SDS_TAGS_FIELD="tags")
    item = next(iter(client.outputs("lamps")))
    assert item["tags"] == {"country": "Peru", "shop": "north"}
    assert "tags" not in item["data"]


def test_what_a_complete_crawl_did_not_see_is_deleted(client: Client, token: str, tmp_path: Path) -> None:
    log_in(client)
    shop = Shop()
    with Site(shop.respond) as site:
        crawl(tmp_path, site, client, token)
        shop.gone = {"3", "5"}
        _, stats = crawl(tmp_path, site, client, token, SDS_DELETE_MISSING="True")
    assert (stats["sds/deleted"], stats["sds/unchanged"]) == ("2", str(PAGES - 2))
    kept = {item["data"]["sku"] for item in client.outputs("lamps")}
    assert kept == {f"SKU-{n}" for n in range(PAGES)} - {"SKU-3", "SKU-5"}


@pytest.mark.parametrize(
    ("status", "settings", "word"),
    [
        (404, {"CLOSESPIDER_ITEMCOUNT": "10"}, "the crawl ended with closespider_itemcount"),
        (403, {}, "1 pages had the status 403"),
        (200, {}, "there were errors"),
        (404, {"SDS_KEY_FIELDS": "sku,nothing"}, "the crawl stored no item"),
        (404, {"ITEM_PIPELINES": '{"own.Drop": 300}'}, "pipelines dropped 1 items"),
        (404, {"ROBOTSTXT_OBEY": "True"}, "robots.txt forbids 1 pages"),
        (404, {"JOBDIR": "FOLDER/crawl"}, "JOBDIR is set"),
    ],
    ids=["stopped", "forbidden", "broken", "dropped", "dropped by a pipeline", "robots", "resumable"],
)
def test_an_incomplete_crawl_deletes_nothing_and_says_why(
    client: Client, token: str, tmp_path: Path, status: int, settings: dict[str, str], word: str
) -> None:
    log_in(client)
    shop = Shop()
    with Site(shop.respond) as site:
        crawl(tmp_path, site, client, token)
        shop.gone, shop.gone_status = {"3"}, status
        (tmp_path / "own.py").write_text(DROP)
        given = {name: value.replace("FOLDER", str(tmp_path)) for name, value in settings.items()}
        log, stats = crawl(tmp_path, site, client, token, SDS_DELETE_MISSING="True", **given)
    assert f"SDS_DELETE_MISSING: nothing is deleted, because {word}" in log
    assert "sds/deleted" not in stats
    assert len(list(client.outputs("lamps"))) == PAGES


def test_nothing_is_deleted_after_an_error_that_is_not_logged(client: Client, token: str, tmp_path: Path) -> None:
    log_in(client)
    with Site(Shop().respond) as site:
        crawl(tmp_path, site, client, token)
        (tmp_path / "own.py").write_text(FAIL)
        (tmp_path / "project.py").write_text('ITEM_PIPELINES = {"own.Fail": 300}\n')
        crawl(tmp_path, site, client, token, SDS_DELETE_MISSING="True", LOG_LEVEL="CRITICAL", SDS_JOB_ID="tuesday")
    assert client.job("lamps", "tuesday")["items"] == PAGES - 1  # it ran, without the item that failed
    assert len(list(client.outputs("lamps"))) == PAGES


def test_what_it_did_not_see_stays_when_the_verdict_is_failed(client: Client, token: str, tmp_path: Path) -> None:
    log_in(client)
    shop = Shop()
    with Site(shop.respond) as site:
        crawl(tmp_path, site, client, token)
        client.set_group("lamps", rules=[{"min_items": PAGES}])
        shop.gone = {"3"}
        log, stats = crawl(tmp_path, site, client, token, SDS_DELETE_MISSING="True", SDS_JOB_ID="tuesday")
    assert (stats["sds/verdict"], stats["sds/deleted"]) == ("failed", "0")
    assert "ERROR: the verdict on the job is failed: " in log
    assert len(list(client.outputs("lamps"))) == PAGES
    job = client.job("lamps", "tuesday")
    assert (job["state"], job["items"], job["missing"]) == ("finished", PAGES - 1, 1)


def test_a_crawl_of_one_series_leaves_the_items_of_another(client: Client, token: str, tmp_path: Path) -> None:
    log_in(client)
    client.push("lamps", [{"source_url": "https://x.example/", "root_job_id": "chairs", "data": {"sku": "chair"}}])
    client.finish_job("lamps", "chairs", series="chairs")
    shop = Shop()
    with Site(shop.respond) as site:
        crawl(tmp_path, site, client, token, SDS_SERIES="lamps")
        shop.gone = {"3"}
        _, stats = crawl(tmp_path, site, client, token, SDS_SERIES="lamps", SDS_DELETE_MISSING="True")
    assert stats["sds/deleted"] == "1"
    assert {item["data"]["sku"] for item in client.outputs("lamps")} == {"chair"} | {
        f"SKU-{n}" for n in range(PAGES) if n != 3
    }


@pytest.mark.parametrize("finish", [True, False], ids=["finish", "left open"])
def test_a_crawl_finishes_its_job(client: Client, token: str, tmp_path: Path, finish: bool) -> None:
    log_in(client)
    with Site(Shop().respond) as site:
        crawl(tmp_path, site, client, token, SDS_JOB_ID="monday", SDS_FINISH_JOB=str(finish))
        assert client.job("lamps", "monday")["state"] == ("finished" if finish else "running")
        if finish:
            crawl(tmp_path, site, client, token, SDS_JOB_ID="tuesday", CLOSESPIDER_ITEMCOUNT="5")
            assert client.job("lamps", "tuesday")["state"] == "failed"


@pytest.mark.parametrize("where", ["project", "spider", "command line"])
def test_a_project_with_components_of_its_own_keeps_them_and_stores_its_items(
    client: Client, token: str, tmp_path: Path, where: str
) -> None:
    log_in(client)
    (tmp_path / "own.py").write_text(OWN)
    settings: dict[str, str] = {}
    if where == "project":
        (tmp_path / "project.py").write_text("from own import COMPONENTS\nglobals().update(COMPONENTS)\n")
    elif where == "spider":
        spider = SPIDER.replace('name = "lamps"\n', 'name = "lamps"\n    custom_settings = own.COMPONENTS\n')
        (tmp_path / "lamps.py").write_text(f"import own\n{spider}")
    else:
        namespace: dict[str, Any] = {}
        exec(OWN, namespace)  # noqa: S102
        settings = {name: json.dumps(value) for name, value in namespace["COMPONENTS"].items()}
    with Site(Shop().respond) as site:
        log, stats = crawl(tmp_path, site, client, token, **settings)
        items = list(client.outputs("lamps"))
        assert {item["data"]["title"] for item in items} == {f"LAMP {n}" for n in range(PAGES)}
        assert {item["source_url"] for item in items} == {f"{site.url}/lamp/{n}" for n in range(PAGES)}
    assert stats["own/requests"] == str(PAGES + 1)  # let in with the service's cookies
    assert stats["own/results"] == str(2 * PAGES)
    assert "not in place" not in log


def test_an_add_on_that_cannot_store_says_so_at_the_start(client: Client, token: str, tmp_path: Path) -> None:
    log_in(client)
    switched_off = {"ITEM_PIPELINES": json.dumps({"sds_client.scrapy.OutputsPipeline": None})}
    with Site(Shop().respond) as site:
        log, _ = crawl(tmp_path, site, client, token, **switched_off)
        assert re.search(r"ERROR: NOTHING IS STORED: OutputsPipeline is not in place; ITEM_PIPELINES", log)
        log, _ = crawl(tmp_path, site, client, token, COOKIES_ENABLED="False")
        assert "ERROR: CookiesMiddleware is not in place; DOWNLOADER_MIDDLEWARES" in log
        log, _ = crawl(tmp_path, site, client, token, SDS_GROUP="")
        assert "items are not stored: SDS_GROUP is not set" in log
    assert list(client.outputs("lamps")) == []


def test_a_crawl_without_a_token_stops_before_its_first_request(tmp_path: Path) -> None:
    (tmp_path / "lamps.py").write_text(SPIDER)
    with Site(Shop().respond) as site:
        command = [sys.executable, "-m", "scrapy", "runspider", str(tmp_path / "lamps.py"), "-a", f"site={site.url}"]
        for setting in ('ADDONS={"sds_client.scrapy.Addon": 500}', "SDS_GROUP=lamps", "SDS_TOKEN="):
            command += ["-s", setting]
        environ = {name: value for name, value in os.environ.items() if name != "SDS_TOKEN"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, env=environ)
        assert done.returncode == 1 and site.requests == []
    assert "AccessError: no access token: set SDS_TOKEN, or give a token" in done.stderr


def test_downloaded_files_are_listed_and_leave_the_item_unchanged_in_the_next_crawl(
    client: Client, token: str, tmp_path: Path
) -> None:
    log_in(client)
    files = {
        "FILES_STORE": str(tmp_path / "files"),
        "ITEM_PIPELINES": json.dumps({"scrapy.pipelines.files.FilesPipeline": 1}),
    }
    with Site(Shop().respond) as site:
        _, stats = crawl(tmp_path, site, client, token, **files)
        assert stats["sds/created"] == stats["file_status_count/downloaded"] == str(PAGES)
        lamp = next(item for item in client.outputs("lamps") if item["data"]["sku"] == "SKU-7")
        url = f"{site.url}/lamp/7.txt"
        assert lamp["data"] == {"sku": "SKU-7", "title": "Lamp 7", "price": {"amount": 7.5}, "file_urls": [url]}
        [file] = lamp["files"]
        assert (file["field"], file["file_url"], file["file_type"]) == ("data.file_urls.0", url, "text/plain")
        content = (tmp_path / "files" / file["blob_key"]).read_bytes()
        assert file["file_checksum"] == hashlib.md5(content).hexdigest()  # noqa: S324
        assert file["file_metadata"] == {"checksum_algorithm": "md5"}
        client.patch("lamps", lamp["output_id"], is_approved=True)

        _, stats = crawl(tmp_path, site, client, token, **files)
        assert (stats["file_status_count/uptodate"], stats["sds/unchanged"]) == (str(PAGES), str(PAGES))
        again = client.get("lamps", lamp["output_id"])
        assert again is not None and again["is_approved"]
