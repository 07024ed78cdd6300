"""Requests to URLs that users choose: bounded in time and size, and never into the service's own network."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from yarl import URL

import service
from service.http.input.body import JSON
from service.store import Outcome

SECONDS = 10.0
_MAX_URL = 2048
# Looking up a name blocks a thread as long as the name server takes: not one that the service needs itself.
_LOOKUPS = 64
# Bytes of the response that are read: enough for 200 characters.
_READ = 1024
# Bytes that are parsed: a head with long headers, and the beginning of a body. aiohttp parses all that comes, and a
# receiver may send interim responses (100) without end: the event loop did nothing else for 10 seconds.
_PARSED = 32 * 1024
# IPv6 addresses that contain an IPv4 address: mapped, NAT64, 6to4.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_PRIVATE = "the service's setting WEBHOOK_PRIVATE=true allows http and addresses inside its network"

Lookup = Callable[..., list[Any]]


class UnsafeAddress(OSError):
    """The host is, or has, an address that is not public."""


def is_public(address: str) -> bool:
    """Return whether an address is one that everybody can reach."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:  # with a zone, or not an address
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if ip.is_site_local or ip.teredo:
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


def url_problem(text: str, private: bool) -> str | None:
    """Return what is wrong with a URL to send requests to; None if it can be used."""
    schemes = ("https", "http") if private else ("https",)
    try:
        url = URL(text)
        host, port = url.host, url.port  # each may raise for a URL that cannot be read
    except ValueError:
        return "Must be a URL such as https://hooks.example/scraping"
    if len(text) > _MAX_URL or url.scheme not in schemes or not host or not port:
        hint = f"; {_PRIVATE}" if url.scheme == "http" and not private else ""
        return f"Must be a URL of at most {_MAX_URL} characters that begins with {' or '.join(schemes)}://{hint}"
    if url.user or url.password or url.fragment:
        return "Must not have a user name, a password or a fragment"
    address = _address(host)
    is_local = host.lower().rstrip(".").rpartition(".")[2] == "localhost"  # it always is this machine (RFC 6761)
    if not private and (is_local or (address is not None and not is_public(address))):
        return f"Must be a public address; {_PRIVATE}"
    return None


def _address(host: str) -> str | None:
    """Return the address that a host is, in whatever notation, such as `127.1`, `0x7f.1` or `2130706433`; else None."""
    for read in (ipaddress.ip_address, lambda text: ipaddress.ip_address(socket.inet_aton(text))):
        try:
            return str(read(host.partition("%")[0].rstrip(".")))
        except (ValueError, OSError):
            pass
    return None


class _PublicResolver(AbstractResolver):
    """Looks names up, and refuses those that lead to an address that is not public.

    The connection goes to the address that was checked: the name is not looked up a second time.
    """

    def __init__(self, private: bool, lookup: Lookup) -> None:
        self._private, self._lookup = private, lookup
        self._threads = ThreadPoolExecutor(_LOOKUPS, "webhook-lookup")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        def look_up() -> list[Any]:
            return self._lookup(host, port, family, socket.SOCK_STREAM)

        found = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        addresses = [(family, proto, sockaddr[0]) for family, _, proto, _, sockaddr in found]
        if not self._private and not all(is_public(address) for _, _, address in addresses):
            raise UnsafeAddress(host)
        flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=proto, flags=flags)
            for family, proto, address in addresses
        ]

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Beginning(ResponseHandler):
    """A connection of which only the beginning is parsed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._left = _PARSED

    def data_received(self, data: bytes) -> None:
        beginning, self._left = data[: self._left], max(0, self._left - len(data))
        if beginning or not data:  # without data aiohttp continues with bytes that it held back
            super().data_received(beginning)
        if not self._left and self.transport is not None:
            self.transport.pause_reading()


class Sender:
    """Posts bodies to URLs of users. Follows no redirect, keeps no cookie and no connection, uses no proxy."""

    def __init__(
        self,
        private: bool,
        *,
        seconds: float = SECONDS,
        tls: ssl.SSLContext | None = None,
        lookup: Lookup = socket.getaddrinfo,
    ) -> None:
        self._private, self._seconds, self._tls, self._lookup = private, seconds, tls, lookup
        self._opened: aiohttp.ClientSession | None = None

    @property
    def _session(self) -> aiohttp.ClientSession:
        """The session, opened by the first request: it belongs to the loop that is running then."""
        if self._opened is None:
            resolver = _PublicResolver(self._private, self._lookup)
            connector = aiohttp.TCPConnector(
                resolver=resolver, use_dns_cache=False, force_close=True, limit=0, ssl=self._tls or True
            )
            # A private part of aiohttp, which has no option for the kind of connections.
            connector._factory = functools.partial(_Beginning, asyncio.get_running_loop())  # type: ignore[assignment]
            self._opened = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                headers={"User-Agent": f"scraping-data-service/{service.__version__}", "Content-Type": JSON},
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._opened

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Outcome:
        """Send a body and return the outcome; a status other than 2xx is a failure."""
        try:
            # Checked again: the webhook may have been stored under another setting.
            if problem := url_problem(url, self._private):
                return Outcome(None, error=problem)
            async with asyncio.timeout(self._seconds):
                async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                    text = (await response.content.read(_READ)).decode("utf-8", "replace")
                    status = response.status
        except TimeoutError:
            return Outcome(None, error=f"No response within {self._seconds:g} seconds")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Outcome(None, error=_reason(error))
        if 200 <= status < 300:
            return Outcome(status, text)
        word = "Redirects are not followed" if 300 <= status < 400 else "The status is not 2xx"
        return Outcome(status, text, word)

    async def close(self) -> None:
        """Drop the connections."""
        if self._opened is not None:
            await self._opened.close()


def _reason(error: BaseException) -> str:
    """Return why a request failed, without internal details."""
    # Also for an UnsafeAddress: another text would tell which internal names exist.
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"The host was not found at a public address; {_PRIVATE}"
    if isinstance(error, aiohttp.ClientSSLError):
        return "The certificate or the TLS handshake is not valid"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "The connection was refused or could not be made"
    return "The connection broke, or the response is not valid HTTP"
