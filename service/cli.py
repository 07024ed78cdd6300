"""The command line."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from schemas.base import INT64_MAX, parse_date
from service.parser import Parser, parse, top_parser
from service.runtime.backup_file import reading, writing
from service.runtime.local_mongo import LocalMongoError, local_mongo
from service.settings import Settings, SettingsError
from service.store import (
    DEFAULT_SCOPES,
    SCOPES,
    BrowserState,
    Misconfigured,
    Rotation,
    Store,
    StoreError,
    StoreUnavailable,
    Vault,
)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    options = parse(_parser(), arguments)
    if options is None:
        return 0
    command: Callable[..., int] = options.pop("command")
    names = {item.name for item in dataclasses.fields(Settings)}
    given = {name: options.pop(name) for name in list(options) if name in names}
    try:
        return command(Settings.load(**given), **options)
    except (StoreError, SettingsError, LocalMongoError, ValueError, OSError) as error:
        is_away = isinstance(error, StoreUnavailable) and not isinstance(error, Misconfigured)
        print(f"error: the database does not respond ({error})" if is_away else f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _date(text: str) -> datetime:
    try:
        return parse_date(text)
    except ValueError:
        raise argparse.ArgumentTypeError("must be ISO 8601, such as 2027-01-31 or 2027-01-31T12:00:00Z") from None


def _future_date(text: str) -> datetime:
    date = _date(text)
    if date <= datetime.now(UTC):
        raise argparse.ArgumentTypeError("must be in the future")
    return date


def _organization(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:20]) <= INT64_MAX):
        raise argparse.ArgumentTypeError("must be a whole number of at most 63 bits")
    return int(text)


def _parser() -> Parser:
    parser = top_parser(
        description="Scraping Data Service.",
        epilog="Every setting is a flag of `serve` and an environment variable: `serve --help` explains them all.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    settings = Parser(add_help=False)
    _add_settings(settings, only=("mongo_url", "mongo_database", "data_dir", "local_mongo_cache_gb", "secret_keys"))

    serve_ = commands.add_parser("serve", help="serve the HTTP interface")
    _add_settings(serve_)
    serve_.add_argument(
        "--demo",
        action="store_true",
        help="fill an empty database on this machine with an organization to try things on",
    )
    serve_.set_defaults(command=serve)
    worker_ = commands.add_parser("worker")  # what the supervisor starts; no help line
    worker_.add_argument("listeners", type=int, nargs="+")
    worker_.set_defaults(command=worker)

    health = commands.add_parser("healthcheck", help="ask the service on this machine whether it is alive")
    health.add_argument("--ready", action="store_true", help="whether its database responds too")
    health.set_defaults(command=healthcheck)

    token = commands.add_parser("token", help="make, list and revoke access tokens")
    tokens = token.add_subparsers(required=True, metavar="ACTION")
    create = tokens.add_parser("create", parents=[settings], help="make a token and show it once")
    create.add_argument("--organization", type=_organization, required=True, help="its id, a whole number")
    create.add_argument(
        "--scope",
        action="append",
        choices=SCOPES,
        help="read: GET; write: POST and PATCH; delete: DELETE, and PUT of a group's retention; state: with these, "
        f"cookies, local storage and storage state. Repeat it for several; default: {', '.join(DEFAULT_SCOPES)}",
    )
    create.add_argument("--label", default="", help="who uses it, for `token list`")
    create.add_argument("--expires", type=_future_date, help="ISO 8601 date in the future; default: never")
    create.set_defaults(command=token_create)
    list_ = tokens.add_parser("list", parents=[settings], help="list tokens, without their text")
    list_.add_argument("--organization", type=_organization, help="only this one's")
    list_.set_defaults(command=token_list)
    revoke = tokens.add_parser("revoke", parents=[settings], help="end a token")
    revoke.add_argument("token", help="the id from `token list`, or the token itself")
    revoke.set_defaults(command=token_revoke)

    analyst = commands.add_parser("analyst", help="make, list and remove users who may read the database")
    analysts = analyst.add_subparsers(required=True, metavar="ACTION")
    create = analysts.add_parser("create", parents=[settings], help="make a read-only user and show its address once")
    create.add_argument("--name", default="analyst", help="who it is; default: analyst")
    create.set_defaults(command=analyst_create)
    list_ = analysts.add_parser("list", parents=[settings], help="list the names of the analysts")
    list_.set_defaults(command=analyst_list)
    remove = analysts.add_parser("remove", parents=[settings], help="remove an analyst")
    remove.add_argument("name", help="the name from `analyst list`")
    remove.set_defaults(command=analyst_remove)

    show = commands.add_parser("settings", help="list every setting with its default")
    show.add_argument("--markdown", action="store_true", help="as a table for docs/settings.md")
    show.set_defaults(command=settings_show)
    secret = commands.add_parser("secrets", help="make and change the keys of SECRET_KEYS")
    secrets = secret.add_subparsers(required=True, metavar="ACTION")
    new_key = secrets.add_parser("new-key", help="print a new key, for SECRET_KEYS")
    new_key.add_argument("--id", help="a name for it; today's date if not given")
    new_key.set_defaults(command=secrets_new_key)
    rotate = secrets.add_parser("rotate", parents=[settings], help="seal all values with the first key of SECRET_KEYS")
    rotate.set_defaults(command=secrets_rotate)
    upgrade_ = commands.add_parser(
        "upgrade", parents=[settings], help="bring the database of an older version to the present layout"
    )
    upgrade_.set_defaults(command=upgrade)
    backup_ = commands.add_parser(
        "backup", parents=[settings], help="write everything to a file; sealed values stay sealed"
    )
    backup_.add_argument("--out", required=True, metavar="FILE", help="NDJSON packed with gzip; - is standard output")
    backup_.add_argument("--organization", type=_organization, help="only this one's")
    backup_.set_defaults(command=backup)
    restore_ = commands.add_parser("restore", parents=[settings], help="read a backup into an empty database")
    restore_.add_argument("file", metavar="FILE", help="what `backup` wrote; - is standard input")
    restore_.set_defaults(command=restore)
    restored_ = commands.add_parser(
        "restored",
        parents=[settings],
        help="after a backup was restored by other means: raise the next ids, so that none is given twice",
    )
    restored_.set_defaults(command=restored)
    clock_ = commands.add_parser(
        "clock", parents=[settings], help="after a database clock was ahead: bring the dates of groups back"
    )
    clock_.set_defaults(command=clock)
    return parser


def _add_settings(parser: argparse.ArgumentParser, only: tuple[str, ...] = ()) -> None:
    for name, default, text in Settings.table():
        if not only or name.lower() in only:
            text = f"{text} Default: {default}." if default else text
            flag = f"--{name.lower().replace('_', '-')}"
            parser.add_argument(flag, metavar=name, help=text.replace("%", "%%"))


@contextmanager
def _mongo_url(settings: Settings) -> Iterator[str]:
    """Yield the address of the database: the one given, else one on this machine."""
    if settings.mongo_url:
        yield settings.mongo_url
    else:
        with local_mongo(settings.data_path, cache_gb=settings.local_mongo_cache_gb) as mongo:
            yield mongo.url


def _with_store(settings: Settings, work: Callable[[Store], Any]) -> Any:
    async def run(url: str) -> Any:
        store = Store.connect(settings, url)
        try:
            return await work(store)
        finally:
            await store.close()

    with _mongo_url(settings) as url:
        return asyncio.run(run(url))


def serve(settings: Settings, demo: bool) -> int:
    from service.runtime import demo as demo_data
    from service.runtime.process import serve as run

    with _mongo_url(settings) as url:
        # The log says it too: a line for people goes to a terminal only.
        welcome: Callable[[str], None] = lambda address: (
            print(f"listening on {address}", flush=True) if sys.stdout.isatty() else None
        )
        if demo and settings.mongo_url:
            print("--demo is for a database on this machine: MONGO_URL gets no demo data.")
        elif demo:
            access = asyncio.run(demo_data.fill(settings, url))
            welcome = lambda address: print(demo_data.welcome(address, access), flush=True)
        return run(settings, url, welcome)


def worker(settings: Settings, listeners: list[int]) -> int:
    from service.runtime.process import serve_one

    sockets = [socket.socket(fileno=number) for number in listeners]
    serve_one(settings, settings.mongo_url, sockets, stop_with_stdin=True)
    return 0


def healthcheck(settings: Settings, ready: bool) -> int:
    from service.runtime.healthcheck import main as run

    return run(["--ready"] if ready else [])


def settings_show(settings: Settings, markdown: bool) -> int:
    if markdown:
        print("| Setting | Default | |\n|---|---|---|")
    for name, default, text in Settings.table():
        if markdown:
            print(f"| `{name}` | {f'`{default}`' if default else ''} | {text} |")
        else:
            print(f"{name}={default}\n    {text}")
    return 0


def token_create(settings: Settings, organization: int, scope: list[str] | None, label: str, expires: Any) -> int:
    scopes = scope or DEFAULT_SCOPES
    secret = _with_store(settings, lambda store: store.tokens.create(organization, scopes, label, expires))
    print("The token, shown only this once:", file=sys.stderr)
    print(secret)
    return 0


def token_list(settings: Settings, organization: int | None) -> int:
    row = "{:<12}  {:>12}  {:<10}  {:<20}  {:<20}  {:<20}  {}"
    print(row.format("id", "organization", "scopes", "created", "expires", "revoked", "label"))
    for token in _with_store(settings, lambda store: store.tokens.list(organization)):
        dates = [
            "-" if date is None else date.strftime("%Y-%m-%dT%H:%M:%SZ")
            for date in (token.create_date, token.expires, token.revoked)
        ]
        scopes = ",".join(sorted(token.scopes))
        print(row.format(token.id, token.organization_id, scopes, *dates, token.label))
    return 0


def token_revoke(settings: Settings, token: str) -> int:
    if _with_store(settings, lambda store: store.tokens.revoke(token)):
        print("revoked; it stops working within 5 seconds")
        return 0
    print("error: no such token, or revoked already", file=sys.stderr)
    return 1


def analyst_create(settings: Settings, name: str) -> int:
    async def create(store: Store) -> str:
        return await store.analysts.address(name, await store.analysts.create(name))

    address = _with_store(settings, create)
    print("The address, with its password shown only this once:", file=sys.stderr)
    print(address)
    return 0


def analyst_list(settings: Settings) -> int:
    for name in _with_store(settings, lambda store: store.analysts.list()):
        print(name)
    return 0


def analyst_remove(settings: Settings, name: str) -> int:
    if _with_store(settings, lambda store: store.analysts.remove(name)):
        print("removed")
        return 0
    print("error: no such analyst; `python -m service analyst list` names them", file=sys.stderr)
    return 1


def secrets_new_key(settings: Settings, id: str | None) -> int:
    print(Vault.new_key(id or datetime.now(UTC).strftime("%Y-%m-%d")))
    return 0


def secrets_rotate(settings: Settings) -> int:
    """Seal all values with the first key, again until a pass finds nothing to do."""
    if not settings.secret_keys:
        print("error: SECRET_KEYS is not set", file=sys.stderr)
        return 1
    passes = 3  # the second sees what was written under the old key during the first

    async def run(store: Store) -> int:
        for _ in range(passes):
            done = [await _rotate(part) for part in store.browser_state]
            unreadable = sum(rotation.unreadable for rotation in done)
            if not sum(rotation.resealed for rotation in done):
                break
        else:
            print(
                "error: a running service still writes with an old key: restart it with the new SECRET_KEYS, then "
                "repeat this",
                file=sys.stderr,
            )
            return 1
        if unreadable:
            print(f"error: {unreadable} values do not open with the keys of SECRET_KEYS", file=sys.stderr)
            return 1
        print("every value is sealed with the first key of SECRET_KEYS")
        return 0

    return int(_with_store(settings, run))


def upgrade(settings: Settings) -> int:
    """Upgrade the database; show how far it is, as a bar on a terminal."""
    width, bar = 30, sys.stdout.isatty()

    def progress(done: int, total: int) -> None:
        if bar:
            print(f"\routputs [{'#' * (width * done // total):<{width}}] {done / total:4.0%}", end="", flush=True)

    _with_store(settings, lambda store: store.upgrade(progress))
    print(f"{chr(13) + chr(27) + '[K' if bar else ''}the database has the present layout")
    return 0


def backup(settings: Settings, out: str, organization: int | None) -> int:
    with writing(out) as file:
        count: int = _with_store(settings, lambda store: store.backup.write(organization, file.write, _show_documents))
    print(f"{_LINE_START}wrote {count:,} documents", file=sys.stderr)
    return 0


def restore(settings: Settings, file: str) -> int:
    async def run(store: Store) -> tuple[int, int]:
        await store.ensure_indexes()
        return await store.backup.read(lines, _show_documents), await store.outputs.skip_ids()

    with reading(file) as lines:
        documents, groups = _with_store(settings, run)
    print(f"{_LINE_START}restored {documents:,} documents and raised the next id of {groups:,} groups", file=sys.stderr)
    return 0


# Clears a line of progress on a terminal.
_LINE_START = "\r\x1b[K" if sys.stderr.isatty() else ""


def _show_documents(count: int) -> None:
    if _LINE_START and count % 1000 == 0:
        print(f"\r{count:,} documents", end="", file=sys.stderr, flush=True)


def restored(settings: Settings) -> int:
    groups = _with_store(settings, lambda store: store.outputs.skip_ids())
    print(f"raised the next id of {groups} groups; start the service now")
    return 0


def clock(settings: Settings) -> int:
    groups = _with_store(settings, lambda store: store.outputs.set_clocks_back())
    print(f"brought the dates of {groups} groups back to the present")
    return 0


async def _rotate(part: BrowserState) -> Rotation:
    """Seal the values of one collection; show how far it is, as a bar on a terminal."""
    total, width, rotation = max(1, await part.count()), 30, Rotation(0, 0, 0)
    bar = sys.stdout.isatty()
    async for rotation in part.rotate():
        if bar:
            done = min(1.0, rotation.seen / total)
            print(f"\r{part.name:<14} [{'#' * int(done * width):<{width}}] {done:4.0%}", end="", flush=True)
    start = "\r\x1b[K" if bar else ""
    print(f"{start}{part.name}: {rotation.seen} values, {rotation.resealed} sealed now", flush=True)
    return rotation
