"""Reads an array of records, one at a time: with the fast path, then with Marshmallow if needed."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec
from aiohttp import web
from marshmallow import Schema

from schemas.base import JsonObject, ListOf
from service.capacity import cpu
from service.http.errors import MAX_PROBLEMS, ApiError, Problem, invalid, problem
from service.http.input.body import JSON, NDJSON, content_type, keep_of_body, read_body
from service.http.input.fast_decoder import Decoder, FastPathRejected
from service.http.input.json_input import (
    check_tree,
    check_values,
    count_tree,
    is_plainly_storable,
    is_storable,
    load,
    not_json,
    parse,
    unstorable,
)
from service.http.keys import SETTINGS
from service.settings import Settings
from service.store import ItemTooLarge

# A larger record is decoded in a thread.
_LARGE = 64 * 1024
# The same for Marshmallow, which is slow on arrays of small objects.
_LARGE_FOR_MARSHMALLOW = 1024
# A larger body is cut into records in a thread.
_LARGE_ARRAY = 1024 * 1024
# Lines for each record that is allowed: 16 million empty ones would take more than a second.
_LINES = 10
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


class Then(Protocol):
    """What is done with each record; only its result is kept."""

    def __call__(self, record: dict[str, Any], /) -> Any:
        """Return the result for a record."""

    def from_text(self, text: bytes, /) -> tuple[Any, int] | None:
        """Return the result for a record's text, and how many entries its lists have; None if it may be invalid."""


class Records:
    """Reads an array of records of one schema, or one record per line.

    A record is decoded, checked and passed to `then` before the next one: only the result is kept. Its text is passed
    first: what that can make of the text alone needs no more. Small ones are decoded on the event loop for a few
    milliseconds at a time, large ones in a thread.
    """

    def __init__(self, schema: type[Schema], item_sizes: int | None = None) -> None:
        self._schema = schema()
        self._decoder = Decoder(self._schema)
        fields = self._schema.fields.items()
        self.lists = [name for name, field in fields if isinstance(field, ListOf)]
        self.has_trees = any(isinstance(field, JsonObject) for _, field in fields)
        self.item_sizes = item_sizes  # the most bytes of a record, as a multiple of MAX_ITEM_BYTES

    async def read(
        self,
        request: web.Request,
        types: tuple[str, ...] = (JSON,),
        then: Then | None = None,
    ) -> list[Any]:
        """Return the records of a request's body, or the results of `then`. Raises with all problems, up to a bound."""
        raw = await read_body(request, types, as_values=self.has_trees and then is None)
        records, size = await self.load(raw, request.app[SETTINGS], content_type(request)[0] == NDJSON, then)
        if then is not None:
            keep_of_body(size)
        return records

    async def load(
        self, raw: bytes, settings: Settings, lines: bool, then: Then | None = None
    ) -> tuple[list[Any], int]:
        """Return the records of a text, or the results of `then`, and the bytes of those that have a `size`."""
        loading = _Loading(self, settings, then)
        await cpu.drain(self._steps(raw, settings, lines, loading))
        if loading.problems:
            raise ApiError(422, loading.problems[:MAX_PROBLEMS])
        return loading.records, loading.size

    def _steps(self, raw: bytes, settings: Settings, lines: bool, loading: _Loading) -> Iterator[bool]:
        """Load the records of a body one by one; each step yields whether the next one is heavy."""
        yield len(raw) > _LARGE_ARRAY
        if len(raw) > settings.max_values:  # a shorter text cannot have too many
            check_values(raw, settings)
        for index, (name, piece) in enumerate(_pieces(raw, settings, lines)):
            if len(piece) > _LARGE or not loading.add_quickly(index, name, piece):
                yield True
                loading.add(index, name, piece)
            yield False
            if len(loading.problems) >= MAX_PROBLEMS:
                return

    def one(self, raw: bytes, index: int, settings: Settings, name: str, max_bytes: float = math.inf) -> dict[str, Any]:
        """Return one record; messages call it `name`, if it has one. Raises with all its problems.

        Marshmallow takes records up to `max_bytes`; for others that need it, FastPathRejected is raised.
        """
        try:
            return self.one_fast(raw, settings)
        except FastPathRejected:
            if len(raw) > max_bytes:
                raise
            return self.one_with_marshmallow(raw, index, settings, name)

    def one_fast(self, raw: bytes, settings: Settings) -> dict[str, Any]:
        """Return a record that is certainly valid. Raises FastPathRejected for any other."""
        record = self._decoder.decode(raw)
        if is_plainly_storable(raw, settings.max_depth) or is_storable(record, settings.max_depth + 1):
            return record
        raise FastPathRejected

    def one_with_marshmallow(self, raw: bytes, index: int, settings: Settings, name: str = "") -> dict[str, Any]:
        """Return a record loaded with Marshmallow, which reports what is wrong."""
        value, place = parse(raw, name or f"Record {index}"), str(index)
        loaded: dict[str, Any] = load(self._schema, value, unstorable(value, settings.max_depth, place), place)
        return loaded


