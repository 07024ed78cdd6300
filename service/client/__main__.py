"""The client's commands where the server is not installed: `python -m service.client`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from service.client.cli import commands
from service.client.cli.parser import parse, top_parser

# Those of `service.cli`, which cannot be imported here.
SERVER_COMMANDS = (
    *("serve", "healthcheck", "token", "analyst", "settings", "secrets"),
    *("backup", "restore", "upgrade", "restored", "clock"),
)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in SERVER_COMMANDS:
        print(
            f"error: {arguments[0]} needs the server: pip install 'scraping-data-service[server]', "
            "then run `sds` or `python -m service`",
            file=sys.stderr,
        )
        return 2
    parser = top_parser("service.client", description="Client of the Scraping Data Service.")
    commands.add(parser.add_subparsers(required=True, metavar="COMMAND"))
    options = parse(parser, arguments)
    if options is None:
        return 0
    command: Callable[..., int] = options.pop("command")
    return command(None, **options)


if __name__ == "__main__":
    sys.exit(main())
