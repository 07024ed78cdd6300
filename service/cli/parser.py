"""The parser of the server's command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from service import __version__

COMMAND = "scraping-data-service"


class Parser(argparse.ArgumentParser):
    """Reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (--help explains)\n")


def top_parser(**options: Any) -> Parser:
    """Return the parser of the whole command line, under the name it was started by."""
    name = COMMAND if Path(sys.argv[0]).name == COMMAND else "python -m service"
    parser = Parser(prog=name, **options)
    parser.add_argument("--version", action="version", version=f"scraping-data-service {__version__}")
    return parser


def parse(parser: Parser, arguments: Sequence[str] | None) -> dict[str, Any] | None:
    """Return the options of a command line; print the help and return None when it is empty."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments:
        parser.print_help()
        return None
    return vars(parser.parse_args(arguments))
