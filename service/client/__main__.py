"""The client's commands where the server is not installed: `python -m service.client`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from service.client.cli import commands
from service.client.cli.parser import parse, top_parser


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = top_parser("service.client", description="Client of the Scraping Data Service.")
    known = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add(known)
    if arguments and not arguments[0].startswith("-") and arguments[0] not in known.choices:
        print(
            f"error: {arguments[0]} is not a command of the client. For those of the server: "
            f"pip install 'scraping-data-service[server]', then `sds {arguments[0]}`",
            file=sys.stderr,
        )
        return 2
    options = parse(parser, arguments)
    if options is None:
        return 0
    command: Callable[..., int] = options.pop("command")
    return command(None, **options)


if __name__ == "__main__":
    sys.exit(main())
