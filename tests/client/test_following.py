"""Following a group: what is new, changed or deleted, from a cursor that is kept in a file."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from sds_client import AsyncClient, Client, CursorExpired, following
from tests.support.api import make_outputs
from tests.support.limits import Small
from tests.support.peer import failure, page, peer
from tests.support.processes import ServiceProcess


def plain(items: Any) -> list[Any]:
    """Return what a reader of items wants to see of them."""
    return [(item["key_hash"], item["data"]["title"]) for item in items]


def test_follow_goes_on_where_it_stopped(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "cursor"
    client.push("group", make_outputs(5))
    assert len(list(client.follow("group", cursor_file=file, live=False, page_size=2))) == 5
    assert list(client.follow("group", cursor_file=file, live=False)) == []
    client.push("group", [*make_outputs(1, "Changed"), *make_outputs(1, first=9)])
    found = plain(client.follow("group", cursor_file=file, live=False))
    assert found == [("key-0", "Changed 0"), ("key-9", "Lamp 9")]
    assert list(tmp_path.iterdir()) == [file]


def follower_at(file: Path, cursor: int) -> following.Follower:
    """Return a follower whose consumer has taken items up to a cursor that is not saved."""
    transport: Any = SimpleNamespace(url="http://localhost")
    follower = following.Follower(
        transport, "group", position={"cursor": 0}, page_size=10, options={}, cursor_file=file, owner=1
    )
    follower._taken = cursor
    return follower


def test_a_block_that_ends_while_another_thread_saves_its_position_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the block in the main thread; pages are read in another."""
    saving, fsync = threading.Event(), os.fsync

    def slow(number: int) -> None:
        if not saving.is_set():
            saving.set()
            time.sleep(0.3)
        fsync(number)

    monkeypatch.setattr(os, "fsync", slow)
    follower = follower_at(tmp_path / "cursor", 5)
    with ThreadPoolExecutor(1) as threads:
        saved = threads.submit(follower._save)
        assert saving.wait(60)
        follower.__exit__()
        saved.result(60)
    assert json.loads((tmp_path / "cursor").read_bytes())["cursor"] == 5
    assert len(list(tmp_path.iterdir())) == 1


def test_a_position_whose_saving_was_interrupted_is_saved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def interrupted(*paths: Any) -> None:
        replace(*paths)
        raise KeyboardInterrupt

    follower = follower_at(tmp_path / "cursor", 5)
    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(os, "replace", interrupted)
        follower._save()
    follower.__exit__()
    assert json.loads((tmp_path / "cursor").read_bytes())["cursor"] == 5


