"""An array of records in: the fast path first, Marshmallow for the verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web
from marshmallow import Schema, ValidationError

from service.http.body import JSON, NDJSON, read_body
from service.http.errors import MAX_PROBLEMS, ApiError, Problem, invalid, invalid_fields
from service.http.fast_decoder import Decoder, FastPathRejected, lists_of
from service.http.json_input import check_storable, check_values, is_storable, parse, parse_lines
from service.http.keys import SETTINGS
from service.http.offload import OFF_LOOP_BYTES, in_thread, off_loop
from service.settings import Settings

# Records checked before the problems found are counted.
_CHUNK = 5


class Records:
    """Reads an array of records of one schema, or one record per line."""

    def __init__(self, schema: type[Schema]) -> None:
        self.schema = schema(many=True)
        self._decoder = Decoder(schema())
        self._lists = lists_of(schema())

    async def read(
        self,
        request: web.Request,
        types: tuple[str, ...] = (JSON,),
        then: Callable[[list[Any]], list[Any]] = lambda records: records,
    ) -> list[Any]:
        """Return the records of a request's body, after what `then` does with them."""
        raw = await read_body(request, types)
        lines = request.content_type == NDJSON
        settings = request.app[SETTINGS]
        try:
            # An object takes as long as a hundred bytes of text, however short it is. Counted where it matters.
            work = len(raw) + (100 * raw.count(b"{") if len(raw) <= OFF_LOOP_BYTES else 0)
            return await off_loop(work, lambda: then(self.load_fast(raw, settings, lines)))
        except FastPathRejected:
            return await in_thread(lambda: then(self.load_with_marshmallow(raw, settings, lines)))

    def load(self, raw: bytes, settings: Settings, lines: bool = False) -> list[Any]:
        """Return the records of a body. Raises with all that is wrong, up to 100 problems."""
        try:
            return self.load_fast(raw, settings, lines)
        except FastPathRejected:
            return self.load_with_marshmallow(raw, settings, lines)

    def load_fast(self, raw: bytes, settings: Settings, lines: bool = False) -> list[Any]:
        """Return the records of a body that is plainly valid. Raises FastPathRejected for any other."""
        check_values(raw, settings)
        records = self._decoder.decode(raw, lines, settings.max_files)
        # JSON has no other way to write a NUL. One character is found 60 times as fast as six.
        may_have_nul = b"\\" in raw and b"\\u0000" in raw
        if len(records) > settings.max_records or not is_storable(records, settings.max_depth + 2, may_have_nul):
            raise FastPathRejected
        return records

    def load_with_marshmallow(self, raw: bytes, settings: Settings, lines: bool = False) -> list[Any]:
        """Do the same with Marshmallow alone, which says what is wrong."""
        value = parse_lines(raw, settings) if lines else parse(raw, settings)
        if not isinstance(value, list):
            raise invalid("list_type", "Must be an array", "body")
        if len(value) > settings.max_records:
            raise invalid("too_many", f"Must have at most {settings.max_records} records", "body")
        if self._nested(value) > settings.max_files:
            message = f"Must have at most {settings.max_files} {' and '.join(self._lists)} in all records together"
            raise invalid("too_many", message, "body")
        check_storable(value, settings.max_depth)
        return self._load(value)

    def _nested(self, values: list[Any]) -> int:
        """Return how many entries the lists of all records have, whatever else is wrong with them."""
        records = [value for value in values if isinstance(value, dict)]
        found = (record.get(name) for record in records for name in self._lists)
        return sum(len(entries) for entries in found if isinstance(entries, list))

    def _load(self, values: list[Any]) -> list[Any]:
        """Return what Marshmallow makes of the values; stop looking after enough problems."""
        records: list[Any] = []
        problems: list[Problem] = []
        for start in range(0, len(values), _CHUNK):
            try:
                records += self.schema.load(values[start : start + _CHUNK])
            except ValidationError as error:
                messages = {start + int(index): below for index, below in error.messages_dict.items()}
                problems += invalid_fields(messages, "body").problems
                if len(problems) >= MAX_PROBLEMS:
                    break
        if problems:
            raise ApiError(422, problems[:MAX_PROBLEMS])
        return records
