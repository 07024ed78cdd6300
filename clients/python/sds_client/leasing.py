"""Leases on sessions: taken, renewed in the background, and released with their outcome."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from sds_client.errors import ClientError, NoSession, SessionLost
from sds_client.paths import lease_path, session_path
from sds_client.transport import Response, Transport
from sds_client.types import Item, LeaseOptions, SessionWithSecrets

log = logging.getLogger(__name__)

Outcome = Literal["good", "bad", "blocked", "logged_out", "interrupted", "unused"]

# The longest that the service holds one request.
_MAX_WAIT = 60
# The clocks of the database's members may differ by this much.
_CLOCKS = 1.0
_MIN_PAUSE = 1.0
_MAX_OWNER = 128
_RELEASE_SECONDS = 30.0


class Lease:
    """The lease on one session. `ends` is on `time.monotonic()`; `on_change` is called when it has changed."""

    def __init__(self, transport: Transport, pool: str, wait: float, options: LeaseOptions) -> None:
        self._transport, self._pool, self._wait = transport, pool, wait
        self._options = options
        self._keeper: asyncio.Task[None] | None = None
        self.lease_id = _new_id()
        self.session: SessionWithSecrets | Item = {}
        self.seconds, self.ends = 0.0, 0.0
        self.is_lost = False
        self.on_change: Callable[[], None] = lambda: None

    async def take(self) -> None:
        """Take a lease. Raises NoSession when none was ready in time."""
        response = await _take(self._transport, self._pool, self._wait, {**self._options, "lease_id": self.lease_id})
        self.session = response.json["session"]
        self._last_until(response)
        if self.ends - time.monotonic() < self.seconds / 2:  # it waited long: the lease is younger than the request
            await self.save({})
        self._keeper = asyncio.create_task(self._keep())

    async def save(self, secrets: Mapping[str, Any]) -> bool:
        """Renew, and save the given secrets; return whether they were saved. Raises SessionLost."""
        body = dict(secrets)
        if (seconds := self._options.get("seconds")) is not None:
            body["seconds"] = seconds
        try:
            response = await self._transport.call("PUT", lease_path(self.lease_id), value=body)
        except ClientError as error:
            raise self._lost(error) from None
        self._last_until(response)
        return bool(response.json["saved"])

    async def release(self, outcome: Outcome, options: Mapping[str, Any]) -> Item:
        """End the lease; return the session and whether its state was saved. Raises SessionLost."""
        await self.stop()
        path = f"{lease_path(self.lease_id)}/release"
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                response = await self._transport.call("POST", path, value={"outcome": outcome, **options})
        except TimeoutError:
            raise ClientError(0, message="the session could not be released in time; its lease will end") from None
        except ClientError as error:
            raise self._lost(error) from None
        return dict(response.json)

    async def stop(self) -> None:
        """Renew no more."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None and keeper is not asyncio.current_task():
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper

    def check(self) -> None:
        """Raise SessionLost when the time of the lease is over."""
        if self.is_lost or (self.ends and time.monotonic() >= self.ends):
            raise SessionLost(self.name)

    @property
    def name(self) -> str:
        return str(self.session.get("name", ""))

    def _last_until(self, response: Response) -> None:
        self.seconds = response.json["seconds"]
        self.ends = max(self.ends, response.sent + self.seconds - _CLOCKS)
        self.on_change()

    def _lost(self, error: ClientError) -> Exception:
        if not error.has_type("lease_lost"):
            return error
        self.is_lost = True
        self.on_change()
        return SessionLost(self.name)

    async def _keep(self) -> None:
        """Renew the lease each time that a third of it is over, until it cannot be renewed."""
        while (left := self.ends - time.monotonic()) > 0:
            await asyncio.sleep(max(_MIN_PAUSE, left - self.seconds * 2 / 3))
            try:
                async with asyncio.timeout(max(0.0, self.ends - time.monotonic())):
                    await self.save({})
            except (SessionLost, TimeoutError):
                break
            except ClientError as error:
                log.warning("the lease of %s could not be renewed: %s", self.name, error)
        self.is_lost = True
        self.on_change()


