"""Metric values in memory that the other processes of the service can read.

Two files per process: `NAME.values` is an array of doubles, mapped into memory; `NAME.series` has one JSON array per
line that names the series of the next cells. A process that restarts under the same name continues with its values.
"""

from __future__ import annotations

import json
import mmap
import os
import threading
from array import array
from pathlib import Path
from typing import NamedTuple

MAX_CELLS = 16_384
_BYTES = 8 * MAX_CELLS

Labels = tuple[str, ...]


class Row(NamedTuple):
    """One series: the name of its family, the values of its labels, its cells."""

    family: str
    labels: Labels
    values: list[float]


class Cells:
    """The values of this process; with a folder, other processes can read them."""

    def __init__(self, folder: Path | None = None, name: str = "") -> None:
        self._index: dict[tuple[str, Labels], int] = {}
        self._widths: list[int] = []
        self._lock = threading.Lock()
        # The number of series is bounded: the last cells count all further series.
        self._used, self._spare = 0, MAX_CELLS - 64
        self._file: int | None = None
        if folder is None:
            self.values: memoryview[float] = memoryview(bytearray(_BYTES)).cast("d")
            return
        values = os.open(folder / f"{name}.values", os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(values, _BYTES)
        self.values = memoryview(mmap.mmap(values, _BYTES)).cast("d")
        os.close(values)
        series = folder / f"{name}.series"
        for family, labels, width in _series(series):
            self._add((family, labels), width)
        self._file = os.open(series, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.ftruncate(self._file, series.read_bytes().rfind(b"\n") + 1)  # without a line that was not completed

    def place(self, family: str, labels: Labels = (), width: int = 1) -> int:
        """Return where the cells of a series begin."""
        key = (family, labels)
        start = self._index.get(key)
        if start is not None:
            return start
        with self._lock:  # the driver's threads count too, and the lines must have the order of the cells
            if key in self._index:
                return self._index[key]
            if self._used + width > self._spare:
                return self._spare
            if self._file is not None:
                os.write(self._file, json.dumps([family, labels, width]).encode() + b"\n")
            return self._add(key, width)

    def rows(self) -> list[Row]:
        """Return every series with its values."""
        positions = zip(self._index.items(), self._widths, strict=True)
        return [Row(*key, list(self.values[start : start + width])) for (key, start), width in positions]

    def _add(self, key: tuple[str, Labels], width: int) -> int:
        start, self._used = self._used, self._used + width
        self._index[key] = start
        self._widths.append(width)
        return start


def read_rows(folder: Path) -> dict[str, list[Row]]:
    """Return the series of every process by its name."""
    rows_by_name: dict[str, list[Row]] = {}
    for path in sorted(folder.glob("*.series")):
        values = array("d", path.with_suffix(".values").read_bytes())
        start, rows = 0, []
        for family, labels, width in _series(path):
            rows.append(Row(family, labels, values[start : start + width].tolist()))
            start += width
        rows_by_name[path.stem] = rows
    return rows_by_name


def _series(path: Path) -> list[tuple[str, Labels, int]]:
    """Return the complete lines of a series file; a process may have died while writing the last."""
    text = path.read_bytes() if path.exists() else b""
    lines = text[: text.rfind(b"\n") + 1].splitlines()
    return [(family, tuple(labels), width) for family, labels, width in map(json.loads, lines)]
