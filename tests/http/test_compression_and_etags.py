"""Compressed responses for clients that ask, and 304 for those that have the content already."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from isal import igzip

from service.settings import Settings
from service.store import Store
from tests.conftest import MakeApi
from tests.support.api import Api, Response, make_cookie, make_output
from tests.support.commands import Commands, listening_store
from tests.support.fault_proxy import FaultProxy
from tests.support.groups import Group

PAGE = "/v1/outputs/g"


@pytest.fixture
def commands() -> Commands:
    return Commands()


@pytest.fixture
async def store(settings: Settings, mongo_url: str, commands: Commands) -> AsyncIterator[Store]:
    """A store whose commands are seen."""
    store = listening_store(settings, mongo_url, commands)
    await store.ensure_indexes()
    yield store
    await store.close()


def reads(commands: Commands, organization: int) -> int:
    """Return how often an organization's outputs were read, and leave out what the upkeep does meanwhile."""
    outputs = [command for command in commands.sent if command.collection == "outputs"]
    return sum(where.get("organization_id") == organization for command in outputs for where in command.wheres())


async def write(api: Api, first: int, count: int, group: str = "g", **changes: Any) -> Any:
    items = [make_output(number, **changes) for number in range(first, first + count)]
    return await api.ok(f"/v1/outputs/{group}", items)


async def get(api: Api, path: str, accept_encoding: str | None = None, **options: Any) -> Response:
    """Get without the header that the client adds by itself."""
    headers = {} if accept_encoding is None else {"Accept-Encoding": accept_encoding}
    return await api.get(path, headers=headers, skip_auto_headers=["Accept-Encoding"], **options)


# -- compression -----------------------------------------------------------------------------------


ASKING = [
    "gzip",
    "gzip, deflate, br",
    "GZIP",
    "br;q=1.0, gzip;q=0.5",
    "gzip ; q=0.001",
    "*",
    "identity;q=0.5, *",
    "*;q=0, gzip",
]
NOT_ASKING = [
    None,
    "",
    "identity",
    "br, deflate",
    "gzip;q=0",
    "gzip; q=0.000",
    "*;q=0",
    "*, gzip;q=0",
    "gzipped",
    "x;gzip",
]


async def test_a_large_page_is_compressed_for_clients_that_ask(api: Api) -> None:
    await write(api, 1, 10)
    plain = await get(api, PAGE)
    for accepted in ASKING:
        response = await get(api, PAGE, accepted)
        assert response.headers["Content-Encoding"] == "gzip"
        assert response.headers["Vary"] == "Accept-Encoding"
        assert int(response.headers["Content-Length"]) < len(plain.body) / 3
        assert response.body == plain.body  # the client has decompressed it


async def test_a_page_is_not_compressed_for_clients_that_do_not_ask(api: Api) -> None:
    await write(api, 1, 10)
    for accepted in NOT_ASKING:
        response = await get(api, PAGE, accepted)
        assert response.status == 200 and len(response.json["items"]) == 10
        assert "Content-Encoding" not in response.headers
        assert int(response.headers["Content-Length"]) == len(response.body)
        assert response.headers["Vary"] == "Accept-Encoding"  # a cache must not hand it to all alike


async def test_a_small_response_is_not_compressed(api: Api) -> None:
    for path in [PAGE, "/v1/cookies", "/v1/local-storage", "/v1/reviews/g", "/healthz"]:
        await api.ok("/v1/cookies", [make_cookie()])
        response = await get(api, path, "gzip")
        assert response.status == 200 and len(response.body) < 1000, path
        assert "Content-Encoding" not in response.headers, path


async def test_a_small_error_is_not_compressed(api: Api) -> None:
    response = await get(api, f"{PAGE}?limit=0", "gzip")
    assert response.status == 422
    assert "Content-Encoding" not in response.headers


async def test_a_streamed_response_is_compressed_too(api: Api) -> None:
    await api.ok("/v1/cookies", [make_cookie(name=f"n{number}") for number in range(500)])
    plain = await get(api, "/v1/cookies")
    assert plain.headers["Vary"] == "Accept-Encoding"
    assert "Content-Encoding" not in plain.headers
    response = await get(api, "/v1/cookies", "gzip")
    assert response.headers["Content-Encoding"] == "gzip"
    assert response.headers["Vary"] == "Accept-Encoding"
    assert response.json == plain.json and len(response.json) == 500


async def test_head_tells_the_same_headers_as_get(api: Api) -> None:
    await write(api, 1, 10)
    told = await api.request("HEAD", PAGE, headers={"Accept-Encoding": "gzip"})
    got = await get(api, PAGE, "gzip")
    assert told.body == b""
    for name in ("Content-Encoding", "Content-Length", "Content-Type", "Vary", "ETag"):
        assert told.headers[name] == got.headers[name]


