"""The server's command line: `python -m service COMMAND`, one module per subject."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable

from service.cli import analysts, backups, secrets, serving, tokens
from service.cli.parser import Parser, parse, top_parser
from service.runtime.local_mongo import LocalMongoError
from service.settings import Settings, SettingsError
from service.store import Misconfigured, StoreError, StoreUnavailable

_SUBJECTS = (serving, tokens, analysts, secrets, backups)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    options = parse(build_parser(), arguments)
    if options is None:
        return 0
    command: Callable[..., int] = options.pop("command")
    names = {item.name for item in dataclasses.fields(Settings)}
    given = {name: options.pop(name) for name in list(options) if name in names}
    try:
        return command(Settings.load(**given), **options)
    except (StoreError, SettingsError, LocalMongoError, ValueError, OSError) as error:
        is_away = isinstance(error, StoreUnavailable) and not isinstance(error, Misconfigured)
        print(f"error: the database does not respond ({error})" if is_away else f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def build_parser() -> Parser:
    """Return the parser of all commands."""
    parser = top_parser(
        description="Scraping Data Service.",
        epilog="Every setting is a flag of `serve` and an environment variable: `serve --help` explains them all.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for subject in _SUBJECTS:
        subject.add(commands)
    return parser
