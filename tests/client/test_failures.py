"""The client against a service that fails in chosen ways."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sds_client import AsyncClient, Client, ClientError, CursorExpired
from sds_client.transport import Waiting
from tests.support.api import make_cookie, make_output, make_outputs, make_review
from tests.support.limits import Small
from tests.support.peer import Peer, failure, page, peer, written
from tests.support.tls import make_certificate


@asynccontextmanager
async def raw_peer(response: bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Send some bytes to each request; give the port."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("fault", ["lost", "silent", 408, 429, 502, 503, 504])
async def test_a_push_is_sent_again_unchanged_after_a_failure(fault: Any) -> None:
    first = failure(fault) if isinstance(fault, int) else fault
    async with peer(first, written(2)) as service, AsyncClient(service.url, "t", timeout=1.5) as client:
        assert (await client.push("group", make_outputs(2))).created == 2
    assert len(service.bodies) == 2 and service.bodies[0] == service.bodies[1]
    assert json.loads(service.bodies[0]) == make_outputs(2)


@pytest.mark.slow
async def test_the_wait_that_the_service_asks_for_is_kept() -> None:
    async with peer(failure(429, **{"Retry-After": "1"}), []) as service, AsyncClient(service.url, "t") as client:
        started = time.monotonic()
        await client.groups()
        assert time.monotonic() - started >= 1


async def test_the_error_of_a_push_has_the_wait_that_the_service_asked_for() -> None:
    response = failure(429, **{"Retry-After": "7"})
    async with peer(response) as service, AsyncClient(service.url, "t", patience=0) as client:
        with pytest.raises(ClientError, match="429: busy") as caught:
            await client.push("group", make_outputs(1))
    assert caught.value.retry_after == 7


def test_an_error_comes_out_of_another_process_as_it_was() -> None:
    problem = {"loc": ["body", "3"], "msg": "Must be a string", "type": "string_type"}
    for error in (
        ClientError(422, [problem]),
        CursorExpired(410, [problem], "too old"),
        ClientError(0, message="lost"),
    ):
        error.retry_after = 7
        again = copy.copy(error)  # as pickle does
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 500])
async def test_what_would_fail_again_is_not_sent_again(status: int) -> None:
    async with peer(failure(status)) as service, AsyncClient(service.url, "t") as client:
        with pytest.raises(ClientError) as caught:
            await client.set_cookies([make_cookie()])
    assert caught.value.status == status
    assert caught.value.problems[0]["msg"] == "busy"
    assert len(service.requests) == 1


async def test_patience_ends() -> None:
    async with peer(*[lambda: failure(503)] * 50) as service, AsyncClient(service.url, "t", patience=2) as client:
        with pytest.raises(ClientError) as caught:
            await client.groups()
    assert caught.value.status == 503
    assert 1 < len(service.requests) < 20


@pytest.mark.parametrize("kind", [AsyncClient, Client])
async def test_the_patience_of_default_settings_ends_after_two_minutes(kind: type[AsyncClient] | type[Client]) -> None:
    async def groups(service: Peer, waits: list[Waiting]) -> None:
        if kind is AsyncClient:
            async with AsyncClient(service.url, "t", on_wait=waits.append) as client:
                await client.groups()
        else:
            with Client(service.url, "t", on_wait=waits.append) as client:
                await asyncio.to_thread(client.groups)

    async with peer(failure(503), []) as service, asyncio.timeout(60):
        waits: list[Waiting] = []
        await groups(service, waits)
        assert 0 < waits[0].seconds <= 120
    async with peer(failure(503, **{"Retry-After": "121"})) as service, asyncio.timeout(60):
        with pytest.raises(ClientError):
            await groups(service, [])


async def test_a_failure_that_takes_longer_than_the_patience_is_followed_by_another_attempt() -> None:
    async with peer("silent", []) as service, AsyncClient(service.url, "t", timeout=0.5, patience=0.4) as client:
        assert await client.groups() == []
    assert len(service.requests) == 2


async def test_a_service_that_is_not_there_is_an_error_without_a_status() -> None:
    async with AsyncClient("http://127.0.0.1:9", "t", patience=0.3) as client:
        with pytest.raises(ClientError, match=r"cannot connect to 127\.0\.0\.1:9") as caught:
            await client.groups()
    assert caught.value.status == 0


async def test_the_error_for_a_certificate_that_is_not_trusted_says_so(tmp_path: Path) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*make_certificate(tmp_path))
    async with raw_peer(b"", tls) as port, AsyncClient(f"https://127.0.0.1:{port}", "t", patience=0) as client:
        with pytest.raises(ClientError, match=rf"cannot connect to 127\.0\.0\.1:{port}: .*certificate"):
            await client.groups()


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "the response is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", "200: the response is not JSON"),
    ],
    ids=["not HTTP", "not JSON"],
)
async def test_something_other_than_the_service_is_an_error_without_the_token(response: bytes, message: str) -> None:
    async with raw_peer(response) as port, AsyncClient(f"http://127.0.0.1:{port}", "s3cret", patience=0) as client:
        with pytest.raises(ClientError, match=message) as caught:
            await client.groups()
    assert "s3cret" not in repr((caught.value, caught.value.__cause__))


async def test_a_refusal_is_not_its_own_cause() -> None:
    async with peer(failure(503)) as service, AsyncClient(service.url, "t", patience=0) as client:
        with pytest.raises(ClientError) as caught:
            await client.groups()
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("fault", ["lost", 503])
async def test_reviews_are_not_sent_again_when_they_may_be_stored(fault: Any) -> None:
    first = failure(fault) if isinstance(fault, int) else fault
    async with peer(first, {"items": []}) as service, AsyncClient(service.url, "t") as client:
        with pytest.raises(ClientError):
            await client.add_reviews("group", [make_review()])
    assert len(service.requests) == 1


@pytest.mark.parametrize("status", [408, 429])
async def test_reviews_are_sent_again_when_they_were_surely_not_stored(status: int) -> None:
    async with (
        peer(failure(status), {"items": [{"review_id": "1"}]}) as service,
        AsyncClient(service.url, "t") as client,
    ):
        (review,) = await client.add_reviews("group", [make_review()])
    assert review["review_id"] == "1"


async def test_large_bodies_are_compressed_and_small_ones_are_not() -> None:
    async with peer(written(1), written(1)) as service, AsyncClient(service.url, "t") as client:
        await client.push("group", [make_output(1)])
        await client.push("group", [make_output(1, data={"text": "x" * 50_000})])
    encodings = [request.headers.get("Content-Encoding") for request in service.requests]
    assert encodings == [None, "gzip"]
    assert int(service.requests[1].headers["Content-Length"]) < 2000


async def test_a_batch_that_is_too_large_for_this_service_is_halved() -> None:
    responses = [failure(413), written(2), failure(413), written(1), written(2)]
    async with peer(*responses) as service, AsyncClient(service.url, "t") as client:
        assert (await client.push("group", make_outputs(5))).created == 5
    sizes = [len(json.loads(body)) for body in service.bodies]
    assert sizes == [5, 2, 3, 1, 2]


async def test_a_batch_that_never_arrives_in_time_is_halved() -> None:
    responses = [failure(408), written(2), written(2)]
    async with peer(*responses) as service, AsyncClient(service.url, "t", patience=0) as client:
        assert (await client.push("group", make_outputs(4))).created == 4
    assert [len(json.loads(body)) for body in service.bodies] == [4, 2, 2]


@pytest.mark.slow
async def test_an_upload_that_stalls_is_sent_again(small: Small) -> None:
    small(connect_seconds=1.0, send_rate=10**9)
    connections: list[asyncio.StreamWriter] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        if len(connections) > 1:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().split(b"content-length:")[1].split()[0]))
            body = json.dumps(written(1)).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        # The first one is not read from: what the system buffers is far less than the body.

    item = make_output(1, data={"text": os.urandom(8_000_000).hex()})
    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server, asyncio.timeout(60):
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with AsyncClient(url, "t", timeout=1) as client:
            assert (await client.push("group", [item])).created == 1
        for writer in connections:
            writer.transport.abort()  # the server waits for them
    assert len(connections) >= 2


async def test_an_item_that_is_too_large_for_any_body_is_named() -> None:
    responses = [failure(413), written(1), failure(413), web.Response(status=413)]
    async with peer(*responses) as service, AsyncClient(service.url, "t") as client:
        with pytest.raises(ClientError, match=r"413: body\.1: The item is too large for a body"):
            await client.push("group", make_outputs(3))
    assert len(service.requests) == 4


async def test_an_item_whose_body_is_rejected_as_a_whole_is_named() -> None:
    problem = {"loc": ["body"], "msg": "Must have at most 10000 files in all records together", "type": "too_many"}
    refusals = [web.json_response({"detail": [problem]}, status=422) for _ in range(3)]
    responses = [refusals[0], written(1), *refusals[1:]]
    async with peer(*responses) as service, AsyncClient(service.url, "t") as client:
        with pytest.raises(ClientError, match=r"422: body\.1: Must have at most 10000 files"):
            await client.push("group", make_outputs(3))


async def test_a_cancelled_push_ends_at_once() -> None:
    async with peer(*["silent"] * 4) as service, AsyncClient(service.url, "t") as client:
        push = asyncio.create_task(client.push("group", make_outputs(40), batch_items=10, concurrency=5))
        while len(service.requests) < 4:
            await asyncio.sleep(0.01)
        push.cancel()
        assert await asyncio.wait([push], timeout=10) == ({push}, set())
        assert push.cancelled()


async def test_the_batches_in_flight_are_stored_when_the_items_end_with_an_error() -> None:
    stored: list[int] = []

    async def slow() -> web.Response:
        count = len(json.loads(service.bodies[-1]))
        await asyncio.sleep(0.2)
        stored.append(count)
        return web.json_response(written(count))

    def items() -> Iterator[dict[str, Any]]:
        yield from make_outputs(21)
        raise LookupError

    async with peer(slow, slow, slow) as service, AsyncClient(service.url, "t") as client:
        with pytest.raises(LookupError):
            await client.push("group", items(), batch_items=10, concurrency=4)
        assert sorted(stored) == [1, 10, 10]


async def test_items_before_an_error_of_their_source_are_stored_and_reported() -> None:
    def items() -> Iterator[dict[str, Any]]:
        yield from make_outputs(499)
        raise LookupError

    sent: list[int] = []
    async with peer(written(499)) as service, AsyncClient(service.url, "t") as client:
        with pytest.raises(LookupError):
            await client.push("group", items(), on_batch=lambda count, _: sent.append(count))
    assert sent == [499]


async def test_an_error_of_the_source_is_not_hidden_by_one_of_the_service() -> None:
    def items() -> Iterator[dict[str, Any]]:
        yield make_output()
        raise LookupError

    async with peer(failure(422)) as service, AsyncClient(service.url, "t") as client:
        with pytest.raises(ClientError) as raised:
            await client.push("group", items())
    assert isinstance(raised.value.__cause__, LookupError)


@pytest.mark.parametrize("value", [float("nan"), b"bytes", "\ud800"], ids=["NaN", "bytes", "lone surrogate"])
async def test_an_item_without_a_json_form_is_named_and_those_before_it_are_stored(value: Any) -> None:
    items = [*make_outputs(12), make_output(12, data={"title": value}), make_output(13)]
    async with peer(written(10), written(2)) as service, AsyncClient(service.url, "t") as client:
        with pytest.raises(ValueError, match="the item at index 12 cannot be sent as JSON"):
            await client.push("group", items, batch_items=10)
    assert [len(json.loads(body)) for body in service.bodies] == [10, 2]


@pytest.mark.parametrize(
    ("body", "lines"),
    [(b"\n", b""), (b'\n{"id": 1}\n\n\n{"id": 2}\n\n', b'{"id": 1}\n{"id": 2}\n')],
    ids=["nothing else", "between lines"],
)
async def test_empty_lines_of_an_export_are_heartbeats(body: bytes, lines: bytes) -> None:
    async with peer(body) as service, AsyncClient(service.url, "t", patience=0) as client:
        assert b"".join([block async for block in client.ndjson("group")]) == lines


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
        for item in make_outputs(1000):
            taken += 1
            yield item

    at_each: list[int] = []
    note: Callable[[int, Any], None] = lambda count, _: at_each.append(taken)
    async with peer(*[written(10)] * 100) as service, AsyncClient(service.url, "t") as client:
        await client.push("group", items(), batch_items=10, concurrency=2, on_batch=note)
    assert len(service.requests) == len(at_each) == 100
    assert all(ahead - 10 * (n + 1) <= 21 for n, ahead in enumerate(at_each))


def streamed(*items: int, cut: bytes = b"") -> Any:
    """Return a response of unknown length, whose end shows nothing."""

    async def body() -> AsyncIterator[bytes]:
        yield b"".join(b'{"id": %d}\n' % id for id in items) + cut

    return lambda: web.Response(body=body(), headers={"X-Cursor": "9"})


@pytest.mark.parametrize("cut", [b"", b'{"id'], ids=["between lines", "in a line"])
async def test_an_export_that_a_proxy_cuts_as_if_it_had_ended_is_continued(cut: bytes) -> None:
    responses = [streamed(1, 2, 3, cut=cut), streamed(4, 5), b'{"id": 6}\n']
    async with peer(*responses) as service, AsyncClient(service.url, "t") as client:
        text = b"".join([block async for block in client.ndjson("group")])
    assert [json.loads(line)["id"] for line in text.splitlines()] == [1, 2, 3, 4, 5, 6]
    assert [request.query.get("cursor") for request in service.requests] == [None, "3", "5"]


@pytest.mark.parametrize("deleted", [False, True])
async def test_an_export_that_a_proxy_cuts_before_its_first_line_is_continued(deleted: bool) -> None:
    end = page([]) if deleted else page([{"id": 6}])
    responses = [streamed(1, 2, 3), streamed(), end, *([] if deleted else [b'{"id": 6}\n'])]
    async with peer(*responses) as service, AsyncClient(service.url, "t") as client:
        text = b"".join([block async for block in client.ndjson("group", deleted=deleted, where="a:b")])
    assert [json.loads(line)["id"] for line in text.splitlines()] == [1, 2, 3, *([] if deleted else [6])]
    asked = service.requests[2].query
    assert (asked["cursor"], asked["where"], asked.get("walk")) == ("3", "a:b", "9" if deleted else None)


async def test_an_export_beside_a_fast_writer_ends() -> None:
    responses = [streamed(1, 2, 3), streamed(4, 10), streamed(11)]
    async with peer(*responses) as service, AsyncClient(service.url, "t") as client:
        text = b"".join([block async for block in client.ndjson("group")])
    assert [json.loads(line)["id"] for line in text.splitlines()] == [1, 2, 3, 4, 10]


async def test_a_page_that_a_proxy_cuts_is_read_again() -> None:
    cut = web.Response(text='{"items": [{"id": 1', content_type="application/json")
    async with peer(lambda: cut, page([])) as service, AsyncClient(service.url, "t") as client:
        assert [i async for i in client.outputs("group")] == []
    assert len(service.requests) == 2


async def test_a_continued_export_with_deletions_tells_where_it_began() -> None:
    async with peer(streamed(1, 2), b"") as service, AsyncClient(service.url, "t") as client:
        assert [block async for block in client.ndjson("group", deleted=True)]
    assert [request.query.get("walk") for request in service.requests] == [None, "9"]


async def test_an_export_from_another_address_says_so() -> None:
    login = web.Response(text="<p>Sign in</p>\n", content_type="text/html")
    async with peer(login) as service, AsyncClient(service.url, "t") as client:
        with pytest.raises(ClientError, match="is this the address of the service"):
            [line async for line in client.ndjson("group")]
    assert len(service.requests) == 1


async def test_a_redirect_is_not_followed_and_its_address_is_named() -> None:
    moved = web.Response(status=301, headers={"Location": "https://data.example/"})
    async with peer(moved) as service, AsyncClient(service.url, "t") as client:
        with pytest.raises(ClientError, match=r"301: Moved Permanently to https://data\.example/"):
            await client.groups()
