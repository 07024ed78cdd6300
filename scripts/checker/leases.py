"""Check that a session never has two holders: `python -m scripts.checker.leases --nodes 3 --failovers`.

Workers lease sessions, save and release, while services are killed and paused and primaries of the database are killed,
frozen, stepped down and cut off. Replies are lost, requests repeated, workers pause past the end of their lease or
vanish. All workers live in this process, so that one clock and one record say who holds what. Exits with 1 when a
session had two holders, a save was lost, or a lease that had ended has saved something.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

from scripts.checker.failovers import Failovers
from scripts.checker.services import ORGANIZATION, Services, mongo
from tests.support.processes import make_token

POOLS, SESSIONS = ("shop-de", "shop-fr", "forum"), 12
SECONDS = 10  # of a lease: the shortest there is
# Clocks of members may differ by a second; on one machine they do not, but a pause is measured in whole ones.
MARGIN = 2.0
PAUSE, VANISH, CUT, SAVE, WAIT = 0.002, 0.002, 0.02, 0.3, 0.5  # chances of each, per lease or request
_TIMEOUT = 8.0
_PROGRESS_SECONDS = 20.0
_PASSING = (429, 503)


class Session:
    """What is known of one session: its holder, and which states it may have."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.holder: str | None = None
        self.until = 0.0
        self.saved = ""  # the last state whose save was acknowledged
        self.maybe: set[str] = set()  # states whose save nobody has answered
        self.earlier: set[str] = set()


class Record:
    """The sessions, and what was found wrong with them."""

    def __init__(self) -> None:
        self.sessions = {f"{pool}/{n}": Session(f"{pool}/{n}") for pool in POOLS for n in range(SESSIONS)}
        self.leases = 0
        self.wrong = Counter[str]()
        self.counts = Counter[str]()

    def report(self, kind: str, session: Session, text: str) -> None:
        self.wrong[kind] += 1
        print(f"{kind}: {session.name}: {text}", flush=True)

    def taken(self, session: Session, lease_id: str, until: float, state: str) -> None:
        """Note a lease, and check that nobody else holds the session and that its state is the last one saved."""
        now = time.monotonic()
        if session.holder not in (None, lease_id) and now < session.until:
            left = session.until - now
            self.report("double holders", session, f"{lease_id} beside {session.holder}, which has {left:.1f} s left")
        session.holder, session.until = lease_id, until
        self.leases += 1
        self.seen(session, state)
        session.maybe.clear()  # no earlier lease can save any more

    def seen(self, session: Session, state: str) -> None:
        if state in session.maybe:
            session.earlier.add(session.saved)
            session.saved = state
        elif state != session.saved:
            kind = "lost saves" if state in session.earlier else "stale saves"
            self.report(kind, session, f"{state!r} instead of {session.saved!r}")

    def acknowledged(self, session: Session, state: str) -> None:
        session.earlier.add(session.saved)
        session.saved = state
        session.maybe.discard(state)


