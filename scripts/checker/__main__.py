"""Check that readers miss nothing while writers and services fail: `python -m scripts.checker`.

Starts several service processes with faults in them, writers and readers (a process each), and
compares at the end what was acknowledged, what is stored and what each reader saw. Exits with 1
when anything is missed, lost or there twice.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from scripts.checker.clients import GROUPS, KINDS, Plan, Read, Reader, Writer, Written, matches
from service.runtime.local_mongo import local_mongo
from service.store import REAP_SECONDS

ORGANIZATION = 1
FAULTS = {"delay": 0.3, "late": 0.0005, "fail": 0.002, "crash": 0.002}


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # end what was started
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="checker-") as folder, mongo(Path(folder)) as url:
        return Run(options, Path(folder), url).run()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.checker", description=__doc__)
    parser.add_argument("--versions", type=int, default=60_000, help="item versions to acknowledge")
    parser.add_argument("--writers", type=int, default=24)
    parser.add_argument("--readers", type=int, default=2, help="plain readers, beside one of each other kind")
    parser.add_argument("--services", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=80, help="most seconds of writing")
    parser.add_argument("--largest", type=int, default=100, help="most items in one request")
    parser.add_argument("--lease", type=float, default=2.0, help="LEASE_SECONDS of the services")
    parser.add_argument("--kill-every", type=float, default=8.0, help="seconds between kill -9 of a service; 0: none")
    parser.add_argument("--kills", type=int, default=0, help="end after this many kill -9, with no other crashes")
    parser.add_argument("--no-mark", action="store_true", help="switch the mark off: must report misses")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="repeats the writers' choices")
    parser.add_argument(
        "--long", action="store_true", help="1,000,000 versions, up to 300 items a request, 4 plain readers"
    )
    options = parser.parse_args()
    if options.long:
        options.versions, options.largest, options.readers = 1_000_000, 300, 4
        options.seconds, options.kill_every, options.lease = 2700, 40.0, 5.0
    return options


@contextmanager
def mongo(folder: Path) -> Iterator[str]:
    """Yield MONGO_URL, else the address of a new engine on a temporary folder."""
    given = os.environ.get("MONGO_URL")
    if given:
        yield given
    else:
        with local_mongo(folder / "data") as mongo:
            yield mongo.url


def new_token(environ: dict[str, str]) -> str:
    """Return a token of the organization that everything here happens in."""
    command = [sys.executable, "-m", "service", "token", "create", "--organization", str(ORGANIZATION)]
    command += ["--scope", "read", "--scope", "write"]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.strip()


def is_ready(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2):
        return True
    return False


def wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + 60
    while not is_ready(port):
        if time.monotonic() > deadline:
            raise SystemExit(f"the service on port {port} does not get ready")
        time.sleep(0.05)


class Services:
    """Service processes on one database, each started again when it dies."""

    def __init__(self, count: int, environ: dict[str, str], folder: Path) -> None:
        self.ports = [free_port() for _ in range(count)]
        self._environ, self._log = environ, (folder / "services.log").open("ab")
        self._processes = [self._start(number) for number in range(count)]
        self.ended = Counter[str]()

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        # Every third without group commit, so that rounds of one process overlap too.
        environ = {**self._environ, "PORT": str(self.ports[number]), "GROUP_COMMIT": str(int(number % 3 != 2))}
        return subprocess.Popen(
            [sys.executable, "-m", "scripts.checker.service", "serve"],
            env=environ,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def wait_until_ready(self) -> None:
        for port in self.ports:
            wait_until_ready(port)

    def are_ready(self) -> bool:
        """Return whether all are up: with none of them up, nobody could end what the dead left."""
        return all(is_ready(port) for port in self.ports)

    def kill_one(self) -> None:
        random.choice(self._processes).kill()
        self.ended["kill -9"] += 1

    def restart_dead(self) -> None:
        for number, process in enumerate(self._processes):
            if process.poll() is not None:
                if process.returncode not in (9, -signal.SIGKILL):
                    raise SystemExit(f"a service ended by itself: {Path(self._log.name).read_text()[-3000:]}")
                self._processes[number] = self._start(number)

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
            process.kill()
            process.wait()


class Run:
    """One run of the checker."""

    def __init__(self, options: argparse.Namespace, folder: Path, url: str) -> None:
        random.seed(options.seed)
        self.options, self.folder = options, folder
        self.url, self.database_name = url, f"checker-{os.getpid()}"
        self.environ = {
            **os.environ,
            "MONGO_URL": url,
            "MONGO_DATABASE": self.database_name,
            "LEASE_SECONDS": str(options.lease),
            "WORKERS": "1",
        }
        self.faults_log = folder / "faults.log"
        faults: dict[str, Any] = {
            **FAULTS,
            **({"late": 0, "fail": 0, "crash": 0} if options.kills else {}),
            "late_seconds": options.lease + 2 * REAP_SECONDS,
            "log": str(self.faults_log),
            "mark": not options.no_mark,
        }
        self.environ["CHECKER_FAULTS"] = json.dumps(faults)

    def run(self) -> int:
        services = Services(self.options.services, self.environ, self.folder)
        clients: list[BaseProcess] = []
        try:
            services.wait_until_ready()
            return self._check(services, clients)
        finally:
            for client in clients:
                client.kill()
            services.stop()
            with MongoClient[Any](self.url) as mongo:
                mongo.drop_database(self.database_name)

    def _check(self, services: Services, clients: list[BaseProcess]) -> int:
        options = self.options
        plan = Plan(services.ports, new_token(self.environ), self.folder, options.largest, cut=0.03, seed=options.seed)
        fork = multiprocessing.get_context("fork")
        stop, writing, end = fork.Event(), fork.Event(), fork.Event()
        writing.set()
        kinds = ["plain"] * options.readers + [kind for kind in KINDS if kind != "plain"]
        versions = 10**12 if options.kills else -(-options.versions // options.writers)
        readers = [
            fork.Process(target=lambda n=number, k=kind: Reader(plan, n, k, writing, end).run(), daemon=True)
            for number, kind in enumerate(kinds)
        ]
        writers = [
            fork.Process(target=lambda n=number: Writer(plan, n, versions, stop).run(), daemon=True)
            for number in range(options.writers)
        ]
        clients += readers + writers
        for client in clients:
            client.start()

        with MongoClient[Any](self.url, tz_aware=True) as mongo:
            database = mongo[self.database_name]
            watch = Watch(database, options.lease)
            started = time.monotonic()
            next_kill = started + random.uniform(1, 3)
            while any(writer.is_alive() for writer in writers):
                now = time.monotonic()
                if options.kills and services.ended["kill -9"] == options.kills and now > next_kill:
                    stop.set()
                if not options.kills and now - started > options.seconds:
                    stop.set()
                if options.kill_every and now > next_kill and not stop.is_set() and services.are_ready():
                    services.kill_one()
                    next_kill = now + options.kill_every * random.uniform(0.5, 1.5)
                services.restart_dead()
                _check_alive(clients)
                watch.look()
                time.sleep(0.05)
            seconds = time.monotonic() - started
            writing.clear()
            settled = self._wait_until_nothing_is_in_flight(services, watch)
            end.set()
            while any(reader.is_alive() for reader in readers):
                services.restart_dead()
                _check_alive(clients)
                time.sleep(0.05)
            report = Report(options, self._load("writer"), self._load("reader"), database)
            print(f"{seconds:.1f} s of {len(writers)} writers on {len(services.ports)} services")
            report.faults(Counter(self.faults_log.read_text().splitlines()) + services.ended)
            return report.verdict(settled, watch.longest)

    def _wait_until_nothing_is_in_flight(self, services: Services, watch: Watch) -> bool:
        deadline = time.monotonic() + 2 * self.options.lease + 20
        while time.monotonic() < deadline:
            services.restart_dead()
            if not watch.look():
                return True
            time.sleep(0.1)
        return False

    def _load(self, kind: str) -> list[Any]:
        return [pickle.loads(path.read_bytes()) for path in sorted(self.folder.glob(f"{kind}-*"))]  # noqa: S301


class Watch:
    """Looks how long batches are in flight: so long each holds up the readers of its group."""

    def __init__(self, database: Any, lease: float) -> None:
        self._database, self._lease = database, timedelta(seconds=lease)
        self.longest = 0.0

    def look(self) -> int:
        """Return how many batches are in flight."""
        found = self._database["sequences"].find_one({"_id": ORGANIZATION}) or {}
        now = datetime.now(UTC)  # the database is on this machine
        for batch in found.get("open", []):
            self.longest = max(self.longest, (now - batch["deadline"] + self._lease).total_seconds())
        return len(found.get("open", []))


def _check_alive(clients: list[BaseProcess]) -> None:
    for client in clients:
        if client.exitcode:
            raise SystemExit(f"a client ended with code {client.exitcode}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Report:
    """What was acknowledged against what is stored against what was seen."""

    def __init__(self, options: argparse.Namespace, written: list[Written], read: list[Read], database: Any) -> None:
        self.options, self.written, self.read, self.database = options, written, read, database
        fields = ["group_id", "key_hash", "id", "data", "source_url", "root_job_id", "tags", "is_approved"]
        self.stored: dict[tuple[str, str], dict[str, Any]] = {}
        self.documents = 0
        for document in database["outputs"].find({"tombstone": {"$exists": False}}, fields):
            self.documents += 1
            self.stored[document["group_id"], document["key_hash"]] = document

    def faults(self, faults: Counter[str]) -> None:
        counts = sum((written.counts for written in self.written), Counter[str]())
        for kind in ("cut", "connection lost", "timeout", "503"):
            if counts[kind]:
                faults[f"clients: {kind}"] = counts[kind]
        print("faults:  " + ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items())))
        results = ", ".join(f"{counts[kind]} {kind}" for kind in ("created", "updated", "unchanged"))
        tombstones = self.database["outputs"].count_documents({"tombstone": {"$exists": True}})
        print(f"answers: {results}; {tombstones} tombstones")

    def verdict(self, settled: bool, held_up: float) -> int:
        """Print the outcome and return the exit code."""
        versions = sum(written.versions for written in self.written)
        lost, overtaken = self._lost()
        duplicated = self.documents - len(self.stored)
        missed = {number: self._missed(read) for number, read in enumerate(self.read)}
        wrong = sum(read.backwards + read.foreign for read in self.read)
        miscounted = self._miscounted()
        print(f"readers: {len(self.read)} ({', '.join(read.kind for read in self.read)})")
        for number, keys in missed.items():
            if keys:
                read = self.read[number]
                print(f"  {read.kind} missed {len(keys)} of {read.items} read, for example {keys[:3]}")
        stall = max((read.longest_stall for read in self.read if read.kind == "plain"), default=0.0)
        total = sum(map(len, missed.values()))
        print(f"items: {self.documents}  versions acknowledged: {versions}")
        print(f"missed: {total}  lost: {lost}  duplicated: {duplicated}  out of order or foreign: {wrong}")
        print(f"abandoned requests done late: {overtaken}  groups miscounted: {', '.join(miscounted) or 0}")
        print(
            f"longest that a batch held up its group: {held_up:.1f} s (lease + 10 s: {self.options.lease + 10:.1f} s)"
        )
        print(f"longest without anything new for a plain reader: {stall:.1f} s")
        if not settled:
            print("batches were still in flight at the end")
        too_long = held_up > self.options.lease + 10
        bad = total or lost or duplicated or wrong or miscounted or not settled or too_long or not versions
        print("FAILED" if bad else "ok")
        return 1 if bad else 0

    def _lost(self) -> tuple[int, int]:
        """Count what was acknowledged and is not stored so, and where a cut-off request came last."""
        lost = overtaken = 0
        for written in self.written:
            for key, (id_, version) in written.own.items():
                stored = self.stored.get(key)
                if stored is not None and (stored["id"], stored["data"]["version"]) == (id_, version):
                    continue
                if stored is not None and (*key, stored["data"]["version"]) in written.abandoned:
                    overtaken += 1
                    continue
                lost += 1
            for key, id_ in written.shared.items():
                stored = self.stored.get(key)
                lost += stored is None or stored["id"] < id_
        return lost, overtaken

    def _missed(self, read: Read) -> list[tuple[str, str]]:
        """Return the keys whose last version the reader has not seen last."""
        return [
            key
            for key, item in self.stored.items()
            if matches(read.kind, item)
            and read.seen.get(key) != (item["id"], item["data"]["writer"], item["data"]["version"])
        ]

    def _miscounted(self) -> list[str]:
        """Return the groups whose counted items are not those that are there, and by how many."""
        groups = {group["group_id"]: group for group in self.database["groups"].find()}
        there = Counter(group for group, _ in self.stored)
        off = {group: groups.get(group, {}).get("items", 0) - there[group] for group in GROUPS}
        return [f"{group} by {number}" for group, number in off.items() if number]


if __name__ == "__main__":
    sys.exit(main())
