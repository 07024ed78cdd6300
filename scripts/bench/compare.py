"""This service beside its peers, on the same data and under the same load: one table."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from pymongo import ASCENDING, IndexModel

from scripts.bench import data, load
from scripts.bench.machine import (
    ALL_CPUS,
    DATABASE,
    OTHER_CPUS,
    PATIENT,
    PEERS_PYTHON,
    SERVER_CPUS,
    Engine,
    PeakMemory,
    Server,
    Tree,
    describe,
    engine,
    service,
)

CONNECTIONS = 16
DEPTH = 0.75
BATCH = 100
_PEERS = Path("scripts/bench/peers")

OURS, FLOOR = "this service", "floor"
FASTAPI, FASTIFY, EVE = "FastAPI + Beanie", "Fastify", "Eve"
# The same two, storing one item per key, only what changed, with a result for each item.
FASTAPI_UPSERTS, FASTIFY_UPSERTS = "FastAPI, upserts", "Fastify, upserts"
BEFORE = "earlier version"
FASTEST, FASTEST_UPSERTS = "the fastest peer", "the faster upserts"
_UPSERTS = {FASTAPI_UPSERTS, FASTIFY_UPSERTS}
_READ_ONLY = {EVE}


class Case(NamedTuple):
    """What is asked: pages of `limit` items, or bodies of `batch` items for some groups."""

    name: str
    connections: int
    limit: int = 0
    batch: int = 0
    groups: int = 1


READS = [Case(f"limit {limit}", CONNECTIONS, limit=limit) for limit in (10, 100, 1000)]
WRITES = [
    Case("batches of 100", 8, batch=BATCH),
    Case("batches of 100, 8 groups", 16, batch=BATCH, groups=8),
    Case("one item, 64 connections", 64, batch=1),
    Case("one item, 8 connections", 8, batch=1),
]
FIRST, ONE_DATE, OWN_DATES = "first crawl", "unchanged, one date", "unchanged, a date each"

# What a team would give a collection that serves the same queries: this service has no more to keep.
_PEER_INDEXES = [
    IndexModel([(field, ASCENDING) for field in ("organization_id", "group_id", *fields)], unique=len(fields) == 1)
    for fields in (
        ("id",),
        ("key_hash",),
        *((field, "id") for field in ("root_job_id", "source_url", "country", "region", "update_date")),
    )
]


@dataclass
class Row:
    """One run of one case against one server."""

    rate: float
    items_rate: float
    p50: float
    p99: float
    cpu: float  # ms for each 1000 items
    database_cpu: float
    memory: float


def _peer(name: str, mongo: Engine, command: list[str], token: str) -> Server:
    collection = "ingest_" + "".join(letter for letter in name.lower() if letter.isalnum())
    mongo.database[collection].create_indexes(_PEER_INDEXES)
    environ = {
        "MONGO_URL": mongo.url,
        "MONGO_DATABASE": DATABASE,
        "INGEST": collection,
        "PYTHONPATH": str(_PEERS),
        "NODE_ENV": "production",
    }
    server = Server(name, command, environ, ALL_CPUS)
    server.wait(_path(name, 10, 0), {"Authorization": f"Bearer {token}"})
    return server


def _start(name: str, mongo: Engine, token: str) -> Server:
    python = str(PEERS_PYTHON)
    uvicorn = [python, "-m", "uvicorn", "--no-access-log", "--log-level", "warning"]
    uvicorn += ["--timeout-keep-alive", "60", "--port", "{port}"]
    gunicorn = [python, "-m", "gunicorn", "-k", "gthread", "--threads", str(CONNECTIONS), "--keep-alive", "60"]
    commands = {
        FLOOR: [python, str(_PEERS / "floor.py")],
        FASTIFY: ["node", str(_PEERS / "fastify.mjs")],
        FASTAPI: [*uvicorn, "--loop", "uvloop", "--http", "httptools", "fastapi_beanie:app"],
        FASTIFY_UPSERTS: ["node", str(_PEERS / "fastify.mjs")],
        FASTAPI_UPSERTS: [*uvicorn, "--loop", "uvloop", "--http", "httptools", "fastapi_beanie:app"],
        EVE: [*gunicorn, "-b", "127.0.0.1:{port}", "eve_offset"],
    }
    return service(mongo.url, ALL_CPUS, **PATIENT) if name == OURS else _peer(name, mongo, commands[name], token)


def _start_before(mongo: Engine, folder: Path) -> tuple[Server, str]:
    """Start an earlier version on a database of its own, and get a token for it."""
    database = f"{DATABASE}_before"
    server = service(mongo.url, ALL_CPUS, folder, **PATIENT, mongo_database=database)
    server.name = BEFORE
    command = [server.python, "-m", "service", "token", "create", "--organization", "1"]
    command += ["--scope", "read", "--scope", "write"]
    made = subprocess.run(command, cwd=folder, env=server.environ, capture_output=True, text=True, check=True)
    return server, made.stdout.split()[-1]


def _path(name: str, limit: int, cursor: int) -> str:
    if name == EVE:
        return f"/outputs?max_results={limit}&page={cursor // limit + 1}"
    return f"/v1/outputs/{data.GROUP}?limit={limit}&cursor={cursor}"


def _check_peers(names: list[str]) -> None:
    if set(names) - {OURS} and not PEERS_PYTHON.exists():
        raise SystemExit("The peers are not installed: `make bench` does that, or choose --servers 'this service'.")


def _check_page(server: Server, loaded: data.Loaded) -> None:
    """Stop if a server does not return the requested items: leaving some out would make it faster."""
    for _, _, limit, _, _ in READS:
        url = server.url + _path(server.name, limit, loaded.cursor(DEPTH))
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {loaded.token}"})
        with urllib.request.urlopen(request, timeout=60) as response:
            found = response.read().count(b'"output_id"')
        if found != limit:
            raise SystemExit(f"{server.name} returned {found} items of {limit}")


def run(
    items: int, seconds: float, repeats: int, names: list[str], cases: list[str], before: Path | None = None
) -> None:
    """Measure, print the table and the ratios."""
    _check_peers(names)
    print(describe())
    print(f"load from wrk, {repeats} runs of {seconds:g} s each, no access logs")
    with engine() as mongo, ExitStack() as stack:
        loaded = data.load(mongo, items)
        print(f"{items:,} items of {loaded.bson_bytes:,.0f} bytes BSON, {loaded.json_bytes:,.0f} bytes JSON on average")
        servers = [stack.enter_context(_start(name, mongo, loaded.token)) for name in names]
        tokens = {server.name: loaded.token for server in servers}
        for server in servers:
            _check_page(server, loaded)
        if before is not None:
            old, tokens[BEFORE] = _start_before(mongo, before)
            servers.append(stack.enter_context(old))
        measured = _Measured(mongo, servers, tokens, loaded, seconds)
        for turn in range(repeats):
            measured.turn(turn, cases)
    medians = {key: _median(runs) for key, runs in measured.rows.items() if runs}
    print(table(medians))
    print(ratios(medians))


class _Measured:
    """All runs so far, case after case and server after server, so that other load on the machine affects all alike."""

    def __init__(
        self, mongo: Engine, servers: list[Server], tokens: dict[str, str], loaded: data.Loaded, seconds: float
    ) -> None:
        self._mongo, self._servers, self._loaded, self._seconds = mongo, servers, loaded, seconds
        self._headers = {name: {"Authorization": f"Bearer {token}"} for name, token in tokens.items()}
        self.rows: dict[tuple[str, str], list[Row]] = {}

    def turn(self, turn: int, cases: list[str]) -> None:
        if "reads" in cases:
            self._pin(SERVER_CPUS, OTHER_CPUS)
            for case in READS:
                for server in self._servers:
                    if server.name not in {BEFORE, *_UPSERTS}:
                        path = _path(server.name, case.limit, self._loaded.cursor(DEPTH))
                        self._one(server, case.name, self._requests(server, path, case.connections), case.limit)
        self._pin(ALL_CPUS, ALL_CPUS)  # as on a machine that a team has: the cores are shared
        with load.template_file(data.templates(1000, picture=False)) as templates:
            for case in WRITES if "writes" in cases else ():
                for server in self._servers:
                    if server.name not in _READ_ONLY:
                        path = "/v1/upserts/ingest" if server.name in _UPSERTS else "/v1/outputs/ingest"
                        what = self._requests(server, path, case.connections)
                        what.templates, what.batch, what.groups = templates, case.batch, case.groups
                        self._one(server, case.name, what, case.batch)
        if "recrawl" in cases:
            for server in self._servers:
                if server.name in {OURS, BEFORE, *_UPSERTS}:
                    route = "upserts" if server.name in _UPSERTS else "outputs"
                    self._recrawl(server, f"/v1/{route}/crawled-{turn}")

    def _pin(self, cpus: set[int], others: set[int]) -> None:
        for server in self._servers:
            server.tree.pin(cpus)
        self._mongo.tree.pin(others)
        self._others = others

    def _requests(self, server: Server, path: str, connections: int) -> load.Requests:
        return load.Requests(server.url + path, self._headers[server.name], connections, cpus=self._others)

    def _recrawl(self, server: Server, path: str) -> None:
        """Write the same items three times: new, then unchanged with one date for all, then with a date for each."""
        items = max(5_000, min(self._loaded.items, 100_000))
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        dates = [tomorrow + timedelta(milliseconds=n) for n in range(1000)]
        first = load.next_number()
        crawls = {
            FIRST: data.templates(1000, picture=False),
            ONE_DATE: data.templates(1000, "second", dates[:1] * 1000, picture=False),
            OWN_DATES: data.templates(1000, "third", [date + timedelta(days=1) for date in dates], picture=False),
        }
        for name, made in crawls.items():
            with load.template_file(made) as templates:
                what = self._requests(server, path, 8)
                what.templates, what.batch, what.first = templates, BATCH, first
                self._one(server, name, what, BATCH, items // BATCH)

    def _one(self, server: Server, case: str, what: load.Requests, size: int, count: int | None = None) -> None:
        done = self.rows.setdefault((case, server.name), [])
        try:
            if count is None:
                rate = done[-1].rate if done else load.send(what, 4 * what.connections).rate
                count = max(3 * what.connections, int(rate * self._seconds))
            row = _one(server.tree, self._mongo.tree, what, size, count)
        except load.Failed as error:
            print(f"{case}, {server.name}, left out: {error}")
            return
        done.append(row)
        _progress(case, server.name, row)


def _one(tree: Tree, database: Tree, what: load.Requests, size: int, count: int) -> Row:
    with PeakMemory(tree) as memory:
        before, database_before = tree.cpu_seconds(), database.cpu_seconds()
        result = load.send(what, count)
        cpu, database_cpu = tree.cpu_seconds() - before, database.cpu_seconds() - database_before
    thousands = result.requests * size / 1000
    return Row(
        result.rate,
        result.rate * size,
        result.p50,
        result.p99,
        cpu * 1000 / thousands,
        database_cpu * 1000 / thousands,
        memory.mb,
    )


def _progress(case: str, name: str, row: Row) -> None:
    print(
        f"{time.strftime('%H:%M:%S')} {case}, {name}: {row.items_rate:,.0f} items/s,"
        f" {row.cpu:.1f} ms and {row.database_cpu:.1f} ms of the database for each 1000",
        file=sys.stderr,
        flush=True,
    )


def _median(rows: list[Row]) -> Row:
    return Row(*(statistics.median(values) for values in zip(*(vars(row).values() for row in rows), strict=True)))


def table(medians: dict[tuple[str, str], Row]) -> str:
    """Return the rows as a Markdown table."""
    head = [
        "case", "server", "requests/s", "items/s", "p50 ms", "p99 ms",
        "CPU ms / 1000 items", "database CPU ms / 1000 items", "peak MB",
    ]  # fmt: skip
    lines = [head, ["---"] * 2 + ["---:"] * 7]
    for (case, server), row in medians.items():
        lines.append(
            [
                case, server, f"{row.rate:,.0f}", f"{row.items_rate:,.0f}", f"{row.p50:.1f}", f"{row.p99:.1f}",
                f"{row.cpu:.1f}", f"{row.database_cpu:.1f}", f"{row.memory:.0f}",
            ]
        )  # fmt: skip
    return "\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)


class Goal(NamedTuple):
    """The goal for a figure of this service, relative to another server or to another case of its own."""

    what: str
    case: str
    peer: str
    goal: float
    peer_case: str = ""


def ratios(medians: dict[tuple[str, str], Row]) -> str:
    """Return this service's figures relative to its peers, beside the goals."""
    for name, *_ in (*WRITES, *READS):
        for best, names in ((FASTEST, (FASTAPI, FASTIFY)), (FASTEST_UPSERTS, (FASTAPI_UPSERTS, FASTIFY_UPSERTS))):
            peers = [medians[name, peer] for peer in names if (name, peer) in medians]
            if peers:
                medians = {**medians, (name, best): max(peers, key=lambda row: row.items_rate)}
    lines = ["\nThis service against others:\n"]
    for what, case, peer, goal, peer_case in _GOALS:
        other = (peer_case or case, peer)
        if other in medians and (case, OURS) in medians:
            ratio = getattr(medians[case, OURS], what) / getattr(medians[other], what)
            reached = ratio >= goal if what == "items_rate" else ratio <= goal
            words = (
                f"{'at least' if what == 'items_rate' else 'at most'} {goal:g}: {'reached' if reached else 'MISSED'}"
            )
            name = {"cpu": "CPU", "database_cpu": "database CPU", "items_rate": "items/s"}[what]
            lines.append(f"  {case:<25} {name:<13} {ratio:5.2f} x {peer_case or peer:<17} {words}")
    return "\n".join(lines)


_GOALS = [
    *(Goal("cpu", case, FLOOR, goal) for case, goal in (("limit 10", 1.2), ("limit 100", 0.95), ("limit 1000", 0.95))),
    *(Goal("cpu", case.name, peer, goal) for case in READS for peer, goal in ((FASTAPI, 0.6), (EVE, 0.25))),
    Goal("items_rate", "batches of 100", BEFORE, 1.35),
    Goal("cpu", "batches of 100", BEFORE, 0.55),
    Goal("items_rate", "batches of 100", FASTEST_UPSERTS, 2),
    Goal("items_rate", "batches of 100", FASTIFY, 1),
    Goal("items_rate", "batches of 100", FASTAPI, 1.2),
    Goal("cpu", "batches of 100", FLOOR, 1),
    Goal("items_rate", "batches of 100, 8 groups", FASTEST, 1),
    Goal("items_rate", "one item, 64 connections", FASTEST, 3),
    Goal("items_rate", "one item, 64 connections", BEFORE, 1),
    Goal("items_rate", ONE_DATE, OURS, 0.7, FIRST),
    Goal("items_rate", OWN_DATES, OURS, 0.5, FIRST),
]
