"""HTTP calls to any of the services."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections import Counter
from typing import Any, NamedTuple

TIMEOUT = 60.0
# Much longer than any failover.
GIVE_UP_SECONDS = 90.0
# The statuses that are allowed while processes and the database fail; any other ends the run.
PASSING = (429, 503)


class Response(NamedTuple):
    """What came back, how many calls it took, and how many of them timed out."""

    status: int
    etag: str
    json: Any
    tries: int = 1
    timeouts: int = 0


class Client:
    """Calls any of the services, another one after each failure."""

    def __init__(self, ports: list[int], token: str) -> None:
        self._ports = ports
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._connection: http.client.HTTPConnection | None = None
        self.counts = Counter[str]()

    def done(
        self, method: str, path: str, value: Any = None, *, also: tuple[int, ...] = (), etag: str = ""
    ) -> Response:
        """Call until the response is 200, or one of `also`; end the process at any other that is not passing."""
        body = None if value is None else json.dumps(value).encode()
        began, failures = time.monotonic(), list[str]()
        while True:
            self.give_up_after(began, f"{method} {path}", failures)
            asked = time.monotonic()
            try:
                response = self.call(method, path, body, etag)
            except TimeoutError:
                self.counts["timeout"] += 1
                failures.append("timeout")
                continue
            outcome = "connection lost" if response is None else str(response.status)
            failures.append(f"{outcome} after {time.monotonic() - asked:.1f} s")
            if response is not None and response.status in (200, *also):
                return response._replace(tries=len(failures), timeouts=failures.count("timeout"))
            if response is not None and response.status not in PASSING:
                raise SystemExit(f"{method} {path}: {response.status} {response.json}")
            self.counts[outcome] += 1
            time.sleep(random.uniform(0.05, 0.5))

    def give_up_after(self, began: float, what: str, failures: list[str]) -> None:
        """End the process when a request has failed for too long: a service that never recovers is a finding."""
        if time.monotonic() > began + GIVE_UP_SECONDS:
            raise SystemExit(f"{what}: nothing but failures for {GIVE_UP_SECONDS:.0f} s: {', '.join(failures)}")

    def call(self, method: str, path: str, body: bytes | None = None, etag: str = "") -> Response | None:
        """Call once; return None when the connection was lost. Raises TimeoutError."""
        headers = {**self._headers, "If-None-Match": etag} if etag else self._headers
        try:
            self._connect().request(method, path, body, headers)
            response = self._connect().getresponse()
            raw = response.read()
            if random.random() < 0.1:
                self.close()
            return Response(response.status, response.headers.get("ETag", ""), json.loads(raw) if raw else None)
        except TimeoutError:
            self.close()
            raise
        except (OSError, http.client.HTTPException):
            self.close()
            return None

    def cut(self, method: str, path: str, body: bytes) -> None:
        """Send a request, or a part of it, and disconnect before the response."""
        part = len(body) if random.random() < 0.7 else random.randrange(len(body))
        try:
            connection = self._connect()
            connection.putrequest(method, path)
            for name, value in {**self._headers, "Content-Length": str(len(body))}.items():
                connection.putheader(name, value)
            connection.endheaders(body[:part])
            time.sleep(random.uniform(0, 0.3))
        except (OSError, http.client.HTTPException):
            pass
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", random.choice(self._ports), timeout=TIMEOUT)
        return self._connection
