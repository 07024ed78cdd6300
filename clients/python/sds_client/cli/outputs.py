"""Commands about outputs: from and to files, follow, approve and delete."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Generator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, cast

from sds_client.cli import exporting, group_names, importing
from sds_client.cli.errors import NothingFoundError, UsageError
from sds_client.cli.printing import Result, count, discard, print_json, table
from sds_client.cli.progress import Progress
from sds_client.cli.running import command, storing_command
from sds_client.following import replace_file
from sds_client.patching import Patched
from sds_client.paths import delete_query, read_query
from sds_client.state import chunks
from sds_client.sync import Client
from sds_client.types import Deletion, Output


def add(commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    """Add the commands to a command line."""
    outputs = commands.add_parser("outputs", help="list, get, approve, delete, export and import outputs")
    actions = outputs.add_subparsers(required=True, metavar="ACTION")
    _add_list(actions, common)
    _add_export(actions, common)
    _add_import(actions, common)
    _add_approve(actions, common)
    _add_delete(actions, common)
    _add_follow(commands, common)


def _add_list(actions: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    listed = actions.add_parser("list", parents=[common], help="the newest items of a group")
    listed.add_argument("group")
    listed.add_argument("--limit", type=positive, default=10, help="how many; default: 10")
    _add_filters(listed)
    _add_selection(listed)
    listed.set_defaults(command=outputs_list)
    get = actions.add_parser("get", parents=[common], help="one item of a group, by its key or its output id")
    get.add_argument("group")
    get.add_argument("output_id", nargs="?")
    get.add_argument("--key-hash", help="the key of the item")
    get.set_defaults(command=outputs_get)


def _add_export(actions: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    export = actions.add_parser(
        "export",
        parents=[common],
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
    export.add_argument("--deleted", action="store_true", help="write deletions too")
    export.add_argument(
        "--safe", action="store_true", help="in a CSV, put an apostrophe before texts that a spreadsheet would compute"
    )
    _add_filters(export)
    _add_selection(export)
    export.set_defaults(command=outputs_export)


def _add_import(actions: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    import_ = actions.add_parser(
        "import",
        parents=[common],
        help="write a file to a group; run it again to continue after an interruption",
        description="A CSV has the columns that `outputs export` writes, or any others: a column that is not a field "
        "of an output goes into its data. A column that holds nothing but numbers is read as numbers, likewise true "
        "and false, and JSON; --text keeps the text. Name the key fields of a CSV in --text too: the key of 100 as a "
        "number is another than that of 100 in a column that is text because of a 007 in another row.",
    )
    import_.add_argument("group")
    import_.add_argument("file", type=Path, help="NDJSON or CSV, compressed with gzip or not")
    import_.add_argument("--job-id", help="the root scraping job of the items that name none")
    import_.add_argument("--key-fields", type=_names, default=(), help="the fields of data that make an item's key")
    import_.add_argument("--text", type=_names, default=(), help="columns of a CSV to keep as text, e.g. sku,zip")
    import_.set_defaults(command=outputs_import)


def _add_approve(actions: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    approve = actions.add_parser(
        "approve",
        parents=[common],
        help="approve items of a group: some by their ids, or those that match all filters",
        description="An item that changes while the command runs is not approved, and counted.",
    )
    approve.add_argument("group")
    approve.add_argument("output_id", nargs="*")
    _add_filters(approve, approval=False)
    approve.add_argument("--all", action="store_true", help="every item of the group")
    approve.add_argument("--withdraw", action="store_true", help="take the approval back")
    approve.set_defaults(command=outputs_approve)


def _add_delete(actions: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    delete = actions.add_parser(
        "delete",
        parents=[common],
        help="delete the items of a group that match all filters; asks first",
        description="The token needs the scope delete. An interrupted deletion is continued by the same command.",
    )
    delete.add_argument("group")
    _add_filters(delete)
    delete.add_argument("--key-hash", help="only the item with this key")
    delete.add_argument("--scraped-before", help="only items last scraped before this ISO 8601 date")
    delete.add_argument("--max-id", type=int, help="only items with an id up to this: what comes later stays")
    delete.add_argument("--all", action="store_true", help="every item of the group")
    delete.add_argument("--dry-run", action="store_true", help="say how many items would be deleted, and delete none")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    delete.set_defaults(command=outputs_delete)


def _add_follow(commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    follow = commands.add_parser(
        "follow", parents=[common], help="print what is new or changed in a group as NDJSON, and wait for more"
    )
    follow.add_argument("group")
    follow.add_argument(
        "--cursor-file",
        type=Path,
        help="where to remember how far it came, for the next run; when the reader of the output leaves, "
        "the exit code is 1 and the next run begins where this one began",
    )
    follow.add_argument(
        "--cursor",
        type=_cursor,
        metavar="ID",
        help="begin after this id, such as the last one of an export; not with a --cursor-file of an earlier run",
    )
    follow.add_argument("--deleted", action="store_true", help="print deletions too")
    follow.add_argument("--once", action="store_true", help="stop at the present end instead of waiting")
    _add_filters(follow)
    _add_selection(follow)
    follow.set_defaults(command=follow_group)


def _add_filters(parser: argparse.ArgumentParser, approval: bool = True) -> None:
    parser.add_argument("--job-id", help="only this root scraping job")
    parser.add_argument("--source-url", dest="source_url", help="only this page")
    parser.add_argument("--country")
    parser.add_argument("--region")
    parser.add_argument("--change", choices=["created", "changed", "unchanged", "missing"], help="what --job-id did")
    parser.add_argument("--missing", metavar="PATH", help="only where this field of data is not filled")
    parser.add_argument(
        "--where",
        metavar="CONDITION",
        action="append",
        help="only where this holds for a field of data: price.currency:EUR, price.amount>=10, title~lamp; "
        "also != > < <=. Repeat it, and all must hold",
    )
    parser.add_argument("--rejected", choices=["true", "false"])
    if approval:
        parser.add_argument("--is-approved", choices=["true", "false"])


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--created-after", help="only items created or updated since this ISO 8601 date")
    parser.add_argument("--key-hash", help="only the item with this key")
    parser.add_argument("--fields", help="only these paths, e.g. data.title,source_url")


def _cursor(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError("must be the id of an item, a whole number")
    return int(text)


def positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError("must be a whole number from 1 on")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


@command
def outputs_list(client: Client, group: str, limit: int, source_url: str | None, **filters: Any) -> Result:
    options: dict[str, Any] = {"order": "desc", "page_size": min(limit, 1000), "url": source_url, **filters}
    found: list[Any] = list(islice(client.outputs(group, **options), limit))
    columns = {"key_hash": "KEY", "root_job_id": "JOB", "update_date": "CHANGED", "source_url": "PAGE"}
    if filters["fields"]:
        columns = {path: path for path in filters["fields"].split(",")}
    return Result(found, table(found, columns, "" if found else exporting.nothing(client, group, options)))


@command
def outputs_get(client: Client, group: str, output_id: str | None, key_hash: str | None) -> Result:
    if (output_id is None) == (key_hash is None):
        raise UsageError("name the item by its output id or with --key-hash")
    item = (
        client.get(group, output_id) if output_id is not None else next(client.outputs(group, key_hash=key_hash), None)
    )
    if item is None:
        raise NothingFoundError(exporting.nothing(client, group, {"key_hash": key_hash or output_id}))
    return Result(item, json.dumps(item, ensure_ascii=False, indent=2))


@command
def outputs_export(
    client: Client, group: str, out: Path, deleted: bool, safe: bool, source_url: str | None, **filters: Any
) -> Result | None:
    selected = {"url": source_url, **filters}
    if safe and out.suffix != ".csv":
        raise UsageError("--safe is for .csv files")
    if str(out) == "-":
        exporting.export_to_standard_output(client, group, selected, deleted=deleted)
        return None
    items = exporting.export(client, group, out, selected, deleted=deleted, safe=safe)
    return Result({"items": items, "file": str(out)}, "")


@storing_command
def outputs_import(
    client: Client, group: str, file: Path, job_id: str | None, key_fields: tuple[str, ...], text: tuple[str, ...]
) -> Result:
    return Result(vars(importing.load(client, group, file, importing.Completion(job_id, key_fields), text)), "")


@storing_command
def outputs_approve(
    client: Client, group: str, output_id: list[str], all: bool, withdraw: bool, **given: Any
) -> Result:
    filters = _filters(given)
    ways = [bool(output_id), bool(filters), all]
    if sum(ways) != 1:
        raise UsageError("name what to approve: by output ids, by filters such as --job-id, or with --all")
    if output_id:
        patched = client.patch_many(
            group, [{"output_id": one, **_judged(not withdraw, rejected=True)} for one in output_id]
        )
    else:
        group_names.warn(client, group)
        patched = _approve_matching(client, group, filters, not withdraw)
    conflicts = f", {patched.conflict:,} changed meanwhile and not updated" if patched.conflict else ""
    words = f"{patched.updated:,} updated, {patched.unchanged:,} unchanged{conflicts}"
    missing = [one for one, item in zip(output_id, patched.items, strict=False) if item["result"] == "not_found"]
    if missing:
        raise ValueError(f"{words}; not in group {group!r}: {', '.join(missing)}")
    counts = {"updated": patched.updated, "unchanged": patched.unchanged, "conflict": patched.conflict}
    return Result(counts, words)


def _judged(approved: bool, *, rejected: bool) -> dict[str, Any]:
    """Return what a patch changes: as on the page, an approved item is no longer rejected."""
    return {"is_approved": approved, **({"tags": {"rejected": None}} if approved and rejected else {})}


def _approve_matching(client: Client, group: str, filters: dict[str, Any], approved: bool) -> Patched:
    """Approve the items that match, or withdraw that, each as it was read."""
    patched, progress = Patched(), Progress(f"approval in {group}")
    selected = client.outputs(group, is_approved=not approved, fields=["output_id", "tags.rejected"], **filters)
    for page in chunks(selected):
        patches = [
            {
                "output_id": one["output_id"],
                "if_id": one["id"],
                **_judged(approved, rejected="rejected" in one.get("tags", {})),
            }
            for one in page
        ]
        done = client.patch_many(group, patches)
        patched.updated += done.updated
        patched.unchanged += done.unchanged
        patched.conflict += done.conflict + done.not_found
        progress.update(patched.updated)
    return patched


@storing_command
def outputs_delete(client: Client, group: str, dry_run: bool, yes: bool, **given: Any) -> Result:
    check_selection(given)
    filters = _filters(given)
    query = delete_query(filters)
    group_names.warn(client, group)
    if dry_run:
        matched = client.delete_many(group, dry_run=True, **filters)
        return Result({"matched": matched}, f"{count(matched, 'item')} would be deleted")
    texts = {name: text if isinstance(text, str) else " and ".join(text) for name, text in query.items()}
    named = ", ".join("=".join(pair) for pair in texts.items())
    what = "all outputs" if set(query) == {"all"} else f"the outputs with {named}"
    confirm(f"Delete {what} of group {group}?", yes)
    progress = Progress(f"deletion in {group}")
    total = _total(client, group, filters)
    deleted = client.delete_many(
        group, on_progress=lambda done: progress.update(done, done / total if total else None), **filters
    )
    progress.update(deleted)
    progress.finish("deleted")
    return Result({"deleted": deleted}, "")


@command
def follow_group(
    client: Client,
    group: str,
    cursor_file: Path | None,
    cursor: int | None,
    deleted: bool,
    once: bool,
    source_url: str | None,
    **filters: Any,
) -> None:
    selected = {"url": source_url, **filters}
    read_query(selected)  # a mistake is an error before the first wait
    before = cursor_file.read_bytes() if cursor_file is not None and cursor_file.exists() else None
    if cursor is not None and before is not None:
        raise UsageError(f"{cursor_file} already has a position: leave out --cursor, or name another file")
    options: dict[str, Any] = {"deleted": deleted, "cursor_file": cursor_file, "live": not once, **selected}
    options["cursor"] = cursor or 0
    group_names.warn(client, group, " yet")
    following = cast(Generator[Output | Deletion], client.follow(group, **options))
    try:
        with closing(following):
            for item in following:
                print_json(item)
                sys.stdout.flush()
    except BrokenPipeError:
        if cursor_file is None:
            raise
        discard(sys.stdout)
        if before is None:
            cursor_file.unlink(missing_ok=True)
        else:
            replace_file(cursor_file, before)
        reason = "the reader of standard output has left, perhaps before it read everything"
        raise ValueError(f"{reason}: the cursor is again where this run began") from None


def check_selection(given: Mapping[str, Any]) -> None:
    """Raise UsageError when the options of a deletion select nothing."""
    if all(value is None or value is False for value in given.values()):
        raise UsageError(f"name what to delete with at least one of {', '.join(map(_flag, given))}")


def _filters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filters that were given. Raises UsageError for an empty one: it would select more than was meant."""
    filters = {name: value for name, value in given.items() if value is not None and value is not False}
    for name, value in filters.items():
        if value == "":
            raise UsageError(f"{_flag(name)} is empty: give a value, or leave it out")
    return {"url" if name == "source_url" else name: value for name, value in filters.items()}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def confirm(question: str, yes: bool) -> None:
    """Ask on the terminal, unless `--yes` was given. Raises ValueError without a yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ValueError("a deletion is confirmed on a terminal; give --yes where there is none")
    try:
        reply = input(f"{question} [y/N] ")
    except EOFError:  # Ctrl-D
        reply = ""
    if reply.strip().lower() not in ("y", "yes"):
        raise ValueError("nothing was deleted")


def _total(client: Client, group: str, filters: dict[str, Any]) -> int | None:
    """Return how many items a deletion covers, if the service knows it without counting."""
    if set(filters) == {"all"}:
        return int(client.group(group)["items"])
    if set(filters) == {"job_id"}:
        return next((int(job["items"]) for job in client.jobs(group) if job["job_id"] == filters["job_id"]), None)
    return None
