"""What the service tells Prometheus."""

from __future__ import annotations

import asyncio
import os
import time

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

from service.http.limits import Limits
from service.store import InFlight, Store

_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_SAMPLE_SECONDS = 0.25
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

# Set by the supervisor of several workers: where they keep their counts, and which one this is. By
# its number, not its process: a worker started again goes on in the files of the one that died.
FOLDER, NUMBER = "PROMETHEUS_MULTIPROC_DIR", "WORKER_NUMBER"
if FOLDER in os.environ and NUMBER in os.environ:
    values.ValueClass = values.MultiProcessValue(lambda: os.environ[NUMBER])  # type: ignore[no-untyped-call]


class Metrics:
    """The counters of this process; with several workers, of all of them."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store, self._limits = store, limits
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "sds_requests_total",
            "Requests with a response.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "sds_request_seconds", "Time to respond.", ["route"], buckets=_SECONDS, registry=self._registry
        )
        self._lag = Histogram(
            "sds_event_loop_lag_seconds", "Delay of the event loop.", buckets=_SECONDS, registry=self._registry
        )
        self.items_in = Counter("sds_items_in_total", "Output items written.", ["result"], registry=self._registry)
        self.items_out = Counter("sds_items_out_total", "Output items read.", registry=self._registry)
        self._in_flight = self._gauge("sds_requests_in_flight", "Requests being worked on.")
        self._receiving = self._gauge("sds_requests_receiving", "Requests whose body is being received.")
        self._bytes = self._gauge("sds_bytes_in_flight", "Bytes of bodies and responses held in memory.")
        self._rounds = self._gauge("sds_write_rounds", "Write rounds under way.")
        self._connections = self._gauge("sds_mongo_connections", "Connections to the database.")
        self._in_use = self._gauge("sds_mongo_connections_in_use", "Connections to the database at work.")

        self._series: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge(name, text, registry=self._registry, multiprocess_mode="livesum")
        gauge.set(0)  # whatever a worker left that died
        return gauge

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        # Any word can be a method: only known ones become a series.
        method = method if method in _METHODS else "OTHER"
        series = self._series.get((method, route, status))
        if series is None:
            # Looked up once: finding them took longer than counting.
            series = (self._requests.labels(method, route, str(status)), self._seconds.labels(route))
            self._series[method, route, status] = series
        series[0].inc()
        series[1].observe(seconds)

    def _sample(self) -> None:
        """Take down what is at work now."""
        self._in_flight.set(self._limits.working.used)
        self._receiving.set(self._limits.receiving.used)
        self._bytes.set(self._limits.bytes.used)
        self._rounds.set(self._store.outputs.rounds_in_flight)
        self._connections.set(self._store.pool.open)
        self._in_use.set(self._store.pool.in_use)

    async def watch(self) -> None:
        """Measure how late the event loop runs and take samples, for as long as this runs."""
        while True:
            due = time.perf_counter() + _SAMPLE_SECONDS
            await asyncio.sleep(_SAMPLE_SECONDS)
            self._lag.observe(max(0.0, time.perf_counter() - due))
            self._sample()

    def render(self, in_flight: InFlight | None) -> bytes:
        """Return all metrics as text, with what the database says, if it says anything."""
        self._sample()
        registry = self._registry
        if FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        shared = CollectorRegistry()
        Gauge("sds_database_up", "Whether the database responds.", registry=shared).set(in_flight is not None)
        if in_flight is not None:
            Gauge("sds_batches_in_flight", "Batches of ids in flight.", registry=shared).set(in_flight.batches)
            oldest = Gauge("sds_oldest_batch_seconds", "Age of the oldest batch in flight.", registry=shared)
            oldest.set(in_flight.oldest_seconds)
        return generate_latest(registry) + generate_latest(shared)


METRICS = web.AppKey("metrics", Metrics)
