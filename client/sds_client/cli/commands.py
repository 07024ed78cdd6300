"""The commands that call a running service: browser state and outputs, from and to files."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sds_client import formats
from sds_client.cli import exporting, importing, settings
from sds_client.cli.progress import Progress
from sds_client.errors import ClientError
from sds_client.paths import delete_query
from sds_client.sync import Client

# Exit codes: 0 done, 1 failed, 2 the command line is wrong, 3 there is nothing to export, 130 interrupted.
NOTHING_FOUND = 3


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the commands to a command line."""
    service = argparse.ArgumentParser(add_help=False)
    service.add_argument("--url", help="address of the service; else SDS_URL, else http://127.0.0.1:8080")
    service.add_argument("--token", help="access token; better in SDS_TOKEN, where other users do not see it")
    _add_state(commands, service)
    outputs = commands.add_parser("outputs", help="outputs of a group from and to files")
    actions = outputs.add_subparsers(required=True, metavar="ACTION")
    _add_export(actions, service)
    _add_import(actions, service)
    _add_approve(actions, service)
    _add_delete(actions, service)


def _add_state(commands: argparse._SubParsersAction[Any], service: argparse.ArgumentParser) -> None:
    state = commands.add_parser("state", help="browser state from and to files")
    states = state.add_subparsers(required=True, metavar="ACTION")
    import_ = states.add_parser(
        "import",
        parents=[service],
        help="store the cookies and local storage of a file",
        description="Reads Playwright's storageState, CDP, EditThisCookie and Cookie-Editor JSON, and cookies.txt.",
    )
    import_.add_argument("file", type=Path)
    import_.set_defaults(command=state_import)
    export = states.add_parser("export", parents=[service], help="write cookies and local storage to a file")
    export.add_argument("--domain", help="only this domain and its subdomains")
    export.add_argument("--format", choices=list(formats.FORMATS), default="playwright")
    export.add_argument("--out", type=Path, help="the file; without it, standard output")
    export.set_defaults(command=state_export)


def _add_export(actions: argparse._SubParsersAction[Any], service: argparse.ArgumentParser) -> None:
    export = actions.add_parser(
        "export",
        parents=[service],
        help="write a group to a file; run it again to continue after an interruption",
        description="Exits with 3 when the group does not exist or nothing in it matches.",
    )
    export.add_argument("group")
    export.add_argument(
        "--out",
        type=Path,
        required=True,
        help="a name with .ndjson, .ndjson.gz, .csv or .parquet; - writes NDJSON to standard output",
    )
    _add_filters(export)
    export.add_argument("--created-after", help="only what was created or updated since this ISO 8601 date")
    export.add_argument("--key-hash", help="only the item with this key")
    export.add_argument("--fields", help="only these paths, e.g. data.title,source_url")
    export.set_defaults(command=outputs_export)


def _add_import(actions: argparse._SubParsersAction[Any], service: argparse.ArgumentParser) -> None:
    import_ = actions.add_parser(
        "import",
        parents=[service],
        help="write a file to a group; run it again to continue after an interruption",
        description="A CSV has the columns that `outputs export` writes, or any others: what is no field of an "
        "output goes into its data. A column that holds nothing but numbers is read as numbers, likewise "
        "true and false, and JSON; --text keeps the text.",
    )
    import_.add_argument("group")
    import_.add_argument("file", type=Path, help="NDJSON or CSV, compressed with gzip or not")
    import_.add_argument("--job-id", help="the root scraping job of the items that name none")
    import_.add_argument("--key-fields", type=_names, default=(), help="the fields of data that make an item's key")
    import_.add_argument("--text", type=_names, default=(), help="columns of a CSV to keep as text, e.g. sku,zip")
    import_.set_defaults(command=outputs_import)


def _add_approve(actions: argparse._SubParsersAction[Any], service: argparse.ArgumentParser) -> None:
    approve = actions.add_parser("approve", parents=[service], help="approve items of a group")
    approve.add_argument("group")
    approve.add_argument("output_id", nargs="+")
    approve.add_argument("--withdraw", action="store_true", help="take the approval back")
    approve.set_defaults(command=outputs_approve)


