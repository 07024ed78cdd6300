"""The client against real processes of the service, and against a peer that fails in chosen ways."""

from __future__ import annotations

import asyncio
import doctest
import gzip
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import service.client.aio
import service.client.sync
from service.client import AsyncClient, Client, ClientError, Pushed
from service.client.state import chunks, state_chunks
from tests.support.api import make_cookie, make_entry, make_output, make_review
from tests.support.processes import ServiceProcess, make_token


@pytest.fixture(scope="module")
def running(mongo_url: str) -> Iterator[ServiceProcess]:
    """A real process of the service."""
    with ServiceProcess(mongo_url) as process:
        yield process.wait_until_ready()


@pytest.fixture
def token(mongo_url: str, organization: int, running: ServiceProcess) -> str:
    """A token of an organization that nobody else has."""
    return make_token(mongo_url, organization)


@pytest.fixture
def client(running: ServiceProcess, token: str) -> Iterator[Client]:
    with Client(running.url, token, patience=10) as client:
        yield client


def plain(items: Any) -> list[Any]:
    """Return what a reader of items wants to see of them."""
    return [(item["key_hash"], item["data"]["title"]) for item in items]


def outputs(count: int, title: str = "Lamp", first: int = 0) -> list[dict[str, Any]]:
    return [make_output(n, data={"title": f"{title} {n}"}) for n in range(first, first + count)]


# Without the server


