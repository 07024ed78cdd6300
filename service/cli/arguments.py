"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any, TypeAlias

from schemas.base import INT64_MAX, parse_date
from service.settings import Settings

Commands: TypeAlias = "argparse._SubParsersAction[Any]"
_DATABASE = ("mongo_url", "mongo_database", "data_dir", "local_mongo_cache_gb", "secret_keys")


def subject(commands: Commands, name: str, help: str) -> Commands:
    """Add a command that has actions, such as `token create`; return the object to add actions to."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help)
    return parser.add_subparsers(required=True, metavar="ACTION")


def on_database(commands: Commands, name: str, help: str) -> argparse.ArgumentParser:
    """Add a command that works on the database, with the settings that select the database."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help)
    add_settings(parser, only=_DATABASE)
    return parser


def add_settings(parser: argparse.ArgumentParser, only: tuple[str, ...] = ()) -> None:
    """Add a flag for each setting, or for some."""
    for name, default, text in Settings.table():
        if not only or name.lower() in only:
            text = f"{text} Default: {default}." if default else text
            flag = f"--{name.lower().replace('_', '-')}"
            parser.add_argument(flag, metavar=name, help=text.replace("%", "%%"))


def future_date(text: str) -> datetime:
    """Return the date of an argument."""
    try:
        date = parse_date(text)
    except ValueError:
        raise argparse.ArgumentTypeError("must be ISO 8601, such as 2027-01-31 or 2027-01-31T12:00:00Z") from None
    if date <= datetime.now(UTC):
        raise argparse.ArgumentTypeError("must be in the future")
    return date


def organization(text: str) -> int:
    """Return the organization id of an argument."""
    if not (text.isascii() and text.isdigit() and int(text[:20]) <= INT64_MAX):
        raise argparse.ArgumentTypeError("must be a whole number of at most 63 bits")
    return int(text)
