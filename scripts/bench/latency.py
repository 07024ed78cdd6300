"""What a database that is 5 ms away costs: round trips per request, and rounds in flight."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

from scripts.bench import data, load
from scripts.bench.machine import ALL_CPUS, PATIENT, Engine, describe, engine, service
from scripts.processes import free_port

ONE_WAY_SECONDS = 0.005
ROUND_TRIP_MS = 2000 * ONE_WAY_SECONDS


class DelayingProxy:
    """Forwards connections to the database and holds every piece back for some milliseconds."""

    def __init__(self, host: str, port: int) -> None:
        self._target, self.port = (host, port), free_port()
        self.seconds = ONE_WAY_SECONDS

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        serving = asyncio.start_server(self._connect, "127.0.0.1", self.port)
        server = asyncio.run_coroutine_threadsafe(serving, loop).result()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(server.close)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            to_reader, to_writer = await asyncio.open_connection(*self._target)
            await asyncio.gather(self._forward(reader, to_writer), self._forward(to_reader, writer))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while piece := await reader.read(1 << 20):
            loop.call_later(self.seconds, writer.write, piece)
        loop.call_later(self.seconds, writer.close)


def through(url: str, port: int) -> str:
    """Return the address of a database as it is reached through a proxy, and by nothing else."""
    parts = urlsplit(url)
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    kept = [part for part in parts.query.split("&") if part and not part.startswith("replicaSet")]
    query = "&".join([*kept, "directConnection=true"])
    return urlunsplit((parts.scheme, f"{user}127.0.0.1:{port}", parts.path or "/", query, ""))


def latency(items: int, seconds: float) -> None:
    """Measure single requests and throughput with the database 5 ms away in each direction."""
    print(describe())
    with engine() as mongo, load.template_file(data.templates(1000)) as templates:
        loaded = data.load(mongo, items)
        proxy = DelayingProxy("127.0.0.1", _port(mongo))
        headers = loaded.headers
        with proxy.run():
            server = service(through(mongo.url, proxy.port), ALL_CPUS, **PATIENT)
            try:
                ingest = f"{server.url}/v1/outputs/far"
                page = f"{server.url}/v1/outputs/{data.GROUP}?limit=10&cursor={loaded.cursor(0.5)}"
                _single(
                    proxy,
                    {
                        "POST of 1 new item": load.Requests(ingest, headers, 1, templates, 1),
                        "POST of 100 new items": load.Requests(ingest, headers, 1, templates, 100),
                        "page of 10": load.Requests(page, headers, 1),
                    },
                )
                alone = load.send(load.Requests(ingest, headers, 1, templates, 10), 100).rate * 10
                what = load.Requests(ingest, headers, 32, templates, 10)
                rate = load.send(what, 64).rate
                joined = load.send(what, max(200, int(rate * seconds))).rate * what.batch
            finally:
                server.stop()
        print(f"\nbatches of 10: {joined:,.0f} items/s from 32 connections, {alone:,.0f} from one")


def _port(mongo: Engine) -> int:
    mongo.client.admin.command("ping")
    assert mongo.client.address is not None
    return mongo.client.address[1]


def _single(proxy: DelayingProxy, cases: dict[str, load.Requests]) -> None:
    """Print how long requests take one after the other, and how many round trips the distance has cost them."""
    print("\n| request | p50 ms | p50 ms without distance | round trips of 10 ms |\n|---|---:|---:|---:|")
    for name, what in cases.items():
        p50 = {}
        for proxy.seconds in (0.0, ONE_WAY_SECONDS):
            load.send(what, 10)
            p50[proxy.seconds] = load.send(what, 100).p50
        near, far = p50.values()
        print(f"| {name} | {far:.1f} | {near:.1f} | {(far - near) / ROUND_TRIP_MS:.1f} |", flush=True)