async def test_a_large_page_is_compressed_off_the_event_loop(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    compress = igzip.compress

    def watched(*arguments: Any, **options: Any) -> bytes:
        threads.append(threading.get_ident())
        return bytes(compress(*arguments, **options))

    monkeypatch.setattr(igzip, "compress", watched)
    await write(api, 1, 200)
    await api.ok(PAGE)  # tells how many items make a megabyte: 200 of these go out at once
    threads.clear()
    response = await get(api, f"{PAGE}?limit=200", "gzip")
    assert len(response.body) > 100_000 and response.headers["Content-Encoding"] == "gzip"
    assert threads and threading.get_ident() not in threads


async def test_a_compressed_request_gets_its_response(api: Api) -> None:
    body = gzip.compress(b'[{"source_url":"u","data":{},"root_job_id":"j"}]')
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    response = await api.request("POST", PAGE, data=body, headers=headers)
    assert response.status == 200 and response.json["created"] == 1


# -- conditional reads -----------------------------------------------------------------------------


async def ask_again(api: Api, etag: str, path: str = PAGE) -> Response:
    return await api.get(path, headers={"If-None-Match": etag})


async def test_a_poller_of_an_unchanged_group_gets_304_and_no_output_is_read(
    api: Api, commands: Commands, organization: int
) -> None:
    await write(api, 1, 20)
    page = await api.get(PAGE)
    commands.clear()
    response = await ask_again(api, page.headers["ETag"])
    assert (response.status, response.body) == (304, b"")
    assert response.headers["ETag"] == page.headers["ETag"]
    assert reads(commands, organization) == 0
    await api.get(PAGE)
    assert reads(commands, organization) == 1


async def test_one_of_several_etags_is_enough_and_is_named(api: Api) -> None:
    await write(api, 1, 1)
    etag = (await api.get(PAGE)).headers["ETag"]
    response = await ask_again(api, f'"x", {etag}')
    assert response.status == 304
    assert response.headers["ETag"] == etag
    assert (await ask_again(api, '"x", W/"y"')).status == 200


async def test_creating_and_changing_change_the_etag_of_every_page(api: Api) -> None:
    queries = ("", "?limit=1", "?limit=1&cursor=1", "?country=Germany", "?created_after=2020-01-01")
    seen: dict[str, list[str]] = {query: ['"x"'] for query in queries}
    steps: list[dict[str, Any]] = [
        {"number": 1},
        {"number": 2},
        {"number": 2, "data": {"price": 2}},
        {"number": 1, "is_approved": True},
    ]
    for changes in steps:
        await api.ok(PAGE, [make_output(**changes)])
        for query, etags in seen.items():
            path = PAGE + query
            page = await ask_again(api, etags[-1], path)
            assert page.status == 200, query
            assert (await api.get(path)).json == page.json
            assert (await ask_again(api, page.headers["ETag"], path)).status == 304
            etags.append(page.headers["ETag"])
    assert all(len(set(etags)) == 1 + len(steps) for etags in seen.values())


@pytest.mark.parametrize("query", ["", "?is_approved=true", "?limit=1000"])
async def test_a_page_that_an_item_leaves_while_it_is_read_is_not_confirmed(
    wired_api: Api, wire: FaultProxy, query: str
) -> None:
    path = PAGE + query
    await wired_api.ok(PAGE, [make_output(n, is_approved=True) for n in range(3)])
    (_, left, _) = (await wired_api.ok(path))["items"]
    change = [make_output(1, data={"price": 2}, is_approved=False)]
    # The page is read up to where the process knows; then it asks how far it may read.
    wire.before("find", "groups", lambda: wired_api.ok(PAGE, change), where=lambda body: "group_id" in body["filter"])
    page = await wired_api.get(path)
    assert left in page.json["items"]  # from before the change
    again = await ask_again(wired_api, page.headers["ETag"], path)
    assert again.status == 200
    assert left not in again.json["items"]


async def test_writing_the_same_again_does_not_change_the_etag(api: Api) -> None:
    await write(api, 1, 3)
    etag = (await api.get(PAGE)).headers["ETag"]
    assert (await write(api, 1, 3))["unchanged"] == 3
    assert (await ask_again(api, etag)).status == 304


async def test_another_group_or_organization_does_not_change_the_etag(api: Api, stranger: Api) -> None:
    await write(api, 1, 3)
    etag = (await api.get(PAGE)).headers["ETag"]
    await write(api, 1, 5, group="h")
    await write(stranger, 1, 5)
    assert (await ask_again(api, etag)).status == 304


async def test_an_empty_group_has_an_etag_until_its_first_output(api: Api) -> None:
    etag = (await api.get(PAGE)).headers["ETag"]
    assert (await ask_again(api, etag)).status == 304
    await write(api, 1, 1)
    response = await ask_again(api, etag)
    assert response.status == 200 and len(response.json["items"]) == 1


async def test_an_etag_is_no_way_around_the_token(api: Api, stranger: Api, make_api: MakeApi) -> None:
    await write(api, 1, 3)
    etag = (await api.get(PAGE)).headers["ETag"]
    writer = await make_api(api.organization_id, scopes=["write"])
    assert (await ask_again(writer, etag)).status == 403
    assert (await api.get(PAGE, headers={"If-None-Match": etag, "Authorization": "Bearer x"})).status == 401
    theirs = await ask_again(stranger, etag)
    assert theirs.status == 200 and theirs.json["items"] == []


class Held:
    """Holds writers at one step until told to go on; each writer is named by its order of arrival."""

    def __init__(self, store: Store, step: str) -> None:
        self._step, self._gates = step, [asyncio.Event() for _ in range(5)]
        self.arrived = [asyncio.Event() for _ in range(5)]
        self._count = 0
        store.outputs.ids.step = self

    async def __call__(self, name: str) -> None:
        if name == self._step:
            number, self._count = self._count, self._count + 1
            self.arrived[number].set()
            await self._gates[number].wait()

    def go(self, number: int) -> None:
        self._gates[number].set()


@pytest.fixture
def settings() -> Settings:
    # No lease ends in a test.
    return Settings(mongo_database="test", lease_seconds=60.0)


@pytest.mark.parametrize("step", ["allocated", "before write", "written", "before finish"])
async def test_an_etag_from_during_a_write_does_not_hide_what_it_wrote(api: Api, store: Store, step: str) -> None:
    await write(api, 1, 2)
    etag = (await api.get(PAGE)).headers["ETag"]
    held = Held(store, step)
    writing = asyncio.create_task(write(api, 3, 2))
    await held.arrived[0].wait()
    during = await api.get(PAGE)
    assert len(during.json["items"]) == 2
    assert (await ask_again(api, during.headers["ETag"])).status == 304
    held.go(0)
    await writing
    for old in (etag, during.headers["ETag"]):
        response = await ask_again(api, old)
        assert response.status == 200 and len(response.json["items"]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("step", ["allocated", "before write", "written", "before finish"])
async def test_a_later_batch_that_is_done_first_shows_only_with_the_earlier_one(
    api: Api, store: Store, settings: Settings, mongo_url: str, step: str
) -> None:
    await write(api, 1, 2)
    held = Held(store, step)
    early = asyncio.create_task(write(api, 3, 2))
    await held.arrived[0].wait()
    other = Store.connect(settings, mongo_url)
    await other.ensure_indexes()
    await Group(api.organization_id, "g").write(other, make_output(5), make_output(6))
    await other.close()
    between = await api.get(PAGE)
    assert len(between.json["items"]) == 2
    held.go(0)
    await early
    response = await ask_again(api, between.headers["ETag"])
    assert response.status == 200 and len(response.json["items"]) == 6
    assert (await ask_again(api, response.headers["ETag"])).status == 304


async def test_a_batch_in_flight_in_another_group_does_not_hold_back_the_etag(api: Api, store: Store) -> None:
    held = Held(store, "before finish")
    elsewhere = asyncio.create_task(write(api, 1, 1, group="h"))
    await held.arrived[0].wait()
    held.go(1)
    await write(api, 1, 2)
    page = await api.get(PAGE)
    assert len(page.json["items"]) == 2
    held.go(0)
    await elsewhere
    assert (await ask_again(api, page.headers["ETag"])).status == 304


async def test_another_process_gives_the_same_etag(
    api: Api, settings: Settings, mongo_url: str, make_api: MakeApi, aiohttp_client: Any
) -> None:
    from service.app import create_app

    await write(api, 1, 2)
    etag = (await api.get(PAGE)).headers["ETag"]
    store = Store.connect(settings, mongo_url)
    await store.ensure_indexes()
    other: web.Application = create_app(settings, store)
    elsewhere = Api(await aiohttp_client(other), api.token, api.organization_id)
    assert (await elsewhere.get(PAGE)).headers["ETag"] == etag
    await write(elsewhere, 3, 1)
    assert (await ask_again(api, etag)).status == 200


async def test_the_page_of_a_job_has_no_etag_because_items_move_to_it_unchanged(api: Api) -> None:
    item = make_output(1, root_job_id="monday")
    await api.ok("/v1/outputs/g", [item])
    path = "/v1/outputs/g?job_id=tuesday"
    empty = await api.get(path)
    assert empty.json["items"] == [] and "ETag" not in empty.headers
    everything = (await api.get(PAGE)).headers["ETag"]
    assert (await api.ok("/v1/outputs/g", [dict(item, root_job_id="tuesday")]))["unchanged"] == 1
    found = await api.get(path, headers={"If-None-Match": everything})
    assert found.status == 200 and len(found.json["items"]) == 1
