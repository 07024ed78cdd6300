"""The errors of commands that have an exit code of their own."""

from __future__ import annotations


class NothingFoundError(Exception):
    """There is nothing to export."""


class UsageError(ValueError):
    """The command line is wrong, or the environment lacks what every command needs."""
