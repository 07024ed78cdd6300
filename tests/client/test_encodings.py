"""Commands on a system whose encoding lacks the letters of the data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sds_client import Client
from tests.support.api import make_cookie, make_output, make_outputs
from tests.support.processes import SECONDS

pytestmark = pytest.mark.usefixtures("environment")


def run(*arguments: str, given: bytes = b"") -> str:
    """Run a command with the encodings of an old system; return what it wrote in UTF-8."""
    old = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "cp1252"}
    command, environment = [sys.executable, "-m", "sds_client", *arguments], {**os.environ, **old}
    done = subprocess.run(command, env=environment, input=given, capture_output=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def test_items_in_any_script_are_written_in_utf_8(client: Client) -> None:
    client.push("lamps", [make_output(1, data={"title": "机の灯り"})])
    assert json.loads(run("follow", "lamps", "--once"))["data"]["title"] == "机の灯り"


@pytest.mark.slow
def test_results_in_any_script_are_written_in_utf_8(client: Client) -> None:
    client.push("机", make_outputs(1))
    client.set_cookies([make_cookie(value="灯り")])
    assert run("groups", "list").splitlines()[1].startswith("机 ")
    assert json.loads(run("groups", "list", "--json"))[0]["group_id"] == "机"
    assert json.loads(run("state", "export"))["cookies"][0]["value"] == "灯り"


@pytest.mark.slow
@pytest.mark.parametrize("is_file", [True, False], ids=["file", "standard input"])
def test_rules_are_read_in_utf_8(client: Client, tmp_path: Path, is_file: bool) -> None:
    rules = [{"path": "größe", "min_fill": 0.5}]
    content, file = json.dumps(rules, ensure_ascii=False).encode(), tmp_path / "rules.json"
    file.write_bytes(content)
    run("rules", "set", "lamps", str(file) if is_file else "-", given=b"" if is_file else content)
    assert client.group("lamps")["rules"] == rules


def test_the_state_of_singer_is_read_in_utf_8(client: Client, tmp_path: Path) -> None:
    client.push("größe", make_outputs(1))
    state = tmp_path / "state.json"
    position = {"positions": {"größe": {"cursor": client.group("größe")["last_id"]}}}
    state.write_bytes(json.dumps(position, ensure_ascii=False).encode())
    # With the name as a system with this encoding gives it to Python.
    code = "import sys; from sds_client.__main__ import main; sys.exit(main(sys.argv[1:] + ['gr\\xf6\\xdfe']))"
    command = [sys.executable, "-c", code, "singer", "--state", str(state)]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=SECONDS, check=True)
    assert [json.loads(line)["type"] for line in done.stdout.splitlines()] == ["SCHEMA", "STATE"]
