"""`outputs delete` and `outputs approve` against a real process of the service."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from typing import Any
from unittest.mock import Mock

import pytest

from sds_client import Client
from sds_client.__main__ import main
from tests.support.api import make_output, make_outputs

pytestmark = pytest.mark.usefixtures("environment")


def keys(client: Client) -> list[str]:
    return [item["key_hash"] for item in client.outputs("group")]


@pytest.mark.slow
def test_items_that_match_are_deleted_and_counted(client: Client, capsys: Any) -> None:
    client.push("group", [*make_outputs(5), make_output(9, root_job_id="job-2", tags={"country": "Peru"})])
    assert main(["outputs", "delete", "group", "--job-id", "job-1", "--yes"]) == 0
    assert "deletion in group: deleted, 5 items" in capsys.readouterr().err
    assert keys(client) == ["key-9"]
    assert main(["outputs", "delete", "group", "--country", "Germany", "--yes"]) == 0
    assert keys(client) == ["key-9"]
    assert main(["outputs", "delete", "group", "--all", "--yes"]) == 0
    assert keys(client) == []


@pytest.mark.slow
def test_items_up_to_an_id_are_deleted(client: Client) -> None:
    client.push("group", make_outputs(5))
    assert main(["outputs", "delete", "group", "--all", "--max-id", "2", "--yes"]) == 0
    assert keys(client) == ["key-2", "key-3", "key-4"]


@pytest.mark.parametrize(
    ("reply", "code", "left"),
    [("y\n", 0, 0), *(pytest.param(reply, 1, 2, marks=pytest.mark.slow) for reply in ("n\n", "\n", "\x04"))],
)
def test_a_deletion_is_confirmed_on_the_terminal(client: Client, reply: str, code: int, left: int) -> None:
    client.push("group", make_outputs(2))
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "sds_client", "outputs", "delete", "group", "--job-id", "job-1"]
    process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    os.write(ours, reply.encode())
    out, error = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert "Delete the outputs with job_id=job-1 of group group? [y/N]" in out
    assert process.returncode == code, error
    assert ("nothing was deleted" in error) == bool(left)
    assert len(keys(client)) == left


@pytest.mark.slow
def test_without_a_terminal_a_deletion_needs_yes(client: Client, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client.push("group", make_outputs(1))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["outputs", "delete", "group", "--all"]) == 1
    assert "give --yes" in capsys.readouterr().err
    assert keys(client) == ["key-0"]


@pytest.mark.parametrize("options", [["--yes"], ["--job-id", "", "--yes"], ["--all", "--job-id", "", "--yes"]])
def test_a_deletion_without_a_filter_or_with_an_empty_one_deletes_nothing(
    client: Client, options: list[str], capsys: Any
) -> None:
    client.push("group", make_outputs(1))
    assert main(["outputs", "delete", "group", *options]) == 2
    assert "error: " in capsys.readouterr().err
    assert keys(client) == ["key-0"]


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        (["outputs", "delete", "group"], "--job-id, --source-url, --country, --region, "),
        (["cookies", "delete"], "--domain, --path, --name, --expired, --all\n"),
        (["storage", "delete"], "--domain, --path, --key, --expired, --all\n"),
    ],
)
def test_a_deletion_without_a_filter_names_the_options(command: list[str], flags: str, capsys: Any) -> None:
    assert main([*command, "--yes"]) == 2
    assert f"error: name what to delete with at least one of {flags}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "question"),
    [
        (["cookies", "delete", "--domain", "shop.example"], "Delete the cookies with domain=shop.example? [y/N] "),
        (["storage", "delete", "--all"], "Delete all local-storage entries? [y/N] "),
        (["webhooks", "delete", "no-such"], "Delete the webhook no-such and its messages? [y/N] "),
    ],
    ids=["cookies", "storage", "webhooks"],
)
def test_every_deletion_asks_first(
    client: Client, command: list[str], question: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.set_cookies([{"domain": "shop.example", "name": "session", "value": "4f1c"}])
    client.set_local_storage([{"domain": "shop.example", "key": "theme", "value": "dark"}])
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(command) == 1
    assert "give --yes" in capsys.readouterr().err
    asked = Mock(return_value="n")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", asked)
    assert main(command) == 1
    asked.assert_called_once_with(question)
    assert "nothing was deleted" in capsys.readouterr().err
    assert (len(client.cookies()), len(client.local_storage())) == (1, 1)


def test_items_are_approved_and_the_missing_ones_named(client: Client, capsys: Any) -> None:
    client.push("group", make_outputs(2))
    ids = [item["output_id"] for item in client.outputs("group")]
    assert main(["outputs", "approve", "group", *ids]) == 0
    assert "2 updated, 0 unchanged" in capsys.readouterr().out
    assert main(["outputs", "approve", "group", ids[0], "nobody", "--withdraw"]) == 1
    assert "error: 1 updated, 0 unchanged; not in group 'group': nobody" in capsys.readouterr().err
    assert [item["output_id"] for item in client.outputs("group", is_approved=True)] == [ids[1]]


@pytest.mark.parametrize("by_id", [True, False])
def test_an_approved_item_is_no_longer_rejected(client: Client, by_id: bool) -> None:
    client.push("group", [dict(item, tags={"rejected": "Duplicate", "shop": "a"}) for item in make_outputs(1)])
    (item,) = client.outputs("group")
    assert main(["outputs", "approve", "group", item["output_id"] if by_id else "--all"]) == 0
    (item,) = client.outputs("group")
    assert (item["is_approved"], item["tags"]) == (True, {"shop": "a"})


@pytest.mark.parametrize("options", [[], ["--job-id", ""], ["--all", "--country", ""]])
def test_an_approval_without_a_filter_or_with_an_empty_one_approves_nothing(
    client: Client, options: list[str], capsys: Any
) -> None:
    client.push("group", make_outputs(1))
    assert main(["outputs", "approve", "group", *options]) == 2
    assert "error: " in capsys.readouterr().err
    assert not list(client.outputs("group", is_approved=True))
