"""Reads rows of a CSV file as output items: a file from `outputs export`, or any table with a `source_url`.

Dotted columns are nested (`data.price.amount`); a column that is not a field of an output belongs to `data`. An
empty cell means that the item does not have the field. A column has one type: true and false, numbers, JSON lists and
objects, or text when one of its cells is none of these (`007` is text).
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, BinaryIO

_TEXT = ("source_url", "root_job_id", "key_hash", "value_hash", "last_scraped_date")
_GIVEN = ("id", "output_id", "create_date", "update_date")
_FIELDS = (*_TEXT, *_GIVEN, "is_approved", "files", "data", "tags")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
# The default, 128 KiB, is less than an item may hold.
_MAX_CELL = 16 * 1024 * 1024


class CsvError(ValueError):
    """What is wrong with a CSV file, and in which line."""


def _bool(cell: str) -> bool:
    return {"true": True, "false": False}[cell.lower()]  # spreadsheets write TRUE


def _number(cell: str) -> int | float:
    if not _NUMBER.fullmatch(cell):
        raise ValueError
    value: int | float = json.loads(cell)
    if isinstance(value, int):
        is_exact = -(2**63) <= value < 2**63
    else:
        is_exact = math.isfinite(value) and Decimal(cell) == Decimal(repr(value))
    if not is_exact:  # the column stays text
        raise ValueError
    return value


def _json(cell: str) -> Any:
    if cell[0] not in "[{":
        raise ValueError
    return json.loads(cell)


# The first that fits every cell of a column is its kind.
_KINDS: tuple[Callable[[str], Any], ...] = (_bool, _number, _json, str)


def column_kinds(file: BinaryIO, text_columns: Sequence[str] = ()) -> dict[str, Callable[[str], Any]]:
    """Return how the cells of each column are read, after reading the whole file; `text_columns` stay text."""
    rows = _rows(file)
    _, header = next(rows, (0, []))
    _check_header(header, text_columns)
    fields = _own_fields(header)
    possible = {name: _candidates(name, text_columns, fields) for name in header}
    for line, row in rows:
        for name, cell in zip(header, row, strict=True):
            if cell and name == "other" and fields is _FIELDS:  # the service's own CSV has one
                raise CsvError(f"line {line} has fields without a column of their own: import NDJSON instead")
            if cell and possible[name] != (str,):
                possible[name] = tuple(kind for kind in possible[name] if _fits(kind, cell))
                if not possible[name]:
                    raise CsvError(f"line {line}: {name} cannot be {cell[:50]!r}")
    return {name: kinds[0] for name, kinds in possible.items()}


def items(file: BinaryIO, kinds: dict[str, Callable[[str], Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each row's line and item."""
    rows = _rows(file)
    next(rows, None)
    fields = _own_fields(kinds)
    marks = "deleted" if fields is _FIELDS else None  # the column of an export with deletions
    for line, row in rows:
        item: dict[str, Any] = {"data": {}}
        for (name, kind), cell in zip(kinds.items(), row, strict=True):
            if name == marks:
                if cell.lower() == "true":
                    raise CsvError(f"line {line} is a deletion, not an item: export without --deleted")
            elif cell:
                path = name if name.split(".")[0] in fields else f"data.{name}"
                _put(item, path.split("."), kind(cell), f"line {line}: {name}")
        yield line, item


def _rows(file: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    """Yield each row that is not empty with the line in which it starts."""
    csv.field_size_limit(_MAX_CELL)
    with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, strict=True)
        width, line = 0, 1
        try:
            for row in reader:
                if any(row):
                    width = width or len(row)
                    if len(row) != width:
                        raise CsvError(f"line {line} has {len(row)} cells; the header has {width}")
                    yield line, row
                line = reader.line_num + 1
        except csv.Error as error:
            raise CsvError(f"line {line}: {error}") from None
        except UnicodeDecodeError:
            raise CsvError(f"line {line} or later is not UTF-8: save the table as CSV UTF-8") from None


def _check_header(header: list[str], text_columns: Sequence[str]) -> None:
    if "source_url" not in header:
        raise CsvError("the first line must name the columns, and source_url among them, with commas between")
    for name in header:
        if not all(name.split(".")):
            raise CsvError(f"{name!r} in the first line is not the name of a column")
        if header.count(name) > 1:
            raise CsvError(f"there are two columns {name!r}")
    if unknown := set(text_columns) - set(header):
        raise CsvError(f"there is no column {sorted(unknown)[0]!r}")


def _own_fields(header: Iterable[str]) -> Sequence[str]:
    """Return the columns that are fields of an output. Only a file from `outputs export` has those of the service."""
    is_export = any(name == "output_id" or name.startswith("data.") for name in header)
    return _FIELDS if is_export else [name for name in _FIELDS if name not in _GIVEN]


def _candidates(name: str, text_columns: Sequence[str], fields: Sequence[str]) -> tuple[Callable[[str], Any], ...]:
    if name in text_columns or name in _TEXT or (name in _GIVEN and name in fields):
        return (str,)
    if name == "is_approved":
        return (_bool,)
    return (_json,) if name in ("files", "data", "tags") else _KINDS


def _fits(kind: Callable[[str], Any], cell: str) -> bool:
    try:
        kind(cell)
    except (ValueError, KeyError, ArithmeticError):  # Decimal refuses an exponent of 20 digits
        return False
    return True


def _put(item: dict[str, Any], path: list[str], value: Any, where: str) -> None:
    """Set a nested value."""
    for name in path[:-1]:
        item = item.setdefault(name, {})
        if not isinstance(item, dict):
            raise CsvError(f"{where}: the row also has a value for {name!r} itself")
    if isinstance(item.get(path[-1]), dict) and item[path[-1]]:
        raise CsvError(f"{where}: the row also has values below it")
    item[path[-1]] = value
