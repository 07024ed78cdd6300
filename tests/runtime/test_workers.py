"""The supervisor: it keeps the port while workers die, and starts them again more and more slowly."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from tests.support.processes import SECONDS, ServiceProcess
from tests.support.workers import pausing

pytestmark = pytest.mark.slow


def test_nobody_can_take_the_port_while_all_workers_are_dead_and_connections_wait(mongo_url: str) -> None:
    with ServiceProcess(mongo_url, workers=2) as service:
        pids = [line["pid"] for line in service.wait_for("listening", 2)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        service.wait_for("a worker died", 2)
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", service.port))
                other.listen()
        with socket.create_connection(("127.0.0.1", service.port), timeout=SECONDS) as waiting:
            waiting.sendall(b"GET /healthz HTTP/1.0\r\nHost: x\r\n\r\n")
            assert b" 200 " in waiting.recv(100)


def test_connections_go_to_the_living_while_one_worker_is_dead(mongo_url: str) -> None:
    with ServiceProcess(mongo_url, workers=2, entry=pausing(10 * SECONDS)) as service:
        first = service.wait_for("listening", 2)[0]["pid"]
        os.kill(first, signal.SIGKILL)
        service.wait_for("a worker died")
        for _ in range(50):  # half of them would wait for the dead one's successor
            with socket.create_connection(("127.0.0.1", service.port), timeout=SECONDS) as connection:
                connection.sendall(b"GET /healthz HTTP/1.0\r\nHost: x\r\n\r\n")
                assert b" 200 " in connection.recv(100)
        assert len(service.events("listening")) == 2


def test_the_pause_before_a_restart_doubles(mongo_url: str) -> None:
    with ServiceProcess(mongo_url, workers=2, entry=pausing(0.25)) as service:
        for deaths in (1, 2, 3):
            pid = service.wait_for("listening", 1 + deaths)[-1]["pid"]
            os.kill(pid, signal.SIGKILL)
            service.wait_for("a worker died", deaths)
        pauses = [line["restart_seconds"] for line in service.events("a worker died")]
        assert pauses == [0.25, 0.5, 1.0]


def test_workers_share_a_port_that_the_system_chose(mongo_url: str) -> None:
    with ServiceProcess(mongo_url, workers=2, flags=["--port", "0"]) as service:
        ports = {line["port"] for line in service.wait_for("listening", 2)}
        assert len(ports) == 1
        assert ports != {0}
        assert service.stop() == 0
