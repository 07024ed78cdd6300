"""Commands whose standard output or standard error nobody reads any more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sds_client import Client
from tests.support.api import make_output, make_outputs
from tests.support.processes import SECONDS

pytestmark = [pytest.mark.usefixtures("environment"), pytest.mark.slow]


@pytest.fixture(autouse=True)
def buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a stream still holds is written at the exit, and may fail there."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


@contextmanager
def unread() -> Iterator[int]:
    """Yield the end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def test_an_import_goes_on_when_nobody_reads_its_progress(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "x.ndjson"
    file.write_text("\n".join(json.dumps(item) for item in make_outputs(1200)))
    code = (
        "import sys; from sds_client.__main__ import main; from sds_client.cli import progress\n"
        "progress._LINE = 0\n"  # a line after each batch
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "outputs", "import", "group", str(file)]
    with unread() as pipe:
        done = subprocess.run(command, stderr=pipe, timeout=SECONDS)
    assert done.returncode == 0
    assert client.group("group")["items"] == 1200


def test_an_error_that_nobody_reads_is_still_the_exit_code(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "x.ndjson"
    file.write_text("{broken")
    command = [sys.executable, "-m", "sds_client", "outputs", "import", "group", str(file)]
    with unread() as pipe:
        assert subprocess.run(command, stderr=pipe, timeout=SECONDS).returncode == 1


def test_a_command_that_stores_something_fails_when_nobody_reads_its_result(client: Client) -> None:
    command = [sys.executable, "-m", "sds_client", "reviews", "add", "group", "job-1", "approved", "--json"]
    with unread() as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (1, "error: nobody reads the result of the command\n")


@pytest.mark.parametrize("is_first", [True, False], ids=["first run", "later run"])
def test_a_follower_whose_reader_leaves_fails_and_begins_again_where_it_began(
    client: Client, tmp_path: Path, is_first: bool
) -> None:
    cursor = tmp_path / "cursor"
    follow = f"{sys.executable} -m sds_client follow group --once --cursor-file {cursor}"
    if not is_first:
        client.push("group", make_outputs(1, first=7000))
        subprocess.run(follow.split(), check=True, capture_output=True, timeout=SECONDS)
    before = cursor.read_bytes() if cursor.exists() else None
    # More than a pipe holds.
    client.push("group", [make_output(n, data={"title": "x" * 2000}) for n in range(200)])
    command = f"set -o pipefail; {follow} | head -n 1 >/dev/null"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 1
    assert done.stderr.startswith("error: the reader of standard output has left")
    assert (cursor.read_bytes() if cursor.exists() else None) == before
    again = subprocess.run(follow.split(), check=True, capture_output=True, text=True, timeout=SECONDS)
    assert len(again.stdout.splitlines()) == 200
