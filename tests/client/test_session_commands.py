"""`sds sessions` against a real process of the service."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from sds_client import Client
from sds_client.__main__ import main
from tests.client.test_formats import CURL, EDIT_THIS_COOKIE, PLAYWRIGHT

pytestmark = pytest.mark.usefixtures("environment")


@pytest.fixture
def state_file(tmp_path: Path) -> Path:
    file = tmp_path / "state.json"
    file.write_text(json.dumps(PLAYWRIGHT))
    return file


def said(capsys: Any, *arguments: str, code: int = 0) -> str:
    """Return what a command wrote."""
    assert main(["sessions", *arguments]) == code
    output = capsys.readouterr()
    return str(output.out + output.err)


def as_json(capsys: Any, *arguments: str) -> Any:
    return json.loads(said(capsys, *arguments, "--json"))


@pytest.mark.parametrize("content", [json.dumps(PLAYWRIGHT), CURL, json.dumps(EDIT_THIS_COOKIE)], ids=["p", "txt", "e"])
def test_a_session_is_put_from_a_file_of_any_format(client: Client, tmp_path: Path, capsys: Any, content: str) -> None:
    file = tmp_path / "file"
    file.write_text(content)
    assert "anna: ready, version 1" in said(capsys, "put", "shop", "anna", str(file), "--note", "main account")
    session = client.get_session("shop", "anna")
    assert session is not None and session["storage_state"] is not None and session["storage_state"]["cookies"]
    assert session["note"] == "main account"


def test_a_session_is_leased_into_a_file_and_released_with_another(
    client: Client, state_file: Path, tmp_path: Path, capsys: Any
) -> None:
    said(capsys, "put", "shop", "anna", str(state_file))
    out = tmp_path / "leased.json"
    lease = as_json(capsys, "lease", "shop", "--seconds", "60", "--owner", "me", "--out", str(out))
    assert lease["session"] == {"pool": "shop", "name": "anna"}  # no secrets on the terminal
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    state = json.loads(out.read_text())
    assert state["origins"] == PLAYWRIGHT["origins"]
    assert "me" in said(capsys, "list", "shop", "--state", "leased")
    out.write_text(json.dumps({**state, "cookies": state["cookies"][:1]}))
    data = tmp_path / "data.json"
    data.write_text('{"login": "anna"}')
    options = ["--state", str(out), "--user-data", str(data), "--rest-seconds", "60", "--note", "fine"]
    assert "anna: resting, state saved" in said(capsys, "release", lease["lease_id"], *options)
    session = client.get_session("shop", "anna")
    assert session is not None and session["storage_state"] is not None
    assert len(session["storage_state"]["cookies"]) == 1
    assert (session["user_data"], session["note"]) == ({"login": "anna"}, "fine")
    client.put_session("shop", "anna", state="ready")
    shared = [as_json(capsys, "lease", "shop", "--shared")["lease_id"] for _ in range(2)]
    assert len(set(shared)) == 2
    assert "has ended" in said(capsys, "release", "x" * 32, "--outcome", "bad", code=1)


def test_sessions_are_marked_shown_and_deleted(client: Client, state_file: Path, capsys: Any) -> None:
    said(capsys, "put", "shop", "anna", str(state_file))
    assert "anna: needs_login" in said(capsys, "mark", "shop", "anna", "needs_login", "--note", "asks for a code")
    shown = said(capsys, "show", "shop", "anna")
    assert "state: needs_login" in shown and "note: asks for a code" in shown
    secret = PLAYWRIGHT["cookies"][0]["value"]
    assert secret not in shown and secret not in said(capsys, "list", "shop", "--json")
    assert secret in said(capsys, "show", "shop", "anna", "--secrets", "--json")
    assert "there is no session ana" in said(capsys, "mark", "shop", "ana", "ready", code=3)
    assert client.get_session("shop", "ana") is None
    assert "deleted" in said(capsys, "delete", "shop", "anna", "--yes")
    assert "there is no session anna" in said(capsys, "delete", "shop", "anna", "--yes", code=3)
    assert "deleted the pool with 0 sessions" in said(capsys, "delete", "shop", "--yes")


def test_the_state_of_a_session_is_exported(state_file: Path, tmp_path: Path, capsys: Any) -> None:
    said(capsys, "put", "shop", "anna", str(state_file))
    exported = json.loads(said(capsys, "export", "shop", "anna"))
    assert exported["origins"] == PLAYWRIGHT["origins"]
    out = tmp_path / "cookies.txt"
    assert "left out" in said(capsys, "export", "shop", "anna", "--format", "netscape", "--out", str(out))
    assert stat.S_IMODE(out.stat().st_mode) == 0o600 and PLAYWRIGHT["cookies"][0]["value"] in out.read_text()


def test_the_settings_of_a_pool_are_changed(client: Client, capsys: Any) -> None:
    told = said(capsys, "pool", "shop", "--rest-seconds", "60", "--blocked-rest-seconds", "retire")
    assert "rest_seconds: 60" in told and "blocked_rest_seconds: retire" in told and "max_uses: never" in told
    assert client.pools()[0]["blocked_rest_seconds"] is None
    assert "READY" in said(capsys, "pools")


def test_user_data_comes_from_a_file_with_an_object(client: Client, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "data.json"
    file.write_text('{"user_agent": "Mozilla/5.0", "proxy": "http://p:1"}')
    said(capsys, "put", "shop", "anna", "--user-data", str(file))
    session = client.get_session("shop", "anna")
    assert session is not None and session["user_data"] == {"user_agent": "Mozilla/5.0", "proxy": "http://p:1"}
    file.write_text("[]")
    assert "must hold a JSON object" in said(capsys, "put", "shop", "anna", "--user-data", str(file), code=2)