class Leased:
    """A leased session, as the block that uses it sees it.

    `storage_state` is Playwright's, and None where nobody has put one; `user_data` is what was stored with it.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._outcome: Outcome | None = None
        self._ending: dict[str, Any] = {}

    @property
    def pool(self) -> str:
        return str(self._lease.session["pool"])

    @property
    def name(self) -> str:
        return self._lease.name

    @property
    def storage_state(self) -> dict[str, Any] | None:
        return self._lease.session["storage_state"]

    @property
    def user_data(self) -> dict[str, Any]:
        return self._lease.session["user_data"] or {}

    @property
    def seconds_left(self) -> float:
        """How long the lease lasts if it is not renewed."""
        return max(0.0, self._lease.ends - time.monotonic())

    def good(self) -> None:
        """End the lease as `good`, whatever the block raises."""
        self._outcome = "good"

    def bad(self) -> None:
        """End the lease with an error of this session."""
        self._outcome = "bad"

    def blocked(self, rest_seconds: int | None = None) -> None:
        """End the lease with the session blocked by the site (403, 429, a captcha), for as long as the pool says."""
        self._outcome = "blocked"
        if rest_seconds is not None:
            self.rest(rest_seconds)

    def logged_out(self) -> None:
        """End the lease with the session waiting for a new state: the site has logged it out."""
        self._outcome = "logged_out"

    def unused(self) -> None:
        """End the lease as if it had not been taken."""
        self._outcome = "unused"

    def rest(self, seconds: int) -> None:
        """Let the session rest for so long when the lease ends, and not for as long as the pool says."""
        self._ending["rest_seconds"] = seconds

    def note(self, text: str) -> None:
        """Leave a note at the session when the lease ends."""
        self._ending["note"] = text

    def check(self) -> None:
        """Raise SessionLost when the time of the lease is over."""
        self._lease.check()

    async def _end(self, kind: type[BaseException] | None) -> None:
        """Release with the outcome that was said, else with the one that an exception, or none, stands for."""
        if self._lease.is_lost or (kind is not None and issubclass(kind, SessionLost)):
            await self._lease.stop()
            if kind is None:
                raise SessionLost(self.name)
            return
        try:
            await self._lease.release(self._outcome or outcome_of(kind), self._ending)
        except (SessionLost, ClientError) as error:
            if kind is None:
                raise
            log.warning("the session %s was not released: %s", self.name, error)


async def take_lease(transport: Transport, pool: str, wait: float, options: LeaseOptions) -> Item:
    """Return a lease as the service gives it. Raises NoSession when no session was ready in time."""
    lease: Item = (await _take(transport, pool, wait, {**options, "lease_id": _new_id()})).json
    return lease


async def _take(transport: Transport, pool: str, wait: float, body: Mapping[str, Any]) -> Response:
    owner = f"{socket.gethostname()}:{os.getpid()}"[:_MAX_OWNER]
    deadline = time.monotonic() + wait
    while True:
        seconds = max(0, min(_MAX_WAIT, round(deadline - time.monotonic())))
        request = {"owner": owner, **body, "wait": seconds}
        try:
            return await transport.call("POST", f"{session_path(pool)}/lease", value=request, wait=seconds)
        except ClientError as error:
            if not error.has_type("no_session"):
                raise
            if time.monotonic() > deadline - _MIN_PAUSE:
                raise NoSession(error) from None


def _new_id() -> str:
    return secrets.token_urlsafe(24)


def outcome_of(kind: type[BaseException] | None) -> Outcome:
    """Return the outcome of a block that raised an exception of this kind, or none."""
    if kind is None:
        return "good"
    return "bad" if issubclass(kind, Exception) else "interrupted"  # CancelledError, KeyboardInterrupt, SystemExit


def save_body(state: Mapping[str, Any] | None, user_data: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the secrets to save; what is None stays."""
    given = {"storage_state": state, "user_data": user_data}
    return {name: value for name, value in given.items() if value is not None}
