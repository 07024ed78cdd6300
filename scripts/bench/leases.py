"""Leases of a pool whose sessions nearly all rest, beside a bare loop of the same updates with PyMongo."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import statistics
import threading
import time
import uuid
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pymongo
from pymongo import ReturnDocument, WriteConcern

from scripts.bench import data
from scripts.bench.load import percentile
from scripts.bench.machine import DATABASE, PATIENT, SERVER_CPUS, Engine, Server, describe, engine, service
from service.settings import Settings
from service.store import Store, Vault
from service.store.sessions import changes

# The bare loop has a pool of its own: the states that it saves are not sealed.
POOL, BARE_POOL, WORKERS, READY = "shop", "bare", 16, 100
STATE_BYTES = 100_000
TURNS = 3
SETTINGS = {"lease_seconds": 300, "rest_seconds": 0}
# What a worker does when it releases a session: leaves its state as it is, or saves it.
CASES = {"lease and release": False, "lease, release with its state": True}
_CLONED_AT_ONCE = 100


@dataclass
class Run:
    """Leases with their release: the seconds of each request, and the processor time of all."""

    takes: list[float] = field(default_factory=list)
    releases: list[float] = field(default_factory=list)
    seconds: float = 0.0
    cpu: float = 0.0  # of the service, or of the loop
    mongod: float = 0.0

    @property
    def rate(self) -> float:
        return len(self.releases) / self.seconds

    def row(self) -> list[float]:
        """Return leases per second, p99 of taking and of releasing in ms, and processor time per lease in ms."""
        leases = len(self.releases)
        p99 = [percentile(times, 0.99) * 1000 for times in (self.takes, self.releases)]
        return [self.rate, *p99, self.cpu * 1000 / leases, self.mongod * 1000 / leases]


def leases(sessions: int, seconds: float) -> None:
    """Print leases per second of the service and of the bare loop, which take turns on the same core."""
    print(describe())
    key = Vault.new_key("bench")
    spawn = multiprocessing.get_context("spawn")
    with engine() as mongo:
        token = asyncio.run(_load(mongo, key, sessions))
        with service(mongo.url, secret_keys=key, **PATIENT) as server, ProcessPoolExecutor(1, spawn) as apart:
            mongo.step_aside()
            runs: dict[tuple[str, str], list[Run]] = {}
            for turn in range(TURNS):
                for name, saves in CASES.items():
                    mine = asyncio.run(_through_the_service(server, mongo, token, seconds, saves))
                    before = mongo.tree.cpu_seconds()
                    bare: Run = apart.submit(bare_loop, mongo.url, seconds, saves).result()
                    bare.mongod = mongo.tree.cpu_seconds() - before
                    runs.setdefault((name, "this service"), []).append(mine)
                    runs.setdefault((name, "bare PyMongo"), []).append(bare)
                    print(f"turn {turn + 1}, {name}: {mine.rate:.0f} leases/s, bare {bare.rate:.0f}", flush=True)
    ready = f"{READY} of {sessions:,} sessions ready, states of {STATE_BYTES // 1000} KB, {WORKERS} workers"
    print(f"\n{ready}, medians of {TURNS} turns of {seconds:.0f} s")
    print("| case | by | leases/s | p99 of a lease, ms | p99 of a release, ms | CPU ms/lease | database CPU ms/lease |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for (name, who), turns in runs.items():
        medians = [statistics.median(figures) for figures in zip(*(run.row() for run in turns), strict=True)]
        print(f"| {name} | {who} | " + " | ".join(f"{median:.1f}" for median in medians) + " |")
    for name in CASES:
        pairs = zip(runs[name, "this service"], runs[name, "bare PyMongo"], strict=True)
        ratio = statistics.median(mine.rate / bare.rate for mine, bare in pairs)
        print(f"{name}: x {ratio:.2f} of the bare loop (goal: 0.5)")


# -- the sessions ----------------------------------------------------------------------------


async def _load(mongo: Engine, key: str, sessions: int) -> str:
    """Put sessions through the service's own store, clone the resting ones, and return a token."""
    store = Store.connect(Settings(mongo_database=DATABASE, secret_keys=key), mongo.url)
    await store.ensure_indexes()
    for name in (POOL, BARE_POOL):
        pool = await store.sessions.pools.set(data.ORGANIZATION, name, SETTINGS)
        for number in range(READY):
            texts = {"storage_state": json.dumps(_state())}
            await store.sessions.records.put(data.ORGANIZATION, name, f"ready-{number}", texts, None)
        _clone(mongo, pool.id, sessions)
    token = await store.tokens.create(data.ORGANIZATION, ["read", "write", "state"], "bench")
    await store.close()
    return token


