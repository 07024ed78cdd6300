"""Settings: each has a name, a default and help, in one place."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from service.cli import main
from service.settings import Settings, SettingsError

NAMES = [item.name for item in dataclasses.fields(Settings)]


def test_the_table_of_the_documentation_is_printed_by_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| `HOST` | `127.0.0.1` | Address to listen on. |"
    assert len(lines) == 2 + len(NAMES)


def test_settings_are_listed_by_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings"]) == 0
    out = capsys.readouterr().out
    assert "HOST=127.0.0.1\n    Address to listen on.\n" in out
    assert "SEALED_ONLY=false\n" in out


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_has_help_that_is_a_sentence(name: str) -> None:
    (item,) = (item for item in dataclasses.fields(Settings) if item.name == name)
    assert item.metadata["help"].endswith(".")
    assert "|" not in item.metadata["help"]


def test_without_an_environment_all_settings_have_their_defaults() -> None:
    assert Settings.load({}) == Settings()
    assert Settings.load({name.upper(): "" for name in NAMES}) == Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host", "::1"),
        ("port", 0),
        ("port", 65535),
        ("workers", 4),
        ("base_url", "https://data.example.com"),
        ("mongo_url", "mongodb://db.example:27017/?replicaSet=rs0"),
        ("mongo_url", "mongodb+srv://db.example"),
        ("mongo_database", "other-1_2"),
        ("mongo_timeout", 0.5),
        ("mongo_pool", 200),
        ("data_dir", "/var/lib/x"),
        ("token_cache_seconds", 4.0),
        ("max_body_bytes", 1),
        ("max_records", 5),
        ("max_item_bytes", 10),
        ("max_depth", 3),
        ("rate_limit", 2.5),
        ("receive_timeout", 3.0),
        ("keepalive_timeout", 1.0),
        ("shutdown_timeout", 1.0),
        ("drain_seconds", 0.0),
        ("lease_seconds", 6.0),
        ("sealed_only", True),
        ("cors_origins", "https://a.example,https://b.example"),
        ("log_level", "WARNING"),
        ("log_format", "text"),
    ],
)
def test_a_setting_comes_from_the_environment_or_from_a_flag(name: str, value: Any) -> None:
    expected = Settings(**{name: value})
    assert Settings.load({name.upper(): str(value)}) == expected
    assert Settings.load({name.upper(): "1"} if name != "base_url" else {}, **{name: str(value)}) == expected


def test_settings_pass_to_another_process_through_its_environment() -> None:
    settings = Settings(port=1234, sealed_only=True, rate_limit=0.5, base_url="https://a.example")
    assert Settings.load(settings.environ()) == settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "abc"),
        ("port", "-1"),
        ("port", "65536"),
        ("port", "80.5"),
        ("workers", "0"),
        ("workers", "two"),
        ("base_url", "data.example.com"),
        ("base_url", "https://"),
        ("base_url", "https://data.example/?a=b"),
        ("mongo_url", "http://db.example"),
        ("mongo_url", "mongodb://"),
        ("mongo_database", "a.b"),
        ("mongo_database", "a b"),
        ("mongo_database", "x" * 64),
        ("mongo_timeout", "0"),
        ("mongo_timeout", "-1"),
        ("mongo_timeout", "soon"),
        ("mongo_pool", "0"),
        ("token_cache_seconds", "5"),
        ("token_cache_seconds", "0"),
        ("max_body_bytes", "16M"),
        ("max_records", "0"),
        ("max_depth", "0"),
        ("max_depth", "151"),
        ("rate_limit", "-1"),
        ("deleted_days", "36501"),
        ("max_bytes_in_flight", str(32 * 2**20)),
        ("shutdown_timeout", "nan"),
        ("sealed_only", "yes"),
        ("log_level", "LOUD"),
        ("log_format", "xml"),
        ("tls_cert", "/nowhere/cert.pem"),
        ("tls_key", "/nowhere/key.pem"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name.upper()) as raised:
        Settings.load({name.upper(): value})
    assert "\n" not in str(raised.value)


SECRETS = [item.name.upper() for item in dataclasses.fields(Settings) if item.metadata["secret"]]


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_may_stand_in_a_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("mongodb://user:secret@db.example\n")
    settings = Settings.load({f"{name}_FILE": str(file)})
    assert getattr(settings, name.lower()) == "mongodb://user:secret@db.example"
    assert f"{name}_FILE" in {row[0]: row[2] for row in Settings.table()}[name]
    # A process that is started with the same settings gets the value, not both.
    assert Settings.load({f"{name}_FILE": str(file), **settings.environ()}) == settings


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_given_twice_or_in_a_file_that_cannot_be_read_is_refused(name: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("mongodb://db.example")
    with pytest.raises(SettingsError, match=f"Set {name} or {name}_FILE, not both"):
        Settings.load({name: "mongodb://other.example", f"{name}_FILE": str(file)})
    with pytest.raises(SettingsError, match=f"{name}_FILE names a file that cannot be read"):
        Settings.load({f"{name}_FILE": str(tmp_path / "missing")})


def test_only_secrets_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "port").write_text("9999")
    assert Settings.load({"PORT_FILE": str(tmp_path / "port")}) == Settings()
