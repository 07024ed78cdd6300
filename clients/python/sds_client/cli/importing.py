"""Import outputs from a file, NDJSON or CSV, into a group."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sds_client.cli import csv_input, group_names
from sds_client.cli.printing import count, modified, tell
from sds_client.cli.progress import Progress
from sds_client.errors import ClientError
from sds_client.sync import Client
from sds_client.writing import Pushed, key_hash

# Set by the service, which rejects them in items that are written.
_GIVEN = ("id", "output_id", "create_date", "update_date")
_GZIP = b"\x1f\x8b"
# Lines remembered to locate an error: more than a batch.
_REMEMBERED = 2000


@dataclass(frozen=True)
class Completion:
    """The defaults of items: the job, and the key made from some fields of `data`."""

    job_id: str | None = None
    key_fields: Sequence[str] = ()

    def apply(self, item: dict[str, Any]) -> dict[str, Any]:
        """Return the item to write. Raises ValueError when a key field is missing."""
        item = {name: value for name, value in item.items() if name not in _GIVEN}
        if self.job_id is not None:
            item.setdefault("root_job_id", self.job_id)
        if self.key_fields and "key_hash" not in item:
            try:
                item["key_hash"] = key_hash(item.get("data", {}), self.key_fields)
            except KeyError as error:
                raise ValueError(f"has no {error.args[0]}, which is one of the key fields") from None
        return item


def load(client: Client, group: str, file: Path, completion: Completion, text_columns: Sequence[str]) -> Pushed:
    """Write the items of a file, compressed with gzip or not, to a group and return the result.

    The number of items stored is kept in `FILE.….import` until all are. Items written twice do no harm.
    """
    status = file.stat()
    target = f"{client.url}\0{_owner(client)}\0{group}"
    identity = f"{target}\0{status.st_size}\0{status.st_mtime_ns}\0{completion}\0{text_columns}"
    kept = file.with_name(f"{file.name}.{hashlib.sha256(identity.encode()).hexdigest()[:12]}.import")
    done = int(kept.read_text()) if kept.exists() else 0
    if done and _is_empty(client, group):
        done = 0  # what was stored has been deleted
    if done:
        tell(f"continuing the import of {modified(kept)} after {count(done, 'item')}\n")
    else:
        group_names.warn_if_similar(client, group)
    source = _Source(file, done, completion, text_columns)
    progress = Progress(f"import into {group}", done)

    def stored(number: int, _: Any) -> None:
        nonlocal done
        done += number
        with suppress(OSError):  # in a folder that cannot be written the import works, but cannot be continued
            beside = kept.with_name(f"{kept.name}.tmp")
            beside.write_text(str(done))
            beside.replace(kept)
        progress.update(done, source.read / status.st_size if status.st_size else None)

    try:
        pushed = client.push(group, source.items(), on_batch=stored)
    except ClientError as error:
        if error.status not in (413, 422):
            raise
        raise ClientError(error.status, [source.located(problem) for problem in error.problems]) from None
    kept.unlink(missing_ok=True)
    progress.finish(f"{pushed.created:,} created, {pushed.updated:,} updated, {pushed.unchanged:,} unchanged")
    return pushed


def _is_empty(client: Client, group: str) -> bool:
    """Return whether a group has no items; a token without the scope `read` cannot tell."""
    try:
        return client.group(group)["items"] == 0
    except ClientError as error:
        if error.status != 403:
            raise
        return False


def _owner(client: Client) -> int | str:
    """Return the organization of the client's token; of a token without the scope `read`, a digest of it."""
    try:
        return client.token()["organization_id"]
    except ClientError as error:
        if error.status != 403:
            raise
        return client._transport.token_digest


class _Source:
    """The items of a file after the first `skip` of them."""

    def __init__(self, file: Path, skip: int, completion: Completion, text_columns: Sequence[str]) -> None:
        self._file, self._skip, self._completion, self._text = file, skip, completion, text_columns
        self._lines: dict[int, int] = {}
        self.read = 0

    def items(self) -> Iterator[dict[str, Any]]:
        """Yield the items. Raises ValueError, with the line, for one that cannot be understood."""
        for number, (line, item) in enumerate(self._numbered()):
            if number < self._skip:
                continue
            self._lines[number - self._skip] = line
            self._lines.pop(number - self._skip - _REMEMBERED, None)
            try:
                yield self._completion.apply(item)
            except ValueError as error:
                raise ValueError(f"line {line} of {self._file.name} {error}") from None

    def located(self, problem: dict[str, Any]) -> dict[str, Any]:
        """Return a problem with the line it is in."""
        loc = list(problem.get("loc", []))
        if len(loc) > 1 and loc[0] == "body" and str(loc[1]).isdecimal():
            loc[:2] = [f"line {self._lines.get(int(loc[1]), '?')}"]
            if loc[1:] == ["root_job_id"] and problem.get("type") == "missing":
                return {**problem, "loc": loc[:1], "msg": "names no job in root_job_id: give one with --job-id"}
        return {**problem, "loc": loc}

    def _numbered(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield each item with its line."""
        if not self._file.name.removesuffix(".gz").endswith(".csv"):
            yield from self._ndjson()
            return
        try:
            with _opened(self._file) as (_, lines):
                kinds = csv_input.column_kinds(lines, self._text)
            with _opened(self._file) as (raw, lines):
                for line, item in csv_input.items(lines, kinds):
                    self.read = raw.tell()
                    yield line, item
        except csv_input.CsvError as error:
            raise ValueError(f"{self._file.name}: {error}") from None

    def _ndjson(self) -> Iterator[tuple[int, dict[str, Any]]]:
        with _opened(self._file) as (raw, lines):
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                self.read = raw.tell()
                try:
                    item = json.loads(line)
                except ValueError:
                    raise ValueError(f"line {number} of {self._file.name} is not JSON") from None
                if not isinstance(item, dict):
                    raise ValueError(f"line {number} of {self._file.name} is not an object")
                yield number, item


@contextmanager
def _opened(file: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Open a file; give the file itself, whose position is the progress, and its uncompressed content."""
    with file.open("rb") as raw:
        packed = raw.read(2) == _GZIP
        raw.seek(0)
        try:
            yield raw, gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[misc]
        except (EOFError, gzip.BadGzipFile, zlib.error):
            raise ValueError(f"{file.name} is cut off or damaged") from None
