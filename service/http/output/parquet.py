"""Outputs as Parquet: one row group at a time, nested data in nested columns.

The types of the columns are those of the first items. A later value that does not fit goes into the column `other`, as
JSON by its path: nothing is left out. A field whose values have several types is a column of text.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from datetime import UTC
from functools import partial
from importlib.util import find_spec
from itertools import chain, islice
from typing import Any

from service.capacity import cpu
from service.http.output.exports import CELL_BYTES, OTHER, first_together, text_of
from service.http.output.flattening import type_of
from service.store import OUTPUT_FIELDS, Page, render_json

PARQUET = "application/vnd.apache.parquet"
# Raw bytes of items in the first row groups; may be exceeded by one page.
_ROW_GROUP = 2 * 1024 * 1024
# Memory that a column of a row group takes in the footer, which is kept until the end of the file.
_FOOTER_BYTES = 900
# Raw bytes of items that are Python objects at once, ten times as much memory; and their cells.
_SLICE = 128 * 1024
_MAX_COLUMNS, _MAX_DEPTH = 2000, 16
_DATES = ("create_date", "update_date", "last_scraped_date")
_NESTED = ("data", "tags")


def is_available() -> bool:
    """Return whether pyarrow, which is optional, is installed."""
    return find_spec("pyarrow") is not None


async def rows(pages: AsyncIterator[Page], fields: tuple[str, ...], deletions: bool) -> AsyncGenerator[bytes, None]:
    """Yield a Parquet file; without items, one without rows."""
    names = dict.fromkeys(["id", *(path.partition(".")[0] for path in fields)] if fields else OUTPUT_FIELDS)
    file = _File([*names, *(["deleted"] if deletions else [])])
    size = 0
    async for waiting in first_together(pages):
        if not file.has_columns:
            await cpu.run(sum(page.size for page in waiting), partial(file.see, waiting))
        while waiting:
            for page in file.pieces(waiting.pop(0)):
                size += file.size(page)
                await cpu.run(file.size(page), partial(file.add, page))
                # As large as the footer so far: of both, memory then grows with the square root of the file.
                if size >= max(_ROW_GROUP, file.footer_size):
                    yield await cpu.run(size, file.row_group)
                    size = 0
        yield b""
    yield await cpu.run(size, file.end)


class Misfit(Exception):
    """A value that is not of the type of its column."""


class Other(dict[str, Any]):
    """What does not fit, by its path."""

    def __init__(self) -> None:
        self._repeated: Counter[str] = Counter()

    def keep(self, path: str, value: Any) -> None:
        """Add a value; a key with a dot may have the path of another value: it gets a number."""
        name = path
        while name in self:
            self._repeated[path] += 1
            name = f"{path}\\{self._repeated[path]}"
        self[name] = value


class Shape:
    """The type of the values in one place: none seen yet, one of JSON's, or text where they differ."""

    __slots__ = ("element", "kind", "members")

    def __init__(self, kind: str = "null") -> None:
        self.kind = kind
        self.members: dict[str, Shape] = {}
        self.element: Shape | None = None

    def see(self, value: Any, room: list[int], depth: int = 0) -> None:
        """Learn from one value; `room` counts the columns that may still be added."""
        kind = type_of(value)
        if kind == "null" or self.kind == "other":
            return
        if self.kind == "null":
            self.kind = kind if depth < _MAX_DEPTH else "other"
        elif {self.kind, kind} == {"integer", "number"}:
            self.kind = "number"
        elif self.kind != kind:
            self.kind, self.members, self.element = "other", {}, None
        if self.kind == "object":
            for name, member in value.items():
                if name not in self.members and room[0] > 0:
                    room[0] -= 1
                    self.members[name] = Shape()
                if name in self.members:
                    self.members[name].see(member, room, depth + 1)
        elif self.kind == "array":
            self.element = self.element or Shape()
            for element in value:
                self.element.see(element, room, depth + 1)

    def arrow(self) -> Any:
        """Return the type as pyarrow has it; Parquet has no struct without members."""
        import pyarrow

        if self.kind == "object" and self.members:
            return pyarrow.struct([(name, member.arrow()) for name, member in self.members.items()])
        if self.kind == "array" and self.element is not None:
            return pyarrow.list_(self.element.arrow())
        types = {"boolean": pyarrow.bool_(), "integer": pyarrow.int64(), "number": pyarrow.float64()}
        return types.get(self.kind, pyarrow.string())

    def split(self, value: Any, path: str, other: Other) -> Any:
        """Return the part of a value that fits; put the rest into `other`, by its path."""
        if self.kind == "object" and self.members and isinstance(value, dict):
            for name in value.keys() - self.members.keys():
                other.keep(f"{path}.{name}", value[name])
            # Without the members that it does not have, which Arrow takes for null: there may be 2000.
            return {
                name: self.members[name].split(member, f"{path}.{name}", other)
                for name, member in value.items()
                if name in self.members
            }
        try:
            return self.fit(value)
        except Misfit:
            other.keep(path, value)
            return None

    def fit(self, value: Any) -> Any:
        """Return a value as its column holds it. Raises Misfit."""
        if value is None:
            return None
        kind = type_of(value)
        if self.kind in ("null", "other") or (self.kind == "object" and not self.members):
            return text_of(value)
        if kind != self.kind and (kind, self.kind) != ("integer", "number"):
            raise Misfit
        if self.kind == "object":
            if value.keys() - self.members.keys():
                raise Misfit
            return {name: self.members[name].fit(member) for name, member in value.items()}
        if self.kind == "array":
            assert self.element is not None
            return [self.element.fit(element) for element in value]
        if self.kind != "number":
            return value
        if float(value) != value:  # an integer of more than 53 bits
            raise Misfit
        return float(value)


