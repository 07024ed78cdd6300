"""Every command, by the resource that it is about."""

from __future__ import annotations

import argparse
from typing import Any

from sds_client.cli import completion, groups, outputs, running, singer, state, webhooks


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the commands to a command line."""
    common = running.options()
    for resource in (outputs, groups, state, webhooks, singer):
        resource.add(commands, common)
    completion.add(commands)
