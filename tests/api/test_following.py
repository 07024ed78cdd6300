"""Exports that stay open: NDJSON with follow=true, and server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientResponse, web

from service.http.keys import GATES, STOPPING
from service.store import Store
from tests.support.api import Api, make_output
from tests.support.fault_proxy import FaultProxy
from tests.support.limits import Small
from tests.support.live_pages import until_waiting, waiting_readers
from tests.support.raw import connect

FOLLOW = "/v1/outputs/shop/export?follow=true"
EVENTS = "/v1/outputs/shop/export?format=sse"


@pytest.fixture
async def shop(admin: Api) -> Api:
    """A caller whose group `shop` has the outputs key-0 to key-2."""
    await admin.ok("/v1/outputs/shop", [make_output(n) for n in range(3)])
    return admin


@pytest.fixture(autouse=True)
async def stop_in_order(admin: Api, app: web.Application, store: Store) -> AsyncIterator[None]:
    """End the exports that are still open as a stop of the service does."""
    yield
    app[STOPPING].set()
    store.watch.stop()


class Stream:
    """An export that is read line by line."""

    def __init__(self, response: ClientResponse) -> None:
        self.response = response

    async def line(self) -> str:
        """Return the next line; empty at the end, `\\n` for an empty line."""
        async with asyncio.timeout(60):
            return (await self.response.content.readline()).decode()

    async def key(self) -> str:
        """Return the key of the next item."""
        while (line := await self.line()).isspace():  # a heartbeat, where the machine is slow
            pass
        return str(json.loads(line)["key_hash"])

    async def event(self) -> tuple[int, dict[str, Any]]:
        """Return id and item of the next event, which is all that it has."""
        id, data, end = [await self.line() for _ in range(3)]
        assert id.startswith("id: ") and data.startswith("data: ") and end == "\n"
        return int(id[4:]), json.loads(data[6:])


@asynccontextmanager
async def opened(api: Api, path: str, **headers: str) -> AsyncIterator[Stream]:
    headers = {"Authorization": f"Bearer {api.token}", **headers}
    async with api.client.get(path, headers=headers) as response:
        assert response.status == 200
        yield Stream(response)


async def last_id(api: Api) -> int:
    return int((await api.ok("/v1/outputs/shop?order=desc&limit=1"))["items"][0]["id"])


# -- NDJSON -------------------------------------------------------------------------------------


@pytest.mark.alone
async def test_following_sends_present_items_and_then_new_ones(shop: Api, store: Store) -> None:
    async with opened(shop, FOLLOW) as stream:
        assert stream.response.content_type == "application/x-ndjson"
        assert [await stream.key() for _ in range(3)] == ["key-0", "key-1", "key-2"]
        delays = []
        for n in range(3, 8):
            await until_waiting(store)
            await shop.ok("/v1/outputs/shop", [make_output(n)])
            acknowledged = time.monotonic()
            assert await stream.key() == f"key-{n}"
            delays.append(time.monotonic() - acknowledged)
        # The median: machines are shared.
        assert sorted(delays)[2] < 0.1


async def test_a_line_is_the_item_as_the_page_has_it(shop: Api) -> None:
    page = await shop.ok("/v1/outputs/shop")
    async with opened(shop, FOLLOW) as stream:
        assert [json.loads(await stream.line()) for _ in range(3)] == page["items"]


async def test_following_an_empty_group_begins_at_once(admin: Api, store: Store) -> None:
    async with opened(admin, FOLLOW) as stream:
        await until_waiting(store)
        await admin.ok("/v1/outputs/shop", [make_output(1)])
        assert await stream.key() == "key-1"


async def test_following_continues_after_a_cursor_and_keeps_the_filters(shop: Api, store: Store) -> None:
    last = (await shop.ok("/v1/outputs/shop"))["items"][-1]["id"]
    async with opened(shop, f"{FOLLOW}&cursor={last}&country=France&fields=key_hash") as stream:
        await until_waiting(store)
        await shop.ok("/v1/outputs/shop", [make_output(4), make_output(5, tags={"country": "France"})])
        item = json.loads(await stream.line())
        assert item == {"id": item["id"], "key_hash": "key-5"}


async def test_following_sends_patches_and_the_deletions_asked_for(shop: Api, store: Store) -> None:
    items = (await shop.ok("/v1/outputs/shop"))["items"]
    async with opened(shop, f"{FOLLOW}&deleted=true&cursor={items[-1]['id']}") as stream:
        await until_waiting(store)
        await shop.patch(f"/v1/outputs/shop/{items[0]['output_id']}", {"is_approved": True})
        assert json.loads(await stream.line())["is_approved"] is True
        await shop.delete(f"/v1/outputs/shop/{items[0]['output_id']}")
        record = json.loads(await stream.line())
        assert (record["output_id"], record["deleted"]) == (items[0]["output_id"], True)


async def test_a_limit_ends_it(shop: Api, store: Store) -> None:
    async with opened(shop, f"{FOLLOW}&limit=4") as stream:
        assert [await stream.key() for _ in range(3)] == ["key-0", "key-1", "key-2"]
        await until_waiting(store)
        await shop.ok("/v1/outputs/shop", [make_output(n) for n in (3, 4)])
        assert await stream.key() == "key-3"
        assert await stream.line() == ""


async def test_an_empty_line_says_that_it_is_still_open(shop: Api, small: Small) -> None:
    small(heartbeat_seconds=0.1)
    async with opened(shop, f"{FOLLOW}&country=nowhere") as stream:
        assert [await stream.line() for _ in range(2)] == ["\n", "\n"]


async def test_it_is_not_compressed(shop: Api) -> None:
    async with opened(shop, FOLLOW, **{"Accept-Encoding": "gzip"}) as stream:
        assert "Content-Encoding" not in stream.response.headers
        assert await stream.key() == "key-0"


async def test_followers_hold_nothing_of_what_requests_at_work_hold(
    shop: Api, store: Store, app: web.Application
) -> None:
    async with opened(shop, FOLLOW), opened(shop, EVENTS):
        await until_waiting(store, 2)
        async with asyncio.timeout(60):
            while app[GATES].working.used:
                await asyncio.sleep(0.005)


async def test_many_who_follow_and_wait_are_one_read(wired_api: Api, wired: Store, wire: FaultProxy) -> None:
    shop, store = wired_api, wired
    await shop.ok("/v1/outputs/shop", [make_output(n) for n in range(3)])
    last = await last_id(shop)
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(opened(shop, f"{FOLLOW}&cursor={last}")) for _ in range(30)]
        waiting = [asyncio.create_task(shop.ok(f"/v1/outputs/shop?wait=60&cursor={last}")) for _ in range(30)]
        await until_waiting(store, 60)
        await asyncio.sleep(0.2)
        reads = [wire.noting("find", collection) for collection in ("outputs", "groups")]
        await shop.ok("/v1/outputs/shop", [make_output(3)])
        assert [await stream.key() for stream in streams] == ["key-3"] * 30
        assert [page["items"][0]["key_hash"] for page in await asyncio.gather(*waiting)] == ["key-3"] * 30
        await until_waiting(store, 30)
        # Two tails, each with a page and some watermarks; the look-up of the write. One read per reader would be 60.
        assert 2 <= sum(len(each.bodies) for each in reads) < 20
    shop.client.app[STOPPING].set()


@pytest.mark.slow
async def test_who_reads_slowly_beside_a_quick_reader_gets_everything_once(admin: Api, store: Store) -> None:
    async with opened(admin, FOLLOW) as slow, opened(admin, FOLLOW) as quick:
        await until_waiting(store, 2)
        for n in range(24):  # more than the connection and the tail's buffer hold together
            await admin.ok("/v1/outputs/shop", [make_output(n, data={"text": "x" * 400_000})])
            assert await quick.key() == f"key-{n}"
        assert [await slow.key() for _ in range(24)] == [f"key-{n}" for n in range(24)]
        await admin.ok("/v1/outputs/shop", [make_output(24)])
        assert [await stream.key() for stream in (slow, quick)] == ["key-24"] * 2


async def test_a_client_that_leaves_is_forgotten(shop: Api, store: Store, small: Small) -> None:
    small(heartbeat_seconds=0.1)
    async with opened(shop, FOLLOW) as stream:
        await stream.line()
        await until_waiting(store)
        stream.response.close()
    async with asyncio.timeout(60):
        while waiting_readers(store):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("path", [FOLLOW, "/v1/outputs/shop/export?format=sse", "/v1/outputs/shop?wait=60&cursor=9"])
async def test_a_client_that_leaves_while_nothing_is_new_gives_its_place_back_at_once(
    shop: Api, store: Store, path: str
) -> None:
    readers = shop.client.app[GATES].readers
    async with connect(shop) as connection:
        await connection.send(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {shop.token}\r\n\r\n".encode())
        await until_waiting(store)
        assert readers.used == 1
    async with asyncio.timeout(10):  # a heartbeat comes every 15 s
        while readers.used:
            await asyncio.sleep(0.01)


async def test_a_stop_of_the_service_ends_it_in_order(shop: Api, store: Store, app: web.Application) -> None:
    async with opened(shop, FOLLOW) as stream:
        assert [await stream.key() for _ in range(3)] == ["key-0", "key-1", "key-2"]
        await until_waiting(store)
        app[STOPPING].set()
        store.watch.stop()
        assert await stream.line() == ""


@pytest.mark.parametrize("query", ["format=csv", "format=json", "format=parquet", "order=desc"])
async def test_only_ndjson_in_the_order_of_changes_can_be_followed(shop: Api, query: str) -> None:
    response = await shop.get(f"{FOLLOW}&{query}")
    assert (response.status, response.problems()) == (422, [(["query", "follow"], "value_error")])


# -- server-sent events -------------------------------------------------------------------------


async def test_every_item_is_an_event_with_its_id(shop: Api, store: Store) -> None:
    items = (await shop.ok("/v1/outputs/shop"))["items"]
    async with opened(shop, EVENTS) as stream:
        assert stream.response.content_type == "text/event-stream"
        assert [await stream.event() for _ in range(3)] == [(item["id"], item) for item in items]
        await until_waiting(store)
        await shop.ok("/v1/outputs/shop", [make_output(3)])
        id, item = await stream.event()
        assert (id, item["key_hash"]) == (item["id"], "key-3")


async def test_a_client_that_reconnects_continues_after_its_last_event(shop: Api) -> None:
    items = (await shop.ok("/v1/outputs/shop"))["items"]
    # A browser repeats the address with the cursor that it began with.
    for query in ("", "&cursor=1"):
        async with opened(shop, EVENTS + query, **{"Last-Event-ID": str(items[1]["id"])}) as stream:
            assert await stream.event() == (items[2]["id"], items[2])


async def test_an_invalid_last_event_id_is_ignored(shop: Api) -> None:
    for last in ["", "nonsense", "-1", "1.5", "99999999999999999999", "²"]:
        async with opened(shop, EVENTS, **{"Last-Event-ID": last}) as stream:
            assert (await stream.event())[1]["key_hash"] == "key-0", last


async def test_a_heartbeat_is_a_comment_with_the_id_up_to_which_the_filter_was_applied(
    shop: Api, store: Store, small: Small
) -> None:
    small(heartbeat_seconds=0.1)
    async with opened(shop, f"{EVENTS}&country=nowhere") as stream:
        written = [0, await last_id(shop)]
        for n in (3, 4):
            beat = ["", "", ""]
            async with asyncio.timeout(60):
                while beat[1] != f"id: {written[-1]}\n":
                    beat = [await stream.line() for _ in range(3)]
                    assert beat[0].startswith(":") and beat[2] == "\n"
                    assert int(beat[1].removeprefix("id: ")) in written[-2:]
            written.append((await shop.ok("/v1/outputs/shop", [make_output(n)]))["items"][0]["id"])


async def test_a_reader_that_catches_up_without_finding_anything_gets_heartbeats(shop: Api, small: Small) -> None:
    small(heartbeat_seconds=0.0, first_window=1, search_seconds=0.0)
    async with opened(shop, f"{EVENTS}&where=title:nothing") as stream:  # a page per item; the first one is the head
        assert [await stream.line() for _ in range(3)] == [": still here\n", "id: 2\n", "\n"]


async def test_a_client_that_comes_back_with_the_id_of_a_heartbeat_misses_nothing(shop: Api, small: Small) -> None:
    small(heartbeat_seconds=0.1)
    async with opened(shop, f"{EVENTS}&country=France") as stream:
        _, id, _ = [await stream.line() for _ in range(3)]
    await shop.ok("/v1/outputs/shop", [make_output(3), make_output(4, tags={"country": "France"})])
    last_event = {"Last-Event-ID": id.removeprefix("id: ").strip()}
    async with opened(shop, f"{EVENTS}&country=France", **last_event) as stream:
        assert (await stream.event())[1]["key_hash"] == "key-4"


async def test_text_with_line_breaks_stays_in_one_event(admin: Api) -> None:
    await admin.ok("/v1/outputs/shop", [make_output(1, data={"text": "a\nb\r\nc\u2028d\n\ndata: x"})])
    async with opened(admin, EVENTS) as stream:
        assert (await stream.event())[1]["data"] == {"text": "a\nb\r\nc\u2028d\n\ndata: x"}


async def test_events_are_newest_last_only(shop: Api) -> None:
    response = await shop.get(f"{EVENTS}&order=desc")
    assert (response.status, response.problems()) == (422, [(["query", "follow"], "value_error")])


# -- formats ------------------------------------------------------------------------------------


async def test_json_is_one_array_of_all_items(shop: Api) -> None:
    page = await shop.ok("/v1/outputs/shop")
    response = await shop.get("/v1/outputs/shop/export?format=json")
    assert (response.headers["Content-Type"].split(";")[0], response.json) == ("application/json", page["items"])
    assert await shop.ok("/v1/outputs/nothing/export?format=json") == []


async def test_ndjson_is_the_default(shop: Api) -> None:
    plain = await shop.get("/v1/outputs/shop/export")
    assert plain.headers["Content-Type"] == "application/x-ndjson"
    assert plain.body == (await shop.get("/v1/outputs/shop/export?format=ndjson&follow=false")).body


async def test_newest_first_and_the_new_filters_go_with_exports(shop: Api) -> None:
    await shop.patch("/v1/outputs/shop", [{"key_hash": "key-1", "is_approved": True}])
    for query in ("order=desc", "is_approved=true", "is_approved=false", "key_hash=key-2"):
        page = await shop.ok(f"/v1/outputs/shop?{query}")
        assert await shop.ok(f"/v1/outputs/shop/export?format=json&{query}") == page["items"], query


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("format=xml", "value_error"),
        ("follow=1", "bool_type"),
        ("limit=0", "greater_than_equal"),
        ("safe=yes", "bool_type"),
    ],
)
async def test_invalid_values_are_refused(admin: Api, query: str, kind: str) -> None:
    response = await admin.get(f"/v1/outputs/shop/export?{query}")
    assert (response.status, response.problems()) == (422, [(["query", query.partition("=")[0]], kind)])


async def test_the_main_route_has_one_type_whatever_is_accepted(shop: Api) -> None:
    for accept in ("text/csv", "application/x-ndjson", "*/*", "application/json"):
        response = await shop.get("/v1/outputs/shop", headers={"Accept": accept})
        assert (response.status, response.headers["Content-Type"].split(";")[0]) == (200, "application/json")