def test_the_client_imports_without_the_servers_packages() -> None:
    code = (
        "import sys\n"
        "for name in ('motor', 'pymongo', 'bson', 'marshmallow', 'webargs', 'apispec', 'orjson', 'msgspec', 'isal',\n"
        "             'cryptography', 'prometheus_client', 'uvloop', 'schemas'):\n"
        "    sys.modules[name] = None\n"
        "import service.client, service.client.formats, service.client.cli.commands\n"
        "service.client.Client('http://127.0.0.1:1', 'x').close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="http://"):
        Client("127.0.0.1:8080", "x")


# Against the service


@pytest.mark.parametrize("module", [service.client.aio, service.client.sync], ids=["async", "sync"])
def test_the_examples_in_the_docstrings_run(module: Any, running: ServiceProcess, token: str, tmp_path: Path) -> None:
    names = {**vars(module), "asyncio": asyncio, "url": running.url, "token": token, "folder": tmp_path}
    results = doctest.testmod(module, extraglobs=names)
    assert results.attempted and not results.failed


def test_push_sends_any_number_of_items_and_counts_them(client: Client) -> None:
    sent: list[int] = []
    items = (item for item in outputs(1203))
    assert client.push("group", items, on_batch=lambda count, _: sent.append(count)) == Pushed(created=1203)
    assert sent == [500, 500, 203]
    assert client.push("group", outputs(10, "Chair")) == Pushed(updated=10)
    assert client.push("group", outputs(10, "Chair")) == Pushed(unchanged=10)
    assert client.push("group", []) == Pushed()


def test_push_ends_a_batch_before_it_is_too_large(client: Client) -> None:
    sent: list[int] = []
    items = [make_output(n, data={"title": "x" * 600_000}) for n in range(5)]
    client.push("group", items, batch_bytes=1_300_000, on_batch=lambda count, _: sent.append(count))
    assert sent == [2, 2, 1]


def test_items_come_back_in_the_order_of_change_over_many_pages(client: Client) -> None:
    client.push("group", outputs(25))
    client.push("group", outputs(1, "Changed"))
    titles = [item["data"]["title"] for item in client.outputs("group", page_size=7)]
    assert titles == [f"Lamp {n}" for n in range(1, 25)] + ["Changed 0"]


def test_filters_and_fields_reach_the_service(client: Client) -> None:
    client.push("group", [make_output(1), make_output(2, root_job_id="job-2", tags={"country": "Japan"})])
    assert [item["key_hash"] for item in client.outputs("group", job_id="job-2")] == ["key-2"]
    assert [item["key_hash"] for item in client.outputs("group", country="Japan")] == ["key-2"]
    assert [set(item) for item in client.outputs("group", fields=["data.title"])] == [{"id", "data"}] * 2
    with pytest.raises(TypeError, match="job"):
        list(client.outputs("group", job="job-2"))


def test_a_group_with_any_name_is_one_path_segment(client: Client) -> None:
    client.push("a/b c?d#é", outputs(1))
    assert len(list(client.outputs("a/b c?d#é"))) == 1
    assert client.groups()[0]["group_id"] == "a/b c?d#é"


def test_a_refused_item_is_named_by_its_place_among_all(client: Client) -> None:
    items = outputs(12)
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
        for item in outputs(200):
            yield item

    async with AsyncClient(running.url, token) as client:
        assert await client.push("group", items(), batch_items=20, concurrency=4) == Pushed(created=200)
        assert {item["key_hash"] async for item in client.outputs("group")} == {f"key-{n}" for n in range(200)}


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


def test_a_state_too_large_for_one_body_is_sent_in_parts(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.client.state.BYTES", 5000)
    monkeypatch.setattr(chunks, "__defaults__", (7,))
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


# Following


def test_follow_goes_on_where_it_stopped(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "cursor"
    client.push("group", outputs(5))
    assert len(list(client.follow("group", cursor_file=file, poll=None, page_size=2))) == 5
    assert list(client.follow("group", cursor_file=file, poll=None)) == []
    client.push("group", [*outputs(1, "Changed"), *outputs(1, first=9)])
    found = plain(client.follow("group", cursor_file=file, poll=None))
    assert found == [("key-0", "Changed 0"), ("key-9", "Lamp 9")]
    assert list(tmp_path.iterdir()) == [file]


def test_an_item_is_not_behind_the_cursor_before_the_consumer_comes_back(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "cursor"
    client.push("group", outputs(5))
    for item in client.follow("group", cursor_file=file, poll=None):
        if item["key_hash"] == "key-2":
            break  # in the midst of dealing with it
    again = [key for key, _ in plain(client.follow("group", cursor_file=file, poll=None))]
    assert again == ["key-2", "key-3", "key-4"]


async def test_the_async_follow_keeps_its_cursor_the_same_way(
    running: ServiceProcess, token: str, tmp_path: Path
) -> None:
    file = tmp_path / "cursor"
    async with AsyncClient(running.url, token) as client:
        await client.push("group", outputs(5))
        async with aclosing(client.follow("group", cursor_file=file, poll=None)) as following:
            async for item in following:
                if item["key_hash"] == "key-2":
                    break
        again = [item["key_hash"] async for item in client.follow("group", cursor_file=file, poll=None)]
        assert again == ["key-2", "key-3", "key-4"]
        assert [item async for item in client.follow("group", cursor_file=file, poll=None)] == []


def test_follow_waits_for_what_comes_later(client: Client) -> None:
    client.push("group", outputs(1))
    following = client.follow("group", poll=0.05)
    assert next(following)["key_hash"] == "key-0"
    later = threading.Timer(0.3, lambda: client.push("group", outputs(1, first=7)))
    later.start()
    assert next(following)["key_hash"] == "key-7"
    later.join()


def test_a_cursor_file_of_another_group_or_filter_is_refused(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "cursor"
    client.push("group", outputs(1))
    list(client.follow("group", cursor_file=file, poll=None))
    with pytest.raises(ValueError, match="another group"):
        list(client.follow("other", cursor_file=file, poll=None))
    with pytest.raises(ValueError, match="other filters"):
        list(client.follow("group", cursor_file=file, poll=None, country="Japan"))
    file.write_text("7")
    with pytest.raises(ValueError, match="not a cursor file"):
        list(client.follow("group", cursor_file=file, poll=None))


# Against a peer that fails


class Peer:
    """A service that answers each request with the next of its answers, and keeps what it was sent."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.requests, self.bodies = list(answers), [], []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        answer = self.answers.pop(0)
        if answer == "lost":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if answer == "silent":
            await asyncio.sleep(1)
            return web.Response()
        if callable(answer):
            return answer()
        if isinstance(answer, web.Response):
            return answer
        return web.json_response(answer)


@asynccontextmanager
async def peer(*answers: Any) -> AsyncIterator[Peer]:
    found = Peer(*answers)
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", found.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


def refusal(status: int, **headers: str) -> web.Response:
    text = json.dumps({"detail": [{"loc": [], "msg": "busy", "type": "unavailable"}]})
    return web.Response(status=status, text=text, content_type="application/json", headers=headers)


def written(created: int) -> dict[str, Any]:
    return {"created": created, "updated": 0, "unchanged": 0, "items": [{}] * created}


@pytest.mark.parametrize("failure", ["lost", "silent", 503, 429, 502, 504])
async def test_a_push_is_sent_again_unchanged_after_a_failure(failure: Any) -> None:
    first = refusal(failure) if isinstance(failure, int) else failure
    async with peer(first, written(2)) as service, AsyncClient(service.url, "t", timeout=0.3) as client:
        assert (await client.push("group", outputs(2))).created == 2
    assert len(service.bodies) == 2 and service.bodies[0] == service.bodies[1]
    assert json.loads(service.bodies[0]) == outputs(2)


async def test_the_wait_that_the_service_asks_for_is_kept() -> None:
    async with peer(refusal(429, **{"Retry-After": "1"}), []) as service, AsyncClient(service.url, "t") as client:
        started = time.monotonic()
        await client.groups()
        assert time.monotonic() - started >= 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 500])
async def test_what_would_fail_again_is_not_sent_again(status: int) -> None:
    async with peer(refusal(status)) as service, AsyncClient(service.url, "t") as client:
        with pytest.raises(ClientError) as caught:
            await client.set_cookies([make_cookie()])
    assert caught.value.status == status
    assert caught.value.problems[0]["msg"] == "busy"
    assert len(service.requests) == 1


async def test_patience_ends() -> None:
    async with peer(*[lambda: refusal(503)] * 50) as service, AsyncClient(service.url, "t", patience=0.5) as client:
        with pytest.raises(ClientError) as caught:
            await client.groups()
    assert caught.value.status == 503
    assert 1 < len(service.requests) < 10


async def test_a_service_that_is_not_there_is_an_error_without_a_status() -> None:
    async with AsyncClient("http://127.0.0.1:9", "t", patience=0.3) as client:
        with pytest.raises(ClientError, match=r"cannot connect to 127\.0\.0\.1:9") as caught:
            await client.groups()
    assert caught.value.status == 0


@pytest.mark.parametrize("failure", ["lost", 503])
async def test_reviews_are_not_sent_again_when_they_may_be_stored(failure: Any) -> None:
    first = refusal(failure) if isinstance(failure, int) else failure
    async with peer(first, {"items": []}) as service, AsyncClient(service.url, "t") as client:
        with pytest.raises(ClientError):
            await client.add_reviews("group", [make_review()])
    assert len(service.requests) == 1


async def test_reviews_are_sent_again_when_they_were_refused_for_their_number() -> None:
    async with peer(refusal(429), {"items": [1]}) as service, AsyncClient(service.url, "t") as client:
        assert await client.add_reviews("group", [make_review()]) == [1]


async def test_large_bodies_are_compressed_and_small_ones_are_not() -> None:
    async with peer(written(1), written(1)) as service, AsyncClient(service.url, "t") as client:
        await client.push("group", [make_output(1)])
        await client.push("group", [make_output(1, data={"text": "x" * 50_000})])
    encodings = [request.headers.get("Content-Encoding") for request in service.requests]
    assert encodings == [None, "gzip"]
    assert int(service.requests[1].headers["Content-Length"]) < 2000


async def test_a_batch_that_is_too_large_for_this_service_is_halved() -> None:
    answers = [refusal(413), written(2), refusal(413), written(1), written(2)]
    async with peer(*answers) as service, AsyncClient(service.url, "t") as client:
        assert (await client.push("group", outputs(5))).created == 5
    sizes = [len(json.loads(body)) for body in service.bodies]
    assert sizes == [5, 2, 3, 1, 2]


async def test_follow_sends_the_tag_of_the_last_page_while_nothing_comes() -> None:
    def page(ids: list[int], more: int | None, tag: str) -> web.Response:
        body = {"metadata": {"next_cursor": more, "next_url": None}, "items": [{"id": n} for n in ids]}
        return web.json_response(body, headers={"ETag": tag})

    answers = [page([1], 1, 'W/"1"'), page([2], None, 'W/"2"'), web.Response(status=304), page([3], None, 'W/"3"')]
    async with peer(*answers) as service, AsyncClient(service.url, "t") as client:
        following = client.follow("group", poll=0.01)
        assert [(await anext(following))["id"] for _ in range(3)] == [1, 2, 3]
    tags = [request.headers.get("If-None-Match") for request in service.requests]
    assert tags == [None, None, 'W/"2"', 'W/"2"']
    assert [request.query["cursor"] for request in service.requests] == ["0", "1", "2", "2"]


async def test_the_token_does_not_follow_a_redirect() -> None:
    async with peer([]) as elsewhere:
        moved = web.Response(status=302, headers={"Location": elsewhere.url})
        async with peer(moved) as service, AsyncClient(service.url, "t") as client:
            with pytest.raises(ClientError) as caught:
                await client.groups()
    assert caught.value.status == 302
    assert elsewhere.requests == []


async def test_push_sends_while_items_still_come_and_holds_few_of_them() -> None:
    taken = 0

    def items() -> Iterator[dict[str, Any]]:
        nonlocal taken
        for item in outputs(1000):
            taken += 1
            yield item

    at_each: list[int] = []
    note: Callable[[int, Any], None] = lambda count, _: at_each.append(taken)
    async with peer(*[written(10)] * 100) as service, AsyncClient(service.url, "t") as client:
        await client.push("group", items(), batch_items=10, concurrency=2, on_batch=note)
    assert len(service.requests) == 100
    assert all(ahead - 10 * (n + 1) <= 21 for n, ahead in enumerate(at_each))


def test_an_iterable_runs_in_the_callers_thread(client: Client) -> None:
    threads = set()

    def items() -> Iterator[dict[str, Any]]:
        threads.add(threading.current_thread())
        yield from outputs(3)

    client.push("group", items())
    assert threads == {threading.current_thread()}


def test_gzip_bodies_are_understood_by_the_service(client: Client) -> None:
    text = "ä" * 100_000
    client.push("group", [make_output(1, data={"title": text})])
    assert [item["data"]["title"] for item in client.outputs("group")] == [text]
    assert len(gzip.compress(text.encode(), 1)) < 32 * 1024
