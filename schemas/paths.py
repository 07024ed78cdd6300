"""Paths below `data`, as rules, filters and `ignore` name them.

A path may be written in full, `data.price.amount`, or without the first name. Schemas check it and keep it as it was
sent; the store resolves it with `below_data` where it reads items.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from marshmallow import ValidationError, fields

from schemas.base import Text, messages, problem

_MAX_NAMES = 65  # no value is nested deeper, and MongoDB stops at 200
_MAX_LENGTH = 1024


def are_names(names: list[str]) -> bool:
    """Return whether a path can have these names."""
    return len(names) <= _MAX_NAMES and all(name and not name.startswith("$") and "\0" not in name for name in names)


def below_data(path: str) -> str:
    """Return a path without its first name `data`; a key of `data` that is itself called `data` needs the full form."""
    first, _, below = path.partition(".")
    return below if first == "data" else path


def is_path(text: str) -> bool:
    """Return whether a text is a path below `data`: names with dots between, such as `price.amount`."""
    return len(text) <= _MAX_LENGTH and are_names(below_data(text).split("."))


class DataPath(Text):
    """A path below `data`, as it was sent."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(min_length=1, max_length=_MAX_LENGTH, **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> str:
        path = super()._deserialize(value, attr, data, **kwargs)
        if not is_path(path):
            raise ValidationError([problem("value_error", "Must be a path below data, such as price.amount")])
        return path


class DataPaths(fields.List[str]):
    """Some paths below `data`, each once."""

    default_error_messages = messages("list_type", "Must be an array")

    def __init__(self, *, max_length: int, **kwargs: Any) -> None:
        self.max_length = max_length
        super().__init__(DataPath(), metadata={"maxItems": max_length, **kwargs.pop("metadata", {})}, **kwargs)

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> list[Any]:
        if isinstance(value, list) and len(value) > self.max_length:
            raise ValidationError([problem("too_many", f"Must have at most {self.max_length} paths")])
        return list(dict.fromkeys(super()._deserialize(value, *args, **kwargs)))


class Condition(NamedTuple):
    """A path below `data`, as it was sent, an operator and a value."""

    path: str
    operator: str
    value: str


MAX_CONDITIONS = 10
_OPERATOR = re.compile(r"!=|>=|<=|[:><~]")
_MAX_CONTAINED = 1000  # characters of a text that is searched for
_FORM = "Must be a path below data, one of : != > >= < <= ~ and a value, such as price.currency:EUR or price.amount>=10"


class ConditionText(Text):
    """A condition as it is written: `price.currency:EUR`, `price.amount>=10`, `title~lamp`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=8192, **kwargs)

    def _deserialize(  # type: ignore[override]
        self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any
    ) -> Condition:
        text = super()._deserialize(value, attr, data, **kwargs)
        match = _OPERATOR.search(text)  # the first one counts
        if match is None or not is_path(path := text[: match.start()]):
            raise ValidationError([problem("value_error", _FORM)])
        condition = Condition(path, match[0], text[match.end() :])
        if condition.operator == "~" and len(condition.value) > _MAX_CONTAINED:
            raise ValidationError([problem("string_too_long", f"Must be at most {_MAX_CONTAINED} characters after ~")])
        return condition


class Conditions(fields.List[str]):
    """Conditions that all hold; in a query the parameter is repeated."""

    def __init__(self, **kwargs: Any) -> None:
        metadata = {"maxItems": MAX_CONDITIONS, **kwargs.pop("metadata", {})}
        super().__init__(ConditionText(), load_default=(), metadata=metadata, **kwargs)

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        if len(value) > MAX_CONDITIONS:
            raise ValidationError([problem("too_many", f"Must be given at most {MAX_CONDITIONS} times")])
        try:
            return tuple(super()._deserialize(value, *args, **kwargs))
        except ValidationError as error:
            problems: Any = error.messages
            raise ValidationError([message for of_one in problems.values() for message in of_one]) from None
