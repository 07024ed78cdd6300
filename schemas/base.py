"""The strict fields and the base schema that every resource is made of.

Every message is a `{"msg", "type"}` pair, so that the error body can name the kind of mistake
without reading English.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import islice
from typing import Any, ClassVar, TypeVar

from marshmallow import RAISE, Schema, ValidationError, fields

F = TypeVar("F", bound=fields.Field[Any])

INT64_MAX = 2**63 - 1
# Characters of a key of a JSON object: dotted names repeat a key for every value below it.
MAX_KEY = 1024

_DATE = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)"
    r"(?:[Tt](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?(Z|z|[+-]\d\d(?::?[0-5]\d)?)?)?",
    re.ASCII,
)
_DIGITS = re.compile(r"-?\d{1,19}", re.ASCII)
_MAX_KEYS = 100
# Unknown fields of a record for which the nearest name is looked for, and the characters of them that count.
_MAX_HINTS, _MAX_NAME = 5, 64


def problem(kind: str, message: str) -> dict[str, str]:
    """Return one problem in the form that the error body is made from."""
    return {"msg": message, "type": kind}


def messages(kind: str, text: str) -> dict[str, Any]:
    """Return a field's messages about a value that is missing, null or of another type."""
    wrong_type = problem(kind, text)
    null = problem(kind, f"{text}, not null")
    return {"required": problem("missing", "Field required"), "null": null, "invalid": wrong_type, "type": wrong_type}


def check_bounds(value: float, minimum: float | None, maximum: float | None) -> None:
    """Refuse a number outside of the bounds that there are."""
    if minimum is not None and value < minimum:
        raise ValidationError([problem("greater_than_equal", f"Must be greater than or equal to {minimum}")])
    if maximum is not None and value > maximum:
        raise ValidationError([problem("less_than_equal", f"Must be less than or equal to {maximum}")])


def parse_date(text: str) -> datetime:
    """Return the moment that an ISO 8601 text names, in UTC and whole milliseconds.

    A date alone is midnight UTC, a date-time without an offset is UTC. Raises ValueError otherwise.
    """
    match = _DATE.fullmatch(text)
    if not match:
        raise ValueError("not an ISO 8601 date")
    year, month, day, hour, minute, second, fraction, offset = match.groups()
    zone = "+00:00" if offset is None or offset in "Zz" else offset
    if len(zone) == 3:
        zone += ":00"
    # BSON dates hold milliseconds: cut here, so that the stored date equals the one that is compared.
    millis = ((fraction or "") + "000")[:3]
    clock = f"{hour or '00'}:{minute or '00'}:{second or '00'}.{millis}"
    try:
        return datetime.fromisoformat(f"{year}-{month}-{day}T{clock}{zone}").astimezone(UTC)
    except OverflowError as error:  # year 1 or 9999, moved out of range by its offset
        raise ValueError("out of range") from error


