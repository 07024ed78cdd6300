"""The file of a backup: packed with gzip, readable by its owner only, complete or absent."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import isal.igzip

igzip: Any = isal.igzip

# Much faster than zlib, for slightly larger files.
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
    folder, base = os.path.split(os.path.abspath(name))
    # A name of its own, readable by its owner only: two backups to one file must not share it.
    descriptor, part_name = tempfile.mkstemp(".part", f"{base}.", folder)
    part = Path(part_name)
    try:
        with open(descriptor, "wb") as raw:
            with igzip.IGzipFile("", "wb", _LEVEL, raw) as file:
                yield file
            raw.flush()
            os.fsync(descriptor)
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
