"""`token create`, `token list` and `token revoke`."""

from __future__ import annotations

import sys
from datetime import datetime

from service.cli.arguments import Commands, future_date, on_database, organization, subject
from service.cli.database import with_store
from service.settings import Settings
from service.store import DEFAULT_SCOPES, SCOPES


def add(commands: Commands) -> None:
    """Add the commands to a command line."""
    tokens = subject(commands, "token", "make, list and revoke access tokens")
    create_ = on_database(tokens, "create", "make a token and show it once")
    create_.add_argument("--organization", type=organization, required=True, help="its id, a whole number")
    create_.add_argument(
        "--scope",
        action="append",
        choices=SCOPES,
        help="read: GET; write: POST, PUT and PATCH; delete: DELETE, and setting a group's retention; state: with "
        f"these, cookies, local storage and storage state; admin: list, make and revoke the organization's tokens over "
        f"HTTP, given only here. Repeat it for several; default: {', '.join(DEFAULT_SCOPES)}",
    )
    create_.add_argument("--label", default="", help="who uses it, for `token list`")
    create_.add_argument("--expires", type=future_date, help="ISO 8601 date in the future; default: never")
    create_.set_defaults(command=create)
    list_ = on_database(tokens, "list", "list tokens, without their text")
    list_.add_argument("--organization", type=organization, help="only this one's")
    list_.set_defaults(command=list_all)
    revoke_ = on_database(tokens, "revoke", "end a token")
    revoke_.add_argument("token", help="the id from `token list`, or the token itself")
    revoke_.set_defaults(command=revoke)


def create(settings: Settings, organization: int, scope: list[str] | None, label: str, expires: datetime | None) -> int:
    scopes = scope or DEFAULT_SCOPES
    secret = with_store(settings, lambda store: store.tokens.create(organization, scopes, label, expires))
    print("The token, shown only this once:", file=sys.stderr)
    print(secret)
    return 0


def list_all(settings: Settings, organization: int | None) -> int:
    row = "{:<12}  {:>12}  {:<23}  {:<20}  {:<20}  {:<20}  {}"
    print(row.format("id", "organization", "scopes", "created", "expires", "revoked", "label"))
    for token in with_store(settings, lambda store: store.tokens.list(organization)):
        dates = [
            "-" if date is None else date.strftime("%Y-%m-%dT%H:%M:%SZ")
            for date in (token.create_date, token.expires, token.revoked)
        ]
        scopes = ",".join(sorted(token.scopes))
        print(row.format(token.id, token.organization_id, scopes, *dates, token.label))
    return 0


def revoke(settings: Settings, token: str) -> int:
    if with_store(settings, lambda store: store.tokens.revoke(token)):
        print("revoked; it stops working within 5 seconds")
        return 0
    print("error: no such token, or revoked already", file=sys.stderr)
    return 1
