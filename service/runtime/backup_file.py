"""The file of a backup: packed with gzip, readable by its owner only, complete or absent."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import isal.igzip

igzip: Any = isal.igzip

# Five times as fast as zlib's level 6, for a tenth more bytes.
_LEVEL = 2
_STREAM = "-"
_DAMAGED: tuple[type[Exception], ...] = (igzip.BadGzipFile, EOFError, igzip.isal_zlib.error)


@contextmanager
def writing(name: str) -> Iterator[IO[bytes]]:
    """Yield a file to write to; it gets its name when all is written. `-` is standard output."""
    if name == _STREAM:
        with igzip.IGzipFile(fileobj=sys.stdout.buffer, mode="wb", compresslevel=_LEVEL) as file:
            yield file
        return
    part = Path(f"{name}.part")
    part.unlink(missing_ok=True)
    try:
        with (
            open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as raw,
            igzip.IGzipFile("", "wb", _LEVEL, raw) as file,
        ):
            yield file
        part.replace(name)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def reading(name: str) -> Iterator[IO[bytes]]:
    """Yield the content of a backup. Raises ValueError if the file is not gzip, or damaged."""
    raw = sys.stdin.buffer if name == _STREAM else open(name, "rb")  # noqa: SIM115
    with raw, igzip.IGzipFile(fileobj=raw) as file:
        try:
            yield file
        except _DAMAGED:
            raise ValueError("the backup is not packed with gzip, cut off or damaged") from None
