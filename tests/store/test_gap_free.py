"""A short run of the checker: nothing is missed, and with the mark off it says that much is."""

from __future__ import annotations

import os
import re
import subprocess
import sys

SMALL = "--versions 100000 --writers 6 --services 2 --readers 1 --lease 1"


def check(mongo_url: str, options: str) -> tuple[int, str]:
    """Run the checker; return its exit code and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.checker", *SMALL.split(), *options.split()],
        env={**os.environ, "MONGO_URL": mongo_url},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


def number(name: str, output: str) -> int:
    found = re.search(rf"{name}: (\d+)", output)
    assert found, output
    return int(found[1])


def test_no_reader_misses_an_item_while_writers_and_services_fail(mongo_url: str) -> None:
    code, output = check(mongo_url, "--seconds 5 --kill-every 2")
    assert code == 0, output
    assert number("missed", output) == number("lost", output) == number("duplicated", output) == 0
    assert number("versions acknowledged", output) > 100
    assert "kill -9" in output and "delay written" in output


def test_the_checker_reports_misses_when_there_is_no_mark(mongo_url: str) -> None:
    code, output = check(mongo_url, "--seconds 3 --kill-every 0 --no-mark")
    assert code == 1, output
    assert number("missed", output) > 0
    assert number("lost", output) == number("duplicated", output) == 0
