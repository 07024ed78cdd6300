"""A group's outputs into a file and back, each taken up again where it was broken off."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from service.client.cli import tables
from service.client.cli.progress import Progress
from service.client.errors import ClientError
from service.client.outputs import Pushed, query
from service.client.sync import Client

# Given by the service: an item read cannot be written with them.
_GIVEN = ("id", "output_id", "create_date", "update_date")
_GZIP = b"\x1f\x8b"
_BLOCK = 1024 * 1024


def check_name(out: Path) -> None:
    """Raise ValueError if no format goes with a file's name, or its format cannot be written here."""
    if _suffix(out) == ".parquet":
        tables.check_parquet()


def _suffix(out: Path) -> str:
    for suffix in (".ndjson", ".ndjson.gz", ".jsonl", ".jsonl.gz", ".csv", ".parquet"):
        if out.name.endswith(suffix):
            return suffix
    raise ValueError(f"{out.name}: the name must end with .ndjson, .ndjson.gz, .csv or .parquet")


def export(client: Client, group: str, out: Path, **filters: Any) -> int:
    """Write a group to a file and return the number of items.

    Lines are gathered in `FILE.part`; the file itself appears when it is whole. Called again after a break,
    with the same group and filters, it goes on after the last whole line there.
    """
    check_name(out)
    part = out.with_name(f"{out.name}.part")
    about = out.with_name(f"{out.name}.part.json")
    asked = {"group": group, "filters": query(**filters)}
    cursor, count = 0, 0
    if part.exists():
        if not about.exists() or json.loads(about.read_text()) != asked:
            raise ValueError(f"{part} is of another export: finish that one, or remove the file")
        cursor, count = _resume(part)
    else:
        about.write_text(json.dumps(asked))
    total = None if asked["filters"] else (client.group(group))["items"]
    progress = Progress(f"export of {group}", count)
    with part.open("ab") as file:
        for block in client.ndjson(group, cursor=cursor, **filters):
            file.write(block)
            count += block.count(b"\n")
            progress.update(count, count / total if total else None)
    _finish(part, out)
    about.unlink(missing_ok=True)
    part.unlink(missing_ok=True)
    progress.finish(f"wrote {out.name}")
    return count


def _resume(part: Path) -> tuple[int, int]:
    """Cut what is no whole line; return the last id and the number of lines."""
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


def _finish(part: Path, out: Path) -> None:
    """Turn the lines into the file that was asked for; it is there as a whole or not at all."""
    beside = out.with_name(f"{out.name}.tmp")
    suffix = _suffix(out)
    if suffix.endswith(".gz"):
        with part.open("rb") as lines, gzip.open(beside, "wb", 6) as file:
            shutil.copyfileobj(lines, file, _BLOCK)
    elif suffix == ".csv":
        tables.write_csv(part, beside)
    elif suffix == ".parquet":
        tables.write_parquet(part, beside)
    else:
        beside = part
    beside.replace(out)


def load(client: Client, group: str, file: Path) -> Pushed:
    """Write the items of an NDJSON file, packed with gzip or not, to a group, and return what became of them.

    The number of lines that are stored is kept in `FILE.….import` until all are. Items written twice do no harm.
    """
    status = file.stat()
    mark = hashlib.sha256(f"{client.url}\0{group}\0{status.st_size}\0{status.st_mtime_ns}".encode()).hexdigest()
    kept = file.with_name(f"{file.name}.{mark[:12]}.import")
    done = int(kept.read_text()) if kept.exists() else 0
    source = _Source(file, done)
    progress = Progress(f"import into {group}", done)

    def stored(count: int, _: Any) -> None:
        nonlocal done
        done += count
        with suppress(OSError):  # a folder that cannot be written: the import works, only not from the middle
            beside = kept.with_name(f"{kept.name}.tmp")
            beside.write_text(str(done))
            beside.replace(kept)
        progress.update(done, source.read / status.st_size if status.st_size else None)

    try:
        pushed = client.push(group, source.items(), on_batch=stored)
    except ClientError as error:
        if error.status != 422:
            raise
        raise ClientError(422, [source.located(problem) for problem in error.problems]) from None
    kept.unlink(missing_ok=True)
    progress.finish(f"{pushed.created:,} created, {pushed.updated:,} updated, {pushed.unchanged:,} unchanged")
    return pushed


class _Source:
    """The items of a file after the first `skip` of them."""

    def __init__(self, file: Path, skip: int) -> None:
        self._file, self._skip = file, skip
        self._lines: dict[int, int] = {}
        self.read = 0

    def items(self) -> Iterator[dict[str, Any]]:
        with _opened(self._file) as (raw, file):
            number = -1
            for line_number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                number += 1
                if number < self._skip:
                    continue
                self._lines[number - self._skip] = line_number
                self._lines.pop(number - self._skip - 2000, None)  # more than a batch behind
                self.read = raw.tell()
                try:
                    item = json.loads(line)
                except ValueError:
                    raise ValueError(f"line {line_number} of {self._file.name} is not JSON") from None
                if not isinstance(item, dict):
                    raise ValueError(f"line {line_number} of {self._file.name} is not an object")
                yield {name: value for name, value in item.items() if name not in _GIVEN}

    def located(self, problem: dict[str, Any]) -> dict[str, Any]:
        """Return a problem with the line it is in."""
        loc = list(problem.get("loc", []))
        if len(loc) > 1 and loc[0] == "body" and str(loc[1]).isdecimal():
            loc[:2] = [f"line {self._lines.get(int(loc[1]), '?')}"]
        return {**problem, "loc": loc}


@contextmanager
def _opened(file: Path) -> Iterator[tuple[BinaryIO, Any]]:
    """Open a file for reading lines; also give the file itself, whose place says how far that is."""
    with file.open("rb") as raw:
        packed = raw.read(2) == _GZIP
        raw.seek(0)
        yield raw, gzip.GzipFile(fileobj=raw) if packed else raw
