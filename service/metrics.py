"""What the service tells Prometheus."""

from __future__ import annotations

import asyncio
import os
import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_LAG_SECONDS = 0.25


class Metrics:
    """The counters of this process; with several workers, of all of them."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "sds_requests_total",
            "Requests answered.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "sds_request_seconds",
            "Time to answer.",
            ["route"],
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self._registry,
        )
        self.items_in = Counter("sds_items_in_total", "Output items written.", ["result"], registry=self._registry)
        self.items_out = Counter("sds_items_out_total", "Output items read.", registry=self._registry)
        self.in_flight = self._gauge("sds_requests_in_flight", "Requests being worked on.")
        self.rounds = self._gauge("sds_write_rounds", "Write rounds under way.")
        self.connections = self._gauge("sds_mongo_connections_in_use", "Connections in use.")
        self.loop_lag = self._gauge("sds_event_loop_lag_seconds", "Delay of the event loop.", "max")

    def _gauge(self, name: str, text: str, mode: str = "livesum") -> Gauge:
        return Gauge(name, text, registry=self._registry, multiprocess_mode=mode)  # type: ignore[arg-type]

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        # Any word can be a method: only known ones become a series.
        method = method if method in _METHODS else "OTHER"
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    async def watch_loop(self) -> None:
        """Measure how late the event loop runs, for as long as this runs."""
        while True:
            due = time.perf_counter() + _LAG_SECONDS
            await asyncio.sleep(_LAG_SECONDS)
            self.loop_lag.set(max(0.0, time.perf_counter() - due))

    def render(self, batches: int, oldest_seconds: float) -> bytes:
        """Return all metrics as text, with what the database says about batches in flight."""
        registry = self._registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        shared = CollectorRegistry()
        Gauge("sds_batches_in_flight", "Id batches in flight.", registry=shared).set(batches)
        Gauge("sds_oldest_batch_seconds", "Age of the oldest batch in flight.", registry=shared).set(oldest_seconds)
        return generate_latest(registry) + generate_latest(shared)
