"""`organization list`, `organization show` and `organization delete`."""

from __future__ import annotations

import sys
from collections import Counter

from service.cli.arguments import Commands, on_database, organization, subject
from service.cli.database import with_store
from service.settings import Settings
from service.store import AnalystError, Store

_LINE_START = "\r\x1b[K" if sys.stderr.isatty() else ""


def add(commands: Commands) -> None:
    """Add the commands to a command line."""
    organizations = subject(commands, "organization", "list, show and delete organizations")
    list_ = on_database(organizations, "list", "list the organizations with their tokens, groups and items")
    list_.set_defaults(command=list_all)
    show_ = on_database(organizations, "show", "count everything that an organization has")
    show_.add_argument("organization", type=organization, help="its id, a whole number")
    show_.set_defaults(command=show)
    delete_ = on_database(organizations, "delete", "delete everything of an organization, for good; asks first")
    delete_.add_argument("organization", type=organization, help="its id, a whole number")
    delete_.add_argument("--confirm", type=organization, metavar="ID", help="its id again, where there is no terminal")
    delete_.set_defaults(command=delete)


def list_all(settings: Settings) -> int:
    row = "{:>12}  {:>8}  {:>8}  {:>12}"
    print(row.format("organization", "tokens", "groups", "items"))
    for one in with_store(settings, lambda store: store.organizations.list()):
        print(row.format(*(f"{one[name]}" for name in ("organization", "tokens", "groups", "items"))))
    return 0


def show(settings: Settings, organization: int) -> int:
    return 0 if _show(settings, organization) else 1


def _show(settings: Settings, organization: int) -> bool:
    counts = with_store(settings, lambda store: store.organizations.count(organization))
    if not counts:
        print(f"error: there is nothing of organization {organization}; `organization list` has all", file=sys.stderr)
    for name, number in counts.items():
        print(f"{name:14}{number:>14,}")
    return bool(counts)


def delete(settings: Settings, organization: int, confirm: int | None) -> int:
    """Delete an organization after its number was typed once more."""
    if not _show(settings, organization):
        return 1
    if not _is_confirmed(organization, confirm):
        print("error: nothing was deleted", file=sys.stderr)
        return 1
    total: Counter[str] = Counter()

    def progress(name: str, number: int) -> None:
        total[name] += number
        if _LINE_START:
            print(f"{_LINE_START}{total.total():,} documents", end="", file=sys.stderr, flush=True)

    async def work(store: Store) -> tuple[bool, str]:
        complete = await store.organizations.delete(organization, progress)
        try:
            for analyst in await store.analysts.list():
                if analyst.organization_id == organization:
                    await store.analysts.remove(analyst.name)
        except AnalystError as error:
            return complete, f"its analysts, if any, stay: {error}"
        return complete, ""

    try:
        complete, stay = with_store(settings, work)
    except KeyboardInterrupt:
        print(f"{_LINE_START}interrupted: the same command deletes the rest", file=sys.stderr)
        return 130
    print(f"{_LINE_START}deleted {total.total():,} documents of organization {organization}", file=sys.stderr)
    if stay:
        print(f"warning: {stay}", file=sys.stderr)
    if not complete:
        print("error: something still writes for this organization: run the same command again", file=sys.stderr)
    return 0 if complete else 1


def _is_confirmed(organization: int, confirm: int | None) -> bool:
    if confirm is not None:
        return confirm == organization
    if not sys.stdin.isatty():
        print(f"error: a deletion is confirmed on a terminal; else give --confirm {organization}", file=sys.stderr)
        return False
    try:
        return input(f"Type {organization} to delete all of this, for good: ").strip() == str(organization)
    except EOFError:
        return False
