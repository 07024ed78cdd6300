"""Bodies in: read within bounds, parsed strictly, validated with Marshmallow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError
from marshmallow import Schema, ValidationError

from schemas.base import INT64_MAX
from service.decoder import Decoder, NotPlain
from service.errors import (
    MOST_PROBLEMS,
    ApiError,
    Problem,
    http_error,
    invalid,
    invalid_fields,
    problem,
)
from service.keys import SETTINGS
from service.settings import Settings

T = TypeVar("T")

JSON = "application/json"
NDJSON = "application/x-ndjson"
_ENCODINGS = {"", "identity", "gzip", "deflate"}

# Work on more than this goes to a thread: 64 KB of items take about 2 ms to check and hash.
OFF_LOOP_BYTES = 64 * 1024


# More threads would not be faster, they share one interpreter lock, but would keep the event loop waiting for it.
_threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="off-loop")


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Return what `work` returns, from a thread if it is work for more than a few milliseconds."""
    if size <= OFF_LOOP_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_threads, work)


async def read_body(request: web.Request, types: tuple[str, ...] = (JSON,)) -> bytes:
    """Return the body, decompressed. Raises for a wrong type, too much of it, or too slow."""
    charset = (request.charset or "utf-8").lower()
    if request.content_type not in types or charset not in ("utf-8", "utf8"):
        raise http_error(415)
    if request.headers.get("Content-Encoding", "").lower() not in _ENCODINGS:
        raise ApiError(
            415,
            [problem("unsupported_encoding", "Use gzip or none", "header", "Content-Encoding")],
        )
    try:
        async with asyncio.timeout(request.app[SETTINGS].receive_timeout):
            return await request.read()
    except TimeoutError:
        raise http_error(408, {"Connection": "close"}) from None
    except (RequestPayloadError, HttpProcessingError, web.RequestPayloadError):
        raise ApiError(400, [problem("encoding_invalid", "The body does not match its encoding", "body")]) from None


class Records:
    """Reads an array of records of one schema, or one record a line."""

    def __init__(self, schema: type[Schema]) -> None:
        self.schema = schema(many=True)
        self._decoder = Decoder(schema())

    async def read(self, request: web.Request, types: tuple[str, ...] = (JSON,)) -> list[Any]:
        """Return the records of a request's body."""
        raw = await read_body(request, types)
        lines = request.content_type == NDJSON
        settings = request.app[SETTINGS]
        return await off_loop(len(raw), lambda: self.load(raw, settings, lines))

    def load(self, raw: bytes, settings: Settings, lines: bool = False) -> list[Any]:
        """Return the records of a body. Raises with all that is wrong, up to 100 problems."""
        with contextlib.suppress(NotPlain):
            records = self._decoder.decode(raw, lines)
            if len(records) <= settings.max_records and _is_plain(records, settings.max_depth + 2):
                return records
        return self.load_slowly(raw, settings, lines)

    def load_slowly(self, raw: bytes, settings: Settings, lines: bool = False) -> list[Any]:
        """Do the same with Marshmallow alone, which says what is wrong."""
        value = parse_lines(raw) if lines else parse(raw)
        if not isinstance(value, list):
            raise invalid("list_type", "Must be an array", "body")
        if len(value) > settings.max_records:
            raise invalid("too_many", f"Must have at most {settings.max_records} records", "body")
        check_plain(value, settings.max_depth)
        return list(load(self.schema, value))


def load(schema: Schema, value: Any) -> Any:
    """Return what Marshmallow makes of a value."""
    try:
        return schema.load(value)
    except ValidationError as error:
        raise invalid_fields(error, "body") from None


def parse(raw: bytes) -> Any:
    """Return the value of a JSON text."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise invalid("json_invalid", "The body is not valid JSON in UTF-8", "body") from None


def parse_lines(raw: bytes) -> list[Any]:
    """Return the values of a text with one JSON value a line; empty lines are nothing."""
    values = []
    for number, line in enumerate(raw.split(b"\n")):
        if line.strip():
            try:
                values.append(msgspec.json.decode(line))
            except (msgspec.MsgspecError, ValueError, RecursionError):
                raise invalid("json_invalid", f"Line {number + 1} is not valid JSON in UTF-8", "body") from None
    return values


def check_plain(value: Any, max_depth: int) -> None:
    """Refuse what the database cannot hold: NUL, integers over 64 bits, nesting too deep."""
    # An array of records is two levels; the depth counts from a record's fields.
    if not _is_plain(value, max_depth + 2):
        problems = []
        for found in _unplain(value, max_depth + 2, ["body"]):
            problems.append(found)
            if len(problems) == MOST_PROBLEMS:
                break
        raise ApiError(422, problems)


def _is_plain(value: Any, levels: int) -> bool:
    """Return whether all is well, level by level: about 50 ns a value."""
    level = [value]
    while level:
        if not levels:
            return False
        levels -= 1
        below: list[Any] = []
        for container in level:
            if type(container) is dict:
                if "\0" in "".join(container):
                    return False
                values = container.values()
            else:
                values = container
            for item in values:
                kind = type(item)
                if kind is str:
                    if "\0" in item:
                        return False
                elif kind is dict or kind is list:
                    below.append(item)
                elif kind is int and not -INT64_MAX - 1 <= item <= INT64_MAX:
                    return False
        level = below
    return True


def _unplain(value: Any, levels: int, loc: list[str]) -> Iterator[Problem]:
    """Yield what is wrong and where."""
    if isinstance(value, str):
        if "\0" in value:
            yield problem("value_error", "Must not contain NUL", *loc)
    elif isinstance(value, (dict, list)):
        if not levels:
            yield problem("too_deep", "Nested too deep", *loc[:4])
            return
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in entries:
            if isinstance(key, str) and "\0" in key:
                yield problem("value_error", "A key must not contain NUL", *loc)
            else:
                yield from _unplain(item, levels - 1, [*loc, str(key)])
    elif type(value) is int and not -INT64_MAX - 1 <= value <= INT64_MAX:
        yield problem("value_error", "Must fit in 64 bits", *loc)
