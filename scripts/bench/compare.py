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

CONNECTIONS = 16
DEPTH = 0.75
LIMITS = (10, 100, 1000)
BATCH = 100
INGEST = "ingest"
_PEERS = Path("scripts/bench/peers")

OURS, FLOOR, FLOOR_UVLOOP = "this service", "floor", "floor on uvloop"
FASTAPI, EVE = "FastAPI + Beanie", "Eve"


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


def _peer(name: str, mongo_url: str, command: list[str], token: str) -> Server:
    environ = {"MONGO_URL": mongo_url, "MONGO_DATABASE": DATABASE, "PYTHONPATH": str(_PEERS)}
    server = Server(name, [str(PEERS_PYTHON), *command], environ, SERVER_CPUS)
    server.wait(_path(name, 10, 0), {"Authorization": f"Bearer {token}"})
    return server


def _start(name: str, mongo_url: str, token: str) -> Server:
    floor = str(_PEERS / "floor.py")
    uvicorn = [
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
    gunicorn = ["-m", "gunicorn", "-k", "gthread", "--threads", str(CONNECTIONS), "--keep-alive", "60"]
    commands = {
        FLOOR: [floor],
        FLOOR_UVLOOP: [floor, "uvloop"],
        FASTAPI: [*uvicorn, "--loop", "uvloop", "--http", "httptools", "fastapi_beanie:app"],
        EVE: [*gunicorn, "-b", "127.0.0.1:{port}", "eve_offset"],
    }
    return service(mongo_url, **PATIENT) if name == OURS else _peer(name, mongo_url, commands[name], token)


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
        servers = [_start(name, mongo.url, loaded.token) for name in names]
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
    cases: list[tuple[str, int]] = [(f"limit {limit}", limit) for limit in LIMITS] + [(INGEST, BATCH)]
    runs = [(case, size, server) for case, size in cases for server in servers if (case, server.name) != (INGEST, EVE)]
    rows: dict[tuple[str, str], list[Row]] = {}
    for number, (case, size, server) in enumerate(runs * repeats):
        headers = {"Authorization": f"Bearer {loaded.token}"}
        if case == INGEST:
            what = load.Requests(f"{server.url}/v1/outputs/ingest", headers, CONNECTIONS, templates, BATCH)
        else:
            path = _path(server.name, size, loaded.cursor(DEPTH))
            what = load.Requests(server.url + path, headers, CONNECTIONS)
        done = rows.setdefault((case, server.name), [])
        try:
            rate = done[-1].rate if done else load.send(what, 2 * CONNECTIONS).rate
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
    """Return how this service's CPU stands to its peers', beside what was set as the goal."""
    goals: list[tuple[str, str, float]] = [
        *(("limit 10", *rest) for rest in ((FLOOR, 1.3), (FLOOR_UVLOOP, 1.3), (FASTAPI, 0.6), (EVE, 0.25))),
        *(("limit 100", *rest) for rest in ((FLOOR, 1.15), (FLOOR_UVLOOP, 1.15), (FASTAPI, 0.6), (EVE, 0.25))),
        *(("limit 1000", *rest) for rest in ((FLOOR, 1.15), (FLOOR_UVLOOP, 1.15), (FASTAPI, 0.6), (EVE, 0.25))),
        (INGEST, FASTAPI, 0.9),
    ]
    lines = ["\nCPU of this service against its peers (the floor of the goals is plain aiohttp, without uvloop):\n"]
    for case, peer, most in goals:
        if (case, peer) in medians and (case, OURS) in medians:
            ratio = medians[case, OURS].cpu / medians[case, peer].cpu
            verdict = "" if peer == FLOOR_UVLOOP else f" goal {most:g}: {'reached' if ratio <= most else 'MISSED'}"
            lines.append(f"  {case:<11} {ratio:5.2f} x {peer:<17}{verdict}")
    return "\n".join(lines)
