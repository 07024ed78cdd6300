"""The command lines of both distributions: help, version and errors."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from sds_client.__main__ import main as client
from service import __version__
from service.cli import main as server

Main = Callable[[list[str]], int]
both = pytest.mark.parametrize("main", [server, client], ids=["server", "client"])


@both
def test_without_arguments_the_help_is_shown(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert "usage: " in text
    assert ("serve the HTTP interface" in text) == (main is server)
    assert ("list, get, approve, delete, export and import outputs" in text) == (main is client)


@both
def test_the_version_is_shown(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    name = "scraping-data-service" if main is server else "scraping-data-client"
    assert capsys.readouterr().out == f"{name} {__version__}\n"


@pytest.mark.parametrize(
    ("main", "command", "message"),
    [
        (server, ["restore"], "the following arguments are required: FILE"),
        (client, ["outputs", "export", "lamps"], "the following arguments are required: --out"),
    ],
    ids=["server", "client"],
)
def test_what_is_wrong_with_the_arguments_is_one_line(
    main: Main, command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {message} (--help explains)\n"


def test_the_server_has_the_name_it_was_started_by(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/scraping-data-service"])
    server([])
    assert capsys.readouterr().out.startswith("usage: scraping-data-service ")


@pytest.mark.parametrize(
    ("main", "command"),
    [
        (client, ["follow", "lamps", "--cursor-f", "5"]),
        (client, ["groups", "list", "--js"]),
        (server, ["settings", "--mark"]),
        (server, ["token", "create", "--organization", "1", "--lab", "x"]),
    ],
)
def test_an_option_is_not_abbreviated(main: Main, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    assert "unrecognized arguments: --" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (["outputs", "export", "lamps", "--ot", "lamps.csv"], "--ot lamps.csv; did you mean --out?"),
        (["follow", "lamps", "--cursr=5"], "--cursr=5; did you mean --cursor?"),
        (["groups", "list", "--xyz"], "--xyz (--help explains)"),
    ],
)
def test_a_misspelled_option_is_told_the_nearest_one(
    command: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        client(command)
    assert f"error: unrecognized arguments: {hint}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("main", "command", "message"),
    [
        (client, ["--url", "http://x", "groups", "list"], "options come after the command, as in `sds groups list"),
        (client, ["--json", "groups", "list"], "options come after the command"),
        (
            client,
            ["groups", "--url", "http://x", "list"],
            "no command http://x; known are list, show, set, retention, delete; opt",
        ),
        (server, ["--port", "80", "serve"], "options come after the command, as in `python -m service serve"),
    ],
)
def test_an_option_before_the_command_is_told_its_place(
    main: Main, command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("main", "known"), [(server, "serve"), (client, "outputs")], ids=["server", "client"])
def test_an_unknown_command_is_told_the_known_ones_without_hidden_ones(
    main: Main, known: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["xyz"])
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("error: there is no command xyz; known are ") and message.count("\n") == 1
    assert known in message and "worker" not in message