class Worker:
    """Leases sessions one after another until it is told to stop."""

    def __init__(self, record: Record, http: aiohttp.ClientSession, ports: list[int], stop: asyncio.Event) -> None:
        self._record, self._http, self._ports, self._stop = record, http, ports, stop

    async def run(self) -> None:
        while not self._stop.is_set():
            await self._lease(random.choice(POOLS))

    async def _lease(self, pool: str) -> None:
        record, lease_id = self._record, uuid.uuid4().hex
        body: dict[str, Any] = {"lease_id": lease_id, "seconds": SECONDS, "owner": lease_id[:8]}
        if random.random() < WAIT:
            body["wait"] = random.choice((1, 5))
        if random.random() < 0.1:
            body["name"] = str(random.randrange(SESSIONS))
        path = f"/v1/sessions/{pool}/lease"
        if random.random() < CUT:
            await self._cut("POST", path, body)
            if random.random() < 0.3:
                return record.counts.update(["never asked again"])
        sent, status, answer = await self._until_answered("POST", path, body, wait=body.get("wait", 0))
        if status != 200:
            record.counts[answer["detail"][0]["type"]] += 1
            if status == 409:
                await asyncio.sleep(random.uniform(0, 0.05))
                return
            raise SystemExit(f"{path}: {status} {answer}")
        session = record.sessions[f"{pool}/{answer['session']['name']}"]
        until = sent + answer["seconds"]
        record.taken(session, lease_id, until, answer["session"]["user_data"]["state"])
        await self._use(session, lease_id)

    async def _use(self, session: Session, lease_id: str) -> None:
        record = self._record
        while random.random() < SAVE:
            state = f"{lease_id[:8]}-{random.randrange(10**9)}"
            session.maybe.add(state)
            body = {"user_data": {"state": state}, "seconds": SECONDS}
            sent, status, answer = await self._until_answered("PUT", f"/v1/leases/{lease_id}", body)
            if not self._still_holds(session, lease_id, status):
                return
            session.until = sent + answer["seconds"]
            record.acknowledged(session, state)
        if random.random() < VANISH:
            record.counts["vanished"] += 1
            return
        if random.random() < PAUSE:
            record.counts["paused past the end"] += 1
            await asyncio.sleep(SECONDS + MARGIN)
            return await self._come_late(session, lease_id)
        await asyncio.sleep(random.expovariate(200))
        await self._release(session, lease_id)

    async def _come_late(self, session: Session, lease_id: str) -> None:
        """Save and release after the end of the lease: nothing of it may be taken."""
        state = f"late-{lease_id[:8]}"
        for method, path, body in (
            ("PUT", f"/v1/leases/{lease_id}", {}),
            ("POST", f"/v1/leases/{lease_id}/release", {"outcome": "good"}),
        ):
            _, status, _ = await self._until_answered(method, path, {**body, "user_data": {"state": state}})
            if status != 409:
                self._record.report("stale saves", session, f"{method} after the end of the lease: {status}")

    async def _release(self, session: Session, lease_id: str) -> None:
        record, state = self._record, f"{lease_id[:8]}-end"
        outcome = random.choice(("good", "good", "good", "bad", "interrupted", "unused"))
        saves = outcome in ("good", "bad") and random.random() < 0.8
        body: dict[str, Any] = {"outcome": outcome, **({"user_data": {"state": state}} if saves else {})}
        path = f"/v1/leases/{lease_id}/release"
        if saves:
            session.maybe.add(state)
        if time.monotonic() > session.until - 1:
            record.counts["too late to release"] += 1
            return
        until, session.holder = session.until, None  # from here on another may have it
        if random.random() < CUT:
            await self._cut("POST", path, body)
        # What others save from here on is not for this worker to judge: it keeps its own part of the record.
        _, status, answer = await self._until_answered("POST", path, body)
        if status == 200:
            if answer["saved"] != saves:
                record.report("lost saves", session, f"saved is {answer['saved']}")
            if saves and state in session.maybe:  # else the next holder has it already
                record.acknowledged(session, state)
            return
        if time.monotonic() < until - MARGIN:
            record.report("ended early", session, f"{lease_id} with {until - time.monotonic():.1f} s left: {answer}")
        # A release that was done is always answered again: this one was not, and its state must never appear.
        session.maybe.discard(state)

    def _still_holds(self, session: Session, lease_id: str, status: int) -> bool:
        if status == 200:
            return True
        if session.holder == lease_id and time.monotonic() < session.until - MARGIN:
            left = session.until - time.monotonic()
            self._record.report("ended early", session, f"{lease_id} with {left:.1f} s left: {status}")
        self._record.counts["ended while it was used"] += 1
        return False

    async def _until_answered(
        self, method: str, path: str, body: dict[str, Any], wait: float = 0
    ) -> tuple[float, int, Any]:
        """Repeat a request, to any of the services, until it is answered; return when it was sent, status and body."""
        began = time.monotonic()
        while time.monotonic() < began + 120:
            sent = time.monotonic()
            try:
                async with self._http.request(
                    method, self._url(path), json=body, timeout=aiohttp.ClientTimeout(_TIMEOUT + wait)
                ) as response:
                    answer = await response.json()
                    if random.random() < CUT:  # the reply is lost on its way
                        self._record.counts["lost replies"] += 1
                        continue
                    if response.status not in _PASSING:
                        return sent, response.status, answer
                    self._record.counts[str(response.status)] += 1
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self._record.counts[type(error).__name__] += 1
            await asyncio.sleep(random.uniform(0.05, 0.4))
        raise SystemExit(f"{method} {path}: nothing but failures for 120 s")

    async def _cut(self, method: str, path: str, body: dict[str, Any]) -> None:
        """Send a request and disconnect before the response."""
        self._record.counts["cut"] += 1
        timeout = aiohttp.ClientTimeout(total=random.uniform(0.001, 0.05))
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with self._http.request(method, self._url(path), json=body, timeout=timeout) as response:
                await response.read()

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{random.choice(self._ports)}{path}"


class PausingServices(Services):
    """Services that can also be stopped in the middle of what they do."""

    async def pause_one(self, seconds: float) -> None:
        process = random.choice(self._processes)
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)


