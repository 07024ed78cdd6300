"""`backup`, `restore`, `restored` (after another tool restored a backup) and `clock` (after a clock was ahead)."""

from __future__ import annotations

import sys

from service.cli.arguments import Commands, on_database, organization
from service.cli.database import with_store
from service.runtime.backup_file import reading, writing
from service.settings import Settings
from service.store import Store

# Clears a line of progress on a terminal.
_LINE_START = "\r\x1b[K" if sys.stderr.isatty() else ""


def add(commands: Commands) -> None:
    """Add the commands to a command line."""
    backup_ = on_database(commands, "backup", "write everything to a file; sealed values stay sealed")
    backup_.add_argument("--out", required=True, metavar="FILE", help="packed with gzip; - is standard output")
    backup_.add_argument("--organization", type=organization, help="only this one's")
    backup_.set_defaults(command=backup)
    restore_ = on_database(commands, "restore", "read a backup into an empty database")
    restore_.add_argument("file", metavar="FILE", help="what `backup` wrote; - is standard input")
    restore_.set_defaults(command=restore)
    restored_ = on_database(
        commands,
        "restored",
        "after a backup was restored by other means: raise the next ids, so that none is given twice",
    )
    restored_.set_defaults(command=restored)
    clock_ = on_database(commands, "clock", "after a database clock was ahead: bring the dates of groups back")
    clock_.set_defaults(command=clock)


def backup(settings: Settings, out: str, organization: int | None) -> int:
    with writing(out) as file:
        count = with_store(settings, lambda store: store.backup.write(organization, file.write, _show_documents))
    print(f"{_LINE_START}wrote {count:,} documents", file=sys.stderr)
    return 0


def restore(settings: Settings, file: str) -> int:
    async def run(store: Store) -> int:
        await store.ensure_indexes()
        return await store.backup.read(content, _show_documents)

    with reading(file) as content:
        documents = with_store(settings, run)
    print(f"{_LINE_START}restored {documents:,} documents; the next ids are raised", file=sys.stderr)
    print("Tokens that were revoked after the backup was made work again: see `token list`.", file=sys.stderr)
    return 0


def _show_documents(count: int) -> None:
    if _LINE_START:
        print(f"\r{count:,} documents", end="", file=sys.stderr, flush=True)


def restored(settings: Settings) -> int:
    async def run(store: Store) -> int:
        await store.layout.raise_first_id()
        return await store.outputs.skip_ids()

    groups = with_store(settings, run)
    print(f"raised the next id of {groups} groups; start the service now")
    return 0


def clock(settings: Settings) -> int:
    async def run(store: Store) -> int:
        await store.ensure_indexes()  # without them, batches of dead writers cannot be ended
        return await store.outputs.set_clocks_back()

    groups = with_store(settings, run)
    print(f"brought the dates of {groups} groups back to the present")
    return 0
