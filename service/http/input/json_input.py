"""JSON in: parsed strictly and within bounds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from marshmallow import Schema, ValidationError

from schemas.base import INT64_MAX, MAX_KEY
from service.capacity import cpu
from service.http.errors import MAX_PROBLEMS, ApiError, Problem, invalid, invalid_fields, problem
from service.http.input.body import read_body
from service.http.input.fast_decoder import PIECE, TooMany, count_values, decode
from service.http.keys import SETTINGS
from service.settings import Settings

T = TypeVar("T")

_MAX_SETTINGS = 256 * 1024
# With Marshmallow, a hundred values are as much work as `SMALL_BYTES` of text.
_BYTES_OF_A_VALUE = cpu.SMALL_BYTES // 100
# The part of MAX_VALUES that a body may have whose values are kept as Python's objects.
_TREE_PART = 3
_PLACE = re.compile(r"\(byte \d+\)")


async def read_object(request: web.Request, schema: Schema, max_bytes: int | None = None) -> dict[str, Any]:
    """Return the object in a request's body. Raises with all that is wrong with it.

    Without `max_bytes` it is settings or the like, for which 256 KB are plenty.
    """

    def parse_object(raw: bytes, settings: Settings) -> Any:
        if max_bytes is not None and len(raw) > max_bytes:
            raise invalid("too_large", f"Must be at most {max_bytes} bytes", "body")
        return parse_tree(raw, settings)

    def load_object(value: Any, settings: Settings) -> dict[str, Any]:
        loaded: dict[str, Any] = load(schema, value, unstorable(value, settings.max_depth))
        return loaded

    return await read_value(request, parse_object, load_object, _MAX_SETTINGS if max_bytes is None else None)


async def read_value(
    request: web.Request,
    parse: Callable[[bytes, Settings], Any],
    check: Callable[[Any, Settings], T],
    max_bytes: int | None = None,
) -> T:
    """Return what `check` makes of the value that `parse` makes of a request's body.

    In two steps, so that others can have the thread between them.
    """
    raw = await read_body(request, max_bytes=max_bytes, as_values=True)
    settings = request.app[SETTINGS]
    # Many values are more work than their bytes.
    size = len(raw) if len(raw) > cpu.SMALL_BYTES else max(len(raw), count_values(raw) * _BYTES_OF_A_VALUE)
    value = await cpu.run(size, lambda: parse(raw, settings))
    return await cpu.run(size, lambda: check(value, settings))


def load(schema: Schema, value: Any, problems: list[Problem], *loc: str) -> Any:
    """Return what Marshmallow makes of a value at a place of the body. Raises with all its problems, given ones too."""
    loaded = None
    try:
        loaded = schema.load(value)
    except ValidationError as error:
        problems = problems + invalid_fields(error.messages, "body", *loc).problems
    if problems:
        raise ApiError(422, problems[:MAX_PROBLEMS])
    return loaded


def check_values(raw: bytes, settings: Settings) -> None:
    """Refuse a text of too many values."""
    # A value has at least one character.
    if len(raw) > settings.max_values and count_values(raw) > settings.max_values:
        raise invalid("too_many", f"Must have at most {settings.max_values} values", "body")


def count_tree(value: Any) -> int:
    """Return the number of values in a tree. Counted in its text, JSON inside of strings would count too."""
    count, level = 0, [value]
    while level:
        count += len(level)
        below: list[Any] = []
        for item in level:
            if type(item) is dict:
                below.extend(item.values())
            elif type(item) is list:
                below.extend(item)
        level = below
    return count


def check_tree(values: int, settings: Settings) -> None:
    """Refuse too many values that are kept as Python's objects until they are stored."""
    max_values = settings.max_values // _TREE_PART
    if values > max_values:
        raise invalid("too_many", f"Must have at most {max_values} values", "body")


def parse_tree(raw: bytes, settings: Settings) -> Any:
    """Return the value of a JSON text that is kept as Python's objects. Raises if it has too many values."""
    check_values(raw, settings)
    value = parse(raw)
    check_tree(count_tree(value), settings)
    return value


def parse(raw: bytes, name: str = "The body") -> Any:
    """Return the value of a JSON text, whose number of values was checked."""
    try:
        return decode(raw)
    except TooMany as error:
        raise invalid("too_many", f"{name} must have at most {error}", "body") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        # A larger text is decoded in pieces, and the place in one of them would mislead.
        raise not_json(error, name, with_place=len(raw) <= PIECE) from None


def not_json(error: Exception, name: str = "The body", *, with_place: bool = True) -> ApiError:
    """Return the response to a text that is not JSON; its message says where, if the decoder does."""
    if "out of range" in str(error):
        return invalid("json_invalid", f"{name} has a number that is out of range", "body")
    place = _PLACE.search(str(error)) if with_place else None
    return invalid("json_invalid", f"{name} is not valid JSON in UTF-8{f' {place[0]}' if place else ''}", "body")


def unstorable(value: Any, max_depth: int, *loc: str, levels_above: int = 0, max_key: int = MAX_KEY) -> list[Problem]:
    """Return what the database cannot store: NUL, integers over 64 bits, too deep nesting; and keys that are too long.

    The depth counts from a record's fields.
    """
    levels = max_depth + 1 + levels_above
    if is_storable([value], levels + 1, max_key=max_key):
        return []
    return list(islice(_unstorable(value, levels, max_key, ["body", *loc]), MAX_PROBLEMS))


_WINDOW = MAX_KEY // 2
_LONG_NUMBER = b"0" * 19  # digits of the smallest number that may not fit in 64 bits
_DIGITS_ALIKE = bytes.maketrans(b"123456789", b"0" * 9)


def is_plainly_storable(raw: bytes, max_depth: int) -> bool:
    """Return whether the text of a value shows that `is_storable` holds, in a third of its time.

    It has no escaped quote or NUL, too few brackets to be nested too deep, no long number and no long key: a long key
    would fill a window of the text, with a colon after its end.
    """
    if b"\\" in raw and (b'\\"' in raw or b"\\u0000" in raw):
        return False
    squeezed = raw.translate(_DIGITS_ALIKE, b"{[")
    if len(raw) - len(squeezed) > max_depth or _LONG_NUMBER in squeezed:
        return False
    for start in range(0, len(raw) - _WINDOW, _WINDOW):
        if raw.find(b'"', start, start + _WINDOW) < 0:
            end = raw.find(b'"', start + _WINDOW)
            if raw[end + 1 : end + 2] not in (b",", b"}", b"]"):
                return False
    return True


def is_storable(value: Any, levels: int, max_key: int = MAX_KEY) -> bool:
    """Return whether all values can be stored, level by level: about 50 ns per value."""
    level = [value]
    while level:
        if not levels:
            return False
        levels -= 1
        below: list[Any] = []
        for container in level:
            if type(container) is dict:
                keys = "".join(container)
                if "\0" in keys:
                    return False
                if len(keys) > max_key and max(map(len, container)) > max_key:
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


def _unstorable(value: Any, levels: int, max_key: int, loc: list[str]) -> Iterator[Problem]:
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
            elif isinstance(key, str) and len(key) > max_key:
                yield problem("string_too_long", f"A key must be at most {max_key} characters", *loc)
            else:
                yield from _unstorable(item, levels - 1, max_key, [*loc, str(key)])
    elif type(value) is int and not -INT64_MAX - 1 <= value <= INT64_MAX:
        yield problem("value_error", "Must fit in 64 bits", *loc)