async def run(options: argparse.Namespace, services: PausingServices, token: str, failovers: Failovers | None) -> int:
    record, stop = Record(), asyncio.Event()
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as http:
        base = f"http://127.0.0.1:{services.ports[0]}"
        settings = {"lease_seconds": SECONDS, "max_errors": 100, "blocked_rest_seconds": 1}
        for pool in POOLS:
            await _put(http, f"{base}/v1/sessions/{pool}", settings)
        for name in record.sessions:
            await _put(http, f"{base}/v1/sessions/{name}", {"user_data": {"state": ""}})
        workers = [
            asyncio.create_task(Worker(record, http, services.ports, stop).run()) for _ in range(options.workers)
        ]
        began = time.monotonic()
        next_kill, next_pause, next_line = began + options.kill_every, began + options.pause_every, began
        pausing: asyncio.Task[None] | None = None
        while time.monotonic() < began + options.seconds and not all(worker.done() for worker in workers):
            now = time.monotonic()
            reached = record.leases >= options.leases
            if reached and (failovers is None or failovers.total >= options.min_failovers):
                break
            if failovers is not None:
                await asyncio.to_thread(failovers.look)
            services.restart_dead()
            if now > next_kill:
                next_kill = now + options.kill_every
                services.kill_one()
                record.counts["services killed"] += 1
            if now > next_pause and (pausing is None or pausing.done()):
                next_pause = now + options.pause_every
                record.counts["services paused"] += 1
                pausing = asyncio.create_task(services.pause_one(random.uniform(1, SECONDS + MARGIN)))
            if now > next_line:
                next_line = now + _PROGRESS_SECONDS
                _print_line(record, failovers, now - began)
            await asyncio.sleep(0.1)
        stop.set()
        if pausing is not None:
            await pausing
        if failovers is not None:
            await asyncio.to_thread(failovers.finish)
        services.restart_dead()
        await asyncio.to_thread(services.wait_until_ready)
        await asyncio.gather(*workers)
        for name, session in record.sessions.items():
            async with http.get(f"http://127.0.0.1:{services.ports[0]}/v1/sessions/{name}") as response:
                record.seen(session, (await response.json())["user_data"]["state"])
    _print_line(record, failovers, time.monotonic() - began)
    print(json.dumps(dict(record.counts.most_common())))
    if failovers is not None:
        print(f"failovers: {failovers.total} {dict(failovers.counts)}")
    print(f"leases: {record.leases}")
    for kind in ("double holders", "lost saves", "stale saves", "ended early"):
        print(f"{kind}: {record.wrong[kind]}")
    failed = record.wrong or not record.leases
    print("FAILED" if failed else "ok")
    return 1 if failed else 0


def _print_line(record: Record, failovers: Failovers | None, seconds: float) -> None:
    total = 0 if failovers is None else failovers.total
    wrong = dict(record.wrong) or "nothing wrong"
    print(f"{seconds:6.0f} s: {record.leases:,} leases, {total} failovers, {wrong}", flush=True)


async def _put(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
    async with http.put(url, json=body) as response:
        if response.status != 200:
            raise SystemExit(f"{url}: {response.status} {await response.text()}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.checker.leases", description=__doc__)
    parser.add_argument("--leases", type=int, default=20_000, help="leases to take at least")
    parser.add_argument("--workers", type=int, default=24)
    parser.add_argument("--services", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3600, help="maximum seconds")
    parser.add_argument("--kill-every", type=float, default=20.0, help="seconds between kill -9 of a service")
    parser.add_argument("--pause-every", type=float, default=30.0, help="seconds between pauses of a service")
    parser.add_argument("--nodes", type=int, default=0, help="mongods to start, also when MONGO_URL names one")
    parser.add_argument("--failovers", action="store_true", help="kill, freeze, step down and cut off primaries")
    parser.add_argument("--failover-every", type=float, default=20.0, help="seconds between two failovers")
    parser.add_argument("--min-failovers", type=int, default=0)
    parser.add_argument("--not-exclusive", action="store_true", help="leave sessions ready: must report double holders")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="repeats the workers' choices")
    options = parser.parse_args()
    random.seed(options.seed)
    print(f"seed {options.seed}", flush=True)
    if options.failovers and options.nodes < 3:
        parser.error("--failovers needs --nodes 3 or more: a majority must be left")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="leases-") as folder, mongo(options.nodes) as (url, replica_set):
        faults = {"delay": 0, "late": 0, "fail": 0, "crash": 0, "late_seconds": 1, "mark": True}
        faults["exclusive"] = not options.not_exclusive
        environ = {
            **os.environ,
            "MONGO_URL": url,
            "MONGO_DATABASE": "leases",
            "WORKERS": "1",
            "CHECKER_FAULTS": json.dumps({**faults, "log": str(Path(folder) / "faults.log")}),
        }
        failing = options.failovers and replica_set is not None
        failovers = Failovers(replica_set, options.failover_every) if failing and replica_set is not None else None
        services = PausingServices(options.services, environ, Path(folder))
        try:
            services.wait_until_ready()
            token = make_token(url, ORGANIZATION, "read", "write", "delete", "state", database="leases")
            return asyncio.run(run(options, services, token, failovers))
        finally:
            services.stop()


if __name__ == "__main__":
    sys.exit(main())
