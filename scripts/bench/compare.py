"""This service beside its peers, on the same data and under the same load: one table."""

from __future__ import annotations

import json
import statistics
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from scripts.bench import data, load
from scripts.bench.machine import (
    DATABASE,
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
from service.store.indexes import INDEXES

CONNECTIONS = 16
DEPTH = 0.75
LIMITS = (10, 100, 1000)
BATCH = 100
INGEST, INGEST_GROUPS = "ingest", "ingest, 8 groups"
# Case -> connections and groups that are written to.
_INGEST = {INGEST: (8, 1), INGEST_GROUPS: (16, 8)}
_PEERS = Path("scripts/bench/peers")

OURS, FLOOR, FLOOR_UVLOOP = "this service", "floor", "floor on uvloop"
FASTAPI, FASTIFY, EVE = "FastAPI + Beanie", "Fastify", "Eve"


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
    mongo.database[collection].create_indexes(INDEXES["outputs"])  # what this service has to keep too
    environ = {
        "MONGO_URL": mongo.url,
        "MONGO_DATABASE": DATABASE,
        "INGEST": collection,
        "PYTHONPATH": str(_PEERS),
        "NODE_ENV": "production",
    }
    server = Server(name, command, environ, SERVER_CPUS)
    server.wait(_path(name, 10, 0), {"Authorization": f"Bearer {token}"})
    return server


def _start(name: str, mongo: Engine, token: str) -> Server:
    python, floor = str(PEERS_PYTHON), str(_PEERS / "floor.py")
    uvicorn = [
        python,
        "-m",
        "uvicorn",
        "--no-access-log",
        "--log-level",
        "warning",
        "--timeout-keep-alive",
        "60",
        "--port",
        "{port}",
    ]
    gunicorn = [python, "-m", "gunicorn", "-k", "gthread", "--threads", str(CONNECTIONS), "--keep-alive", "60"]
    commands = {
        FLOOR: [python, floor],
        FLOOR_UVLOOP: [python, floor, "uvloop"],
        FASTIFY: ["node", str(_PEERS / "fastify.mjs")],
        FASTAPI: [*uvicorn, "--loop", "uvloop", "--http", "httptools", "fastapi_beanie:app"],
        EVE: [*gunicorn, "-b", "127.0.0.1:{port}", "eve_offset"],
    }
    return service(mongo.url, **PATIENT) if name == OURS else _peer(name, mongo, commands[name], token)


def _path(name: str, limit: int, cursor: int) -> str:
    if name == EVE:
        return f"/outputs?max_results={limit}&page={cursor // limit + 1}"
    return f"/v1/outputs/{data.GROUP}?limit={limit}&cursor={cursor}"


def _check_peers(names: list[str]) -> None:
    if set(names) - {OURS} and not PEERS_PYTHON.exists():
        raise SystemExit("The peers are not installed: `make bench` does that, or choose --servers 'this service'.")


def _check_page(server: Server, loaded: data.Loaded) -> None:
    """Stop if a server does not return what is asked for: what is left out costs nothing."""
    for limit in LIMITS:
        url = server.url + _path(server.name, limit, loaded.cursor(DEPTH))
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {loaded.token}"})
        with urllib.request.urlopen(request, timeout=60) as response:
            found = response.read().count(b'"output_id"')
        if found != limit:
            raise SystemExit(f"{server.name} returned {found} items of {limit}")


def run(items: int, seconds: float, repeats: int, names: list[str], save: str | None) -> None:
    """Measure, print the table and the ratios."""
    print(describe())
    print(
        f"load from {load.generator()}, {CONNECTIONS} connections, {repeats} runs of {seconds:g} s each, no access logs"
    )
    with engine() as mongo, load.template_file(data.templates(1000)) as templates:
        loaded = data.load(mongo, items)
        print(f"{items:,} items of {loaded.bson_bytes:,.0f} bytes BSON, {loaded.json_bytes:,.0f} bytes JSON on average")
        mongo.step_aside()
        servers = [_start(name, mongo, loaded.token) for name in names]
        try:
            for server in servers:
                _check_page(server, loaded)
            rows = _measure(mongo, servers, loaded, templates, seconds, repeats)
        finally:
            for server in servers:
                server.stop()
    medians = {key: _median(runs) for key, runs in rows.items() if runs}
    print(table(medians))
    print(ratios(medians))
    if save:
        Path(save).write_text(json.dumps([{"case": c, "server": s, **vars(r)} for (c, s), r in medians.items()]))


def _measure(
    mongo: Engine, servers: list[Server], loaded: data.Loaded, templates: Path, seconds: float, repeats: int
) -> dict[tuple[str, str], list[Row]]:
    """Run all cases, server after server inside each, so that what disturbs the machine hits all alike."""
    cases = [(f"limit {limit}", limit) for limit in LIMITS] + [(name, BATCH) for name in _INGEST]
    runs = [
        (case, size, server) for case, size in cases for server in servers if case not in _INGEST or server.name != EVE
    ]
    rows: dict[tuple[str, str], list[Row]] = {}
    for number, (case, size, server) in enumerate(runs * repeats):
        headers = {"Authorization": f"Bearer {loaded.token}"}
        if case in _INGEST:
            connections, groups = _INGEST[case]
            what = load.Requests(f"{server.url}/v1/outputs/ingest", headers, connections, templates, BATCH, groups)
        else:
            path = _path(server.name, size, loaded.cursor(DEPTH))
            what = load.Requests(server.url + path, headers, CONNECTIONS)
        done = rows.setdefault((case, server.name), [])
        try:
            rate = done[-1].rate if done else load.send(what, 4 * CONNECTIONS).rate
            row = _one(server.tree, mongo.tree, what, size, max(3 * CONNECTIONS, int(rate * seconds)))
        except load.Failed as error:
            print(f"{case}, {server.name}, left out: {error}")
            continue
        done.append(row)
        _progress(number + 1, len(runs) * repeats, case, server.name, row)
    sys.stderr.write("\r" + " " * 100 + "\r")
    return rows


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


def _progress(done: int, total: int, case: str, name: str, row: Row) -> None:
    line = f"[{done}/{total}] {time.strftime('%H:%M:%S')} {case}, {name}: {row.rate:.0f}/s, {row.cpu:.1f} ms"
    sys.stderr.write(f"\r{line:<100}" if sys.stderr.isatty() else line + "\n")
    sys.stderr.flush()


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


def ratios(medians: dict[tuple[str, str], Row]) -> str:
    """Return how this service stands to its peers, beside what was set as the goal."""
    lines = ["\nThis service against its peers (the floor of the goals is plain aiohttp, without uvloop):\n"]
    for what, case, peer, goal in _GOALS:
        if (case, peer) in medians and (case, OURS) in medians:
            ratio = getattr(medians[case, OURS], what) / getattr(medians[case, peer], what)
            reached = ratio <= goal if what == "cpu" else ratio >= goal
            words = f"{'at most' if what == 'cpu' else 'at least'} {goal:g}: {'reached' if reached else 'MISSED'}"
            name = "CPU" if what == "cpu" else "items/s"
            lines.append(f"  {case:<16} {name:<8} {ratio:5.2f} x {peer:<17} {words}")
    return "\n".join(lines)


_GOALS: list[tuple[str, str, str, float]] = [
    *(("cpu", case, FLOOR, goal) for case, goal in (("limit 10", 1.15), ("limit 100", 0.95), ("limit 1000", 0.95))),
    *(("cpu", f"limit {limit}", peer, goal) for limit in LIMITS for peer, goal in ((FASTAPI, 0.6), (EVE, 0.25))),
    *(("cpu", case, FASTAPI, 0.85) for case in _INGEST),
    *(("items_rate", case, FASTAPI, 1.15) for case in _INGEST),
    *(("items_rate", case, FASTIFY, 1.0) for case in _INGEST),
]
