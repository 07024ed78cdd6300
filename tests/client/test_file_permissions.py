"""What the commands write is for its owner only."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sds_client import Client
from sds_client.__main__ import main
from tests.support.api import make_cookie, make_output


@pytest.mark.parametrize("name", ["g.ndjson", "g.ndjson.gz", "g.csv", "state.json"])
@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.usefixtures("environment")
def test_an_exported_file_is_for_its_owner_only(
    client: Client, tmp_path: Path, name: str, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "fchmod")  # Windows has it from Python 3.13 on
    out, before = tmp_path / name, os.umask(0o022)
    os.umask(before)
    if exists:
        out.write_text("older")
        out.chmod(0o644)
    client.push("g", [make_output(1)])
    client.set_cookies([make_cookie()])
    command = ["state", "export"] if name == "state.json" else ["outputs", "export", "g"]
    assert main([*command, "--out", str(out)]) == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert "older" not in str(out.read_bytes())
    # The mask of the process is as it was.
    assert os.umask(before) == before
