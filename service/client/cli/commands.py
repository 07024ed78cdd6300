"""The commands that speak to a running service: browser state and outputs, in and out of files."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.client import formats
from service.client.cli import transfer
from service.client.errors import ClientError
from service.client.sync import Client
from service.settings import ClientSettings, SettingsError


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the commands to a command line."""
    service = argparse.ArgumentParser(add_help=False)
    service.add_argument("--url", help="address of the service; else SDS_URL, else http://127.0.0.1:8080")
    service.add_argument("--token", help="access token; better in SDS_TOKEN, where other users do not see it")

    state = commands.add_parser("state", help="browser state from and to files")
    states = state.add_subparsers(required=True, metavar="ACTION")
    import_ = states.add_parser(
        "import",
        parents=[service],
        help="store the cookies and local storage of a file",
        description="Knows Playwright's storageState, CDP, EditThisCookie and Cookie-Editor JSON, and cookies.txt.",
    )
    import_.add_argument("file", type=Path)
    import_.set_defaults(command=state_import)
    export = states.add_parser("export", parents=[service], help="write cookies and local storage to a file")
    export.add_argument("--domain", help="only this domain and its subdomains")
    export.add_argument("--format", choices=list(formats.FORMATS), default="playwright")
    export.add_argument("--out", type=Path, help="the file; without it, standard output")
    export.set_defaults(command=state_export)

    outputs = commands.add_parser("outputs", help="outputs of a group from and to files")
    actions = outputs.add_subparsers(required=True, metavar="ACTION")
    export = actions.add_parser(
        "export", parents=[service], help="write a group to a file; run it again to go on after a break"
    )
    export.add_argument("group")
    export.add_argument("--out", type=Path, required=True, help="a name with .ndjson, .ndjson.gz, .csv or .parquet")
    export.add_argument("--job-id", help="only this root scraping job")
    export.add_argument("--created-after", help="only what was created or updated since this ISO 8601 date")
    export.add_argument("--source-url", help="only this page")
    export.add_argument("--country")
    export.add_argument("--region")
    export.add_argument("--fields", help="only these paths, e.g. data.title,source_url")
    export.set_defaults(command=outputs_export)
    import_ = actions.add_parser(
        "import", parents=[service], help="write a file to a group; run it again to go on after a break"
    )
    import_.add_argument("group")
    import_.add_argument("file", type=Path, help="NDJSON, packed with gzip or not")
    import_.set_defaults(command=outputs_import)


def _command(work: Callable[..., None]) -> Callable[..., int]:
    """Make a command of a function: give it a client, and turn what goes wrong into a word and an exit code."""

    @functools.wraps(work)
    def run(_: object, url: str | None, token: str | None, **options: Any) -> int:
        umask = os.umask(0o077)  # files for the owner only: cookies are as good as passwords
        try:
            settings = ClientSettings.load(sds_url=url, sds_token=token)
            if not settings.sds_token:
                raise ValueError("no access token: set SDS_TOKEN, or give --token")
            with Client(settings.sds_url, settings.sds_token) as client:
                work(client, **options)
        except (ClientError, SettingsError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except OSError as error:
            print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\nstopped; run the same command again to go on", file=sys.stderr)
            return 130
        finally:
            os.umask(umask)
        return 0

    return run


@_command
def state_import(client: Client, file: Path) -> None:
    counts = client.set_storage_state(formats.read(file.read_bytes()))
    for what, count in (("cookies", counts.cookies), ("local storage", counts.local_storage)):
        print(f"{what}: {count.created} created, {count.updated} updated")


@_command
def state_export(client: Client, domain: str | None, format: str, out: Path | None) -> None:
    state = client.storage_state(domain)
    text = formats.write(state, format)
    if out is None:
        sys.stdout.write(text)
    else:
        with out.open("w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o600)  # the file may be an older one
            file.write(text)
        print(f"wrote {len(state['cookies'])} cookies to {out}", file=sys.stderr)
    if format != "playwright" and state["origins"]:
        print(f"local storage of {len(state['origins'])} origins left out: {format} has none", file=sys.stderr)


@_command
def outputs_export(client: Client, group: str, out: Path, source_url: str | None, **filters: str | None) -> None:
    transfer.export(client, group, out, url=source_url, **filters)


@_command
def outputs_import(client: Client, group: str, file: Path) -> None:
    transfer.load(client, group, file)