class _File:
    """A Parquet file in the making: `see` the first pages, then `add` all, with a `row_group` now and then."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)
        self._shapes = {name: Shape() for name in self._names if name in _NESTED}
        self._room = [_MAX_COLUMNS]
        self._sink = _Sink()
        self._schema: Any = None
        self._writer: Any = None
        self._batches: list[Any] = []
        self._row_groups = 0

    @property
    def has_columns(self) -> bool:
        """Whether items were added, so that the columns are fixed."""
        return self._writer is not None

    @property
    def columns(self) -> int:
        """The number of columns, nested ones included."""
        return len(self._names) + _MAX_COLUMNS - self._room[0]

    @property
    def footer_size(self) -> int:
        """About the memory of the footer of the row groups so far."""
        return self._row_groups * self.columns * _FOOTER_BYTES

    def size(self, page: Page) -> int:
        """Return the bytes of a page's items, or those of all its cells: empty ones take time and memory too."""
        return max(page.size, len(page.documents) * self.columns * CELL_BYTES)

    def pieces(self, page: Page) -> Iterator[Page]:
        """Yield the items of a page in pages with no more cells than a row group."""
        count = max(1, _ROW_GROUP // CELL_BYTES // self.columns)
        for start in range(0, len(page.documents), count):
            documents = page.documents[start : start + count]
            yield page._replace(documents=documents, size=page.size * len(documents) // len(page.documents))

    def see(self, pages: list[Page]) -> None:
        """Learn the columns from the first pages."""
        for item in chain.from_iterable(page.each() for page in pages):
            for name, shape in self._shapes.items():
                shape.see(item.get(name) or None, self._room)

    def add(self, page: Page) -> None:
        """Take the items of a page, some at a time, out of Python's objects into Arrow's arrays."""
        import pyarrow

        self._begin()
        items = page.each()
        count = max(1, min(_SLICE * len(page.documents) // max(page.size, 1), _SLICE // self.columns))
        while part := [self._row(item) for item in islice(items, count)]:
            self._batches.append(pyarrow.RecordBatch.from_pylist(part, schema=self._schema))

    def row_group(self) -> bytes:
        """Write what was added as a row group; return the bytes of the file since the last call."""
        import pyarrow

        if self._batches:
            table = pyarrow.Table.from_batches(self._batches, schema=self._schema)
            self._batches = []
            self._row_groups += 1
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        return self._sink.take()

    def end(self) -> bytes:
        """Return the rest of the file."""
        self._begin()
        last_group = self.row_group()
        self._writer.close()
        return last_group + self._sink.take()

    def _begin(self) -> None:
        if self._writer is None:
            import pyarrow.parquet

            self._schema = pyarrow.schema([*self._columns(), (OTHER, pyarrow.string())])
            # The footer keeps the statistics of all row groups until the end: only those of short values.
            statistics = [name for name in self._names if name in ("id", *_DATES)]
            self._writer = pyarrow.parquet.ParquetWriter(
                self._sink, self._schema, compression="zstd", write_statistics=statistics
            )

    def _columns(self) -> Iterator[tuple[str, Any]]:
        import pyarrow

        date, text = pyarrow.timestamp("ms", tz="UTC"), pyarrow.string()
        names = ("id", "field", "url_etag_hash", "blob_key", "blob_url", "source_url", "file_url", "file_type")
        file = {**dict.fromkeys((*names, "file_checksum", "file_metadata"), text), "create_date": date}
        known = {
            "id": pyarrow.int64(),
            "is_approved": pyarrow.bool_(),
            "deleted": pyarrow.bool_(),
            "files": pyarrow.list_(pyarrow.struct(list(file.items()))),
            **dict.fromkeys(_DATES, date),
        }
        for name in self._names:
            yield name, self._shapes[name].arrow() if name in self._shapes else known.get(name, text)

    def _row(self, item: dict[str, Any]) -> dict[str, Any]:
        row: dict[str, Any] = dict.fromkeys(self._names)
        other = Other()
        for name, value in item.items():
            if name in self._shapes:
                row[name] = self._shapes[name].split(value, name, other) if value else None
            elif name in _DATES and value is not None:
                row[name] = value.replace(tzinfo=UTC)
            elif name == "files" and isinstance(value, list):
                row[name] = [_file(file) for file in value]
            elif name in row:
                row[name] = value
        row[OTHER] = render_json(other).decode() if other else None
        return row


def _file(file: dict[str, Any]) -> dict[str, Any]:
    date, metadata = file.get("create_date"), file.get("file_metadata")
    return {
        **file,
        "create_date": None if date is None else date.replace(tzinfo=UTC),
        "file_metadata": None if metadata is None else render_json(metadata).decode(),
    }


class _Sink(io.RawIOBase):
    """A file whose bytes are taken away as they come."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        self._position += len(self._parts[-1])
        return len(self._parts[-1])

    def tell(self) -> int:
        return self._position

    def take(self) -> bytes:
        """Return the bytes since the last call."""
        text, self._parts = b"".join(self._parts), []
        return text
