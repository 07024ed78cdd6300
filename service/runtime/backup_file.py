"""The file of a backup: lines packed with gzip, readable by its owner only, there as a whole or not at all."""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_LEVEL = 6
_STREAM = "-"


@contextmanager
def writing(name: str) -> Iterator[IO[bytes]]:
    """Yield a file to write lines to; it gets its name when all are written. `-` is standard output."""
    if name == _STREAM:
        with gzip.GzipFile(fileobj=sys.stdout.buffer, mode="wb", compresslevel=_LEVEL) as file:
            yield file  # type: ignore[misc]
        return
    part = Path(f"{name}.part")
    part.unlink(missing_ok=True)
    try:
        with (
            open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as raw,
            gzip.GzipFile("", "wb", _LEVEL, raw) as file,
        ):
            yield file  # type: ignore[misc]
        part.replace(name)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def reading(name: str) -> Iterator[Iterator[bytes]]:
    """Yield the lines of a backup. Raises ValueError from them if the file is not gzip, or damaged."""
    raw = sys.stdin.buffer if name == _STREAM else open(name, "rb")  # noqa: SIM115
    with raw, gzip.GzipFile(fileobj=raw) as file:
        yield _lines(file)


def _lines(file: gzip.GzipFile) -> Iterator[bytes]:
    try:
        yield from file
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise ValueError("the backup is not packed with gzip, cut off or damaged") from None
