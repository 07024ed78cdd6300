"""Send requests, and again when that is safe."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import math
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import aiohttp

from sds_client import environment
from sds_client.errors import ClientError, CursorExpired, VersionConflict

# Seconds for which a service that is away is waited for.
PATIENCE = 120.0
# The statuses of a busy or restarting service and of the proxies before it; 408: the body did not arrive in time.
BUSY = frozenset({408, 429, 502, 503, 504})
# A request rejected with one of these stored nothing; the others may have stored something.
_NOT_STORED = frozenset({408, 429})
_MIN_PAUSE, _MAX_PAUSE = 0.2, 15.0
# From this size on, gzip saves more time than it takes: 1000 items of 2 KB are 2 MB.
_COMPRESS_FROM = 32 * 1024
_CONNECT_SECONDS = 10.0
# Bytes per second: a slower upload counts as a lost connection.
_MIN_SEND_RATE = 20_000
_KINDS = {410: CursorExpired, 412: VersionConflict}
LOST = (
    aiohttp.ClientConnectionError,
    aiohttp.ClientPayloadError,
    aiohttp.ClientResponseError,
    ConnectionError,
    TimeoutError,
)


@dataclass
class Response:
    """A successful response, read to its end. `sent` is when its request was sent, on `time.monotonic()`."""

    status: int
    json: Any
    headers: Mapping[str, str]
    sent: float


@dataclass
class Waiting:
    """Why a request is repeated, for how many more seconds, and whether the service has ever responded."""

    error: ClientError
    seconds: float
    has_responded: bool


class Transport:
    """One session with one service, made when first used."""

    def __init__(
        self,
        url: str | None,
        token: str | None,
        cacert: str | os.PathLike[str] | None,
        timeout: float,
        patience: float,
        on_wait: Callable[[Waiting], None] | None = None,
    ) -> None:
        url = environment.address(url)
        if not url.startswith(("http://", "https://")):
            raise ValueError("the address of the service must start with http:// or https://")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._token, self._timeout, self._patience = environment.access_token(token), timeout, patience
        self._tls = environment.tls_context(cacert)
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # the one of the session
        self._on_wait, self._has_responded = on_wait, False

    @property
    def token_digest(self) -> str:
        """Return a digest of the token: the same for the same token, and no way back to it."""
        return hashlib.sha256(self._token.encode()).hexdigest()

    def retry(self) -> Retry:
        """Return the pauses for one request."""
        return Retry(self._patience, self._report)

    def _report(self, error: ClientError, seconds: float) -> None:
        if self._on_wait is not None:
            self._on_wait(Waiting(error, seconds, self._has_responded))

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        await _close(session, self._loop)

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | list[str]] | None = None,
        value: Any = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        wait: float = 0.0,
        repeatable: bool = True,
    ) -> Response:
        """Return the response to a request; with `repeatable`, send it again while the service is away.

        `wait` is how many seconds the service was asked to hold the request, in addition to the usual time.
        """
        headers = dict(headers or {})
        if value is not None:
            body = dump(value)
        if body is not None:
            headers["Content-Type"] = "application/json"
            if len(body) >= _COMPRESS_FROM:
                body = await _compressed(body)
                headers["Content-Encoding"] = "gzip"
        retry = self.retry()
        while True:
            sent = time.monotonic()
            try:
                async with self.open(method, path, query=query, body=body, headers=headers, wait=wait) as response:
                    return Response(response.status, _parse(response, await response.read()), response.headers, sent)
            except (ClientError, *LOST) as error:
                await retry.pause(error, repeatable)

    @asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | list[str]] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        wait: float = 0.0,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request once and give its response, unread. Raises ClientError for any but a success."""
        session = await self._current_session()
        # For each read, not for the whole: an export may take hours.
        silence = self._timeout + wait
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence)
        # aiohttp has no limit for sending: with the network gone, it waits until the system gives up, 15 minutes.
        limit = None if body is None else _CONNECT_SECONDS + silence + len(body) / _MIN_SEND_RATE
        # As a file, so that aiohttp sends it in pieces: as bytes it would warn of the size.
        data = None if body is None else io.BytesIO(body)
        # No redirects: the token is for this address only.
        async with asyncio.timeout(limit):
            response = await session.request(
                method,
                self.url + path,
                params=query,
                data=data,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            )
        async with response:
            self._has_responded = True
            if response.status != 200:
                raise await _refusal(response)
            yield response

    async def _current_session(self) -> aiohttp.ClientSession:
        """Return the session of the running loop; one of another loop, such as an earlier `asyncio.run`, is closed."""
        loop, session = asyncio.get_running_loop(), self._session
        if session is None or self._loop is not loop:
            old, old_loop = session, self._loop
            session = aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {self._token}"}, connector=aiohttp.TCPConnector(ssl=self._tls)
            )
            self._session, self._loop = session, loop
            await _close(old, old_loop)
        return session


