"""`sds mcp`: the tools of an agent."""

from __future__ import annotations

import argparse
from typing import Any

from sds_client.cli.printing import tell
from sds_client.cli.running import WRONG_USAGE
from sds_client.transport import Transport

# An agent's host gives up on a tool sooner than a crawler on the service.
_PATIENCE = 20.0


def add(commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    """Add the command to a command line."""
    parser = commands.add_parser(
        "mcp",
        parents=[common],
        help="serve groups, items and crawls to an agent, as a Model Context Protocol server over stdio",
        description="An agent's host starts this command. It needs `pip install 'scraping-data-client[mcp]'`.",
    )
    parser.add_argument("--write", action="store_true", help="also offer approve, reject and review")
    parser.set_defaults(command=mcp)


def mcp(
    write: bool, url: str | None = None, token: str | None = None, cacert: str | None = None, as_json: bool = False
) -> int:
    """Serve until the host closes the pipe; every answer is JSON, with `--json` or without."""
    try:
        from sds_client.mcp import server
    except ImportError:
        tell("error: sds mcp needs the MCP SDK: pip install 'scraping-data-client[mcp]'\n")
        return WRONG_USAGE
    try:
        transport = Transport(url, token, cacert, timeout=60.0, patience=_PATIENCE)
    except ValueError as error:
        tell(f"error: {error}\n")
        return WRONG_USAGE
    try:
        server(transport, write).run()
    except KeyboardInterrupt:
        return 130
    return 0
