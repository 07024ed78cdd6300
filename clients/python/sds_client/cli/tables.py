"""NDJSON lines as a table: nested data in dotted columns, lists as JSON text."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

# Spreadsheets read a text that begins so as a formula, some also after white space and with full-width characters.
# The service has the same expression for its exports.
_FORMULA = re.compile(r"[\s\x00-\x20\u200b-\u200f\u2060\ufeff]*+[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")

# The order of the contract's fields.
_ORDER = (
    "source_url",
    "data",
    "id",
    "output_id",
    "root_job_id",
    "create_date",
    "update_date",
    "last_scraped_date",
    "key_hash",
    "value_hash",
    "is_approved",
    "tags",
    "files",
)
_DATES = frozenset({"create_date", "update_date", "last_scraped_date"})
# Floats hold every integer up to this one.
_MAX_EXACT = 2**53
# The kind of a column that has values of two kinds.
_BOTH = {frozenset(("int", "float")): "float", frozenset(("int", "large")): "large"}
# Rows of 2 KB: a row group of 10 MB.
_ROW_GROUP = 5000


def rows(lines: Path) -> Iterator[dict[str, Any]]:
    """Yield each line's cells."""
    with lines.open("rb") as file:
        for line in file:
            yield flatten(json.loads(line))


def flatten(value: dict[str, Any]) -> dict[str, Any]:
    """Return an item's cells: objects become dotted names, lists and empty objects JSON text."""
    cells: dict[str, Any] = {}
    for name, item in _leaves(value, ""):
        while name in cells:
            name += "\\"  # a key with a dot in it has the same dotted name as another
        cells[name] = item
    return cells


def _leaves(value: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        if isinstance(item, dict) and item:
            yield from _leaves(item, f"{prefix}{name}.")
        else:
            yield prefix + name, _json(item) if isinstance(item, (dict, list)) else item


def columns(found: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return each column and its kind: bool, int, large (an int that no float can hold), float, text, date or mixed."""
    kinds: dict[str, str] = {}
    for row in found:
        for name, value in row.items():
            kind = _kind(name, value)
            known = kinds.setdefault(name, kind)
            if kind not in (known, "none"):
                kinds[name] = kind if known == "none" else _BOTH.get(frozenset((known, kind)), "mixed")
    kinds = kinds or {"id": "int"}  # no items: a table without rows
    places = {name: place for place, name in enumerate(_ORDER)}
    return dict(sorted(kinds.items(), key=lambda column: places.get(column[0].partition(".")[0], len(places))))


def _kind(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if abs(value) <= _MAX_EXACT else "large"
    if isinstance(value, float):
        return "float"
    return "date" if name in _DATES else "text"


def write_csv(lines: Path, out: Path, safe: bool) -> None:
    """Write a CSV with a column for everything that occurs; with `safe`, no text is a formula for spreadsheets."""
    names = list(columns(rows(lines)))
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([_cell(name, safe) for name in names])
        for row in rows(lines):
            writer.writerow([_cell(row.get(name), safe) for name in names])


def _cell(value: Any, safe: bool) -> str:
    if isinstance(value, str):
        return f"'{value}" if safe and _FORMULA.match(value) else value
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_parquet() -> None:
    """Raise ValueError with what to install if Parquet cannot be written."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise ValueError("Parquet needs pyarrow: pip install pyarrow, or use .csv or .ndjson") from None


def write_parquet(lines: Path, out: Path) -> None:
    """Write a Parquet file whose columns have the type of all their values, text where they differ."""
    import pyarrow
    import pyarrow.parquet

    types = {
        "bool": pyarrow.bool_(),
        "int": pyarrow.int64(),
        "large": pyarrow.int64(),
        "float": pyarrow.float64(),
        "date": pyarrow.timestamp("ms", tz="UTC"),
    }
    kinds = columns(rows(lines))
    schema = pyarrow.schema([(name, types.get(kind, pyarrow.string())) for name, kind in kinds.items()])
    left = rows(lines)
    with pyarrow.parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        while group := list(islice(left, _ROW_GROUP)):
            arrays = [
                pyarrow.array([_typed(kind, row.get(name)) for row in group], type=schema.field(name).type)
                for name, kind in kinds.items()
            ]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))


def _typed(kind: str, value: Any) -> Any:
    if value is None or kind in ("bool", "int", "large", "text"):
        return value
    if kind == "float":
        return float(value)
    if kind == "date":
        return datetime.fromisoformat(value)
    return _cell(value, False)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
