"""A fast path for valid records, derived from the Marshmallow schemas.

Marshmallow is the one description of the schemas and the source of every error message, but takes
about 150 µs per output. The decoder made here accepts only records that are certainly valid, and returns
exactly what Marshmallow would; all others go to Marshmallow, which accepts or rejects them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import msgspec
from marshmallow import Schema, missing
from marshmallow.fields import Field

from schemas.base import Date, Flag, JsonObject, ListOf, Text, WholeNumber

Convert = Callable[[Any], dict[str, Any]]

# One call holds the interpreter lock to its end.
PIECE = 512 * 1024
# The same for a search for strings, which is slower.
_SMALL_PIECE = 32 * 1024
# Each level of a large value is scanned once more, to find its entries.
_MAX_LEVELS = 100
# A new key takes 0.5 microseconds, and an entry 0.1. An item of 1 MiB has fewer entries (`0,` is one in 2 bytes), and
# fewer keys unless almost all of them have one letter and a digit as their value: `"x":1,` is a key in 6.
MAX_KEYS, MAX_ENTRIES = 150_000, 525_000
_BACKSLASH = ord("\\")
_STRING = re.compile(rb'"[^"]*"')
_NO_COMMAS = bytes(set(range(256)) - set(b'",'))


class FastPathRejected(Exception):
    """Raised for a record that may be invalid."""


class TooMany(ValueError):
    """Raised for a large text of more than MAX_KEYS keys or MAX_ENTRIES entries, nested ones too."""


class Decoder:
    """Decodes records of one schema."""

    def __init__(self, schema: Schema) -> None:
        struct, self._convert = _derive(schema)
        self._decoder = msgspec.json.Decoder(struct)

    def decode(self, raw: bytes) -> dict[str, Any]:
        """Return a record as Marshmallow would load it. Raises FastPathRejected for anything doubtful."""
        if len(raw) > PIECE:
            raise FastPathRejected
        try:
            return self._convert(self._decoder.decode(raw))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise FastPathRejected from None


def count_values(raw: bytes | bytearray) -> int:
    """Return about how many values a text has; commas in strings count too."""
    return sum(len(piece) - len(piece.translate(None, b",[{")) for piece in pieces_of(memoryview(raw)))


def pieces_of(raw: bytes | memoryview, size: int = PIECE) -> Iterator[bytes]:
    """Yield a text in pieces: work on one of them holds the interpreter lock for less than a millisecond."""
    text = memoryview(raw)
    for start in range(0, text.nbytes, size):
        yield bytes(text[start : start + size])


def decode(raw: bytes) -> Any:
    """Return the value of a JSON text, of a large one piece by piece."""
    if len(raw) > PIECE:
        if _has_more_keys(memoryview(raw), MAX_KEYS):
            raise TooMany(f"{MAX_KEYS} keys")
        if _has_more_entries(memoryview(raw), MAX_ENTRIES):
            raise TooMany(f"{MAX_ENTRIES} entries")
    return _decode(raw, _MAX_LEVELS)


def _decode(raw: bytes | msgspec.Raw, levels: int) -> Any:
    text = memoryview(raw)
    if text.nbytes <= PIECE:
        return msgspec.json.decode(raw)
    if not levels:
        raise RecursionError
    start = bytes(text[:PIECE]).lstrip(b" \t\r\n")[:1]
    if start == b"[":
        return [_decode(piece, levels - 1) for piece in msgspec.json.decode(raw, type=list[msgspec.Raw])]
    if start == b"{":
        pieces = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        return {key: _decode(piece, levels - 1) for key, piece in pieces.items()}
    if start == b'"':
        return "".join(map(msgspec.json.decode, _strings(bytes(text).strip(b" \t\r\n"))))
    return msgspec.json.decode(raw)


def _strings(text: bytes) -> Iterator[bytes]:
    """Yield a long JSON string as several, without dividing a character or an escape."""
    start = 1
    while len(text) - start > PIECE:
        end = _undivided(text, start, start + PIECE)
        yield b'"%b"' % text[start:end]
        start = end
    yield b'"%b' % text[start:]


def _undivided(text: bytes, start: int, end: int) -> int:
    """Return the last place up to `end` where a JSON string that is read from `start` on can be divided."""
    for _ in range(3):
        if text[end] & 0xC0 == 0x80:  # not the first byte of a character
            end -= 1
    for escape in range(end - 11, end):
        if text[escape] == _BACKSLASH:
            is_pair = text[escape + 1 : escape + 3].lower() == b"ud" and text[escape + 3 : escape + 4] in b"89abAB"
            length = 12 if is_pair else 6 if text[escape + 1 : escape + 2] == b"u" else 2
            backslashes = escape - start - len(text[start:escape].rstrip(b"\\"))
            if backslashes % 2 == 0 and escape + length > end:
                return escape
    return end


def _has_more_keys(text: memoryview, count: int) -> bool:
    """Return whether a text may have more keys; counts quotes first, which is faster where strings are long."""
    quotes = sum(len(piece) - len(piece.replace(b'"', b"")) for piece in pieces_of(text))
    if quotes <= 2 * count:
        return False
    # There may be white space before the colon.
    return sum(piece.translate(None, b" \t\r\n").count(b'":') for piece in _without_escapes(text)) > count


def _has_more_entries(text: memoryview, count: int) -> bool:
    """Return whether a text has more entries; commas in strings only make it slower."""
    if sum(piece.count(b",") for piece in pieces_of(text)) < count:
        return False
    commas, in_string = 0, b""
    for piece in _without_escapes(text):
        plain = in_string + piece.translate(None, _NO_COMMAS)
        outside, in_string, _ = _STRING.sub(b"", plain.replace(b'""', b"")).partition(b'"')
        commas += outside.count(b",")
    return commas >= count


def _without_escapes(text: memoryview) -> Iterator[bytes]:
    """Yield a text in pieces, without escaped quotes and backslashes: JSON in a string has many."""
    backslash = b""
    for piece in pieces_of(text, _SMALL_PIECE):
        plain = (backslash + piece).replace(b"\\\\", b"")
        backslash = plain[-1:] if plain.endswith(b"\\") else b""
        yield plain.removesuffix(b"\\").replace(b'\\"', b"")


def _derive(schema: Schema) -> tuple[type[msgspec.Struct], Convert]:
    """Return a struct with the schema's fields, and a function that turns one into the loaded dict."""
    members: list[Any] = []
    dates: list[tuple[str, Date]] = []
    optional: list[str] = []
    nested: list[tuple[str, Convert]] = []
    long_texts: list[tuple[str, int]] = []
    for name, field in schema.fields.items():
        kind, convert = _kind(field)
        if convert is not None:
            nested.append((name, convert))
        if isinstance(field, Date):
            dates.append((name, field))
        if isinstance(field, Text) and field.max_bytes is not None:
            long_texts.append((name, field.max_bytes // 4))  # a character has at most 4 bytes
        if field.required:
            members.append((name, kind))
        elif field.load_default is missing:
            optional.append(name)
            members.append((name, kind | msgspec.UnsetType, msgspec.UNSET))
        elif callable(field.load_default):
            members.append((name, kind, msgspec.field(default_factory=field.load_default)))
        else:
            members.append((name, kind | None if field.load_default is None else kind, field.load_default))
    # Structs need members with a default to come last; the order does not matter here.
    members.sort(key=lambda member: len(member) > 2)
    struct = msgspec.defstruct(type(schema).__name__, members, forbid_unknown_fields=True, gc=False)

    def convert_one(record: Any) -> dict[str, Any]:
        loaded = msgspec.structs.asdict(record)
        for name in optional:
            if loaded[name] is msgspec.UNSET:
                del loaded[name]
        for name, date in dates:
            if loaded.get(name) is not None:
                loaded[name] = date.moment(loaded[name])
        for name, most in long_texts:
            if len(loaded[name]) > most:
                raise FastPathRejected
        for name, convert in nested:
            loaded[name] = [convert(item) for item in loaded[name]]
        return loaded

    return struct, convert_one


def _kind(field: Field[Any]) -> tuple[Any, Convert | None]:
    """Return the type of a field, and how to convert what is in it."""
    match field:
        case ListOf():
            struct, convert = _derive(field.schema)
            bounds = msgspec.Meta(max_length=field.max_length)
            return Annotated[list[struct], bounds], convert  # type: ignore[valid-type]
        case Text():
            bounds = msgspec.Meta(min_length=field.min_length or None, max_length=field.max_length)
            return Annotated[str, bounds], None
        case Date():
            return field.json_types | None if field.allow_none else field.json_types, None
        case WholeNumber():
            whole = Annotated[int, msgspec.Meta(ge=field.minimum, le=field.maximum)]
            return whole | None if field.allow_none else whole, None
        case Flag():
            return bool, None
        case JsonObject():
            return dict[str, Any], None
    raise TypeError(f"no fast path for {type(field).__name__}")
