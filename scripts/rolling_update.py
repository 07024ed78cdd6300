"""Write and read through an update, and count: `python -m scripts.rolling_update --url … --seconds 120`.

Replace the replicas, kill a primary, do what an operator does while this runs. Each writer sends batches of its own
keys and sends a batch again after a 503 or a lost connection. A consumer follows the group by its cursor, and readers
fetch large pages. At the end: was every acknowledged item read, exactly once, and was a response cut?
"""

from __future__ import annotations

import argparse
import http.client
import json
import ssl
import sys
import threading
import time
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

from sds_client.environment import access_token, address

_BATCH = 20
_WRITERS, _READERS = 4, 2
_GIVE_UP_SECONDS = 60.0
_PAUSE_SECONDS = 0.2
_CATCH_UP_SECONDS = 30.0


class Traffic:
    """The counts of all threads."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.acknowledged: set[str] = set()
        self.seen: Counter[str] = Counter()
        self.slowest = 0.0
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.written = threading.Event()  # all of it: the consumer may end

    def count(self, *names: str) -> None:
        with self.lock:
            self.counts.update(names)


class Caller:
    """One connection that sends a request again until it succeeds."""

    def __init__(self, traffic: Traffic, url: str, token: str, cafile: str | None) -> None:
        self._traffic, self._address = traffic, urlsplit(url)
        self._tls = ssl.create_default_context(cafile=cafile) if self._address.scheme == "https" else None
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._connection: http.client.HTTPConnection | None = None

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return the JSON of a response. Raises TimeoutError when there is none for a minute."""
        started = time.monotonic()
        text = None if body is None else json.dumps(body)
        while time.monotonic() - started < _GIVE_UP_SECONDS:
            outcome = self._once(method, path, text)
            if outcome is not None:
                with self._traffic.lock:
                    self._traffic.slowest = max(self._traffic.slowest, time.monotonic() - started)
                return outcome
            time.sleep(_PAUSE_SECONDS)
        raise TimeoutError(f"{method} {path} did not succeed within {_GIVE_UP_SECONDS:g} s")

    def _once(self, method: str, path: str, text: str | None) -> Any:
        """Return the response's JSON, or None when the request is to be sent again."""
        begun = False
        try:
            if self._connection is None:
                self._connection = self._connect()
            self._connection.request(method, self._address.path.rstrip("/") + path, text, self._headers)
            response = self._connection.getresponse()
            begun = True
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection = None
            self._traffic.count("cut" if begun else f"lost: {type(error).__name__}")
            return None
        if response.status == 503:
            self._traffic.count("503")
            return None
        if response.status != 200:
            raise ValueError(f"{method} {path}: {response.status} {content[:300]!r}")
        return json.loads(content)

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._address.hostname or "", self._address.port
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=30, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=30)


def write(traffic: Traffic, caller: Caller, group: str, number: int) -> None:
    for batch in range(sys.maxsize):
        if traffic.stop.is_set():
            return
        keys = [f"{number}-{batch}-{item}" for item in range(_BATCH)]
        items = [
            {
                "source_url": f"https://shop.example/{key}",
                "root_job_id": "update",
                "key_hash": key,
                "data": {"text": "x" * 2000},
            }
            for key in keys
        ]
        written = caller.call("POST", f"/v1/outputs/{group}", items)
        traffic.count("batches written")
        if written["created"] < len(keys):  # a lost response to a write that was done
            traffic.count("batches written twice")
        with traffic.lock:
            traffic.acknowledged.update(keys)


def follow(traffic: Traffic, caller: Caller, group: str) -> None:
    cursor, deadline = 0, float("inf")
    while time.monotonic() < deadline:
        page = caller.call("GET", f"/v1/outputs/{group}?limit=500&cursor={cursor}")
        for item in page["items"]:
            traffic.seen[item["key_hash"]] += 1
            cursor = item["id"]
        if traffic.written.is_set():
            if deadline == float("inf"):
                deadline = time.monotonic() + _CATCH_UP_SECONDS
            if not page["items"] and traffic.acknowledged <= traffic.seen.keys():
                return
        if not page["items"]:
            time.sleep(_PAUSE_SECONDS)


def read(traffic: Traffic, caller: Caller, group: str) -> None:
    while not traffic.stop.is_set():
        caller.call("GET", f"/v1/outputs/{group}?limit=1000")
        traffic.count("pages of 1000 read")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="address of the service; else SDS_URL")
    parser.add_argument("--cafile", help="certificate to trust")
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args()
    url, token = address(options.url), access_token(None)
    traffic, group, failures = Traffic(), f"update-{int(time.time())}", []

    def run(work: Any, *rest: Any) -> None:
        try:
            work(traffic, Caller(traffic, url, token, options.cafile), group, *rest)
        except Exception as error:
            failures.append(f"{work.__name__}: {error}")
            traffic.stop.set()

    writers = [threading.Thread(target=run, args=(write, number)) for number in range(_WRITERS)]
    readers = [threading.Thread(target=run, args=(read,)) for _ in range(_READERS)]
    consumer = threading.Thread(target=run, args=(follow,))
    for thread in [*writers, *readers, consumer]:
        thread.start()
    traffic.stop.wait(options.seconds)
    traffic.stop.set()
    for thread in [*writers, *readers]:
        thread.join()
    traffic.written.set()
    consumer.join()
    missed = traffic.acknowledged - traffic.seen.keys()
    twice = sum(1 for count in traffic.seen.values() if count > 1)
    result = {
        "acknowledged items": len(traffic.acknowledged),
        "missed by the consumer": len(missed),
        "read twice": twice,
        "responses cut": traffic.counts.pop("cut", 0),
        **dict(sorted(traffic.counts.items())),
        "slowest request, seconds": round(traffic.slowest, 1),
        "failures": failures,
    }
    print(json.dumps(result, indent=2))
    return int(bool(missed or twice or result["responses cut"] or failures))


if __name__ == "__main__":
    sys.exit(main())
