"""Check that readers miss nothing while writers, services and databases fail: `python -m scripts.checker`.

Starts several service processes with faults in them, writers and readers (one process each), and
compares at the end what was acknowledged, what is stored and what each reader saw. With
`--nodes 3 --failovers` the primary of the replica set is killed, frozen, stepped down and cut off
meanwhile. Exits with 1 when anything is missed, lost, there twice or counted wrongly.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from scripts.checker import options as arguments
from scripts.checker.crawler import CRAWLERS, Crawler
from scripts.checker.failovers import Failovers
from scripts.checker.plan import READERS, Plan, load
from scripts.checker.reader import Reader
from scripts.checker.report import Report, Watch, stored
from scripts.checker.services import ORGANIZATION, SERVICE_KILLED, Services, mongo
from scripts.checker.writer import Writer
from service.store import REAP_SECONDS
from tests.support.processes import make_token

PROGRESS_SECONDS = 60.0
LOOK_SECONDS = 0.2  # each look is a few commands to the database
# The upkeep of the services sets counts right some seconds after a dead writer's batch was ended.
RECOUNT_SECONDS = 60.0
FAULTS = {"delay": 0.3, "late": 0.0005, "fail": 0.002, "crash": 0.002}


def main() -> int:
    options = arguments.parse(__doc__ or "")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # end what was started
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="checker-") as folder, mongo(options.nodes) as (url, replica_set):
        failovers = None
        if options.failovers and replica_set is not None:
            failovers = Failovers(replica_set, options.failover_every)
        return Run(options, Path(folder), url, failovers).run()


class Run:
    """One run of the checker."""

    def __init__(self, options: argparse.Namespace, folder: Path, url: str, failovers: Failovers | None) -> None:
        random.seed(options.seed)
        self.options, self.folder, self.failovers = options, folder, failovers
        self.url, self.database_name = url, f"checker-{os.getpid()}"
        self.environ = {
            **os.environ,
            "MONGO_URL": url,
            "MONGO_DATABASE": self.database_name,
            "LEASE_SECONDS": str(options.lease),
            "MONGO_TIMEOUT": str(0.75 * options.lease),  # a lease must be longer
            "WORKERS": "1",
        }
        self.faults_log = folder / "faults.log"
        self.faults_log.touch()
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
            if self.failovers is None:  # else it is gone with its replica set
                with MongoClient[Any](self.url, timeoutMS=10_000) as mongo, suppress(PyMongoError):
                    mongo.drop_database(self.database_name)

    def _check(self, services: Services, clients: list[BaseProcess]) -> int:
        options = self.options
        token = make_token(self.url, ORGANIZATION, "read", "write", "delete", database=self.database_name)
        plan = Plan(services.ports, token, self.folder, options.largest, cut=0.03, seed=options.seed)
        fork = multiprocessing.get_context("fork")
        stop, writing, end = fork.Event(), fork.Event(), fork.Event()
        writing.set()
        total = fork.Value("q")
        readers = [
            fork.Process(target=lambda n=number, k=kind: Reader(plan, n, k, writing, end).run(), daemon=True)
            for number, kind in enumerate(["plain"] * options.readers + [*READERS])
        ]
        writers = [
            fork.Process(target=lambda n=number: Writer(plan, n, total, stop).run(), daemon=True)
            for number in range(options.writers)
        ]
        writers += [
            fork.Process(target=lambda n=number: Crawler(plan, n, total, stop).run(), daemon=True)
            for number in range(CRAWLERS)
        ]
        clients += readers + writers
        for client in clients:
            client.start()

        with MongoClient[Any](self.url, tz_aware=True, timeoutMS=2000) as mongo:
            watch = Watch(mongo[self.database_name], options.lease)
            started = time.monotonic()
            next_kill, next_line = started + random.uniform(1, 3), started + PROGRESS_SECONDS
            while any(writer.is_alive() for writer in writers):
                now = time.monotonic()
                is_over = now - started > options.seconds
                if not stop.is_set() and (is_over or self._is_enough(services, total.value, next_kill < now)):
                    stop.set()
                    if self.failovers is not None:
                        self.failovers.finish()
                if now > next_line:
                    print(f"{now - started:.0f} s: {total.value} versions, {self._failed(services)}", flush=True)
                    next_line = now + PROGRESS_SECONDS
                if options.kill_every and now > next_kill and not stop.is_set() and services.are_up():
                    services.kill_one()
                    next_kill = now + options.kill_every * random.uniform(0.5, 1.5)
                if self.failovers is not None and not stop.is_set():
                    self.failovers.look()
                services.restart_dead()
                _check_alive(clients, self.folder / "services.log")
                watch.look()
                time.sleep(LOOK_SECONDS)
            seconds = time.monotonic() - started
            writing.clear()
            settled = self._wait_until_settled(services, watch)
            end.set()
            while any(reader.is_alive() for reader in readers):
                services.restart_dead()
                _check_alive(clients, self.folder / "services.log")
                time.sleep(0.05)
        with MongoClient[Any](self.url, tz_aware=True) as mongo:
            report = Report(options, plan, *load(self.folder), stored(mongo[self.database_name]))
            print(
                f"{seconds:.1f} s of {len(writers)} writers on {len(services.ports)} services; {self._failed(services)}"
            )
            report.faults(Counter(self.faults_log.read_text().splitlines()) + services.ended)
            return report.verdict(settled, watch.longest)

    def _is_enough(self, services: Services, versions: int, kill_is_due: bool) -> bool:
        """Return whether everything that the options ask for has happened."""
        options = self.options
        if options.kills:
            return kill_is_due and bool(services.ended[SERVICE_KILLED] >= options.kills)
        failovers = 0 if self.failovers is None else self.failovers.total
        return bool(versions >= options.versions and failovers >= options.min_failovers)

    def _failed(self, services: Services) -> str:
        failed = f"{services.ended[SERVICE_KILLED]} services killed"
        if self.failovers is None:
            return failed
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.failovers.counts.items()))
        election, back = self.failovers.longest_without_primary, self.failovers.longest_until_healthy
        failovers = f"failovers: {self.failovers.total} ({kinds or 'none'})"
        return f"{failed}, {failovers}, longest election {election:.1f} s, longest until all are back {back:.1f} s"

    def _wait_until_settled(self, services: Services, watch: Watch) -> bool:
        """Return whether nothing is in flight any more, and then wait for the counts that this changed."""
        # Requests that their clients have given up may still wait for a round, for as long as they may take, and then
        # write for as long again: nobody sees that they are there.
        abandoned = time.monotonic() + 2 * float(self.environ["MONGO_TIMEOUT"]) + 2
        while time.monotonic() < abandoned:
            services.restart_dead()
            time.sleep(0.1)
        batches = time.monotonic() + 2 * self.options.lease + 20
        while watch.look():
            if time.monotonic() > batches:
                return False
            services.restart_dead()
            time.sleep(0.1)
        counts = time.monotonic() + RECOUNT_SECONDS
        while watch.is_recounting() and time.monotonic() < counts:
            services.restart_dead()
            time.sleep(0.1)
        return True


def _check_alive(clients: list[BaseProcess], log: Path) -> None:
    for client in clients:
        if client.exitcode:
            lines = [line for line in log.read_text().splitlines() if '"INFO"' not in line]
            raise SystemExit("\n".join([*lines[-100:], f"a client ended with code {client.exitcode}"]))


if __name__ == "__main__":
    sys.exit(main())
