"""Bodies in: read within bounds, parsed strictly, validated with Marshmallow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError
from isal import isal_zlib
from marshmallow import Schema, ValidationError

from schemas.base import INT64_MAX
from service.decoder import Decoder, NotPlain, decode, lines_of
from service.errors import (
    MOST_PROBLEMS,
    ApiError,
    Problem,
    http_error,
    invalid,
    invalid_fields,
    problem,
)
from service.keys import EXPECTS, SETTINGS
from service.settings import Settings

T = TypeVar("T")

JSON = "application/json"
NDJSON = "application/x-ndjson"
# Name -> zlib's window bits; 0 is not compressed.
_ENCODINGS = {"": 0, "identity": 0, "gzip": 31, "deflate": 15}
_STEP = 1024 * 1024
# Records checked before the problems found are counted.
_CHUNK = 5

# Work on more than this goes to a thread: 64 KB of items take about 2 ms to check and hash.
OFF_LOOP_BYTES = 64 * 1024


# More threads would not be faster, they share one interpreter lock, but would keep the event loop waiting for it.
_threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="off-loop")


async def in_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns, from a thread."""
    return await asyncio.get_running_loop().run_in_executor(_threads, work)


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Return what `work` returns, from a thread if it is work for more than a few milliseconds."""
    return work() if size <= OFF_LOOP_BYTES else await in_thread(work)


async def read_body(request: web.Request, types: tuple[str, ...] = (JSON,)) -> bytes:
    """Return the body, decompressed. Raises for a wrong type, too much of it, or too slow."""
    encoding = _encoding(request, types)
    settings = request.app[SETTINGS]
    if (request.content_length or 0) > settings.max_body_bytes:
        raise http_error(413)
    if request.get(EXPECTS):  # only now: what is refused by its head need not be sent
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # no answer has begun
    body = bytearray()
    try:
        async with asyncio.timeout(settings.receive_timeout):
            while chunk := await request.content.readany():
                body += chunk
                if len(body) > settings.max_body_bytes:
                    raise http_error(413)
    except TimeoutError:
        raise http_error(408) from None
    except (RequestPayloadError, HttpProcessingError):
        raise http_error(400) from None
    if not encoding or not body:
        return bytes(body)
    return await in_thread(lambda: inflate(bytes(body), settings.max_body_bytes, encoding))


def _encoding(request: web.Request, types: tuple[str, ...]) -> int:
    """Return how the body is compressed. Raises for a type or an encoding that is not taken."""
    charset = (request.charset or "utf-8").lower()
    if request.content_type not in types or charset not in ("utf-8", "utf8"):
        raise http_error(415)
    encoding = _ENCODINGS.get(",".join(request.headers.getall("Content-Encoding", [])).strip().lower())
    if encoding is None:
        raise ApiError(415, [problem("unsupported_encoding", "Use gzip or none", "header", "Content-Encoding")])
    return encoding


def inflate(body: bytes, limit: int, encoding: int) -> bytes:
    """Return the text of a compressed body, and stop at the limit: 200 KB can hold 200 MB."""
    text = bytearray()
    try:
        while body:
            stream = isal_zlib.decompressobj(encoding)
            while not stream.eof:
                # In steps, so that the limit is passed by one step at most.
                piece = stream.decompress(body, min(_STEP, limit + 1 - len(text)))
                text += piece
                if len(text) > limit:
                    raise http_error(413)
                body = stream.unconsumed_tail
                if not piece and not body and not stream.eof:
                    raise ValueError("cut off")
            body = stream.unused_data.lstrip(b"\0")  # more of gzip may follow, or padding
    except (isal_zlib.error, ValueError):  # type: ignore[misc]
        raise ApiError(400, [problem("encoding_invalid", "The body does not match its encoding", "body")]) from None
    return bytes(text)


class Records:
    """Reads an array of records of one schema, or one record a line."""

    def __init__(self, schema: type[Schema]) -> None:
        self.schema = schema(many=True)
        self._decoder = Decoder(schema())

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
            return await off_loop(len(raw), lambda: then(self.load_plain(raw, settings, lines)))
        except NotPlain:
            return await in_thread(lambda: then(self.load_slowly(raw, settings, lines)))

    def load(self, raw: bytes, settings: Settings, lines: bool = False) -> list[Any]:
        """Return the records of a body. Raises with all that is wrong, up to 100 problems."""
        try:
            return self.load_plain(raw, settings, lines)
        except NotPlain:
            return self.load_slowly(raw, settings, lines)

    def load_plain(self, raw: bytes, settings: Settings, lines: bool = False) -> list[Any]:
        """Return the records of a body that is plainly valid. Raises NotPlain for any other."""
        check_values(raw, settings)
        records = self._decoder.decode(raw, lines)
        # JSON has no other way to write a NUL.
        may_have_nul = b"\\u0000" in raw
        if len(records) > settings.max_records or not _is_plain(records, settings.max_depth + 2, may_have_nul):
            raise NotPlain
        return records

    def load_slowly(self, raw: bytes, settings: Settings, lines: bool = False) -> list[Any]:
        """Do the same with Marshmallow alone, which says what is wrong."""
        value = parse_lines(raw, settings) if lines else parse(raw, settings)
        if not isinstance(value, list):
            raise invalid("list_type", "Must be an array", "body")
        if len(value) > settings.max_records:
            raise invalid("too_many", f"Must have at most {settings.max_records} records", "body")
        check_plain(value, settings.max_depth)
        return self._load(value)

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
                if len(problems) >= MOST_PROBLEMS:
                    break
        if problems:
            raise ApiError(422, problems[:MOST_PROBLEMS])
        return records


def load(schema: Schema, value: Any) -> Any:
    """Return what Marshmallow makes of a value."""
    try:
        return schema.load(value)
    except ValidationError as error:
        raise invalid_fields(error.messages, "body") from None


def check_values(raw: bytes, settings: Settings) -> None:
    """Refuse a text of more values than can be worked on without holding up everything else.

    What stands in strings counts too: it is a bound, not a count, and takes 2 ms a megabyte.
    """
    if len(raw) <= settings.max_values:  # a value takes a character at least
        return
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > settings.max_values:
        raise invalid("too_many", f"Must have at most {settings.max_values} values", "body")


def parse(raw: bytes, settings: Settings) -> Any:
    """Return the value of a JSON text."""
    check_values(raw, settings)
    try:
        return decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise invalid("json_invalid", "The body is not valid JSON in UTF-8", "body") from None


def parse_lines(raw: bytes, settings: Settings) -> list[Any]:
    """Return the values of a text with one JSON value a line, one over the limit at most."""
    check_values(raw, settings)
    values: list[Any] = []
    for number, line in lines_of(raw):
        if len(values) > settings.max_records:
            break
        try:
            values.append(decode(line))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise invalid("json_invalid", f"Line {number} is not valid JSON in UTF-8", "body") from None
    return values


def check_plain(value: Any, max_depth: int) -> None:
    """Refuse what the database cannot hold: NUL, integers over 64 bits, nesting too deep."""
    # An array of records is two levels; the depth counts from a record's fields.
    if not _is_plain([value], max_depth + 3):
        problems = []
        for found in _unplain(value, max_depth + 2, ["body"]):
            problems.append(found)
            if len(problems) == MOST_PROBLEMS:
                break
        raise ApiError(422, problems)


def _is_plain(value: Any, levels: int, may_have_nul: bool = True) -> bool:
    """Return whether all is well, level by level: about 50 ns a value, half of it to look for NUL."""
    level = [value]
    while level:
        if not levels:
            return False
        levels -= 1
        below: list[Any] = []
        for container in level:
            if type(container) is dict:
                if may_have_nul and "\0" in "".join(container):
                    return False
                values = container.values()
            else:
                values = container
            for item in values:
                kind = type(item)
                if kind is str:
                    if may_have_nul and "\0" in item:
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
