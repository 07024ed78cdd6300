"""`sds`: help, version and errors, with the server and without it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from service import __version__
from service.cli import main as whole
from service.client.__main__ import main as client_only

Main = Callable[[list[str]], int]
both = pytest.mark.parametrize("main", [whole, client_only], ids=["server", "client"])


@both
def test_without_arguments_the_help_is_shown(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert "usage: " in text and "outputs of a group from and to files" in text
    assert ("serve the HTTP interface" in text) == (main is whole)


@both
def test_the_version_is_shown(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"scraping-data-service {__version__}\n"


@both
def test_what_is_wrong_with_the_arguments_is_one_line(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["outputs", "export", "lamps"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: the following arguments are required: --out (--help explains)\n"


@both
def test_the_name_of_the_program_is_the_one_it_was_started_by(
    main: Main, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/sds"])
    main([])
    assert capsys.readouterr().out.startswith("usage: sds ")


def test_a_command_of_the_server_says_how_to_install_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert client_only(["serve"]) == 2
    text = capsys.readouterr().err
    assert text.startswith("error: serve is not a command of the client.")
    assert "pip install 'scraping-data-service[server]'" in text