class Text(fields.String):
    """A JSON string within bounds; other values are not converted."""

    default_error_messages = messages("string_type", "Must be a string")

    def __init__(
        self,
        *,
        min_length: int = 0,
        max_length: int | None = None,
        max_bytes: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.min_length, self.max_length, self.max_bytes = min_length, max_length, max_bytes
        metadata = dict(kwargs.pop("metadata", {}))
        if min_length:
            metadata["minLength"] = min_length
        if (longest := max_length or max_bytes) is not None:
            metadata["maxLength"] = longest
        super().__init__(metadata=metadata, **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> str:
        if type(value) is not str:
            raise self.make_error("invalid")
        if len(value) < self.min_length:
            word = "Must not be empty" if self.min_length == 1 else "Too short"
            raise ValidationError([problem("string_too_short", word)])
        if self.max_length is not None and len(value) > self.max_length:
            raise ValidationError([problem("string_too_long", f"Must be at most {self.max_length} characters")])
        if self.max_bytes is not None and len(value if value.isascii() else value.encode()) > self.max_bytes:
            raise ValidationError([problem("string_too_long", f"Must be at most {self.max_bytes} bytes")])
        return value


class Flag(fields.Boolean):
    """A JSON boolean: `true` or `false`, not "yes" and not 1."""

    default_error_messages = messages("bool_type", "Must be true or false")

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> bool:
        if type(value) is not bool:
            raise self.make_error("invalid")
        return value


class QueryFlag(fields.Boolean):
    """`true` or `false` in a query."""

    default_error_messages = messages("bool_type", "Must be true or false")

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> bool:
        if value not in ("true", "false"):
            raise self.make_error("invalid")
        return bool(value == "true")


class Date(fields.DateTime):
    """An ISO 8601 text in, a UTC datetime inside."""

    default_error_messages = {
        **messages("datetime_type", "Must be a date"),
        "type": problem("datetime_type", "Must be a string with an ISO 8601 date"),
        "invalid": problem("datetime_invalid", "Must be ISO 8601, such as 2026-01-31 or 2026-01-31T12:00:00Z"),
    }

    json_types: Any = str  # what `moment` takes

    def moment(self, value: Any) -> datetime | None:
        """Return the moment that a JSON value of `json_types` names. Raises ValueError."""
        return parse_date(value)

    def _deserialize(  # type: ignore[override]
        self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any
    ) -> datetime | None:
        if type(value) is bool or not isinstance(value, self.json_types):
            raise self.make_error("type")
        try:
            return self.moment(value)
        except ValueError:
            raise self.make_error("invalid") from None


class Digits(fields.Integer):
    """A whole number within bounds, in JSON or written in decimal digits in a query."""

    default_error_messages = messages("int_type", "Must be an integer")

    def __init__(self, *, minimum: int, maximum: int = INT64_MAX, **kwargs: Any) -> None:
        self.minimum, self.maximum = minimum, maximum
        metadata = {"minimum": minimum, "maximum": maximum, **kwargs.pop("metadata", {})}
        super().__init__(metadata=metadata, **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> int:
        if type(value) is str and _DIGITS.fullmatch(value):
            value = int(value)
        if type(value) is not int:
            # Too many digits are an error of range only if all of them are digits.
            if not (type(value) is str and value.isascii() and value.isdigit()):
                raise self.make_error("invalid")
            value = INT64_MAX + 1
        check_bounds(value, self.minimum, self.maximum)
        return int(value)


class WholeNumber(Digits):
    """A JSON integer within bounds; a string of digits is rejected."""

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> int:
        if type(value) is not int:
            raise self.make_error("invalid")
        return super()._deserialize(value, attr, data, **kwargs)


class Choice(Text):
    """One of a few words."""

    def __init__(self, *words: str, **kwargs: Any) -> None:
        self.words = words
        choices = [*words, None] if kwargs.get("allow_none") else list(words)
        super().__init__(metadata={"enum": choices, **kwargs.pop("metadata", {})}, **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> str:
        if value not in self.words:
            raise ValidationError([problem("value_error", f"Must be one of {', '.join(self.words)}")])
        return str(value)


class JsonObject(fields.Dict):
    """Any JSON object, kept as it is."""

    default_error_messages = messages("dict_type", "Must be an object")


class ListOf(fields.Nested):
    """A JSON array of another schema's objects."""

    default_error_messages = messages("list_type", "Must be an array")

    def __init__(self, nested: Any, *, max_length: int | None = None, **kwargs: Any) -> None:
        self.max_length = max_length
        metadata = {**kwargs.pop("metadata", {}), **({"maxItems": max_length} if max_length is not None else {})}
        super().__init__(nested, many=True, metadata=metadata, **kwargs)

    def _deserialize(
        self, value: Any, attr: str | None, data: Mapping[str, Any] | None, *args: Any, **kwargs: Any
    ) -> Any:
        if self.max_length is not None and isinstance(value, list) and len(value) > self.max_length:
            raise ValidationError([problem("too_many", f"Must have at most {self.max_length} entries")])
        return super()._deserialize(value, attr, data, *args, **kwargs)


def optional(field: type[F], *args: Any, description: str, **kwargs: Any) -> F:
    """Return a field that is None if it is left out or null, in a query also if it is empty."""
    return field(*args, load_default=None, allow_none=True, metadata={"description": description}, **kwargs)


_UNKNOWN = problem("unknown_field", "Unknown field")


class Base(Schema):
    """A schema that rejects unknown fields: a typo must not lose a flag silently."""

    class Meta:
        unknown = RAISE

    error_messages = {
        "unknown": _UNKNOWN,  # type: ignore[dict-item]
        "type": problem("dict_type", "Must be an object"),  # type: ignore[dict-item]
    }
    # What other APIs call a field.
    aliases: ClassVar[Mapping[str, str]] = {}

    def handle_error(self, error: ValidationError, data: Any, *, many: bool, **kwargs: Any) -> None:
        """Say with the first unknown fields which ones were meant."""
        if not isinstance(error.messages, dict):
            return
        records = error.messages.items() if many else [(None, error.messages)]
        unknown = [
            (record, name, data if place is None else data[place])
            for place, record in records
            if isinstance(record, dict)
            for name, found in record.items()
            if found == [_UNKNOWN]
        ]
        for record, name, sent in unknown[:_MAX_HINTS]:
            if hint := self.hint(str(name)[:_MAX_NAME], sent):
                record[name] = [problem("unknown_field", f"Unknown field: {hint}")]

    def hint(self, name: str, data: Mapping[str, Any]) -> str:
        """Return what a user who sent an unknown field should do instead; nothing where no field is similar."""
        names = {field.data_key or attribute for attribute, field in self.fields.items()} - data.keys()
        near = (
            [self.aliases[name]] if self.aliases.get(name) in names else get_close_matches(name.lower(), names, 1, 0.7)
        )
        return f"did you mean {near[0]}?" if near else ""

    def _deserialize(self, data: Any, *, many: bool = False, **kwargs: Any) -> Any:
        # Each unknown key is one problem: a million of them would take 15 seconds to report.
        if not many and type(data) is dict and len(data) > _MAX_KEYS and self.unknown == RAISE:
            unknown = islice((key for key in data if key not in self.fields), _MAX_KEYS)
            data = {key: data[key] for key in (*self.fields, *unknown) if key in data}
        return super()._deserialize(data, many=many, **kwargs)


class PageQuery(Base):
    """The parameters of a list that can be read page by page; the whole list comes without them."""

    limit = optional(
        Digits,
        minimum=1,
        maximum=10_000,
        description="Records per page; the Link header of the response leads to the next page",
    )
    cursor = optional(Text, max_length=8192, description="From the Link header of the page before")
