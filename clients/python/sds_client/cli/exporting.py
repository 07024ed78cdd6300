"""Export a group's outputs to a file or to standard output."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sds_client.cli import group_names, printing, tables
from sds_client.cli.errors import NothingFoundError, UsageError
from sds_client.cli.progress import Progress
from sds_client.paths import read_query
from sds_client.sync import Client

_BLOCK = 1024 * 1024
fcntl: Any = None  # Windows has none
with suppress(ImportError):
    import fcntl


def export(client: Client, group: str, out: Path, options: Mapping[str, Any], *, deleted: bool, safe: bool) -> int:
    """Write a group to a file and return the number of items. Raises NothingFoundError when there are none.

    Lines are gathered in `FILE.part`; the file itself appears when it is complete. Called again after an
    interruption, with the same organization, group and filters, it continues after the last complete line there. A
    part of another export is discarded, and so is one of a job, because an unchanged item can join the job behind the
    cursor, and one with deletions, because their records may be gone.
    """
    if _suffix(out) == ".parquet":  # a name or a format that cannot be written is an error before anything is read
        tables.check_parquet()
    part, about = out.with_name(f"{out.name}.part"), out.with_name(f"{out.name}.part.json")
    with _alone(part, out):
        try:
            count, progress = _gather(client, group, part, about, options, deleted)
            if not count:
                raise NothingFoundError(nothing(client, group, options))
            _finish(part, out, safe)
        except BaseException:
            # An empty part is useless; a part with lines makes the next export shorter.
            if part.exists() and not part.stat().st_size:
                part.unlink()
            if not part.exists():
                about.unlink(missing_ok=True)
            raise
        part.unlink(missing_ok=True)
        about.unlink()
    progress.finish(f"wrote {out.name}")
    return count


@contextmanager
def _alone(part: Path, out: Path) -> Iterator[None]:
    """Keep other processes from writing the same part. Raises ValueError while one does."""
    if fcntl is None:
        yield
        return
    with part.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another export to {out.name} is running") from None
        except OSError:
            pass  # a file system without locks
        yield


def _gather(
    client: Client, group: str, part: Path, about: Path, options: Mapping[str, Any], deleted: bool
) -> tuple[int, Progress]:
    """Write the lines of a group to a part, after those that are there already; return how many there are then."""
    query, organization = read_query(options), client.token()["organization_id"]
    query |= {"deleted": "true"} if deleted else {}
    asked = json.dumps({"url": client.url, "organization_id": organization, "group": group, "query": query})
    cursor, count = 0, 0
    is_resumable = not {"job_id", "change", "deleted"} & query.keys()
    if is_resumable and part.exists() and about.exists() and about.read_text() == asked:
        written = printing.modified(part)
        cursor, count = _resume(part)
        if cursor:
            printing.tell(f"continuing {part.name} of {written}, {printing.count(count, 'item')}\n")
    total = None if query else client.group(group)["items"]
    progress = Progress(f"export of {group}", count)
    with part.open("ab" if cursor else "wb") as file:
        about.write_text(asked)
        for block in client.ndjson(group, cursor=cursor, deleted=deleted, **options):
            file.write(block)
            count += block.count(b"\n")
            progress.update(count, count / total if total else None)
    return count, progress


def export_to_standard_output(client: Client, group: str, options: Mapping[str, Any], *, deleted: bool) -> None:
    """Write a group to standard output as NDJSON. Raises NothingFoundError when there are no items."""
    is_empty = True
    for block in client.ndjson(group, deleted=deleted, **options):
        sys.stdout.buffer.write(block)
        is_empty = False
    sys.stdout.buffer.flush()
    if is_empty:
        raise NothingFoundError(nothing(client, group, options))


def nothing(client: Client, group: str, options: Mapping[str, Any]) -> str:
    """Return why no item comes."""
    selection = {name: value for name, value in options.items() if name not in ("order", "page_size", "fields")}
    filters = read_query(selection)
    if missing := group_names.missing(client, group):
        return missing
    if filters:
        listed = ", ".join(f"{name}={value}" for name, value in filters.items())
        return f"no output in group {group!r} matches {listed}"
    return f"group {group!r} has no outputs"


def _suffix(out: Path) -> str:
    """Return the end of a file's name that says its format. Raises UsageError if there is none."""
    for suffix in (".ndjson", ".ndjson.gz", ".jsonl", ".jsonl.gz", ".csv", ".parquet"):
        if out.name.endswith(suffix):
            return suffix
    raise UsageError(f"{out.name}: the name must end with .ndjson, .ndjson.gz, .csv or .parquet; - is standard output")


def _resume(part: Path) -> tuple[int, int]:
    """Cut off an incomplete line; return the last id and the number of lines."""
    count, end = 0, 0
    with part.open("r+b") as file:
        position = 0
        while block := file.read(_BLOCK):
            count += block.count(b"\n")
            if (last := block.rfind(b"\n")) >= 0:
                end = position + last + 1
            position += len(block)
        file.truncate(end)
        if not end:
            return 0, 0
        start, tail = end, b""
        while start > 0 and b"\n" not in tail[:-1]:
            start = max(0, start - _BLOCK)
            file.seek(start)
            tail = file.read(end - start)
        return json.loads(tail[:-1].rpartition(b"\n")[2])["id"], count


def _finish(part: Path, out: Path, safe: bool) -> None:
    """Turn the lines into the file that was asked for; it appears as a whole or not at all."""
    suffix = _suffix(out)
    if suffix in (".ndjson", ".jsonl"):
        part.replace(out)
        return
    beside = out.with_name(f"{out.name}.tmp")
    try:
        if suffix == ".csv":
            tables.write_csv(part, beside, safe)
        elif suffix == ".parquet":
            tables.write_parquet(part, beside)
        else:
            with part.open("rb") as lines, gzip.open(beside, "wb", 6) as file:
                shutil.copyfileobj(lines, file, _BLOCK)
        beside.replace(out)
    finally:
        beside.unlink(missing_ok=True)
