"""Fire every alert of docker/monitoring/rules.yaml for real, and see it clear: `python -m scripts.alerts [ALERT …]`.

Starts a mongod, two services (one of them with two workers) and a Prometheus, causes each condition, waits until
Prometheus reports the alert as firing, ends the condition, and waits until it is no longer firing. Exits with 1 if an
alert did not fire or did not clear.

The rules are the shipped ones; only each minute of `for:` and of the rate windows is shortened to two seconds.
Needs `prometheus` on the PATH (Debian's package); takes seven minutes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import yaml
from pymongo import MongoClient

from scripts.processes import die_with_parent, free_port
from scripts.replica_set import ReplicaSet
from tests.e2e.serving import Site
from tests.support.api import make_output
from tests.support.processes import ServiceProcess, make_token

RULES = Path(__file__).resolve().parents[1] / "docker/monitoring/rules.yaml"
DATABASE = "alerts"
# Two seconds, not one: with a database that does not respond, /metrics takes one.
_SCRAPE_SECONDS = 2
_SECONDS_PER_MINUTE = 2
_MAX_SECONDS = 180.0
_COOKIES = "/v1/cookies"
# Bodies of two organizations that are announced and do not come: 14 of 16 MiB are reserved for them.
_BODIES, _ANNOUNCED = 6, 5 * 2**19
_SETTINGS: dict[str, Any] = {"webhook_private": "true", "max_bytes_in_flight": 64 * 2**20, "receive_timeout": 120}
# Server codes: the first means a defect of the service (500), the others a database in trouble (503). None of
# them makes the driver look for another primary.
_BAD_VALUE, _TIME_EXPIRED, _NO_SPACE = 2, 50, 14031


def shortened(rules: str) -> str:
    """Return the rules with shorter `for:` and rate windows; everything else stays."""
    return re.sub(r"(for: |\[)(\d+)m\b", lambda found: f"{found[1]}{int(found[2]) * _SECONDS_PER_MINUTE}s", rules)


class Service(ServiceProcess):
    """A service on a port that it can be started on again."""

    def __init__(self, mongo_url: str, workers: int, port: int = 0) -> None:
        super().__init__(mongo_url, mongo_database=DATABASE, workers=workers, port=port or free_port(), **_SETTINGS)
        self.wait_until_ready()

    def workers(self) -> list[int]:
        """Return the processes below the supervisor."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def metric(self, name: str) -> float:
        """Return a metric without labels; 0 where there is none."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            found = re.search(rf"^{name} (\S+)$", response.read().decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def call(self, token: str, path: str, body: Any = None, method: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(
            urllib.request.Request(self.url + path, data, headers, method=method), timeout=30
        ) as response:
            response.read()


class Lab:
    """The processes, and the conditions that can be caused in them."""

    def __init__(self, stack: ExitStack) -> None:
        self.mongo = stack.enter_context(ReplicaSet(1))
        self.mongod = self.mongo.members[0]
        self.tokens = [make_token(self.mongo.url, organization, database=DATABASE) for organization in (1, 2)]
        self.one, self.two = Service(self.mongo.url, 1), Service(self.mongo.url, 2)
        stack.callback(self.one.__exit__)
        stack.callback(lambda: self.two.__exit__())  # which may be another one by then
        self.prometheus = _start_prometheus(stack, [self.one.port, self.two.port])
        wait_until(lambda: self.firing() is not None, "Prometheus does not respond")

    def firing(self) -> set[str] | None:
        """Return the names of the alerts that fire."""
        with suppress(OSError), urllib.request.urlopen(f"{self.prometheus}/api/v1/alerts", timeout=10) as response:
            alerts = json.load(response)["data"]["alerts"]
            return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}
        return None

    # -- conditions ---------------------------------------------------------------------------

    @contextmanager
    def stopped_service(self) -> Iterator[None]:
        with self.two:
            pass
        yield
        self.two = Service(self.mongo.url, 2, self.two.port)

    @contextmanager
    def frozen_database(self) -> Iterator[None]:
        self.mongo.freeze(self.mongod)
        try:
            yield
        finally:
            self.mongo.thaw(self.mongod)

    @contextmanager
    def failing_reads(self, **how: Any) -> Iterator[None]:
        """Let reads of cookies fail or take long, while clients send them all the time."""
        with (
            self.fail_point(["find", "aggregate"], namespace=f"{DATABASE}.cookies", **how),
            repeating(lambda: self.one.call(self.tokens[0], _COOKIES), threads=8),
        ):
            yield

    @contextmanager
    def full_resource(self) -> Iterator[None]:
        """Begin to send bodies until there is no capacity for more, of two organizations."""
        with ExitStack() as stack:
            for number in range(_BODIES):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", self.one.port), 10))
                head = f"POST /v1/outputs/g HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.tokens[number % 2]}\r\n"
                client.sendall(
                    f"{head}Content-Type: application/json\r\nContent-Length: {_ANNOUNCED}\r\n\r\n[".encode()
                )
            yield

    @contextmanager
    def starved_process(self) -> Iterator[None]:
        """Give a process the CPU for half of the time, as a CPU limit does."""

        def starve() -> None:
            self.one.process.send_signal(signal.SIGSTOP)
            time.sleep(0.6)
            self.one.process.send_signal(signal.SIGCONT)
            time.sleep(0.6)

        with repeating(starve, threads=1):
            yield

    @contextmanager
    def failing_upkeep(self) -> Iterator[None]:
        """Kill a writer in the middle of a batch, while nobody else can do the upkeep."""
        token = self.tokens[0]
        self.one.call(token, "/v1/outputs/late", [make_output(0)])
        writes = ["bulkWrite", "insert", "update", "findAndModify"]
        with (
            Service(self.mongo.url, 1) as writer,
            self.fail_point(writes, namespace=f"{DATABASE}.outputs", blockConnection=True, blockTimeMS=10_000),
            repeating(lambda: writer.call(token, "/v1/outputs/stuck", [make_output(1)]), threads=1),
        ):
            wait_until(lambda: self.one.metric("sds_batches_in_flight") >= 1, "no batch is in flight")
            writer.kill()
        # The writes too: dead writers are also ended while only the check of indexes fails.
        failing = ["listIndexes", "createIndexes", *writes]
        with self.fail_point(failing, errorCode=_NO_SPACE, appName="scraping-data-service"):
            before = self.one.metric("sds_upkeep_failures_total")
            wait_until(lambda: self.one.metric("sds_upkeep_failures_total") > before + 2, "the upkeep does not fail")
            with MongoClient[dict[str, Any]](self.mongo.url) as client:
                late = {"$set": {"due": datetime.now(UTC) - timedelta(hours=1, minutes=1)}}
                client[DATABASE]["groups"].update_one({"organization_id": 1, "group_id": "late"}, late)
            yield

    @contextmanager
    def dying_workers(self) -> Iterator[None]:
        for _ in range(4):
            there = self.two.workers()
            os.kill(there[0], signal.SIGKILL)
            wait_until(lambda there=there: len(set(self.two.workers()) - {there[0]}) == 2, "no new worker")  # type: ignore[misc]
        yield

    @contextmanager
    def failing_receiver(self) -> Iterator[None]:
        """Refuse the messages of a webhook; accept them afterwards."""
        status, numbers = 500, iter(range(1_000_000))

        def respond(_: Site, handler: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
            handler.rfile.read(int(handler.headers["Content-Length"]))
            return status, {}, b""

        def write() -> None:
            number = next(numbers)
            self.one.call(self.tokens[0], f"/v1/outputs/told-{number % 20}", [make_output(number)])
            time.sleep(1)

        with Site(respond) as receiver, repeating(write, threads=1):
            webhook = {"url": f"{receiver.url}/hook", "events": ["group.changed"]}
            self.one.call(self.tokens[0], "/v1/webhooks", webhook)
            yield
            status = 204
            # Messages must be delivered for the share of failures to sink.
            wait_until(lambda: "WebhooksFail" not in (self.firing() or ()), "WebhooksFail still fires")

    @contextmanager
    def empty_pool(self) -> Iterator[None]:
        def ask() -> None:
            with suppress(OSError):  # 409
                self.one.call(self.tokens[0], "/v1/sessions/empty/lease", {})
            time.sleep(1)

        self.one.call(self.tokens[0], "/v1/sessions/empty", {}, "PUT")
        with repeating(ask, threads=1):
            yield

    @contextmanager
    def fail_point(self, commands: list[str], **how: Any) -> Iterator[None]:
        self.mongod.fail_point("failCommand", "alwaysOn", failCommands=commands, **how)
        try:
            yield
        finally:
            self.mongod.fail_point("failCommand", "off")


Condition = Callable[[Lab], AbstractContextManager[None]]
# The alerts that one condition fires, each with its cause.
CASES: list[tuple[dict[str, str], Condition]] = [
    ({"ServiceDown": "a service is stopped"}, Lab.stopped_service),
    ({"DatabaseDown": "mongod is frozen (SIGSTOP)"}, Lab.frozen_database),
    ({"InternalErrors": "reads fail with BadValue"}, lambda lab: lab.failing_reads(errorCode=_BAD_VALUE)),
    ({"Unavailable": "reads fail with MaxTimeMSExpired"}, lambda lab: lab.failing_reads(errorCode=_TIME_EXPIRED)),
    (
        {"SlowRequests": "reads take 3 s", "SlowDatabase": "reads take 3 s"},
        lambda lab: lab.failing_reads(blockConnection=True, blockTimeMS=3000),
    ),
    ({"ResourceNearlyFull": "most of the capacity for bodies is reserved"}, Lab.full_resource),
    ({"EventLoopLate": "a process gets no CPU for half of the time"}, Lab.starved_process),
    (
        {
            "UpkeepFails": "the check of indexes fails",
            "DeadWritersNotEnded": "a writer is killed in a batch, and the upkeep fails",
            "UpkeepLate": "the upkeep fails; `due` of a group is set back by an hour in the database",
        },
        Lab.failing_upkeep,
    ),
    ({"WorkersRestart": "four workers are killed"}, Lab.dying_workers),
    ({"WebhooksFail": "a receiver responds with 500"}, Lab.failing_receiver),
    ({"PoolEmpty": "a worker asks a pool without sessions"}, Lab.empty_pool),
]


def run(lab: Lab, alerts: Collection[str], condition: Condition) -> dict[str, list[float | None]]:
    """Return after how many seconds each alert fired and cleared; None where it did not."""
    times: dict[str, list[float | None]] = {alert: [None, None] for alert in alerts}

    def watch(place: int, holds: Callable[[str, set[str]], bool]) -> None:
        started = time.monotonic()
        while any(found[place] is None for found in times.values()) and time.monotonic() - started < _MAX_SECONDS:
            firing = lab.firing()
            for alert, found in times.items():
                if firing is not None and found[place] is None and holds(alert, firing):
                    found[place] = time.monotonic() - started
            time.sleep(0.5)

    wait_until(lambda: not set(alerts) & (lab.firing() or set()), f"{', '.join(alerts)} fire before their condition")
    with condition(lab):
        watch(0, lambda alert, firing: alert in firing)
        ended = time.monotonic()
    ending = time.monotonic() - ended
    watch(1, lambda alert, firing: alert not in firing)
    return {alert: [fired, None if cleared is None else ending + cleared] for alert, (fired, cleared) in times.items()}


def main() -> int:
    """Fire the alerts that are named, or all; return 1 if one did not fire or clear."""
    names = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    chosen = sys.argv[1:] or names
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    failed = False
    for name in sorted({*chosen} - {alert for alerts, _ in CASES for alert in alerts}):
        failed = True
        print(f"{name}: no condition is known here")
    print("| Alert | Caused by | Fired after | Cleared after |\n|---|---|---:|---:|", flush=True)
    with ExitStack() as stack:
        lab = Lab(stack)
        for alerts, condition in CASES:
            if set(alerts) & set(chosen):
                for alert, (fired, cleared) in run(lab, alerts, condition).items():
                    failed |= fired is None or cleared is None
                    print(f"| {alert} | {alerts[alert]} | {_shown(fired)} | {_shown(cleared)} |", flush=True)
    return int(failed)


def _shown(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.0f} s"


def wait_until(holds: Callable[[], bool], problem: str, seconds: float = _MAX_SECONDS) -> None:
    """Wait until something holds. Raises SystemExit with the problem if it does not in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"{problem} after {seconds:.0f} s")
        time.sleep(0.1)