def _add_delete(actions: argparse._SubParsersAction[Any], service: argparse.ArgumentParser) -> None:
    delete = actions.add_parser(
        "delete",
        parents=[service],
        help="delete the items of a group that match all filters; asks first",
        description="The token needs the scope delete. An interrupted deletion is continued by the same command.",
    )
    delete.add_argument("group")
    _add_filters(delete)
    delete.add_argument("--scraped-before", help="only what was last scraped before this ISO 8601 date")
    delete.add_argument("--all", action="store_true", help="every item of the group")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    delete.set_defaults(command=outputs_delete)


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--job-id", help="only this root scraping job")
    parser.add_argument("--source-url", dest="source_url", help="only this page")
    parser.add_argument("--country")
    parser.add_argument("--region")
    parser.add_argument("--is-approved", choices=["true", "false"])


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _command(work: Callable[..., None]) -> Callable[..., int]:
    """Make a command of a function: give it a client, and turn an exception into a message and an exit code."""

    @functools.wraps(work)
    def run(url: str | None, token: str | None, **options: Any) -> int:
        umask = os.umask(0o077)  # files for the owner only: cookies are as good as passwords
        try:
            with Client(settings.address(url), settings.access_token(token)) as client:
                work(client, **options)
        except exporting.NothingFoundError as error:
            print(f"error: {error}", file=sys.stderr)
            return NOTHING_FOUND
        except (ClientError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except BrokenPipeError:  # the reader of standard output, such as `head`, has enough
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except OSError as error:
            print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\nstopped; run the same command again to continue", file=sys.stderr)
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
        print(
            f"local storage of {len(state['origins'])} origins left out: the format {format} cannot hold it",
            file=sys.stderr,
        )


@_command
def outputs_export(client: Client, group: str, out: Path, source_url: str | None, **filters: str | None) -> None:
    options = {"url": source_url, **filters}
    if str(out) == "-":
        exporting.export_to_standard_output(client, group, options)
    else:
        exporting.export(client, group, out, options)


@_command
def outputs_import(
    client: Client, group: str, file: Path, job_id: str | None, key_fields: tuple[str, ...], text: tuple[str, ...]
) -> None:
    importing.load(client, group, file, importing.Completion(job_id, key_fields), text)


@_command
def outputs_approve(client: Client, group: str, output_id: list[str], withdraw: bool) -> None:
    patched = client.patch_many(group, ({"output_id": one, "is_approved": not withdraw} for one in output_id))
    print(f"{patched.updated} updated, {patched.unchanged} unchanged")
    missing = [one for one, item in zip(output_id, patched.items, strict=True) if item["result"] == "not_found"]
    if missing:
        raise ValueError(f"not in group {group!r}: {', '.join(missing)}")


@_command
def outputs_delete(client: Client, group: str, source_url: str | None, all: bool, yes: bool, **given: Any) -> None:
    filters = {name: value for name, value in {"url": source_url, **given}.items() if value is not None}
    if all:
        filters["all"] = True
    query = delete_query(filters)
    if not yes and not _confirmed(group, query):
        raise ValueError("nothing was deleted")
    progress = Progress(f"deletion in {group}")
    total = _total(client, group, filters)
    deleted = client.delete_many(
        group, on_progress=lambda count: progress.update(count, count / total if total else None), **filters
    )
    progress.update(deleted)
    progress.finish("deleted")


def _confirmed(group: str, query: dict[str, str]) -> bool:
    if not sys.stdin.isatty():
        raise ValueError("a deletion is confirmed on a terminal; give --yes where there is none")
    what = "all outputs" if "all" in query else f"the outputs with {', '.join('='.join(p) for p in query.items())}"
    return input(f"Delete {what} of group {group}? [y/N] ").strip().lower() in ("y", "yes")


def _total(client: Client, group: str, filters: dict[str, Any]) -> int | None:
    """Return how many items a deletion is about, where the service knows it without counting."""
    if set(filters) == {"all"}:
        return int(client.group(group)["items"])
    if set(filters) == {"job_id"}:
        return next((int(job["items"]) for job in client.jobs(group) if job["job_id"] == filters["job_id"]), None)
    return None
