"""The server's command line: `python -m service COMMAND`, one module per subject."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from service import __version__
from service.cli import analysts, backups, organizations, secrets, serving, tokens
from service.command import program
from service.runtime.local_mongo import LocalMongoError
from service.settings import Settings, SettingsError
from service.store import Misconfigured, StoreError, StoreUnavailable

# The options that need no command.
_FIRST = ("-h", "--help", "--version")
_SUBJECTS = (serving, tokens, organizations, analysts, secrets, backups)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = build_parser()
    if not arguments:
        parser.print_help()
        return 0
    if arguments[0].startswith("-") and arguments[0] not in _FIRST:
        parser.error(f"options come after the command, as in `{program()} serve --port …`, not {arguments[0]} first")
    options = vars(parser.parse_args(arguments))
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
    """Return the parser of all commands, under the name it was started by."""
    parser = Parser(
        prog=program(),
        description="Scraping Data Service.",
        epilog="Every setting is a flag of `serve` and an environment variable: `serve --help` explains them all.",
    )
    parser.add_argument("--version", action="version", version=f"scraping-data-service {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for subject in _SUBJECTS:
        subject.add(commands)
    return parser


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, and takes options by their whole names only."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse an unknown command with the known ones; argparse would list hidden ones too."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            commands = [choice.dest for choice in action._choices_actions]
            similar = difflib.get_close_matches(value, commands, 1)
            hint = f"did you mean {similar[0]}?" if similar else f"known are {', '.join(commands)}; options come last"
            raise argparse.ArgumentError(None, f"there is no command {value}; {hint}")
        super()._check_value(action, value)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse an unknown option with the nearest known one."""
        found, unknown = super().parse_known_args(args, namespace)
        option = next((argument.partition("=")[0] for argument in unknown if argument.startswith("--")), "")
        if similar := difflib.get_close_matches(option, self._option_string_actions, 1):
            self.error(f"unrecognized arguments: {' '.join(unknown)}; did you mean {similar[0]}?")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (--help explains)\n")