class Retry:
    """The pauses between the attempts of one request: they grow, at random, for `patience` seconds after a failure.

    The time before the first failure does not count: a lost connection may take minutes to notice.
    """

    def __init__(self, patience: float, report: Callable[[ClientError, float], None]) -> None:
        self._patience, self._report = patience, report
        self.progress()

    def progress(self) -> None:
        """Reset the pauses: something was received."""
        self._ceiling, self._since = _MIN_PAUSE, math.inf

    async def pause(self, error: Exception, repeatable: bool = True) -> None:
        """Wait before the next attempt, or raise the error if there must be none."""
        asked = 0.0
        if isinstance(error, ClientError):
            if error.status not in BUSY or not (repeatable or error.status in _NOT_STORED):
                raise error
            asked = error.retry_after
        elif not repeatable and not isinstance(error, aiohttp.ClientConnectorError):
            raise _lost(error) from _shown(error)
        wait = max(asked, random.uniform(self._ceiling / 2, self._ceiling))
        now = time.monotonic()
        self._since = min(self._since, now)
        left = self._patience - (now - self._since)
        reason = error if isinstance(error, ClientError) else _lost(error)
        if wait > left:
            raise reason from _shown(error)
        self._report(reason, left)
        self._ceiling = min(self._ceiling * 2, _MAX_PAUSE)
        await asyncio.sleep(wait)


async def _close(session: aiohttp.ClientSession | None, loop: asyncio.AbstractEventLoop | None) -> None:
    """Close a session from any loop."""
    if session is None or loop is None:
        return
    if loop is asyncio.get_running_loop() or loop.is_closed():
        await session.close()
    else:
        asyncio.run_coroutine_threadsafe(session.close(), loop)


async def _compressed(body: bytes) -> bytes:
    try:
        return await asyncio.to_thread(gzip.compress, body, 1)
    except RuntimeError:  # after the main thread has ended, an executor takes no more work
        return gzip.compress(body, 1)


def _shown(error: Exception) -> Exception | None:
    """Return the cause to show for a failed request: none that holds the request, which would show the token."""
    return None if isinstance(error, (ClientError, aiohttp.ClientResponseError)) else error


def _lost(error: Exception) -> ClientError:
    if isinstance(error, aiohttp.ClientConnectorError):
        place = f"{error.host}:{error.port}"
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            trust = "SDS_CACERT names a file with the certificates to trust"
            return ClientError(0, message=f"cannot connect to {place}: {error.certificate_error}; {trust}")
        reason = f": {error.__cause__}" if isinstance(error, aiohttp.ClientSSLError) else ""
        default = ", the default: SDS_URL names another address" if environment.DEFAULT_URL.endswith(place) else ""
        return ClientError(0, message=f"cannot connect to {place}{reason}{default}")
    if isinstance(error, aiohttp.ClientResponseError):
        return ClientError(0, message="the response is not HTTP: is this the address of the service?")
    kind = "the service did not respond in time" if isinstance(error, TimeoutError) else "the connection was lost"
    return ClientError(0, message=kind)


def _parse(response: aiohttp.ClientResponse, text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        if response.content_type == "application/json" and text:
            raise ConnectionError("the response is cut off") from None  # behind some proxies this looks like its end
        raise not_json() from None


def not_json() -> ClientError:
    """Return the error of a success that is not the service's, such as the login page of a proxy."""
    return ClientError(200, message="the response is not JSON: is this the address of the service?")


async def _refusal(response: aiohttp.ClientResponse) -> ClientError:
    """Return the error of a response; a body that is not in the service's error shape is left out."""
    try:
        problems = json.loads(await response.read())["detail"]
        kind = _KINDS.get(response.status, ClientError)
        error = kind(response.status, [problem for problem in problems if isinstance(problem, dict)])
    except (ValueError, KeyError, TypeError, aiohttp.ClientError):
        moved = f" to {response.headers['Location']}" if "Location" in response.headers else ""
        error = ClientError(response.status, message=f"{response.reason or ''}{moved}")
    with suppress(ValueError):  # it may also be a date: then the usual pauses apply
        error.retry_after = float(response.headers.get("Retry-After", 0))
    return error


def dump(value: Any) -> bytes:
    """Return the JSON of a value; dates, decimals, UUIDs and sets are converted."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode()


def _plain(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if type(value).__name__ in ("Decimal", "UUID"):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
