"""The client's commands where the server is not installed: `python -m service.client`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from service.client.cli import commands


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m service.client")
    commands.add(parser.add_subparsers(required=True, metavar="COMMAND"))
    options = vars(parser.parse_args(arguments))
    command: Callable[..., int] = options.pop("command")
    return command(None, **options)


if __name__ == "__main__":
    sys.exit(main())
