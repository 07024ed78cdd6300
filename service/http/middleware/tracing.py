"""OpenTelemetry traces: a span per request and per command of the database. Imported only where TRACING is on."""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from opentelemetry import propagate, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from service import __version__
from service.http.keys import ORGANIZATION, REQUEST_ID
from service.http.middleware.access_log import route_of
from service.store import Store

_GROUP = "sds.group"
_TRACE = web.RequestKey("trace", str)


def start_provider(exporter: SpanExporter | None = None) -> TracerProvider:
    """Return a tracer provider, configured by the OTEL_ variables of the environment."""
    if exporter is None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come first.
    os.environ.setdefault("OTEL_SERVICE_NAME", "scraping-data-service")
    provider = TracerProvider(resource=Resource.create({"service.version": __version__}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


class Tracing:
    """Traces the requests and the commands of one application."""

    def __init__(self, provider: TracerProvider, store: Store) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("scraping-data-service", __version__)
        self._count, store.pool.on_command = store.pool.on_command, self._on_command

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Make a span of a request, as part of the trace that its client began."""
        route = route_of(request)
        attributes: dict[str, Any] = {"http.request.method": request.method, "http.route": route}
        group_id = request.match_info.get("group_id")
        if group_id:
            attributes[_GROUP] = hashlib.sha256(group_id.encode(errors="replace")).hexdigest()[:16]
        with self._tracer.start_as_current_span(
            f"{request.method} {route}",
            propagate.extract(request.headers),
            kind=trace.SpanKind.SERVER,
            attributes=attributes,
            record_exception=False,  # its message may hold data
        ) as span:
            context = span.get_span_context()
            ids = f"{trace.format_trace_id(context.trace_id)}-{trace.format_span_id(context.span_id)}"
            request[_TRACE] = f"00-{ids}-{context.trace_flags:02x}"
            response = await handler(request)
            span.set_attribute("http.response.status_code", response.status)
            span.set_attribute("sds.request_id", request[REQUEST_ID])
            if ORGANIZATION in request:
                span.set_attribute("sds.organization", request[ORGANIZATION])
            if response.status >= 500:
                span.set_status(trace.StatusCode.ERROR)
            return response

    def _on_command(self, name: str, seconds: float, failed: bool) -> None:
        """Make a span of a command; called in the driver's threads, in the context of the request."""
        self._count(name, seconds, failed)
        end = time.time_ns()
        # Only requests have a span: a write queue writes for many requests, and the upkeep for none.
        group = getattr(trace.get_current_span(), "attributes", {}).get(_GROUP)
        attributes = {"db.system.name": "mongodb", "db.operation.name": name, **({_GROUP: group} if group else {})}
        span = self._tracer.start_span(
            f"mongodb {name}", kind=trace.SpanKind.CLIENT, start_time=end - int(seconds * 1e9), attributes=attributes
        )
        if failed:
            span.set_status(trace.StatusCode.ERROR)
        span.end(end)

    async def add_header(self, request: web.Request, response: web.StreamResponse) -> None:
        """Tell the client which trace its request belongs to."""
        if _TRACE in request:
            response.headers["traceresponse"] = request[_TRACE]

    async def close(self, app: web.Application) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()
