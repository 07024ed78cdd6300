"""What the commands write is for its owner only."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sds_client import Client
from sds_client.__main__ import main
from tests.support.api import make_cookie, make_output
from tests.support.processes import ServiceProcess, make_token


@pytest.mark.parametrize("name", ["g.ndjson", "g.ndjson.gz", "g.csv", "state.json"])
@pytest.mark.parametrize("exists", [False, True])
def test_an_exported_file_is_for_its_owner_only(
    mongo_url: str, organization: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, exists: bool
) -> None:
    token = make_token(mongo_url, organization)
    out = tmp_path / name
    if exists:
        out.write_text("older")
        out.chmod(0o644)
    with ServiceProcess(mongo_url) as service:
        service.wait_until_ready()
        monkeypatch.setenv("SDS_URL", service.url)
        monkeypatch.setenv("SDS_TOKEN", token)
        with Client(service.url, token) as client:
            client.push("g", [make_output(1)])
            client.set_cookies([make_cookie()])
        command = ["state", "export"] if name == "state.json" else ["outputs", "export", "g"]
        assert main([*command, "--out", str(out)]) == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert "older" not in str(out.read_bytes())
    # The mask of the process is as it was.
    mask = os.umask(0o022)
    os.umask(mask)
    assert mask != 0o077
