"""A short run of the checker: nothing is missed, and with the mark off it says that much is."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from scripts.checker.control import PROMISES
from scripts.checker.failovers import KINDS

SMALL = "--versions 100000 --writers 6 --services 2 --readers 1 --lease 3"

# Three databases at once: beside nothing else of the kind.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("replica-set")]


def check(options: str, **environ: str) -> tuple[int, str]:
    """Run the checker; return its exit code and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.checker", *SMALL.split(), *options.split()],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=400,
    )
    return done.returncode, done.stdout + done.stderr


def number(name: str, output: str) -> int:
    found = re.search(rf"{name}: (\d+)", output)
    assert found, output
    return int(found[1])


def test_no_reader_misses_an_item_while_writers_services_and_primaries_fail() -> None:
    failovers = f"--nodes 3 --failovers --min-failovers {len(KINDS)} --failover-every 4"
    code, output = check(f"{failovers} --kill-every 3 --versions 100 --seconds 240")  # 35 s, mostly
    assert code == 0, output
    assert number("missed", output) == number("lost", output) == number("duplicated", output) == 0
    assert number("left out in a walk", output) == 0
    assert number("versions acknowledged", output) > 100
    assert "kill -9 of a service" in output and "delay written" in output
    assert all(re.search(rf"[1-9]\d* {kind}", output) for kind in KINDS), output


def test_the_checker_reports_misses_when_there_is_no_mark(mongo_url: str) -> None:
    code, output = check("--versions 1500 --kill-every 0 --no-mark", MONGO_URL=mongo_url)
    assert code == 1, output
    assert number("missed", output) > 0
    assert number("lost", output) == number("duplicated", output) == 0


def test_the_checker_reports_every_broken_promise_of_a_model_of_the_service() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.checker.control"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok ") == 1 + len(PROMISES), done.stdout