class _Loading:
    """The loaded records of one body, and the problems of the others."""

    def __init__(self, schema: Records, settings: Settings, then: Then | None) -> None:
        self._schema, self._settings, self._then = schema, settings, then
        self._keeps_trees = schema.has_trees and then is None
        self.records: list[Any] = []
        self.problems: list[Problem] = []
        self._nested = self._values = self.size = 0

    def add_quickly(self, index: int, name: str, raw: bytes) -> bool:
        """Load one record, and return True; return False if that would take long."""
        try:
            self.add(index, name, raw, _LARGE_FOR_MARSHMALLOW)
        except FastPathRejected:
            return False
        return True

    def add(self, index: int, name: str, raw: bytes, max_bytes: float = math.inf) -> None:
        """Load one record; `max_bytes` as in `Records.one`."""
        try:
            sizes = self._schema.item_sizes
            if sizes is not None and len(raw) > sizes * self._settings.max_item_bytes:
                raise ItemTooLarge
            made = None if self._then is None else self._then.from_text(raw)
            if made is not None:
                result, entries = made
                self._count_nested(entries)
            else:
                result = self._load(index, name, raw, max_bytes)
        except ItemTooLarge:
            self.problems.append(problem("too_large", "The item is too large", "body", str(index)))
        except ApiError as error:
            if len(error.problems[0]["loc"]) == 1:  # of the whole body
                raise
            self.problems += error.problems
        else:
            self.records.append(result)
            self.size += getattr(result, "size", 0)

    def _load(self, index: int, name: str, raw: bytes, max_bytes: float) -> Any:
        record = self._schema.one(raw, index, self._settings, name, max_bytes)
        if self._schema.lists:
            self._count_nested(sum(len(record[list_name]) for list_name in self._schema.lists))
        if self._keeps_trees:
            self._values += count_tree(record)
            check_tree(self._values, self._settings)
        return record if self._then is None else self._then(record)

    def _count_nested(self, entries: int) -> None:
        """Reject too many entries in the lists of all records together: each takes 600 bytes."""
        self._nested += entries
        if self._nested > self._settings.max_files:
            lists = " and ".join(self._schema.lists)
            message = f"Must have at most {self._settings.max_files} {lists} in all records together"
            raise invalid("too_many", message, "body")


def _pieces(raw: bytes, settings: Settings, lines: bool) -> Iterator[tuple[str, bytes]]:
    """Yield the name of each record in messages, for lines, and its JSON text. Raises if it is no array or too long."""
    if lines:
        count, max_lines = 0, _LINES * settings.max_records
        for number, line in enumerate(io.BytesIO(raw), 1):
            if number > max_lines:
                raise invalid("too_many", f"Must have at most {max_lines} lines, empty ones included", "body")
            if line.isspace():
                continue
            count += 1
            if count > settings.max_records:
                raise _too_many(settings)
            yield f"Line {number}", line
        if not count:
            raise invalid("json_invalid", "The body is empty", "body")
        return
    try:
        if len(raw) <= _LARGE:
            pieces = _LIST.decode(raw)
        else:
            array = _bounded_array(settings.max_records).decode(raw)
            pieces = [piece for piece in msgspec.structs.astuple(array) if piece is not msgspec.UNSET]
    except msgspec.ValidationError as error:
        if "at most" in str(error):
            raise _too_many(settings) from None
        if len(raw) <= _LARGE:
            parse(raw)  # raises if it is not even JSON
        raise invalid("list_type", "Must be an array", "body") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise not_json(error) from None
    if len(pieces) > settings.max_records:
        raise _too_many(settings)
    for piece in pieces:
        yield "", bytes(piece)


def _too_many(settings: Settings) -> ApiError:
    return invalid("too_many", f"Must have at most {settings.max_records} records", "body")


@functools.cache
def _bounded_array(length: int) -> msgspec.json.Decoder[Any]:
    """Return a decoder of arrays that stops after `length` entries; a list would be complete before it is counted."""
    entries = [(f"entry{n}", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for n in range(length)]
    array = msgspec.defstruct("Array", entries, array_like=True, forbid_unknown_fields=True, gc=False)
    return msgspec.json.Decoder(array)
