"""Groups that do not exist: most often another one was meant."""

from __future__ import annotations

import difflib

from sds_client.cli.printing import tell
from sds_client.errors import ClientError
from sds_client.sync import Client


def missing(client: Client, group: str, consequence: str = "") -> str:
    """Return that a group does not exist, with the name that was probably meant; nothing if it has items or jobs."""
    names = _other_names(client, group)
    if names is None:
        return ""
    return f"there is no group {group!r}{consequence}{_question(group, names) or '; `sds groups list` names all'}"


def check(client: Client, group: str, consequence: str = "") -> None:
    """Raise ValueError for a group that does not exist."""
    if reason := missing(client, group, consequence):
        raise ValueError(reason)


def warn(client: Client, group: str, consequence: str = "") -> None:
    """Print a warning about a group that does not exist."""
    if reason := missing(client, group, consequence):
        tell(f"warning: {reason}\n")


def warn_if_similar(client: Client, group: str) -> None:
    """Print a warning when a group is new and its name resembles that of another."""
    if question := _question(group, _other_names(client, group) or []):
        tell(f"warning: there is no group {group!r} yet{question}\n")


def _other_names(client: Client, group: str) -> list[str] | None:
    """Return the names of all groups; None if this one has items or jobs, or if the token may not read."""
    try:
        if client.group(group)["last_change"] is not None or client.jobs(group):
            return None
        return [one["group_id"] for one in client.groups()]
    except ClientError as error:
        if error.status != 403:
            raise
        return None


def _question(group: str, names: list[str]) -> str:
    similar = difflib.get_close_matches(group, names, 1)
    return f"; did you mean {similar[0]!r}?" if similar else ""
