"""Outputs as streams: NDJSON, JSON, server-sent events, and CSV with nested data in dotted columns."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from functools import partial
from itertools import accumulate, chain
from typing import Any, NamedTuple

from service.capacity import cpu
from service.http.output.flattening import Leaf, Room, leaves
from service.store import OUTPUT_FIELDS, Form, Page, render_json

NDJSON = "application/x-ndjson"
CSV = "text/csv"
JSON = "application/json"
EVENTS = "text/event-stream"
# The column that holds, as JSON, all fields without a column of their own: nothing is left out.
OTHER = "other"
# Columns of one field, and of all fields: spreadsheets allow 16,384, and every row has a cell for each.
_MAX_COLUMNS, _MAX_ALL_COLUMNS = 1000, 2000
_MAX_HEADER = 256 * 1024  # characters
# Raw bytes of items that the columns are learned from; may be exceeded by one page.
_LEARNED = 512 * 1024
# Bytes that a cell is counted as, empty ones too: 20,000 rows of one value each in 1,000 columns are 20 million cells.
CELL_BYTES = 8
# Characters that are rendered at once.
_PIECE = 1024 * 1024
# Spreadsheets read a text that begins so as a formula, some also after white space and with full-width characters.
_FORMULA = re.compile(r"[\s\x00-\x20\u200b-\u200f\u2060\ufeff]*+[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")

# A cell that is quoted has one of these.
_QUOTED = re.compile('[,"\r\n]').search

# Columns by the keys that lead to them.
Tree = dict[str, "int | Tree"]


async def lines(page: Page) -> bytes:
    """Return one line of JSON per item."""
    return await cpu.run(page.size, page.lines)


async def events(page: Page) -> bytes:
    """Return one server-sent event per item."""
    return await cpu.run(page.size, page.events)


class Live(NamedTuple):
    """How a format is followed: content type, renderer, and the keep-alive text, made from the id reached."""

    content_type: str
    form: Form
    beat: Callable[[int], bytes]


LIVE = {
    "ndjson": Live(NDJSON, Form(lines, b"\n"), lambda position: b"\n"),
    "sse": Live(EVENTS, Form(events, b"\n\n"), lambda position: b": still here\nid: %d\n\n" % position),
}


async def ndjson(pages: AsyncIterator[Page]) -> AsyncGenerator[bytes, None]:
    """Yield one line of JSON per item."""
    async for page in pages:
        yield await lines(page)


async def array(pages: AsyncIterator[Page]) -> AsyncGenerator[bytes, None]:
    """Yield one JSON array."""
    opening = b"["
    async for page in pages:
        if page.documents:
            yield opening + await cpu.run(page.size, page.array)
            opening = b","
        else:
            yield b""
    yield b"[]" if opening == b"[" else b"]"


async def first_together(pages: AsyncIterator[Page]) -> AsyncGenerator[list[Page], None]:
    """Yield the pages to render after each page read: none until there are 512 KB to learn the columns from.

    The consumer empties the list.
    """
    waiting: list[Page] = []
    size = 0
    async for page in pages:
        if page.documents:
            waiting.append(page)
            size += page.size
        yield waiting if size >= _LEARNED else []
    yield waiting


async def table(pages: AsyncIterator[Page], fields: tuple[str, ...], safe: bool = False) -> AsyncGenerator[bytes, None]:
    """Yield CSV: its columns are those of the first items, and `other` for fields that appear later."""
    rows, begun = Table(fields, safe), False
    async for waiting in first_together(pages):
        if waiting and not begun:
            first = chain.from_iterable([page.each() for page in waiting])
            yield await cpu.run(sum(page.size for page in waiting), partial(rows.header, first))
            begun = True
        elif not waiting:
            yield b""
        while waiting:
            size, items = max(waiting[0].size, rows.size(len(waiting[0].documents))), waiting.pop(0).each()
            while text := await cpu.run(size, partial(rows.render, items)):
                yield text
    if not begun:
        yield rows.header([])


class Table:
    """Makes CSV of decoded items: call `header` with the first ones, then `render` with all.

    With `safe`, texts that a spreadsheet would take for a formula get an apostrophe in front.
    """

    def __init__(self, fields: tuple[str, ...] = (), safe: bool = False) -> None:
        self._order = {path: place for place, path in enumerate(fields or OUTPUT_FIELDS)}
        self._longest = max(map(len, self._order))
        # The objects around the requested fields: an item without these fields has them empty.
        self._around = {above for path in fields for above in accumulate(path.split(".")[:-1], "{}.{}".format)}
        self._safe = safe
        self._columns: dict[str, int] = {}
        self._tree: Tree = {}

    def header(self, items: Iterable[dict[str, Any]]) -> bytes:
        """Return the line with the names of the columns that these items need, within the limits."""
        # In the order of the requested fields; others, such as `id`, come first.
        columns: list[dict[str, None]] = [{} for _ in range(len(self._order) + 1)]
        room = Room(_MAX_ALL_COLUMNS, _MAX_HEADER)
        for item in items:
            for name, _, _ in self._leaves(item):
                below = columns[self._place(name) + 1]
                if name not in below and len(below) < _MAX_COLUMNS and room.take(name):
                    below[name] = None
        for path, place in self._order.items():
            if not columns[place + 1]:
                columns[place + 1][path] = None
        names = [name for below in columns for name in below]
        self._columns = {name: place for place, name in enumerate(names)}
        self._tree = _tree(self._columns)
        return _line([*map(self._cell, names), OTHER]).encode()

    def size(self, rows: int) -> int:
        """Return the work of some rows, as bytes of items."""
        return rows * len(self._columns) * CELL_BYTES

    def render(self, items: Iterable[dict[str, Any]]) -> bytes:
        """Return one line per item, about a megabyte of them; an empty text at the end of the iterator."""
        rows: list[str] = []
        characters = 0
        for item in items:
            rows.append(_line(self._row(item)))
            characters += len(rows[-1])
            if characters > _PIECE:
                break
        return "".join(rows).encode()

    def _row(self, item: dict[str, Any]) -> list[str]:
        cells = [""] * (len(self._columns) + 1)
        return cells if self._fill(cells, item, self._tree) else self._any_row(item)

    def _fill(self, cells: list[str], item: dict[str, Any], tree: Tree) -> bool:
        """Fill in an item or an object of it; return False if a value has no column of its own."""
        for key, value in item.items():
            node = tree.get(key)
            if type(value) is dict and value:
                if type(node) is not dict or not self._fill(cells, value, node):
                    return False
            elif type(node) is int:
                cells[node] = value if type(value) is str and not self._safe else self._cell(value)
            else:
                return False
        return True

    def _any_row(self, item: dict[str, Any]) -> list[str]:
        """Return the row of an item that may have values without a column: they go to the last one."""
        cells: list[str | None] = [None] * len(self._columns)
        other: dict[str, str] = {}
        for name, exact, value in self._leaves(item):
            place = self._columns.get(name)
            if place is not None and cells[place] is None:
                cells[place] = self._cell(value)
                continue
            if place is not None or name in other:
                name = exact  # a key with a dot in it has the same dotted name as another
            while name in other:
                name += "\\"
            other[name] = text_of(value)
        return [*(cell or "" for cell in cells), render_json(other).decode() if other else ""]

    def _leaves(self, item: dict[str, Any]) -> list[Leaf]:
        flat = leaves(item)
        return [leaf for leaf in flat if leaf.name not in self._around or leaf.value != {}] if self._around else flat

    def _cell(self, value: Any) -> str:
        text = text_of(value)
        return f"'{text}" if self._safe and isinstance(value, str) and _FORMULA.match(text) else text

    def _place(self, name: str) -> int:
        """Return the position of the field that a column belongs to, -1 for none."""
        end = name.find(".")
        while 0 <= end <= self._longest:
            place = self._order.get(name[:end])
            if place is not None:
                return place
            end = name.find(".", end + 1)
        return self._order.get(name, -1)


def text_of(value: Any) -> str:
    """Return a value as text: JSON, without the quotes of a string."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if type(value) is int:
        return str(value)
    text = render_json(value).decode()
    return text[1:-1] if text.startswith('"') else text


def _tree(columns: dict[str, int]) -> Tree:
    """Return the columns by the keys that lead to them; one whose name another column continues has no place."""
    tree: Tree = {}
    for name, place in columns.items():
        *above, last = name.split(".")
        node = tree
        for key in above:
            below = node.setdefault(key, {})
            if not isinstance(below, dict):
                below = node[key] = {}
            node = below
        node.setdefault(last, place)
    return tree


def _line(cells: list[str]) -> str:
    """Return a line of CSV."""
    return ",".join(['"' + cell.replace('"', '""') + '"' if _QUOTED(cell) else cell for cell in cells]) + "\r\n"
