"""The client against real processes of the service, and against a peer that fails in chosen ways."""

from __future__ import annotations

import asyncio
import doctest
import gzip
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import sds_client.aio
import sds_client.sync
from sds_client import AsyncClient, Client, ClientError, Pushed
from sds_client.harambe import Observer
from sds_client.state import state_chunks
from sds_client.writing import key_hash
from tests.support.api import make_cookie, make_entry, make_output, make_outputs, make_review
from tests.support.limits import Small
from tests.support.processes import ServiceProcess

# Without the server


@pytest.mark.slow
def test_the_client_imports_without_the_servers_packages() -> None:
    code = (
        "import sys\n"
        "for name in ('motor', 'pymongo', 'bson', 'marshmallow', 'webargs', 'apispec', 'orjson', 'msgspec', 'isal',\n"
        "             'cryptography', 'prometheus_client', 'uvloop', 'schemas', 'service'):\n"
        "    sys.modules[name] = None\n"
        "import sds_client, sds_client.formats, sds_client.harambe, sds_client.__main__\n"
        "sds_client.Client('http://127.0.0.1:1', 'x').close()\n"
        "sys.argv = ['sds']\n"
        "assert sds_client.__main__.main() == 0\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: sds" in done.stdout and "outputs" in done.stdout and "healthcheck" not in done.stdout


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="http://"):
        Client("127.0.0.1:8080", "x")


# Against the service


@pytest.mark.parametrize("module", [sds_client.aio, sds_client.sync], ids=["async", "sync"])
def test_the_examples_in_the_docstrings_run(module: Any, running: ServiceProcess, token: str, tmp_path: Path) -> None:
    names = {**vars(module), "asyncio": asyncio, "url": running.url, "token": token, "folder": tmp_path}
    results = doctest.testmod(module, extraglobs=names)
    assert results.attempted and not results.failed


def test_push_sends_any_number_of_items_and_counts_them(client: Client) -> None:
    sent: list[int] = []
    items = (item for item in make_outputs(1203))
    assert client.push("group", items, on_batch=lambda count, _: sent.append(count)) == Pushed(created=1203)
    assert sent == [500, 500, 203]
    assert client.push("group", make_outputs(10, "Chair")) == Pushed(updated=10)
    assert client.push("group", make_outputs(10, "Chair")) == Pushed(unchanged=10)
    assert client.push("group", []) == Pushed()


def test_push_ends_a_batch_before_it_is_too_large(client: Client) -> None:
    sent: list[int] = []
    items = [make_output(n, data={"title": "x" * 600_000}) for n in range(5)]
    client.push("group", items, batch_bytes=1_300_000, on_batch=lambda count, _: sent.append(count))
    assert sent == [2, 2, 1]


def test_items_come_back_in_the_order_of_change_over_many_pages(client: Client) -> None:
    client.push("group", make_outputs(25))
    client.push("group", make_outputs(1, "Changed"))
    titles = [item["data"]["title"] for item in client.outputs("group", page_size=7)]
    assert titles == [f"Lamp {n}" for n in range(1, 25)] + ["Changed 0"]


def test_filters_and_fields_reach_the_service(client: Client) -> None:
    client.push("group", [make_output(1), make_output(2, root_job_id="job-2", tags={"country": "Japan"})])
    assert [item["key_hash"] for item in client.outputs("group", job_id="job-2")] == ["key-2"]
    assert [item["key_hash"] for item in client.outputs("group", country="Japan")] == ["key-2"]
    assert [set(item) for item in client.outputs("group", fields=["data.title"])] == [{"id", "data"}] * 2
    with pytest.raises(TypeError, match="job"):
        list(client.outputs("group", job="job-2"))  # type: ignore[call-arg]


def test_a_group_with_any_name_is_one_path_segment(client: Client) -> None:
    client.push("a/b c?d#é", make_outputs(1))
    assert len(list(client.outputs("a/b c?d#é"))) == 1
    assert client.groups()[0]["group_id"] == "a/b c?d#é"


def test_a_refused_item_is_named_by_its_place_among_all(client: Client) -> None:
    items = make_outputs(12)
    items[9]["source_url"] = 5
    with pytest.raises(ClientError) as caught:
        client.push("group", items, batch_items=5)
    assert caught.value.status == 422
    assert caught.value.problems[0]["loc"] == ["body", "9", "source_url"]
    assert len(list(client.outputs("group"))) == 5  # the batch before it


def test_dates_and_decimals_in_items_are_sent_as_text(client: Client) -> None:
    from datetime import UTC, datetime
    from decimal import Decimal

    data = {"title": "x", "at": datetime(2026, 1, 31, tzinfo=UTC), "price": Decimal("1.10")}
    client.push("group", [make_output(1, data=data)])
    [item] = client.outputs("group")
    assert item["data"] == {"title": "x", "at": "2026-01-31T00:00:00+00:00", "price": "1.10"}


async def test_an_async_iterable_is_pushed_with_several_requests_at_once(running: ServiceProcess, token: str) -> None:
    async def items() -> AsyncIterator[dict[str, Any]]:
        for item in make_outputs(200):
            yield item

    async with AsyncClient(running.url, token) as client:
        assert await client.push("group", items(), batch_items=20, concurrency=4) == Pushed(created=200)
        assert {item["key_hash"] async for item in client.outputs("group")} == {f"key-{n}" for n in range(200)}


def test_patches_may_be_made_from_items_that_are_read_meanwhile(client: Client) -> None:
    client.push("group", make_outputs(3))
    items = client.outputs("group", is_approved=False)
    patched = client.patch_many("group", ({"output_id": item["output_id"], "is_approved": True} for item in items))
    assert patched.updated == 3


