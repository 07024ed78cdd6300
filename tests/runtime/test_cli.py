"""The command line: tokens, help, and clear words for what is wrong."""

from __future__ import annotations

import argparse
import gzip
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.cli import build_parser, main
from service.settings import Settings
from service.store import is_token
from tests.support.processes import ServiceProcess, refused_port, run_command, run_process, wait_until


@pytest.fixture
def database(mongo_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in this process find the tests' database."""
    monkeypatch.setenv("MONGO_URL", mongo_url)
    monkeypatch.setenv("MONGO_DATABASE", "test")


def create(*options: str, organization: int = 1) -> int:
    return main(
        ["token", "create", "--organization", str(organization), "--scope", "read", "--scope", "state", *options]
    )


def status(url: str, token: str) -> int:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.usefixtures("database")
def test_a_token_without_scopes_reads_and_writes_and_keeps_browser_state(
    capsys: pytest.CaptureFixture[str], organization: int
) -> None:
    assert main(["token", "create", "--organization", str(organization)]) == 0
    assert main(["token", "list", "--organization", str(organization)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[2] == "read,state,write"


def test_token_create_prints_the_token_alone_on_the_last_line_of_standard_output(mongo_url: str) -> None:
    done = run_command(mongo_url, "token", "create", "--organization", "1", "--scope", "read", "--scope", "write")
    assert done.returncode == 0
    assert is_token(done.stdout.splitlines()[-1])
    assert done.stdout.splitlines()[-1] not in done.stderr


@pytest.mark.usefixtures("database")
def test_tokens_are_listed_without_their_text(capsys: pytest.CaptureFixture[str], organization: int) -> None:
    assert create("--label", "crawler", "--expires", "2030-01-31", "--scope", "write", organization=organization) == 0
    assert create(organization=organization) == 0
    tokens = re.findall(r"^sds_\w+$", capsys.readouterr().out, re.MULTILINE)
    assert len(tokens) == 2
    assert main(["token", "list", "--organization", str(organization)]) == 0
    out = capsys.readouterr().out
    header, first, second = out.splitlines()
    assert header.split() == ["id", "organization", "scopes", "created", "expires", "revoked", "label"]
    assert re.fullmatch(
        rf"[0-9a-f]{{12}} +{organization}  read,state,write +20\d\d-\S+Z  2030-01-31T00:00:00Z  - +crawler", first
    )
    assert re.fullmatch(rf"[0-9a-f]{{12}} +{organization}  read,state +20\d\d-\S+Z  - +-", second.strip())
    assert not any(token in out for token in tokens)


@pytest.mark.usefixtures("database")
def test_all_tokens_are_listed_unless_one_organization_is_asked_for(
    capsys: pytest.CaptureFixture[str], organization: int
) -> None:
    other = organization + 1_000_000
    create(organization=organization)
    create(organization=other)
    capsys.readouterr()
    main(["token", "list"])
    everything = capsys.readouterr().out
    main(["token", "list", "--organization", str(organization)])
    own = capsys.readouterr().out
    assert f" {other} " in everything
    assert f" {other} " not in own
    assert len(own.splitlines()) == 2


@pytest.mark.usefixtures("database")
def test_a_token_is_revoked_by_its_id_or_its_text_once(capsys: pytest.CaptureFixture[str], organization: int) -> None:
    create(organization=organization)
    create(organization=organization)
    token = re.findall(r"^sds_\w+$", capsys.readouterr().out, re.MULTILINE)[1]
    main(["token", "list", "--organization", str(organization)])
    id = capsys.readouterr().out.splitlines()[1].split()[0]
    for name in (id, token):
        assert main(["token", "revoke", name]) == 0
        assert "within 5 seconds" in capsys.readouterr().out
        assert main(["token", "revoke", name]) == 1
        assert capsys.readouterr().err == "error: no such token, or revoked already\n"
    main(["token", "list", "--organization", str(organization)])
    assert len(re.findall(r"20\d\d-\S+Z  - +20\d\d-\S+Z", capsys.readouterr().out)) == 2


@pytest.mark.slow
def test_tokens_made_and_revoked_here_work_and_end_in_a_running_process(
    mongo_url: str, database: None, capsys: pytest.CaptureFixture[str]
) -> None:
    # At most 4: the rest of the promised 5 seconds is for the machine.
    with ServiceProcess(mongo_url, token_cache_seconds=1) as service:
        service.wait_until_ready()
        expires = int(time.time()) + 3
        create("--expires", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expires)))
        create()
        short, token = re.findall(r"^sds_\w+$", capsys.readouterr().out, re.MULTILINE)
        url = f"{service.url}/v1/cookies"
        assert status(url, short) == 200 or time.time() >= expires
        assert status(url, token) == 200
        main(["token", "revoke", token])
        wait_until(lambda: status(url, token) == 401, seconds=5)
        wait_until(lambda: status(url, short) == 401)
        assert time.time() >= expires
        assert not any(text in service.log() for text in (short, token))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["dance"], "dance"),
        (["token"], "ACTION"),
        (["token", "create"], "--organization"),
        (["token", "create", "--organization", "1", "--scope", "root"], "root"),
        (["token", "create", "--organization", "one", "--scope", "read"], "whole number"),
        (["token", "create", "--organization", str(2**63), "--scope", "read"], "63 bits"),
        (["token", "create", "--organization", "1", "--scope", "read", "--expires", "soon"], "ISO 8601"),
        (["token", "create", "--organization", "1", "--scope", "read", "--expires", "2020-01-01"], "in the future"),
        (["token", "revoke"], "token"),
        (["serve", "--no-such-flag"], "--no-such-flag"),
        (["serve", "--prot", "9000"], "did you mean --port?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_a_command_that_is_not_one_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert word in said.err


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--port", "eighty"], "PORT must be a whole number."),
        (["--port", "70000"], "PORT must be at most 65535."),
        (["--workers", "0"], "WORKERS must be at least 1."),
        (["--tls-cert", "/nowhere.pem"], "TLS_CERT and TLS_KEY go together."),
        (["--mongo-url", "localhost:27017"], "MONGO_URL must begin with mongodb://"),
        (["--mongo-url", "mongodb://user:p@ss@host"], "with user name and password percent-encoded"),
        (["--log-level", "LOUD"], "LOG_LEVEL must be one of"),
        (["--mongo-url", "mongodb://127.0.0.1:1", "--secret-keys", "k1:short"], "SECRET_KEYS must be"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("workers", [[], ["--workers", "2"]], ids=["one", "two"])
def test_settings_that_cannot_work_end_the_service_with_one_clear_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, workers: list[str], flags: list[str], word: str
) -> None:
    assert main(["serve", "--data-dir", str(tmp_path), *workers, *flags]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert word in said
    assert "p@ss" not in said


def test_an_invalid_certificate_ends_the_service_with_one_clear_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "cert.pem"
    file.write_text("nothing")
    flags = ["--tls-cert", str(file), "--tls-key", str(file), "--mongo-url", "mongodb://127.0.0.1:1"]
    assert main(["serve", *flags]) == 1
    assert capsys.readouterr().err.startswith("error: TLS_CERT and TLS_KEY cannot be used: ")


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_port_in_use_ends_the_service_with_one_clear_line(mongo_url: str, workers: str) -> None:
    with ServiceProcess(mongo_url) as service:
        service.wait_until_listening()
        done = run_process(mongo_url, "serve", "--port", str(service.port), "--workers", workers)
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith("{"))
    assert line.startswith("error: ")
    assert "address already in use" in line.lower()
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_unreachable_database_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONGO_TIMEOUT", "0.3")
    with refused_port() as port:
        monkeypatch.setenv("MONGO_URL", f"mongodb://127.0.0.1:{port}")
        for arguments in (["token", "list"], ["token", "revoke", "x"]):
            assert main(arguments) == 1
            said = capsys.readouterr().err
            assert said.startswith("error: the database does not respond")
            assert said.count("\n") == 1


def test_a_login_that_the_database_refuses_says_what_to_correct(
    mongo_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONGO_URL", re.sub(r"//[^@]*@", "//nobody:wrong@", mongo_url))
    assert main(["token", "list"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: the database refuses the login: correct user, password and authSource in MONGO_URL")


def test_help_explains_every_setting(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for name, default, help in Settings.table():
        flag = f"--{name.lower().replace('_', '-')}"
        expected = f"{help} Default: {default}." if default else help
        assert re.search(rf"{flag} {name}\s+{re.escape(expected)}\n", text), name


def commands(parser: argparse.ArgumentParser, *words: str) -> Iterator[list[str]]:
    """Yield the words of every command and of every action."""
    yield list(words)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from commands(below, *words, name)


@pytest.mark.parametrize("arguments", list(commands(build_parser())), ids=lambda words: " ".join(words) or "none")
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "usage: python -m service" in text
    if not arguments:
        assert "serve --help" in text


@pytest.mark.slow
def test_flags_of_serve_override_the_environment(mongo_url: str) -> None:
    entry = ["env", "PORT=1", "LOG_LEVEL=ERROR", "HOST=192.0.2.1"]
    with ServiceProcess(
        mongo_url,
        entry=[*entry, sys.executable, "-m", "service"],
        flags=["--port", "0", "--host", "127.0.0.1", "--log-level", "INFO"],
    ) as service:
        service.wait_until_ready()
        assert status(f"{service.url}/healthz", "") == 200


@pytest.mark.slow
def test_tokens_are_made_beside_a_running_service_that_started_its_database(tmp_path: Path) -> None:
    with ServiceProcess("", data_dir=tmp_path) as service:
        service.wait_until_ready()
        done = run_command("", "token", "create", "--organization", "1", DATA_DIR=str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert status(f"{service.url}/v1/cookies", done.stdout.splitlines()[-1]) == 200
        assert service.stop() == 0


def test_a_command_outside_of_the_services_folder_starts_no_second_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MONGO_URL", raising=False)
    monkeypatch.delenv("DATA_DIR", raising=False)
    for arguments in (["token", "create", "--organization", "1", "--scope", "read"], ["backup", "--out", "b.gz"]):
        assert main(arguments) == 1
        said = capsys.readouterr()
        assert said.err.startswith(f"error: There is no database in {tmp_path}/.data.")
        assert "DATA_DIR" in said.err and "MONGO_URL" in said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_message_names_the_program_that_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MONGO_URL", "")
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "none"))
    for program, named in (
        ("/srv/.venv/bin/scraping-data-service", "`scraping-data-service serve`"),
        ("/srv/service/__main__.py", "`python -m service serve`"),
    ):
        monkeypatch.setattr(sys, "argv", [program])
        assert main(["token", "list"]) == 1
        assert named in capsys.readouterr().err


@pytest.mark.slow
def test_a_service_with_its_own_database_seals_cookies_with_a_key_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    arguments = ["token", "create", "--organization", "1"]
    for _ in range(2):  # the key of the first start opens what it sealed in the second
        with ServiceProcess("", data_dir=folder) as service:
            service.wait_until_ready()
            assert "plain text" not in service.log()
            done = run_command("", *arguments, DATA_DIR=str(folder))
            headers = {"Authorization": f"Bearer {done.stdout.strip()}", "Content-Type": "application/json"}
            cookie = b'[{"domain": "shop.example", "name": "sid", "value": "s3cret"}]'
            urllib.request.urlopen(urllib.request.Request(f"{service.url}/v1/cookies", cookie, headers), timeout=60)
            with urllib.request.urlopen(
                urllib.request.Request(f"{service.url}/v1/cookies", headers=headers), timeout=60
            ) as response:
                assert b"s3cret" in response.read()
            backup = run_command("", "backup", "--out", str(tmp_path / "b.gz"), DATA_DIR=str(folder))
            assert backup.returncode == 0
    assert b"s3cret" not in gzip.decompress((tmp_path / "b.gz").read_bytes())
    assert (folder / "secret.keys").stat().st_mode & 0o777 == 0o600
