"""The command line: `sds`, or `python -m sds_client`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from sds_client.cli import completion, groups, mcp, outputs, running, sessions, singer, state, webhooks
from sds_client.cli.parser import Parser, parse
from sds_client.version import __version__


def parser() -> Parser:
    """Return the parser of every command."""
    whole = Parser(prog="sds", description="Client of the Scraping Data Service.")
    whole.add_argument("--version", action="version", version=f"scraping-data-client {__version__}")
    commands, common = whole.add_subparsers(required=True, metavar="COMMAND"), running.options()
    for resource in (outputs, groups, state, sessions, webhooks, singer, mcp):
        resource.add(commands, common)
    completion.add(commands)
    return whole


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    options = parse(parser(), arguments)
    if options is None:
        return 0
    command: Callable[..., int] = options.pop("command")
    return command(**options)


if __name__ == "__main__":
    sys.exit(main())
