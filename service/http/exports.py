"""Outputs as lines: NDJSON, and CSV with nested data in dotted columns."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from service.http.offload import off_loop
from service.store import OUTPUT_FIELDS, Page, render_json

NDJSON = "application/x-ndjson"
CSV = "text/csv"
JSON = "application/json"
EVENTS = "text/event-stream"
# Holds, as JSON, what came up after the header was written: nothing is left out.
OTHER = "other"


async def ndjson(pages: AsyncIterator[Page | None]) -> AsyncIterator[bytes]:
    """Yield one line of JSON per item, an empty line where there is nothing to say."""
    async for page in pages:
        yield b"\n" if page is None else await off_loop(page.size, page.lines)


async def array(pages: AsyncIterator[Page | None]) -> AsyncIterator[bytes]:
    """Yield one JSON array."""
    opening = b"["
    async for page in pages:
        if page is not None and page.documents:
            yield opening + await off_loop(page.size, page.array)
            opening = b","
    yield b"[]" if opening == b"[" else b"]"


async def events(pages: AsyncIterator[Page | None]) -> AsyncIterator[bytes]:
    """Yield one server-sent event per item, a comment where there is nothing to say."""
    async for page in pages:
        yield b": still here\n\n" if page is None else await off_loop(page.size, page.events)


async def table(pages: AsyncIterator[Page | None], fields: tuple[str, ...], safe: bool) -> AsyncIterator[bytes]:
    """Yield CSV: its columns are those of the first page's items, and `other` for all later ones."""
    columns: list[str] = []
    async for page in pages:
        if page is None:
            continue
        rows = await off_loop(page.size, lambda page=page: [flatten(item) for item in page.items()])  # type: ignore[misc]
        header = not columns
        if header:
            columns = _columns(rows, fields)
        yield await off_loop(page.size, partial(_csv, rows, columns, header))


def _columns(rows: list[dict[str, str]], fields: tuple[str, ...]) -> list[str]:
    seen = dict.fromkeys(name for row in rows for name in row)
    order = [*fields] or list(OUTPUT_FIELDS)

    def place(name: str) -> int:
        return next((i for i, path in enumerate(order) if name == path or name.startswith(f"{path}.")), -1)

    missing = [path for path in order if path not in seen and not any(n.startswith(f"{path}.") for n in seen)]
    return [*sorted([*seen, *missing], key=place), OTHER]


def _csv(rows: list[dict[str, str]], columns: list[str], header: bool) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    if header:
        writer.writerow(columns)
    known = set(columns)
    for row in rows:
        other = {name: value for name, value in row.items() if name not in known}
        cells = [row.get(name, "") for name in columns[:-1]]
        writer.writerow([*cells, render_json(other).decode() if other else ""])
    return text.getvalue().encode()


def flatten(value: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the cells of an item: objects become dotted names, arrays JSON text."""
    cells: dict[str, str] = {}
    for name, item in value.items():
        if isinstance(item, dict) and item:
            cells.update(flatten(item, f"{prefix}{name}."))
        elif item is None:
            cells[prefix + name] = ""
        elif isinstance(item, str):
            cells[prefix + name] = item
        else:
            text = render_json(item).decode()
            cells[prefix + name] = text[1:-1] if text.startswith('"') else text
    return cells
