"""`state import` and `state export` against a real process of the service."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sds_client import Client
from sds_client.__main__ import main
from tests.client.test_formats import CURL, EDIT_THIS_COOKIE, PLAYWRIGHT

pytestmark = pytest.mark.usefixtures("environment")


def test_state_goes_in_by_one_format_and_out_by_another(client: Client, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "cookies.txt"
    file.write_text(CURL)
    assert main(["state", "import", str(file)]) == 0
    assert "cookies: 2 created, 0 updated" in capsys.readouterr().out
    assert main(["state", "export", "--format", "cookie-editor", "--domain", "shop.example"]) == 0
    found = {cookie["name"]: cookie for cookie in json.loads(capsys.readouterr().out)}
    assert (found["sid"]["hostOnly"], found["sid"]["expirationDate"]) == (False, 1893456000)
    assert (found["basket"]["hostOnly"], found["basket"]["session"]) == (True, True)


def test_playwrights_state_comes_back_as_it_went_in(client: Client, tmp_path: Path, capsys: Any) -> None:
    file, out = tmp_path / "state.json", tmp_path / "out.json"
    file.write_text(json.dumps(PLAYWRIGHT))
    assert main(["state", "import", str(file)]) == 0
    assert main(["state", "export", "--out", str(out)]) == 0
    state = json.loads(out.read_text())
    key = lambda cookie: cookie["name"]
    assert sorted(state["cookies"], key=key) == sorted(PLAYWRIGHT["cookies"], key=key)
    assert state["origins"] == PLAYWRIGHT["origins"]
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_what_a_format_cannot_hold_is_said(client: Client, tmp_path: Path, capsys: Any) -> None:
    client.set_storage_state(PLAYWRIGHT)
    assert main(["state", "export", "--format", "netscape"]) == 0
    told = capsys.readouterr()
    assert "local storage of 1 origin left out" in told.err
    assert "#HttpOnly_.shop.example\tTRUE\t/\tTRUE\t1893456000\tsid\t4f1c9a" in told.out


def test_a_faulty_file_stores_nothing_and_says_which_record(client: Client, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "cookies.json"
    file.write_text(json.dumps([EDIT_THIS_COOKIE[0], {**EDIT_THIS_COOKIE[0], "expirationDate": 1893456000000}]))
    assert main(["state", "import", str(file)]) == 1
    told = capsys.readouterr().err
    assert "cookie 2 ('sid' of '.shop.example')" in told and "milliseconds" in told
    assert client.cookies() == []


@pytest.mark.parametrize("command", [["state", "import", "none.json"], ["outputs", "import", "group", "none.ndjson"]])
def test_a_file_that_is_not_there_is_said(client: Client, command: list[str], capsys: Any) -> None:
    assert main(command) == 1
    assert re.search(r"error: none\.\w+: No such file", capsys.readouterr().err)


def test_without_a_token_the_word_is_where_to_put_it(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.delenv("SDS_TOKEN", raising=False)
    assert main(["state", "export"]) == 2
    assert "set SDS_TOKEN" in capsys.readouterr().err


def test_a_refused_token_is_not_told(client: Client, capsys: Any) -> None:
    assert main(["state", "export", "--token", "sds_not-this-one"]) == 1
    told = capsys.readouterr()
    assert "error: 401" in told.err
    assert "not-this-one" not in told.err + told.out


def test_the_commands_work_without_the_server(client: Client) -> None:
    client.set_storage_state(PLAYWRIGHT)
    command = [sys.executable, "-m", "sds_client", "state", "export", "--format", "cdp"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert {cookie["name"] for cookie in json.loads(done.stdout)["cookies"]} == {"sid", "basket", "chip"}