def _clone(mongo: Engine, pool_id: str, sessions: int) -> None:
    """Fill a pool with sessions that rest until tomorrow."""
    session = mongo.database["sessions"].find_one({"pool_id": pool_id})
    secret = mongo.database["session_secrets"].find_one({"pool_id": pool_id})
    assert session is not None and secret is not None
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    for first in range(READY, sessions, _CLONED_AT_ONCE):
        names = {f"resting-{number}": number for number in range(first, min(first + _CLONED_AT_ONCE, sessions))}
        resting = {**session, "state": "resting", "uses": 1}
        mongo.database["sessions"].insert_many(
            {
                **resting,
                "_id": f"{pool_id}/{name}",
                "name": name,
                "due": tomorrow + timedelta(seconds=number),
            }
            for name, number in names.items()
        )
        mongo.database["session_secrets"].insert_many(
            {**secret, "_id": f"{pool_id}/{name}/storage_state", "name": name} for name in names
        )
        print(f"\r{first + len(names):,} of {sessions:,} sessions", end="", flush=True)
    print()


def _state() -> dict[str, Any]:
    value = random.randbytes(STATE_BYTES // 2).hex()
    origin = {"origin": "https://shop.example", "localStorage": [{"name": "state", "value": value}]}
    return {"cookies": [], "origins": [origin]}


# -- through the service ---------------------------------------------------------------------


async def _through_the_service(server: Server, mongo: Engine, token: str, seconds: float, saves: bool) -> Run:
    run, release = Run(), json.dumps({"outcome": "good", **({"storage_state": _state()} if saves else {})}).encode()
    cpu, mongod, began = server.tree.cpu_seconds(), mongo.tree.cpu_seconds(), time.perf_counter()
    until = began + seconds
    await asyncio.gather(*(_work(server.port, token, until, release, run) for _ in range(WORKERS)))
    run.seconds = time.perf_counter() - began
    run.cpu, run.mongod = server.tree.cpu_seconds() - cpu, mongo.tree.cpu_seconds() - mongod
    return run


async def _work(port: int, token: str, until: float, release: bytes, run: Run) -> None:
    """Lease and release over one connection, as a client that chooses its lease ids."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def post(path: str, body: bytes) -> float:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        began = time.perf_counter()
        writer.write(head.encode() + body)
        response = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(response.partition("content-length: ")[2].partition("\r\n")[0])
        content = await reader.readexactly(length)
        if not response.startswith("http/1.1 200"):
            raise SystemExit(f"{path}: {response} {content[:500]!r}")
        return time.perf_counter() - began

    while time.perf_counter() < until:
        lease_id = uuid.uuid4().hex
        run.takes.append(await post(f"/v1/sessions/{POOL}/lease", b'{"lease_id": "%s"}' % lease_id.encode()))
        run.releases.append(await post(f"/v1/leases/{lease_id}/release", release))
    writer.close()


# -- the bare loop ---------------------------------------------------------------------------


def bare_loop(url: str, seconds: float, saves: bool) -> Run:
    """Make the same updates from as many threads, in a process of its own on the core of the service."""
    os.sched_setaffinity(0, SERVER_CPUS)
    run = Run()
    with pymongo.MongoClient[dict[str, Any]](url) as client:
        client.admin.command("ping")
        cpu, began = time.process_time(), time.perf_counter()
        until = began + seconds
        threads = [threading.Thread(target=_loop, args=(client, until, saves, run)) for _ in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        run.seconds, run.cpu = time.perf_counter() - began, time.process_time() - cpu
    return run


def _loop(client: pymongo.MongoClient[dict[str, Any]], until: float, saves: bool, run: Run) -> None:
    durable = WriteConcern(w="majority", j=True)
    database = client.get_database(DATABASE, write_concern=durable)
    pool = database["pools"].find_one({"pool": BARE_POOL})
    assert pool is not None
    owner, value = {"organization_id": data.ORGANIZATION, "pool_id": pool["_id"]}, random.randbytes(STATE_BYTES)
    while time.perf_counter() < until:
        lease_id = uuid.uuid4().hex
        began = time.perf_counter()
        session = database["sessions"].find_one_and_update(
            {**owner, "state": "ready"},
            changes.take(pool, {"id": lease_id, "owner": "", "request": ""}, None, shared=False),
            sort=[("turn", 1)],
            hint="take",
            return_document=ReturnDocument.AFTER,
        )
        assert session is not None
        secret = f"{session['_id']}/storage_state"
        database["session_secrets"].find_one({"_id": secret})
        run.takes.append(time.perf_counter() - began)
        began = time.perf_counter()
        update = changes.release(pool, lease_id, "good", shared=False, rest_seconds=None, note=None)
        live = {"_id": session["_id"], "leases.id": lease_id, "$expr": changes.is_live(lease_id)}

        def release(
            transaction: Any, live: Any = live, update: Any = update, secret: str = secret, lease_id: str = lease_id
        ) -> None:
            database["sessions"].find_one_and_update(live, update, session=transaction)
            if saves:
                database["session_secrets"].update_one({"_id": secret}, {"$set": {"value": value}}, session=transaction)
            receipt = {"_id": f"{data.ORGANIZATION}/{lease_id}", "date": datetime.now(UTC), "digest": b"", "answer": {}}
            database["released_leases"].insert_one(receipt, session=transaction)

        with client.start_session() as transactions:
            transactions.with_transaction(release, write_concern=durable)
        run.releases.append(time.perf_counter() - began)
