"""`sds singer`: the changes of a group as messages of the Singer specification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sds_client import Client
from sds_client.__main__ import main
from tests.support.api import make_outputs

pytestmark = pytest.mark.usefixtures("environment")


def messages(capsys: Any, *arguments: str) -> list[dict[str, Any]]:
    assert main(["singer", "lamps", *arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_file_without_a_state_is_named(capsys: Any, tmp_path: Path, text: str) -> None:
    state = tmp_path / "state.json"
    state.write_text(text)
    assert main(["singer", "lamps", "--state", str(state)]) == 1
    told = capsys.readouterr()
    assert told.err.startswith(f"error: {state} must hold the value of the last STATE message")
    assert told.out == ""


def test_a_second_run_from_the_state_has_only_changes_and_deletions(
    client: Client, capsys: Any, tmp_path: Path
) -> None:
    client.push("lamps", make_outputs(3))
    state = tmp_path / "state.json"
    schema, *records, last = messages(capsys, "--state", str(state))
    assert (schema["type"], schema["stream"], schema["key_properties"]) == ("SCHEMA", "lamps", ["output_id"])
    assert [(one["type"], one["record"]["key_hash"]) for one in records] == [
        ("RECORD", f"key-{number}") for number in range(3)
    ]
    assert set(records[0]["record"]) <= set(schema["schema"]["properties"])
    assert last["type"] == "STATE"
    state.write_text(json.dumps(last["value"]))

    # A run without changes ends with the state too: whoever keeps the last message keeps a state.
    assert [one["type"] for one in messages(capsys, "--state", str(state))] == ["SCHEMA", "STATE"]
    client.push("lamps", make_outputs(1, "Changed"))
    client.delete("lamps", records[2]["record"]["output_id"])
    _, changed, deleted, _ = messages(capsys, "--state", str(state))
    assert (changed["record"]["key_hash"], changed["record"]["data"]["title"]) == ("key-0", "Changed 0")
    assert "_sdc_deleted_at" not in changed["record"]
    assert (deleted["record"]["key_hash"], bool(deleted["record"]["_sdc_deleted_at"])) == ("key-2", True)


def test_a_slash_after_the_address_does_not_make_it_another_service(
    client: Client, capsys: Any, tmp_path: Path
) -> None:
    client.push("lamps", make_outputs(3))
    state = tmp_path / "state.json"
    state.write_text(json.dumps(messages(capsys)[-1]["value"]))
    found = messages(capsys, "--state", str(state), "--url", f"{client.url}/")
    assert [one["type"] for one in found] == ["SCHEMA", "STATE"]


def test_the_state_of_another_organization_is_refused(
    client: Client, other_token: str, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.push("lamps", make_outputs(3))
    state = tmp_path / "state.json"
    state.write_text(json.dumps(messages(capsys)[-1]["value"]))
    monkeypatch.setenv("SDS_TOKEN", other_token)
    assert main(["singer", "lamps", "--state", str(state)]) == 1
    assert f"{state} is the state of organization" in capsys.readouterr().err
