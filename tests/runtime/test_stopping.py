"""Stopping: early, drained, and only after the clients have received what was sent to them."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.api import make_output
from tests.support.processes import SECONDS, ServiceProcess, make_token

pytestmark = pytest.mark.slow


def get(service: ServiceProcess, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_the_service_stops_only_when_a_client_has_received_its_response(
    mongo_url: str, organization: int, workers: int
) -> None:
    token = make_token(mongo_url, organization)
    with ServiceProcess(mongo_url, workers=workers) as service:
        service.wait_until_ready()
        host = {"Host": "x", "Authorization": f"Bearer {token}"}
        writer = http.client.HTTPConnection("127.0.0.1", service.port, timeout=SECONDS)
        items = [make_output(n, data={"text": "x" * 300}) for n in range(100)]
        writer.request("POST", "/v1/outputs/g", json.dumps(items), {**host, "Content-Type": "application/json"})
        assert writer.getresponse().status == 200
        writer.close()
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # all but a little stays in the sender's kernel
            slow.settimeout(SECONDS)
            slow.connect(("127.0.0.1", service.port))
            headers = f"Host: x\r\nAuthorization: Bearer {token}\r\nX-Request-ID: read\r\n"
            slow.sendall(f"GET /v1/outputs/g?limit=100 HTTP/1.0\r\n{headers}\r\n".encode())
            service.wait_for("request", request_id="read")
            service.process.terminate()
            service.wait_for("waiting for clients to receive their responses")
            assert service.process.poll() is None
            received = b""
            while data := slow.recv(65536):
                received += data
        assert service.process.wait(SECONDS) == 0
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"200 OK" in head
    assert len(json.loads(body)["items"]) == 100


def test_a_client_that_never_reads_holds_up_a_stop_no_longer_than_the_limit(mongo_url: str) -> None:
    with ServiceProcess(mongo_url, shutdown_timeout=2) as service:
        service.wait_until_ready()
        with socket.socket() as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.connect(("127.0.0.1", service.port))
            stuck.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\nX-Request-ID: stuck\r\n\r\n")
            service.wait_for("request", request_id="stuck")
            started = time.monotonic()
            service.process.terminate()
            assert service.process.wait(SECONDS) == 0  # it reads as long as this lasts: for ever
            assert time.monotonic() - started >= 2
        assert service.events("stopping with responses undelivered")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_draining_service_says_that_it_is_not_ready_and_serves_on(mongo_url: str, workers: int) -> None:
    with ServiceProcess(mongo_url, workers=workers, drain_seconds=2 * SECONDS) as service:
        service.wait_until_ready()
        service.process.terminate()
        stopping = service.wait_for("stopping", workers)
        assert get(service, "/readyz") == 503
        assert get(service, "/healthz") == 200
        for line in stopping:
            os.kill(line["pid"], signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_draining_service_stops_after_its_time(mongo_url: str, workers: int) -> None:
    with ServiceProcess(mongo_url, workers=workers, drain_seconds=1) as service:
        service.wait_for("listening", workers)
        told = time.monotonic()
        service.process.terminate()
        assert service.process.wait(SECONDS) == 0
        assert time.monotonic() - told >= 1


def test_a_process_told_to_stop_while_it_still_imports_stops_by_its_own_handler(tmp_path: Path) -> None:
    # By the handler and not by the signal's default action: for PID 1 of a container there is none.
    slow = tmp_path / "schemas"
    slow.mkdir()
    # In steps, as an import is: a signal that comes just before one long sleep is handled after it.
    slow_import = "import time\nprint('importing', flush=True)\nfor _ in range(6000):\n    time.sleep(0.01)\n"
    (slow / "__init__.py").write_text(slow_import)
    process = subprocess.Popen(
        [sys.executable, "-m", "service", "serve"],
        env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"importing\n"
        process.terminate()
        assert process.wait(SECONDS) == 128 + signal.SIGTERM
