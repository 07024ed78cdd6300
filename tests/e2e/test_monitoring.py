"""Prometheus' own tool on what the service shows and on the alerts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import urllib.request

import pytest

from service.runtime.local_mongo import local_mongo
from tests.support.documentation import ROOT
from tests.support.processes import SECONDS, ServiceProcess, wait_until


@pytest.fixture
def promtool() -> str:
    path = shutil.which("promtool")
    assert path, "promtool is missing: Debian's package prometheus has it"
    return path


def check(promtool: str, service: ServiceProcess) -> str:
    with urllib.request.urlopen(f"{service.url}/metrics", timeout=SECONDS) as response:
        text: bytes = response.read()
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return text.decode()


@pytest.mark.parametrize("workers", [1, 4])
def test_promtool_accepts_the_metrics_before_and_after_a_failure_of_the_database(
    promtool: str, workers: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with local_mongo(tmp_path_factory.mktemp("mongo")) as mongo, ServiceProcess(mongo.url, workers=workers) as service:
        service.wait_until_ready()
        assert "sds_database_up 1.0" in check(promtool, service)
        os.kill(mongo.pid, signal.SIGSTOP)
        try:
            # Threads of mongod go on until the one that got the signal has stopped them.
            wait_until(lambda: "sds_database_up 0.0" in check(promtool, service))
        finally:
            os.kill(mongo.pid, signal.SIGCONT)
        service.wait_until_ready()
        found = check(promtool, service)
        assert "sds_database_up 1.0" in found
        assert found.count("\nsds_database_up ") == 1


def test_every_alert_fires_and_is_quiet_as_its_tests_say(promtool: str) -> None:
    for arguments in (["check", "rules", "rules.yaml"], ["test", "rules", "rules.test.yaml"]):
        done = subprocess.run(
            [promtool, *arguments], cwd=ROOT / "docker/monitoring", capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, done.stdout + done.stderr
