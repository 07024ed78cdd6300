"""A short run of the checker for leases: no session has two holders, and no save is lost or stale."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from scripts.checker.failovers import KINDS

# Three databases at once: beside nothing else of the kind.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("replica-set")]

WRONG = ("double holders", "lost saves", "stale saves", "ended early")


def check(options: str, **environ: str) -> tuple[int, str]:
    """Run the checker; return its exit code and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.checker.leases", "--workers", "8", "--services", "2", *options.split()],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=400,
    )
    return done.returncode, done.stdout + done.stderr


def number(name: str, output: str) -> int:
    found = re.search(rf"^{name}: (\d+)", output, re.MULTILINE)
    assert found, output
    return int(found[1])


def test_no_session_has_two_holders_while_services_and_primaries_fail() -> None:
    failovers = f"--nodes 3 --failovers --min-failovers {len(KINDS)} --failover-every 4"
    code, output = check(f"{failovers} --leases 300 --kill-every 5 --pause-every 8 --seconds 240")
    assert code == 0, output
    assert [number(kind, output) for kind in WRONG] == [0] * len(WRONG)
    assert number("leases", output) >= 300 and number("failovers", output) >= len(KINDS)
    assert '"services killed"' in output and '"lost replies"' in output and '"cut"' in output


def test_the_checker_reports_double_holders_when_leases_do_not_exclude(mongo_url: str) -> None:
    options = "--leases 500 --seconds 120 --kill-every 1000 --pause-every 1000 --not-exclusive"
    code, output = check(options, MONGO_URL=mongo_url)
    assert code == 1, output
    assert re.search(r"^double holders: (shop|forum)", output, re.MULTILINE), output
