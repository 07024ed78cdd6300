"""The metrics for Prometheus: one collector, for one worker and for several.

Each worker counts in its own cells; the worker that is asked adds up all of them. Values of the database as a whole are
not stored in cells, so that no worker shows old ones of another.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from aiohttp import web
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from service import __version__
from service.capacity.work import Gates, organization
from service.http.cells import Cells, Labels, Row, read_rows
from service.settings import Settings
from service.store import InFlight, Store

# Set by the supervisor of several workers: the folder of their values, and the number of this worker. Not its process
# id: a restarted worker continues with the values of the one that died.
FOLDER, NUMBER = "SDS_METRICS_DIR", "SDS_WORKER_NUMBER"
SUPERVISOR = "supervisor"

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_COMMANDS = frozenset(
    {"aggregate", "bulkWrite", "delete", "find", "findAndModify", "getMore", "insert", "ping", "update"}
)
# Organizations with series of their own, per worker; all others count as `other`.
_MAX_ORGANIZATIONS = 100
_SAMPLE_SECONDS = 0.25
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# Cells of a histogram: one per bound, one for values above all bounds, and the sum.
_SUM = len(_SECONDS) + 1
_WIDTH = len(_SECONDS) + 2
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Family(NamedTuple):
    """One metric: its type, its help and the names of its labels."""

    kind: str
    help: str
    labels: tuple[str, ...] = ()


ITEMS_OUT = "sds_items_out_total"
FAMILIES = {
    "sds_requests_total": Family("counter", "Requests with a response.", ("method", "route", "status")),
    "sds_request_seconds": Family(
        "histogram",
        "Time to respond. Kinds: request, wait (long polls) and stream (exports, which last as long as their clients).",
        ("method", "route", "kind"),
    ),
    "sds_unavailable_total": Family("counter", "Responses with status 503, by reason.", ("reason",)),
    "sds_database_seconds": Family("histogram", "Time that the database took over a command.", ("command",)),
    "sds_database_failures_total": Family("counter", "Commands that the database did not do.", ("command",)),
    "sds_event_loop_lag_seconds": Family("histogram", "Delay of the event loop."),
    "sds_items_in_total": Family("counter", "Output items written.", ("organization", "result")),
    "sds_items_handed_back_total": Family("counter", "Output items that the one-pass encoder left to Python."),
    ITEMS_OUT: Family("counter", "Output items read.", ("organization",)),
    "sds_sessions": Family("gauge", "Sessions of all organizations, by state: leased, ready, …", ("state",)),
    "sds_no_session_total": Family("counter", "Requests for a lease when no session was ready.", ("organization",)),
    "sds_upkeep_failures_total": Family("counter", "Failed passes of the upkeep."),
    "sds_webhook_deliveries_total": Family("counter", "Attempts to deliver a webhook.", ("result",)),
    "sds_worker_restarts_total": Family("counter", "Workers that died and were started again."),
    "sds_resource_used": Family("gauge", "How much of a bounded resource is in use, of all workers.", ("resource",)),
    "sds_resource_limit": Family("gauge", "How much of a bounded resource there is, of all workers.", ("resource",)),
    "sds_build_info": Family("gauge", "What runs: encoder is one_pass or python.", ("version", "python", "encoder")),
    "sds_database_up": Family("gauge", "Whether the database responds."),
    "sds_batches_in_flight": Family("gauge", "Batches of ids in flight."),
    "sds_oldest_batch_seconds": Family("gauge", "Age of the oldest batch in flight."),
    "sds_oldest_upkeep_seconds": Family("gauge", "How long the oldest group that is due for upkeep has waited."),
    "sds_workers": Family("gauge", "Workers that run."),
    "process_cpu_seconds_total": Family("counter", "CPU time of a worker.", ("worker",)),
    "process_resident_memory_bytes": Family("gauge", "Memory of a worker.", ("worker",)),
    "process_open_fds": Family("gauge", "Files that a worker has open.", ("worker",)),
}


class Metrics:
    """The values of this worker, and of all workers when they are collected."""

    def __init__(self, settings: Settings, store: Store, gates: Gates) -> None:
        folder = os.environ.get(FOLDER)
        self._folder = Path(folder) if folder else None
        self._worker = os.environ.get(NUMBER, "0")
        self._cells = Cells(self._folder, self._worker)
        self._values = self._cells.values
        self._reset_gauges()
        self._values[self._cells.place("pid")] = os.getpid()
        self._series: dict[tuple[str, str, str, int], tuple[int, int]] = {}
        self._commands: dict[str, int] = {}
        self._lock = Lock()
        self._organizations: dict[int, str] = {}
        self._sampled: list[tuple[int, Callable[[], float]]] = []
        self._followed: list[list[Any]] = []
        for gate in gates.all:
            self._sample_resource(gate.name, partial(getattr, gate, "used"), partial(getattr, gate, "total"))
        self._sample_resource("database", lambda: store.pool.in_use, lambda: settings.mongo_pool)
        self._sample_resource("write_queues", lambda: store.outputs.write_queues.busy)
        store.pool.on_command = self._observe_command
        self.follow_counter("sds_upkeep_failures_total", lambda: store.failures)
        self.follow_counter("sds_items_handed_back_total", lambda: store.outputs.handed_back)
        self._encoder = store.outputs.encoder_name
        self._lag = self._cells.place("sds_event_loop_lag_seconds", (), _WIDTH)

    def _sample_resource(self, name: str, used: Callable[[], int], limit: Callable[[], int] | None = None) -> None:
        """Show how much of something is used, beside its limit where it has one."""
        self._sampled.append((self._cells.place("sds_resource_used", (name,)), used))
        if limit is not None:
            self._sampled.append((self._cells.place("sds_resource_limit", (name,)), limit))

    def follow_counter(self, family: str, read: Callable[[], int], *labels: str) -> None:
        """Show a count that another part of this process keeps."""
        self._followed.append([self._cells.place(family, labels), read, read()])

    def observe(self, method: str, route: str, kind: str, status: int, seconds: float) -> None:
        """Count one request."""
        key = (method, route, kind, status)
        series = self._series.get(key)
        if series is None:
            # A client can send any word as a method: only known ones become a series.
            method_label = method if method in _METHODS else "OTHER"
            series = (
                self._cells.place("sds_requests_total", (method_label, route, str(status))),
                self._cells.place("sds_request_seconds", (method_label, route, kind), _WIDTH),
            )
            if method_label == method:
                self._series[key] = series
        values = self._values
        values[series[0]] += 1
        start = series[1]
        values[start + bisect_left(_SECONDS, seconds)] += 1
        values[start + _SUM] += seconds

    def count(self, family: str, *labels: str, amount: float = 1) -> None:
        """Count something that happens rarely."""
        self._values[self._cells.place(family, labels)] += amount

    def count_own(self, family: str, *labels: str, amount: int = 1) -> None:
        """Count something of the organization whose request this is."""
        id = organization()
        label = self._organizations.get(id)
        if label is None:
            if len(self._organizations) >= _MAX_ORGANIZATIONS:
                label = "other"
            else:
                label = self._organizations[id] = str(id)
        self.count(family, label, *labels, amount=amount)

    def _observe_command(self, name: str, seconds: float, failed: bool) -> None:
        """Count a command of the database; called from the driver's threads."""
        with self._lock:
            start = self._commands.get(name)
            if start is None:
                label = name if name in _COMMANDS else "other"
                start = self._commands[name] = self._cells.place("sds_database_seconds", (label,), _WIDTH)
            self._values[start + bisect_left(_SECONDS, seconds)] += 1
            self._values[start + _SUM] += seconds
            if failed:
                self.count("sds_database_failures_total", name if name in _COMMANDS else "other")

    def _reset_gauges(self) -> None:
        """Reset the gauges that a dead worker of this number left."""
        for row in self._cells.rows():
            if row.family not in FAMILIES or FAMILIES[row.family].kind == "gauge":
                self._values[self._cells.place(row.family, row.labels)] = 0

    def _sample(self) -> None:
        """Store the present values of sampled metrics."""
        for cell, read in self._sampled:
            self._values[cell] = read()
        for followed in self._followed:
            cell, read, before = followed
            followed[2] = now = read()
            self._values[cell] += now - before

    async def watch(self) -> None:
        """Measure the delay of the event loop and take samples, until cancelled."""
        while True:
            self._sample()
            due = time.perf_counter() + _SAMPLE_SECONDS
            await asyncio.sleep(_SAMPLE_SECONDS)
            late = max(0.0, time.perf_counter() - due)
            self._values[self._lag + bisect_left(_SECONDS, late)] += 1
            self._values[self._lag + _SUM] += late

    def render(self, accept: str, state: InFlight | None, sessions: dict[str, int]) -> tuple[bytes, str]:
        """Return all metrics in the format that a client accepts, and its content type."""
        self._sample()
        try:
            # A version that is asked for is in the response too.
            encode, content_type = choose_encoder(accept if accept.isascii() else "")
        except TypeError:  # a version that is no number
            encode, content_type = choose_encoder("")
        return encode(_Collected(self._collect(state, sessions))), content_type

    def _collect(self, state: InFlight | None, sessions: dict[str, int]) -> Iterator[Metric]:
        workers = {self._worker: self._cells.rows()} if self._folder is None else read_rows(self._folder)
        sums: defaultdict[str, defaultdict[Labels, list[float]]] = defaultdict(lambda: defaultdict(list))

        def add(family: str, labels: Labels, values: list[float]) -> None:
            totals = sums[family][labels]
            sums[family][labels] = [a + b for a, b in zip(totals, values, strict=True)] if totals else values

        for worker, rows in workers.items():
            process = _process(rows)
            for family, labels, values in rows:
                if family in FAMILIES and (process or FAMILIES[family].kind != "gauge"):
                    add(family, labels, values)
            if process:
                add("sds_workers", (), [1])
                for family, value in process.items():
                    add(family, (worker,), [value])
        add("sds_build_info", (__version__, platform.python_version(), self._encoder), [1])
        add("sds_database_up", (), [float(state is not None)])
        if state is not None:
            add("sds_batches_in_flight", (), [state.batches])
            add("sds_oldest_batch_seconds", (), [state.oldest_seconds])
            add("sds_oldest_upkeep_seconds", (), [state.oldest_upkeep_seconds])
        for session_state, count in sessions.items():
            add("sds_sessions", (session_state,), [count])
        for name, described in FAMILIES.items():
            if name in sums:
                yield _metric(name, described, sums[name])