def test_an_item_is_not_behind_the_cursor_before_the_consumer_comes_back(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "cursor"
    client.push("group", make_outputs(5))
    for item in client.follow("group", cursor_file=file, live=False):
        if item["key_hash"] == "key-2":
            break  # in the midst of dealing with it
    again = [key for key, _ in plain(client.follow("group", cursor_file=file, live=False))]
    assert again == ["key-2", "key-3", "key-4"]


async def test_the_async_follow_keeps_its_cursor_the_same_way(
    running: ServiceProcess, token: str, tmp_path: Path
) -> None:
    file = tmp_path / "cursor"
    async with AsyncClient(running.url, token) as client:
        await client.push("group", make_outputs(5))
        async with aclosing(client.follow("group", cursor_file=file, live=False)) as following:
            async for item in following:
                if item["key_hash"] == "key-2":
                    break
        again = [item["key_hash"] async for item in client.follow("group", cursor_file=file, live=False)]
        assert again == ["key-2", "key-3", "key-4"]
        assert [item async for item in client.follow("group", cursor_file=file, live=False)] == []


def test_follow_waits_for_what_comes_later(client: Client) -> None:
    client.push("group", make_outputs(1))
    following = client.follow("group", live=True)
    assert next(following)["key_hash"] == "key-0"
    later = threading.Timer(0.3, lambda: client.push("group", make_outputs(1, first=7)))
    later.start()
    assert next(following)["key_hash"] == "key-7"
    later.join()


def test_a_cursor_file_of_another_group_or_filter_is_refused(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "cursor"
    client.push("group", make_outputs(1))
    list(client.follow("group", cursor_file=file, live=False))
    with pytest.raises(ValueError, match="another group"):
        list(client.follow("other", cursor_file=file, live=False))
    with pytest.raises(ValueError, match="other filters"):
        list(client.follow("group", cursor_file=file, live=False, country="Japan"))
    file.write_text("7")
    with pytest.raises(ValueError, match="not a cursor file"):
        list(client.follow("group", cursor_file=file, live=False))


def test_a_cursor_file_of_another_organization_or_service_is_refused(
    client: Client, running: ServiceProcess, other_token: str, tmp_path: Path
) -> None:
    file = tmp_path / "cursor"
    client.push("group", make_outputs(1))
    list(client.follow("group", cursor_file=file, live=False))
    kept = file.read_text()
    with Client(running.url, other_token) as other, pytest.raises(ValueError, match="another organization"):
        list(other.follow("group", cursor_file=file, live=False))
    file.write_text(kept.replace(running.url, "https://staging.example"))
    with pytest.raises(ValueError, match=r"a cursor of https://staging\.example: .* change \"url\""):
        list(client.follow("group", cursor_file=file, live=False))
    file.write_text(kept)
    assert list(client.follow("group", cursor_file=file, live=False)) == []


@pytest.mark.slow
def test_a_follower_outlives_a_restart_of_the_service(mongo_url: str, token: str) -> None:
    with ServiceProcess(mongo_url) as first, Client(first.wait_until_ready().url, token) as client:
        client.push("group", make_outputs(1))
        following = client.follow("group")
        assert next(following)["key_hash"] == "key-0"
        arrived: list[Any] = []
        waiting = threading.Thread(target=lambda: arrived.append(next(following)))
        waiting.start()
        first.kill()
        with ServiceProcess(mongo_url, port=first.port) as second:
            second.wait_until_ready()
            client.push("group", make_outputs(1, first=7))
            waiting.join(30)
        assert [item["key_hash"] for item in arrived] == ["key-7"]


# What is asked, and what is made of the response

OWNER = {"organization_id": 1}


def item(id: int, **changes: Any) -> dict[str, Any]:
    return {"id": id, "output_id": f"output-{id}", "data": {}} | changes


async def test_a_follower_at_the_end_asks_the_service_to_wait() -> None:
    responses = [page([item(1)], 1), page([item(2)]), page([item(3)])]
    async with peer(*responses) as service, AsyncClient(service.url, "t") as client:
        following = client.follow("group")
        assert [(await anext(following))["id"] for _ in range(3)] == [1, 2, 3]
        await following.aclose()
    asked = [(request.query["cursor"], request.query.get("wait")) for request in service.requests]
    assert asked == [("0", None), ("1", None), ("2", "30")]


@pytest.mark.slow
async def test_waiting_longer_than_the_timeout_is_no_failure() -> None:
    async def late() -> web.Response:
        await asyncio.sleep(1.5)
        return web.json_response(page([item(2)]))

    async with peer(page([item(1)]), late) as service, AsyncClient(service.url, "t", timeout=1) as client:
        following = client.follow("group")
        assert [(await anext(following))["id"] for _ in range(2)] == [1, 2]
        await following.aclose()
    assert len(service.requests) == 2


async def test_empty_pages_before_the_end_are_passed_and_not_read_again(tmp_path: Path) -> None:
    file = tmp_path / "cursor"
    responses = [page([], 100), page([], 200), page([item(250)], 300), page([], 400), page([])]
    responses = [OWNER, *responses, OWNER, page([])]
    async with peer(*responses) as service, AsyncClient(service.url, "t") as client:
        found = [i["id"] async for i in client.follow("group", cursor_file=file, live=False, is_approved=True)]
        assert found == [250]
        assert [i async for i in client.follow("group", cursor_file=file, live=False, is_approved=True)] == []
    asked = [request.query for request in service.requests if "/outputs/" in request.path]
    assert [query["cursor"] for query in asked] == ["0", "100", "200", "300", "400", "400"]
    assert {query["is_approved"] for query in asked} == {"true"}


async def test_empty_pages_before_the_end_are_passed_by_a_plain_read() -> None:
    responses = [page([], 100), page([item(150)], 200), page([])]
    async with peer(*responses) as service, AsyncClient(service.url, "t") as client:
        assert [i["id"] async for i in client.outputs("group", is_approved=False)] == [150]
    assert [request.query.get("cursor") for request in service.requests] == [None, "100", "200"]


async def test_a_cursor_that_expired_says_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "cursor"
    file.write_text('{"group": "group", "filters": {"deleted": "true"}, "cursor": 7}')  # an earlier file
    async with peer(OWNER, failure(410, "cursor_expired")) as service, AsyncClient(service.url, "t") as client:
        with pytest.raises(CursorExpired) as caught:
            await anext(client.follow("group", cursor_file=file, deleted=True))
    assert caught.value.status == 410
    told = "410: the cursor 7 is too old to learn of every deletion since: remove "
    assert str(caught.value) == f"{told}{file}, empty the copy and follow again from cursor 0"
    assert service.requests[1].query["deleted"] == "true"


@pytest.mark.slow
async def test_a_service_that_ends_the_waiting_at_once_is_not_asked_without_pause() -> None:
    async with peer(*[page([])] * 100) as service, AsyncClient(service.url, "t") as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(client.follow("group")), 1.5)
    assert 2 <= len(service.requests) <= 8


def test_a_cursor_of_a_database_that_was_replaced_is_refused(client: Client, tmp_path: Path, small: Small) -> None:
    small(doubt_seconds=0.01)
    file = tmp_path / "lamps.cursor"
    client.push("lamps", make_outputs(3))
    with pytest.raises(ValueError, match="the cursor 5000 is of another database"):
        list(client.follow("lamps", cursor=5000, cursor_file=file, live=False))
    assert len(list(client.follow("lamps", cursor_file=file, live=False))) == 3


def test_two_consumers_with_one_cursor_file_are_told(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "lamps.cursor"
    client.push("lamps", make_outputs(3))
    first = client.follow("lamps", cursor_file=file, live=False)
    next(first)
    assert len(list(client.follow("lamps", cursor_file=file, live=False))) == 3
    with pytest.raises(ValueError, match="was changed by another process"):
        list(first)


async def test_a_date_before_which_deletions_were_forgotten_is_named() -> None:
    async with peer(failure(410, "cursor_expired")) as service, AsyncClient(service.url, "t") as client:
        with pytest.raises(CursorExpired, match="deletions since created_after were forgotten: leave it out"):
            await anext(client.follow("group", deleted=True, created_after="2020-01-01"))
