"""How fast the clients write: `push` in TypeScript and in Python against the plain `fetch` of Node.js."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from scripts.bench import data
from scripts.bench.machine import ALL_CPUS, PATIENT, describe, engine, service
from scripts.dist import build_typescript
from sds_client import Client

FETCH, TYPESCRIPT, PYTHON = "fetch", "TypeScript client", "Python client"
WAYS = (FETCH, TYPESCRIPT, PYTHON)
TURNS = 5
_LOADED = 5_000
# Of what `fetch` reaches.
_GOAL = 0.9


class Push(NamedTuple):
    """One push: items per second, and the client's processor time per item in microseconds."""

    rate: float
    cpu: float


def clients(items: int) -> None:
    """Print how many items per second each client writes, in turns, each time to a new group."""
    print(describe())
    build_typescript()
    with engine() as mongo, tempfile.NamedTemporaryFile("w", suffix=".ndjson") as file:
        token = data.load(mongo, _LOADED).token
        made = data.templates(1000)
        lines = [made[number % len(made)].replace("@@", str(number)) for number in range(items)]
        file.write("\n".join(lines))
        file.flush()
        with service(mongo.url, ALL_CPUS, **PATIENT) as server:
            pushed: dict[str, list[Push]] = {way: [] for way in WAYS}
            for turn in range(TURNS):
                for way in WAYS[turn % 3 :] + WAYS[: turn % 3]:
                    group = f"{way.split()[0].lower()}-{turn}"
                    environ = {"SDS_URL": server.url, "SDS_TOKEN": token}
                    push = (
                        _in_python(lines, group, environ) if way == PYTHON else _in_node(way, file.name, group, environ)
                    )
                    pushed[way].append(Push(items / push[0], push[1] / items * 1e6))
                    print(f"{time.strftime('%H:%M:%S')} {way}: {items / push[0]:,.0f} items/s", flush=True)
    print(f"\n{items:,} items, 500 per request, one request at a time, medians of {TURNS} turns")
    print("| | items/s | CPU of the client | items/s, against `fetch` of the same turn |\n|---|---:|---:|---:|")
    ratios: dict[str, float] = {}
    for way in WAYS:
        rate, cpu = (statistics.median(figures) for figures in zip(*pushed[way], strict=True))
        ratios[way] = statistics.median(
            mine.rate / its.rate for mine, its in zip(pushed[way], pushed[FETCH], strict=True)
        )
        print(f"| {way} | {rate:,.0f} | {cpu:.0f} µs/item | {ratios[way]:.2f} |")
    verdict = "reached" if ratios[TYPESCRIPT] >= _GOAL else "MISSED"
    print(f"\n{TYPESCRIPT} {ratios[TYPESCRIPT]:.2f} x {FETCH}, at least {_GOAL}: {verdict}")


def _in_node(way: str, file: str, group: str, environ: dict[str, str]) -> tuple[float, float]:
    script = Path(__file__).with_name("push.mjs")
    command = ["node", str(script), "fetch" if way == FETCH else "client", file, group]
    done = subprocess.run(command, env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True, check=True)
    seconds, cpu = json.loads(done.stdout)
    return seconds, cpu


def _in_python(lines: list[str], group: str, environ: dict[str, str]) -> tuple[float, float]:
    items = [json.loads(line) for line in lines]
    with Client(environ["SDS_URL"], environ["SDS_TOKEN"]) as client:
        client.push(f"{group}-first", items[:500])
        began, before = time.perf_counter(), time.process_time()
        client.push(group, items)
        return time.perf_counter() - began, time.process_time() - before