@contextmanager
def repeating(work: Callable[[], None], threads: int) -> Iterator[None]:
    """Do something again and again, whether it fails or not."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.is_set():
            with suppress(OSError):
                work()
            stop.wait(0.05)

    running = [threading.Thread(target=repeat, daemon=True) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in running:
            thread.join(30)


def _start_prometheus(stack: ExitStack, ports: list[int]) -> str:
    """Start Prometheus on the shortened rules; return its address."""
    program = shutil.which("prometheus")
    if program is None:
        raise SystemExit("There is no prometheus on the PATH: install it, on Debian with apt-get install prometheus.")
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="alerts-", ignore_cleanup_errors=True)))
    targets = [f"127.0.0.1:{port}" for port in ports]
    config = {
        "global": {
            "scrape_interval": f"{_SCRAPE_SECONDS}s",
            "scrape_timeout": f"{_SCRAPE_SECONDS}s",
            "evaluation_interval": "1s",
        },
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "scraping-data-service", "static_configs": [{"targets": targets}]}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    (folder / "rules.yaml").write_text(shortened(RULES.read_text()))
    port = free_port()
    command = [program, f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    process = subprocess.Popen(command, preexec_fn=die_with_parent, start_new_session=True)
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)
    return f"http://127.0.0.1:{port}"


if __name__ == "__main__":
    sys.exit(main())
