"""`secrets new-key` and `secrets rotate`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

from service.cli.arguments import Commands, on_database, subject
from service.cli.database import with_store
from service.settings import Settings
from service.store import Rotation, SealedRecords, Store, Vault

# The second pass finds values that were written with the old key during the first.
_PASSES = 3
_BAR_WIDTH = 30


def add(commands: Commands) -> None:
    """Add the commands to a command line."""
    secrets = subject(commands, "secrets", "make and change the keys of SECRET_KEYS")
    new_key_ = secrets.add_parser("new-key", help="print a new key, for SECRET_KEYS")
    new_key_.add_argument("--id", help="a name for it; today's date if not given")
    new_key_.set_defaults(command=new_key)
    rotate_ = on_database(secrets, "rotate", "seal all values with the first key of SECRET_KEYS")
    rotate_.set_defaults(command=rotate)


def new_key(settings: Settings, id: str | None) -> int:
    print(Vault.new_key(id or datetime.now(UTC).strftime("%Y-%m-%d")))
    return 0


def rotate(settings: Settings) -> int:
    """Seal all values with the first key, again until a pass finds nothing to do."""

    async def run(store: Store) -> int:
        if not store.encrypts:
            print("error: SECRET_KEYS is not set", file=sys.stderr)
            return 1
        for _ in range(_PASSES):
            done = [await _rotate(part) for part in store.sealed]
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

    return with_store(settings, run)


async def _rotate(part: SealedRecords) -> Rotation:
    """Seal the values of one collection; show the progress, as a bar on a terminal."""
    total, rotation = max(1, await part.count()), Rotation(0, 0, 0)
    bar = sys.stdout.isatty()
    async for rotation in part.rotate():
        if bar:
            done = min(1.0, rotation.seen / total)
            filled = "#" * int(done * _BAR_WIDTH)
            print(f"\r{part.name:<14} [{filled:<{_BAR_WIDTH}}] {done:4.0%}", end="", flush=True)
    start = "\r\x1b[K" if bar else ""
    print(f"{start}{part.name}: {rotation.seen} values, {rotation.resealed} sealed now", flush=True)
    return rotation