def test_a_callback_that_calls_the_client_is_an_error_instead_of_a_deadlock(client: Client) -> None:
    def finish(count: int, response: Any) -> None:
        client.finish_job("group", "job-1")

    with pytest.raises(RuntimeError, match="must not call the client"):
        client.push("group", make_outputs(1), on_batch=finish)


def test_browser_state_goes_in_and_out(client: Client) -> None:
    assert vars(client.set_cookies([make_cookie(), make_cookie(name="b")])) == {"created": 2, "updated": 0}
    assert vars(client.set_local_storage([make_entry()])) == {"created": 1, "updated": 0}
    assert [cookie["name"] for cookie in client.cookies(".shop.example")] == ["b", "session"]
    assert client.cookies("other.example") == []
    assert [entry["key"] for entry in client.local_storage()] == ["theme"]
    state = client.storage_state()
    counts = client.set_storage_state(state)
    assert (counts.cookies.updated, counts.local_storage.updated) == (2, 1)
    assert client.storage_state() == state


async def test_a_run_of_harambe_starts_with_the_state_of_a_domain_and_its_subdomains(
    client: Client, running: ServiceProcess, token: str
) -> None:
    client.set_cookies(make_cookie(domain=domain) for domain in (".shop.example", "www.shop.example", "other.example"))
    client.set_local_storage(make_entry(domain=domain) for domain in ("shop.example", "www.shop.example:8443", "other"))
    client.set_local_storage([make_entry(domain="shop.example:80"), make_entry(key="old", expires="2020-01-01")])
    async with Observer(running.url, token, "lamps") as observer:
        options = await observer.harness_options("shop.example")
    assert [cookie["domain"] for cookie in options["cookies"]] == [".shop.example", "www.shop.example"]
    assert options["local_storage"] == [
        {"domain": "shop.example", "path": "/", "key": "theme", "value": "dark"},
        {"domain": "www.shop.example:8443", "path": "/", "key": "theme", "value": "dark"},
    ]


@pytest.mark.slow
def test_large_local_storage_is_sent_in_several_bodies(client: Client) -> None:
    counts = client.set_local_storage(make_entry(key=str(n), value="x" * 100_000) for n in range(200))
    assert vars(counts) == {"created": 200, "updated": 0}


def test_the_error_for_a_cookie_counts_from_the_first_of_all(client: Client) -> None:
    with pytest.raises(ClientError, match=r"422: body\.700\.value: Must be a string"):
        client.set_cookies(make_cookie(name=str(n), value="x" if n < 700 else 7) for n in range(701))
    assert len(client.cookies()) == 500  # the bodies before are stored


def test_browser_state_is_deleted_by_what_names_it(client: Client) -> None:
    old = "2020-01-01"
    client.set_cookies([make_cookie(), make_cookie(name="b", path=""), make_cookie(name="c", expires=old)])
    client.set_local_storage([make_entry(), make_entry(key="b"), make_entry(key="c", expires=old)])
    assert client.delete_cookies(expired=True) == client.delete_local_storage(expired=True) == 1
    assert client.delete_cookies(domain=".shop.example", path="", name="b") == 1
    assert client.delete_local_storage(key="b") == 1
    assert ([c["name"] for c in client.cookies()], [e["key"] for e in client.local_storage()]) == (
        ["session"],
        ["theme"],
    )
    assert client.delete_cookies(all=True) == client.delete_local_storage(all=True) == 1


def test_the_token_describes_itself(client: Client, organization: int, token: str) -> None:
    found = client.token()
    assert (found["organization_id"], found["scopes"]) == (organization, ["delete", "read", "state", "write"])
    assert token not in str(found)


def test_a_state_too_large_for_one_body_is_sent_in_parts(client: Client, small: Small) -> None:
    small(state_body_bytes=5000, state_body_records=7)
    cookie = {"domain": "shop.example", "value": "x", "path": "/", "expires": -1, "httpOnly": False, "secure": False}
    origin = {"origin": "https://shop.example", "localStorage": [{"name": f"n{n}", "value": "x"} for n in range(50)]}
    state = {"cookies": [{**cookie, "name": f"c{n}"} for n in range(50)], "origins": [origin]}
    assert len(list(state_chunks(state))) == 16
    counts = client.set_storage_state(state)
    assert (counts.cookies.created, counts.local_storage.created) == (50, 50)
    assert len(client.storage_state()["origins"][0]["localStorage"]) == 50


def test_reviews_go_in_and_out(client: Client) -> None:
    [added] = client.add_reviews("group", [make_review()])
    assert client.reviews("group") == [added]


def test_a_wrong_token_is_one_error_that_does_not_tell_it(running: ServiceProcess) -> None:
    with Client(running.url, "sds_wrong-token") as client, pytest.raises(ClientError) as caught:
        client.groups()
    assert caught.value.status == 401
    assert "wrong-token" not in str(caught.value)


def test_an_iterable_runs_in_the_callers_thread(client: Client) -> None:
    threads = set()

    def items() -> Iterator[dict[str, Any]]:
        threads.add(threading.current_thread())
        yield from make_outputs(3)

    client.push("group", items())
    assert threads == {threading.current_thread()}


def test_gzip_bodies_are_understood_by_the_service(client: Client) -> None:
    text = "ä" * 100_000
    client.push("group", [make_output(1, data={"title": text})])
    assert [item["data"]["title"] for item in client.outputs("group")] == [text]
    assert len(gzip.compress(text.encode(), 1)) < 32 * 1024


@pytest.mark.parametrize("value", [None, "", [], {}])
def test_an_empty_field_makes_no_key(value: Any) -> None:
    with pytest.raises(KeyError, match="sku"):
        key_hash({"sku": value}, ["sku"])
    assert key_hash({"sku": 0}, ["sku"]) != key_hash({"sku": False}, ["sku"])
