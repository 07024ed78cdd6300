"""`analyst create`, `analyst list` and `analyst remove`."""

from __future__ import annotations

import sys

from service.cli.arguments import Commands, on_database, organization, subject
from service.cli.database import with_store
from service.command import command
from service.settings import Settings
from service.store import Store


def add(commands: Commands) -> None:
    """Add the commands to a command line."""
    analysts = subject(commands, "analyst", "make, list and remove users who may read the database")
    create_ = on_database(analysts, "create", "make a read-only user and show its address once")
    create_.add_argument("--name", default="analyst", help="who it is; default: analyst")
    create_.add_argument("--organization", type=organization, help="only this one's data; default: that of all")
    create_.set_defaults(command=create)
    list_ = on_database(analysts, "list", "list the names of the analysts")
    list_.set_defaults(command=list_all)
    remove_ = on_database(analysts, "remove", "remove an analyst")
    remove_.add_argument("name", help="the name from `analyst list`")
    remove_.set_defaults(command=remove)


def create(settings: Settings, name: str, organization: int | None) -> int:
    async def run(store: Store) -> str:
        return await store.analysts.address(name, await store.analysts.create(name, organization))

    address = with_store(settings, run)
    print("The address, with its password shown only this once:", file=sys.stderr)
    print(address)
    return 0


def list_all(settings: Settings) -> int:
    for name, organization_id in with_store(settings, lambda store: store.analysts.list()):
        print(name if organization_id is None else f"{name} (organization {organization_id})")
    return 0


def remove(settings: Settings, name: str) -> int:
    if with_store(settings, lambda store: store.analysts.remove(name)):
        print("removed")
        return 0
    print(f"error: no such analyst; `{command('analyst list')}` names them", file=sys.stderr)
    return 1