class _Collected(Collector):
    """Metrics that were collected already."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _metric(name: str, family: Family, series: dict[Labels, list[float]]) -> Metric:
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(name, family.help, labels=family.labels)
        for labels, values in series.items():
            total, buckets = 0.0, []
            for bound, count in zip((*map(str, _SECONDS), "+Inf"), values, strict=False):
                total += count
                buckets.append((bound, total))
            histogram.add_metric(labels, buckets, values[_SUM])
        return histogram
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(name, family.help, labels=family.labels)
    for labels, values in series.items():
        metric.add_metric(labels, values[0])
    return metric


def _process(rows: list[Row]) -> dict[str, float]:
    """Return the system's values of the process that wrote these rows; nothing if it is gone."""
    pid = next((int(row.values[0]) for row in rows if row.family == "pid"), 0)
    folder = Path(f"/proc/{pid}")
    try:
        stat = (folder / "stat").read_text().rpartition(")")[2].split()
        files = len(os.listdir(folder / "fd"))
    except OSError:
        # A system without /proc: only this process is known to exist.
        return {"process_cpu_seconds_total": time.process_time()} if pid == os.getpid() else {}
    return {
        "process_cpu_seconds_total": (int(stat[11]) + int(stat[12])) / _CLOCK_TICKS,
        "process_resident_memory_bytes": int(stat[21]) * os.sysconf("SC_PAGE_SIZE"),
        "process_open_fds": files,
    }


METRICS = web.AppKey("metrics", Metrics)
