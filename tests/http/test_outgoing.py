"""Requests to URLs of users reach public addresses only, and take a bounded time and space."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from service.http import outgoing
from service.http.outgoing import Sender, is_public, url_problem
from tests.support.receiver import Receiver, receiving
from tests.support.tls import make_certificate

PRIVATE = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",  # noqa: S104
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "192.0.2.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fe80::1%eth0",
    "fc00::1",
    "fec0::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "2001:0:7f00:1::",
    "2001:db8::1",
    "not an address",
]
PUBLIC = ["93.184.216.34", "8.8.8.8", "2606:2800:220:1:248:1893:25c8:1946", "::ffff:8.8.8.8", "64:ff9b::808:808"]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
async def make_sender() -> AsyncIterator[Callable[..., Sender]]:
    made: list[Sender] = []

    def make(private: bool = True, **options: Any) -> Sender:
        made.append(Sender(private, **options))
        return made[-1]

    yield make
    for sender in made:
        await sender.close()


def leads_to(*addresses: str) -> Any:
    """Return a look-up that finds these addresses for every name, and counts how often it was asked."""

    def lookup(host: str, port: int, *_: Any) -> list[Any]:
        lookup.names.append(host)  # type: ignore[attr-defined]
        return [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in addresses
        ]

    lookup.names = []  # type: ignore[attr-defined]
    return lookup


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_inside_a_network_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_that_everybody_can_reach_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example/",
        "ftp://hooks.example/",
        "//hooks.example/",
        "hooks.example",
        "https://",
        "https:///hook",
        "https://hooks.example:99999/",
        "https://[::1",
        "https://user:password@hooks.example/",
        "https://hooks.example/#part",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://[fe80::1%25eth0]/",
        "https://169.254.169.254/latest/meta-data",
        "https://hooks.example/" + "a" * 2048,
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    assert url_problem(url, private=False)


@pytest.mark.parametrize(
    "url", ["https://hooks.example/a?b=c", "https://hooks.example:8443/", "https://8.8.8.8/", "https://134744072/"]
)
def test_a_public_https_url_can_be_used(url: str) -> None:
    assert url_problem(url, private=False) is None


def test_inside_a_network_http_and_every_address_can_be_used() -> None:
    assert url_problem("http://127.0.0.1:8080/hook", private=True) is None
    assert url_problem("gopher://127.0.0.1/", private=True)


async def test_the_body_and_the_headers_arrive_as_they_were_given(
    receiver: Receiver, make_sender: Callable[..., Sender]
) -> None:
    receiver.text, receiver.status = "thanks", 202
    outcome = await make_sender().post(receiver.url, b'{"a":1}', {"webhook-id": "msg_1"})
    assert outcome.is_success
    assert outcome == (202, "thanks", None)
    (received,) = receiver.received
    assert received.body == b'{"a":1}' and received.id == "msg_1"
    assert received.headers["content-type"] == "application/json"
    assert received.headers["user-agent"].startswith("scraping-data-service/")


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["::1"], ["10.0.0.1"]])
async def test_a_name_that_leads_inside_the_network_is_not_connected_to(
    receiver: Receiver, make_sender: Callable[..., Sender], addresses: list[str]
) -> None:
    sender = make_sender(private=False, lookup=leads_to(*addresses))
    outcome = await sender.post(f"https://hooks.example:{receiver.url.split(':')[2]}", b"", {})
    assert "WEBHOOK_PRIVATE" in (outcome.error or "")
    assert receiver.received == []


@pytest.mark.parametrize("host", ["2130706433", "127.1", "0x7f000001", "localhost"])
async def test_another_way_to_write_an_address_is_looked_up_and_refused(
    receiver: Receiver, make_sender: Callable[..., Sender], host: str
) -> None:
    port = receiver.url.split(":")[2].partition("/")[0]
    outcome = await make_sender(private=False).post(f"https://{host}:{port}/", b"", {})
    assert outcome.status is None and outcome.error
    assert receiver.received == []


async def test_a_stored_address_inside_the_network_is_not_connected_to(
    receiver: Receiver, make_sender: Callable[..., Sender]
) -> None:
    outcome = await make_sender(private=False).post(receiver.url, b"", {})
    assert outcome.error and receiver.received == []


async def test_the_connection_goes_to_the_checked_address_with_the_name_of_the_host(
    make_sender: Callable[..., Sender], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = make_certificate(tmp_path, "hooks.example")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(cert, key)
    names: list[str] = []
    server.sni_callback = lambda sock, name, context: names.append(name)
    checked: list[str] = []

    def is_public(address: str) -> bool:
        checked.append(address)
        return True

    monkeypatch.setattr(outgoing, "is_public", is_public)  # a test has no public address to connect to
    lookup = leads_to("127.0.0.1")
    async with receiving(ssl_context=server) as receiver:
        sender = make_sender(private=False, tls=ssl.create_default_context(cafile=str(cert)), lookup=lookup)
        port = receiver.url.split(":")[2].partition("/")[0]
        outcome = await sender.post(f"https://hooks.example:{port}/hook", b"", {})
        assert outcome.is_success, outcome
        assert receiver.received[0].headers["host"] == f"hooks.example:{port}"
    assert names == ["hooks.example"]
    assert checked == ["127.0.0.1"] and lookup.names == ["hooks.example"]


async def test_a_certificate_of_another_name_is_refused(make_sender: Callable[..., Sender], tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "other.example")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(cert, key)
    async with receiving(ssl_context=server) as receiver:
        trusting = ssl.create_default_context(cafile=str(cert))
        sender = make_sender(tls=trusting, lookup=leads_to("127.0.0.1"))
        outcome = await sender.post(receiver.url.replace("127.0.0.1", "hooks.example"), b"", {})
        assert outcome.error == "The certificate or the TLS handshake is not valid"
        assert receiver.received == []


async def test_a_redirect_is_a_failure_and_is_not_followed(
    receiver: Receiver, make_sender: Callable[..., Sender]
) -> None:
    async with receiving() as inside:
        receiver.status, receiver.headers = 307, {"Location": inside.url}
        outcome = await make_sender().post(receiver.url, b"", {})
        assert (outcome.status, outcome.error) == (307, "Redirects are not followed")
        assert inside.received == []


@pytest.mark.parametrize("status", [400, 404, 500, 503])
async def test_a_status_other_than_2xx_is_a_failure(
    receiver: Receiver, make_sender: Callable[..., Sender], status: int
) -> None:
    receiver.status = status
    outcome = await make_sender().post(receiver.url, b"", {})
    assert (outcome.status, outcome.is_success) == (status, False)


async def test_a_receiver_that_does_not_respond_is_given_up(
    receiver: Receiver, make_sender: Callable[..., Sender]
) -> None:
    receiver.hangs = True
    outcome = await make_sender(seconds=0.2).post(receiver.url, b"", {})
    assert outcome == (None, "", "No response within 0.2 seconds")


async def test_a_port_that_nobody_listens_on_is_a_failure(make_sender: Callable[..., Sender]) -> None:
    outcome = await make_sender().post("http://127.0.0.1:1/", b"", {})
    assert outcome.error == "The connection was refused or could not be made"


async def test_a_name_that_does_not_exist_has_the_same_error_as_an_internal_one(
    make_sender: Callable[..., Sender],
) -> None:
    def lookup(*_: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    outcome = await make_sender(lookup=lookup).post("http://nobody.invalid/", b"", {})
    assert "WEBHOOK_PRIVATE" in (outcome.error or "")


async def test_only_the_beginning_of_a_response_is_read_and_nothing_is_inflated(
    receiver: Receiver, make_sender: Callable[..., Sender]
) -> None:
    receiver.status, receiver.text = 200, "x" * 1_000_000
    outcome = await make_sender().post(receiver.url, b"", {})
    assert outcome.is_success and len(outcome.response) <= 1024
    packed = gzip.compress(b"y" * 100_000)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    async with responding(head + packed) as url:
        assert await make_sender().post(url, b"", {}) == (200, packed.decode("utf-8", "replace"), None)


@asynccontextmanager
async def responding(text: bytes) -> AsyncIterator[str]:
    """Run a server that sends these bytes to every client; yield its URL."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(text)
        await reader.read()
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def test_only_the_beginning_of_many_interim_responses_is_parsed(make_sender: Callable[..., Sender]) -> None:
    text = b"HTTP/1.1 100 Continue\r\n\r\n" * 4000 + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    async with responding(text) as url:
        outcome = await make_sender(seconds=0.5).post(url, b"", {})
    assert outcome == (None, "", "No response within 0.5 seconds")


async def test_a_long_response_after_an_interim_one_is_understood(make_sender: Callable[..., Sender]) -> None:
    head = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n"
    async with responding(head + b"x" * 300_000) as url:
        assert await make_sender().post(url, b"", {}) == (200, "x" * 1024, None)
