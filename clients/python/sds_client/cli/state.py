"""Commands about browser state: cookies, local storage, and both from and to files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sds_client import formats
from sds_client.cli.errors import UsageError
from sds_client.cli.outputs import check_selection, confirm
from sds_client.cli.printing import Result, count, table, tell, write
from sds_client.cli.running import command, storing_command
from sds_client.paths import state_delete_query
from sds_client.sync import Client


def add(commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    """Add the commands to a command line."""
    state = commands.add_parser("state", help="browser state from and to files")
    states = state.add_subparsers(required=True, metavar="ACTION")
    import_ = states.add_parser(
        "import",
        parents=[common],
        help="store the cookies and local storage of a file",
        description="Reads Playwright's storageState, CDP, EditThisCookie and Cookie-Editor JSON, and cookies.txt.",
    )
    import_.add_argument("file", type=Path)
    import_.set_defaults(command=state_import)
    export = states.add_parser("export", parents=[common], help="write cookies and local storage to a file")
    export.add_argument("--domain", help="only this domain and its subdomains")
    export.add_argument("--format", choices=list(formats.FORMATS), default="playwright")
    export.add_argument("--out", type=Path, help="the file; without it, standard output")
    export.set_defaults(command=state_export)
    _add_records(commands, common, "cookies", "name", "cookies", (cookies_list, cookies_delete))
    _add_records(commands, common, "storage", "key", "local-storage entries", (storage_list, storage_delete))


def _add_records(
    commands: argparse._SubParsersAction[Any],
    common: argparse.ArgumentParser,
    resource: str,
    key: str,
    nouns: str,
    actions: tuple[Any, Any],
) -> None:
    """Add `list` and `delete` for one kind of record."""
    parser = commands.add_parser(resource, help=f"list and delete {nouns}")
    action = parser.add_subparsers(required=True, metavar="ACTION")
    listed = action.add_parser("list", parents=[common], help=f"list {nouns}; their values only with --json")
    listed.add_argument("--domain", help="only this domain")
    listed.add_argument("--active", action="store_true", help="only those that have not expired")
    listed.set_defaults(command=actions[0])
    delete = action.add_parser(
        "delete", parents=[common], help=f"delete the {nouns} that match all filters; asks first"
    )
    for name in ("domain", "path", key):
        delete.add_argument(f"--{name}")
    delete.add_argument("--expired", action="store_true", help="only those that have expired")
    delete.add_argument("--all", action="store_true", help="all of them")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    delete.set_defaults(command=actions[1])


@storing_command
def state_import(client: Client, file: Path) -> Result:
    counts = client.set_storage_state(formats.read(file.read_bytes()))
    kinds = {"cookies": counts.cookies, "local storage": counts.local_storage}
    return Result(
        {name.replace(" ", "_"): vars(one) for name, one in kinds.items()},
        "\n".join(f"{name}: {one.created} created, {one.updated} updated" for name, one in kinds.items()),
    )


@command
def state_export(client: Client, domain: str | None, format: str, out: Path | None) -> Result | None:
    state = client.storage_state(domain)
    text = formats.write(state, format)
    if format != "playwright" and state["origins"]:
        origins = count(len(state["origins"]), "origin")
        tell(f"local storage of {origins} left out: the format {format} cannot hold it\n")
    if out is None:
        write(text)
        return None
    with out.open("w", encoding="utf-8") as file:
        out.chmod(0o600)  # the file may be an older one
        file.write(text)
    found = {"file": str(out), "cookies": len(state["cookies"]), "origins": len(state["origins"])}
    return Result(found, f"wrote {count(len(state['cookies']), 'cookie')} to {out}")


@command
def cookies_list(client: Client, domain: str | None, active: bool) -> Result:
    cookies = client.cookies(domain, active)
    columns = {"domain": "DOMAIN", "path": "PATH", "name": "NAME", "expires": "EXPIRES", "secure": "SECURE"}
    shown = [{**cookie, "path": cookie["path"] or "/", "expires": _moment(cookie["expires"])} for cookie in cookies]
    return Result(cookies, table(shown, columns, "no cookies"))


@storing_command
def cookies_delete(client: Client, yes: bool, **filters: Any) -> Result:
    _confirm("cookies", filters, yes)
    deleted = client.delete_cookies(**filters)
    return Result({"deleted": deleted}, f"deleted {count(deleted, 'cookie')}")


@command
def storage_list(client: Client, domain: str | None, active: bool) -> Result:
    entries = client.local_storage(domain, active)
    columns = {"domain": "DOMAIN", "path": "PATH", "key": "KEY", "expires": "EXPIRES", "update_date": "UPDATED"}
    shown: list[Mapping[str, Any]] = [{**entry, "expires": entry["expires"] or "never"} for entry in entries]
    return Result(entries, table(shown, columns, "no local storage"))


@storing_command
def storage_delete(client: Client, yes: bool, **filters: Any) -> Result:
    _confirm("local-storage entries", filters, yes)
    deleted = client.delete_local_storage(**filters)
    return Result({"deleted": deleted}, "deleted 1 entry" if deleted == 1 else f"deleted {deleted:,} entries")


def _confirm(nouns: str, filters: Mapping[str, Any], yes: bool) -> None:
    check_selection(filters)
    try:
        query = state_delete_query(**filters)
    except ValueError as error:
        raise UsageError(str(error)) from None
    named = ", ".join("=".join(pair) for pair in query.items())
    confirm(f"Delete all {nouns}?" if set(query) == {"all"} else f"Delete the {nouns} with {named}?", yes)


def _moment(seconds: int) -> str:
    return "session" if seconds < 0 else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
