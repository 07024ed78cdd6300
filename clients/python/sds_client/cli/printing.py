"""Results for people, as text and tables, or for programs, as JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

_MIN_WIDTH = 8


@dataclass
class Result:
    """The result of a command: its JSON, what is shown without `--json`, and the exit code."""

    value: Any
    text: str
    code: int = 0


def show(result: Result, as_json: bool) -> None:
    """Write a result to standard output."""
    text = json.dumps(result.value, ensure_ascii=False, indent=2) if as_json else result.text
    if text:
        write(text + "\n")


def print_json(value: Any) -> None:
    """Write a value to standard output as one line."""
    write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def write(text: str) -> None:
    """Write to standard output in UTF-8, whatever the system's encoding is: it may lack the letters of a result."""
    sys.stdout.buffer.write(text.encode())


def tell(text: str, stream: TextIO | None = None) -> None:
    """Write to standard error. A reader that has left, or a full disk, does not end the work."""
    stream = stream or sys.stderr
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        discard(stream)


def discard(stream: TextIO) -> None:
    """Lead a stream nowhere; what it still holds would fail at the exit, with a code of its own."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def modified(file: Path) -> str:
    """Return when a file was last changed."""
    return datetime.fromtimestamp(file.stat().st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 item`, `1,200 items`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def table(records: Sequence[Mapping[str, Any]], columns: Mapping[str, str], none: str) -> str:
    """Return records as a table; `columns` are headings by dotted path, `none` the text where there are no records.

    On a terminal, the widest columns are cut so that each record is one line.
    """
    if not records:
        return none
    rows = [[_cell(record, path) for path in columns] for record in records]
    is_number = [all(_value(record, path) is None or _counts(record, path) for record in records) for path in columns]
    rows.insert(0, list(columns.values()))
    widths = [max(len(row[place]) for row in rows) for place in range(len(columns))]
    if sys.stdout.isatty():
        widths = _fitted(widths, shutil.get_terminal_size().columns)
    return "\n".join(_line(row, widths, is_number) for row in rows)


def _line(row: list[str], widths: list[int], is_number: list[bool]) -> str:
    cells = []
    for text, width, right in zip(row, widths, is_number, strict=True):
        text = text if len(text) <= width else text[: width - 1] + "…"
        cells.append(text.rjust(width) if right else text.ljust(width))
    return "  ".join(cells).rstrip()


def _fitted(widths: list[int], room: int) -> list[int]:
    """Return widths that fit into one line, taken from the widest columns."""
    fitted = list(widths)
    while sum(fitted) + 2 * (len(fitted) - 1) > room and max(fitted) > _MIN_WIDTH:
        fitted[fitted.index(max(fitted))] -= 1
    return fitted


def _value(record: Mapping[str, Any], path: str) -> Any:
    value: Any = record
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _counts(record: Mapping[str, Any], path: str) -> bool:
    value = _value(record, path)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _cell(record: Mapping[str, Any], path: str) -> str:
    """Return a value in one line; pages that were scraped must not control the terminal."""
    text = _text(_value(record, path), path)
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _text(value: Any, path: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.0%}" if path.endswith("rate") else f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {number}" for name, number in value.items())
    if isinstance(value, list):
        return ", ".join(one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in value)
    return str(value)
