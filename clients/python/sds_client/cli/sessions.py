"""Commands about sessions: browser identities in pools, leased to one worker at a time."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from sds_client import formats
from sds_client.cli.errors import NothingFoundError, UsageError
from sds_client.cli.outputs import confirm
from sds_client.cli.printing import Result, count, table, tell, write
from sds_client.cli.running import command, storing_command
from sds_client.leasing import Outcome
from sds_client.sync import Client
from sds_client.types import SessionMark, SessionState

_STATES = ("ready", "resting", "leased", "needs_login", "blocked", "retired")
_MARKS = ("ready", "needs_login", "blocked", "retired")
_OUTCOMES = ("good", "bad", "blocked", "logged_out", "interrupted", "unused")
# Settings of a pool; those with a word for null have no limit then.
_SETTINGS = {
    "lease_seconds": None,
    "max_lease_seconds": None,
    "rest_seconds": None,
    "max_errors": None,
    "max_uses": "never",
    "max_age_days": "never",
    "blocked_rest_seconds": "retire",
}


def add(commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    """Add the commands to a command line."""
    sessions = commands.add_parser("sessions", help="pools of browser identities, leased to one worker at a time")
    actions = sessions.add_subparsers(required=True, metavar="ACTION")

    def action(name: str, help: str, work: Any, *arguments: str, **options: Any) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = actions.add_parser(name, parents=[common], help=help, **options)
        for argument in arguments:
            parser.add_argument(argument)
        parser.set_defaults(command=work)
        return parser

    action("pools", "the pools, with the number of sessions by state", pools)
    pool = action("pool", "change settings of a pool, or make it", set_pool, "pool")
    for name, null in _SETTINGS.items():
        pool.add_argument(f"--{name.replace('_', '-')}", type=_number(null), help=f"or {null}" if null else None)
    listed = action("list", "the sessions of a pool, without their secrets", list_sessions, "pool")
    listed.add_argument("--state", choices=_STATES)
    show = action("show", "one session, without its secrets", show_session, "pool", "name")
    show.add_argument("--secrets", action="store_true", help="with --json: its state and user data too")
    put = action(
        "put",
        "create a session or change it, from a file with its browser state",
        put_session,
        "pool",
        "name",
        description="Reads Playwright's storageState, CDP, EditThisCookie and Cookie-Editor JSON, and cookies.txt.",
    )
    put.add_argument("file", type=Path, nargs="?", help="the browser state; without it, the stored one stays")
    put.add_argument("--user-data", type=Path, metavar="FILE", help="JSON object: user agent, proxy, account name")
    put.add_argument("--note")
    lease = action("lease", "lease a session and print its lease id", lease_session, "pool")
    lease.add_argument("--name", help="this session and no other")
    lease.add_argument("--seconds", type=int, help="how long; it is not renewed")
    lease.add_argument("--wait", type=int, default=0, metavar="SECONDS", help="until one is ready; default: 0")
    lease.add_argument("--shared", action="store_true", help="for reading only, beside others; saves nothing")
    lease.add_argument("--owner", help="who works with it; default: this host and process")
    lease.add_argument("--out", type=Path, help="write its browser state to this file, for Playwright")
    release = action("release", "end a lease with its outcome", release_lease, "lease_id")
    release.add_argument("--outcome", choices=_OUTCOMES, default="good", help="default: good")
    release.add_argument("--state", dest="file", type=Path, help="a file with the browser state to save")
    release.add_argument("--user-data", type=Path, metavar="FILE", help="JSON object to save: user agent, proxy, …")
    release.add_argument("--rest-seconds", type=int, help="how long it rests; without it, as long as the pool says")
    release.add_argument("--note")
    mark = action("mark", "set the state of a session by hand", mark_session, "pool", "name")
    mark.add_argument("state", choices=_MARKS)
    mark.add_argument("--note")
    delete = action("delete", "delete a session, or a whole pool; asks first", delete_session, "pool")
    delete.add_argument("name", nargs="?", help="without it: the pool with all of its sessions")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    export = action("export", "write the browser state of a session to a file", export_session, "pool", "name")
    export.add_argument("--format", choices=list(formats.FORMATS), default="playwright")
    export.add_argument("--out", type=Path, help="the file; without it, standard output")


def _number(null: str | None) -> Any:
    def number(text: str) -> Any:
        if text == null:
            return text
        try:
            return int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a number{f' or {null}' if null else ''}") from None

    return number


@command
def pools(client: Client) -> Result:
    listed = client.pools()
    columns = {"pool": "POOL"} | {f"sessions.{state}": state.upper() for state in _STATES}
    return Result(listed, table(listed, columns, "no pools"))


@storing_command
def set_pool(client: Client, pool: str, **given: Any) -> Result:
    settings: dict[str, Any] = {
        name: None if value == _SETTINGS[name] else value for name, value in given.items() if value is not None
    }
    changed = client.set_pool(pool, **settings)
    shown = {name: _SETTINGS[name] if value is None else value for name, value in changed.items() if name in _SETTINGS}
    return Result(changed, "\n".join([f"pool {pool}", *(f"{name}: {value}" for name, value in shown.items())]))


@command
def list_sessions(client: Client, pool: str, state: SessionState | None) -> Result:
    sessions = client.sessions(pool, state)
    columns = {
        "name": "SESSION",
        "state": "STATE",
        "uses": "USES",
        "errors": "ERRORS",
        "last_used": "LAST USED",
        "owner": "HOLDER",
        "note": "NOTE",
    }
    return Result(sessions, table(sessions, columns, "no sessions"))


@command
def show_session(client: Client, pool: str, name: str, secrets: bool) -> Result:
    session = _session(client, pool, name)
    shown = {key: value for key, value in session.items() if key not in ("storage_state", "user_data")}
    text = "\n".join(f"{key}: {'' if value is None else value}" for key, value in shown.items())
    return Result(session if secrets else shown, text)


@storing_command
def put_session(
    client: Client, pool: str, name: str, file: Path | None, user_data: Path | None, note: str | None
) -> Result:
    session = client.put_session(
        pool,
        name,
        storage_state=None if file is None else formats.read(file.read_bytes()),
        user_data=None if user_data is None else _object(user_data),
        note=note,
    )
    return Result(session, f"{session['name']}: {session['state']}, version {session['version']}")


@storing_command
def lease_session(client: Client, pool: str, wait: int, out: Path | None, **given: Any) -> Result:
    lease = client.lease(pool, wait=wait, **{name: value for name, value in given.items() if value is not None})
    session, state = lease["session"], lease["session"]["storage_state"]
    if out is not None:
        _write_private(out, formats.write(state or {"cookies": [], "origins": []}))
    shown = {**lease, "session": {key: session[key] for key in ("pool", "name")}}
    return Result(shown, f"{session['name']} for {lease['seconds']} s\nlease {lease['lease_id']}")


@storing_command
def release_lease(
    client: Client, lease_id: str, outcome: Outcome, file: Path | None, user_data: Path | None, **given: Any
) -> Result:
    state = None if file is None else formats.read(file.read_bytes())
    data = None if user_data is None else _object(user_data)
    session = client.release(lease_id, outcome, storage_state=state, user_data=data, **given)
    saved = "state saved" if session["saved"] else "nothing saved"
    return Result(session, f"{session['name']}: {session['state']}, {saved}")


@storing_command
def mark_session(client: Client, pool: str, name: str, state: SessionMark, note: str | None) -> Result:
    _session(client, pool, name)  # a misspelled name must not make a session
    session = client.put_session(pool, name, state=state, note=note)
    return Result(session, f"{name}: {session['state']}")


@storing_command
def delete_session(client: Client, pool: str, name: str | None, yes: bool) -> Result:
    if name is None:
        confirm(f"Delete the pool {pool} with all of its sessions?", yes)
        deleted = client.delete_pool(pool)
        return Result({"deleted": deleted}, f"deleted the pool with {count(deleted, 'session')}")
    confirm(f"Delete the session {name} with its secrets?", yes)
    if not client.delete_session(pool, name):
        raise NothingFoundError(f"there is no session {name} in the pool {pool}")
    return Result({"deleted": 1}, "deleted")


@command
def export_session(client: Client, pool: str, name: str, format: str, out: Path | None) -> Result | None:
    state = _session(client, pool, name)["storage_state"]
    if state is None:
        raise NothingFoundError(f"the session {name} has no browser state")
    text = formats.write(formats.from_value(state), format)
    if format != "playwright" and state.get("origins"):
        tell(f"local storage of {count(len(state['origins']), 'origin')} left out: {format} cannot hold it\n")
    if out is None:
        write(text)
        return None
    _write_private(out, text)
    return Result({"file": str(out), "cookies": len(state["cookies"])}, f"wrote {name} to {out}")


def _session(client: Client, pool: str, name: str) -> Any:
    session = client.get_session(pool, name)
    if session is None:
        raise NothingFoundError(f"there is no session {name} in the pool {pool}")
    return session


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path} must hold a JSON object")
    return value


def _write_private(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        path.chmod(0o600)  # the file may be an older one
        file.write(text)
