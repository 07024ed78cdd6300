"""The Node.js example of docs/scrapers.md: it writes batches, and follows through a restart of the service."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sds_client import Client
from tests.support.documentation import ROOT
from tests.support.processes import ServiceProcess, free_port, make_token, wait_until

PACKAGE = "eventsource@4.0.0"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two files as the documentation shows them, beside the package that one of them needs."""
    assert shutil.which("npm"), "There is no npm: install Node.js 20 or newer (Debian: apt-get install nodejs npm)."
    folder = tmp_path_factory.mktemp("node")
    write, follow = re.findall(r"^```mjs\n(.*?)^```$", (ROOT / "docs/scrapers.md").read_text(), re.M | re.S)
    (folder / "write.mjs").write_text(write)
    (folder / "follow.mjs").write_text(follow)
    flags = ["--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock", "--loglevel=error"]
    subprocess.run(["npm", "install", "--prefix", str(folder), *flags, PACKAGE], cwd=folder, check=True, timeout=300)
    return folder


def test_it_writes_in_batches_and_follows_through_a_restart(
    mongo_url: str, organization: int, project: Path, tmp_path: Path
) -> None:
    token, port = make_token(mongo_url, organization, "read", "write", "delete"), free_port()
    environ = {**os.environ, "SDS_URL": f"http://127.0.0.1:{port}", "SDS_TOKEN": token}

    def write(job: str, count: int) -> str:
        command = ["node", "write.mjs", "lamps", job, str(count)]
        return subprocess.run(command, cwd=project, env=environ, check=True, capture_output=True, text=True).stdout

    with ServiceProcess(mongo_url, port=port) as service:
        service.wait_until_ready()
        assert write("monday", 600).splitlines() == [
            "{ created: 500, updated: 0, unchanged: 0 }",
            "{ created: 100, updated: 0, unchanged: 0 }",
        ]
        log = tmp_path / "followed"
        with log.open("wb") as file:
            following: Any = subprocess.Popen(
                ["node", "follow.mjs", "lamps"], cwd=project, env=environ, stdout=file, stderr=subprocess.STDOUT
            )
        try:
            wait_until(lambda: log.read_text().count(" stored ") == 600)
            service.stop()
            wait_until(lambda: "connection lost" in log.read_text())
            with ServiceProcess(mongo_url, port=port) as again, Client(again.url, token) as client:
                again.wait_until_ready()
                client.delete_many("lamps", url="https://lamps.example/7")
                wait_until(lambda: "deleted lamp-7" in log.read_text(), log.read_text)
        finally:
            following.terminate()
            following.wait(20)
    seen = re.findall(r"^(\d+) (\w+) (\S+)$", log.read_text(), re.MULTILINE)
    assert len(seen) == 601  # nothing twice, nothing missed
    assert [int(id) for id, _, _ in seen] == sorted({int(id) for id, _, _ in seen})
