"""`serve`, its workers, `healthcheck` and `settings`."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable

from service.cli.arguments import Commands, add_settings
from service.cli.database import database
from service.command import command
from service.settings import Settings


def add(commands: Commands) -> None:
    """Add the commands to a command line."""
    serve_ = commands.add_parser("serve", help="serve the HTTP interface")
    add_settings(serve_)
    serve_.add_argument(
        "--demo",
        action="store_true",
        help="fill an empty database on this machine with an organization to try things on",
    )
    serve_.set_defaults(command=serve)
    worker_ = commands.add_parser("worker")  # started by the supervisor, hidden from the help
    worker_.add_argument("listeners", type=int, nargs="+")
    worker_.set_defaults(command=worker)
    health = commands.add_parser("healthcheck", help="ask the service on this machine whether it is alive")
    health.add_argument("--ready", action="store_true", help="whether its database responds too")
    health.set_defaults(command=healthcheck)
    show = commands.add_parser("settings", help="list every setting with its default")
    show.add_argument("--markdown", action="store_true", help="as a table for docs/settings.md")
    show.set_defaults(command=settings_show)


def serve(settings: Settings, demo: bool) -> int:
    from service.runtime import demo as demo_data
    from service.runtime.process import serve as run

    with database(settings, create=True) as (settings, url):
        # For people at a terminal; the log has the address too.
        token = f"`{command('token create --organization 1')}` makes an access token"
        welcome: Callable[[str], None] = lambda address: (
            print(f"listening on {address}; {token}", flush=True) if sys.stdout.isatty() else None
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
    from service.runtime.healthcheck import check

    return check(ready)


def settings_show(settings: Settings, markdown: bool) -> int:
    if markdown:
        print("| Setting | Default | |\n|---|---|---|")
    for name, default, text in Settings.table():
        if markdown:
            print(f"| `{name}` | {f'`{default}`' if default else ''} | {text} |")
        else:
            print(f"{name}={default}\n    {text}")
    return 0
