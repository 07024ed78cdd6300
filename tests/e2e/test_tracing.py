"""OpenTelemetry's own SDK receives the spans of requests and of the commands of the database."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from service.app import create_app
from service.http.middleware import tracing
from service.runtime.local_mongo import local_mongo
from service.settings import Settings
from service.store import Store
from tests.conftest import Server
from tests.support.api import Api, make_output

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
async def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Api, Any]]:
    """A service whose spans are kept in memory: the caller, and what gives the finished spans."""
    exporter = InMemorySpanExporter()
    provider = tracing.start_provider(exporter)
    monkeypatch.setattr(tracing, "start_provider", lambda: provider)
    settings = Settings(tracing=True)
    with local_mongo(tmp_path) as mongo:
        store = Store.connect(settings, mongo.url)
        await store.ensure_indexes()
        token = await store.tokens.create(1, ["read", "write"])
        async with TestClient(Server(create_app(settings, store))) as client:

            def finished() -> list[Any]:
                provider.force_flush()
                return list(exporter.get_finished_spans())

            yield Api(client, token, 1), finished


async def test_a_request_is_a_span_of_the_clients_trace_with_its_commands_below_it(
    traced: tuple[Api, Any],
) -> None:
    api, finished = traced
    await api.ok("/v1/outputs/secret-shop", [make_output(1)])
    headers = {"Authorization": f"Bearer {api.token}", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    async with api.client.get("/v1/outputs/secret-shop", headers=headers) as response:
        assert response.status == 200
        assert response.headers["traceresponse"].startswith(f"00-{TRACE}-")
    spans = [span for span in finished() if f"{span.context.trace_id:032x}" == TRACE]
    (request,) = (span for span in spans if span.name == "GET /v1/outputs/{group_id}")
    assert f"{request.parent.span_id:016x}" == "00f067aa0ba902b7"
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["sds.organization"] == 1
    commands = [span for span in spans if span.name.startswith("mongodb ")]
    assert "mongodb find" in {span.name for span in commands}
    assert {span.parent.span_id for span in commands} == {request.context.span_id}
    assert {span.attributes["sds.group"] for span in commands} == {request.attributes["sds.group"]}
    assert not any("secret-shop" in str(span.attributes) + span.name for span in finished())


async def test_the_commands_of_a_write_are_spans_too(traced: tuple[Api, Any]) -> None:
    api, finished = traced
    await api.ok("/v1/outputs/shop", [make_output(1)])
    assert {"mongodb insert", "mongodb findAndModify"} <= {span.name for span in finished()}


def test_nothing_of_opentelemetry_is_imported_while_tracing_is_off() -> None:
    code = "import sys, service.app, service.cli; print([name for name in sys.modules if 'opentelemetry' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
