"""The parser of the command line."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

# The options that need no command.
_FIRST = ("-h", "--help", "--version")


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, and takes options by their whole names only."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse an unknown command with the known ones; argparse would list hidden ones too."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            known = [choice.dest for choice in action._choices_actions]
            similar = difflib.get_close_matches(value, known, 1)
            hint = f"did you mean {similar[0]}?" if similar else f"known are {', '.join(known)}; options come last"
            raise argparse.ArgumentError(None, f"there is no command {value}; {hint}")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (--help explains)\n")


def parse(parser: Parser, arguments: Sequence[str] | None) -> dict[str, Any] | None:
    """Return the options of a command line; print the help and return None when it is empty."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments:
        parser.print_help()
        return None
    if arguments[0].startswith("-") and arguments[0] not in _FIRST:
        parser.error(f"options come after the command, as in `sds groups list --url …`, not {arguments[0]} first")
    _check_options(parser, arguments)
    return vars(parser.parse_args(arguments))


def _check_options(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Refuse unknown options before anything else, with the nearest known one: argparse would name what is missing."""
    for place, argument in enumerate(arguments):
        option = argument.partition("=")[0]
        if argument == "--":
            return
        if commands := _commands(parser):
            parser = commands.get(argument, parser)
        elif option.startswith("--") and option not in parser._option_string_actions:
            similar = difflib.get_close_matches(option, parser._option_string_actions, 1)
            hint = f"; did you mean {similar[0]}?" if similar else ""
            parser.error(f"unrecognized arguments: {' '.join(arguments[place:])}{hint}")


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the commands that may follow."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}
