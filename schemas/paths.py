"""Paths below `data`, as rules, filters and `ignore` name them.

A path may be written in full, `data.price.amount`, or without the first name. Schemas check it and keep it as it was
sent; the store resolves it with `below_data` where it reads items.
"""

from collections.abc import Mapping
from typing import Any

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


class Condition(Text):
    """A path below `data`, a colon and the value that it must have: `price.currency:EUR`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=8192, **kwargs)

    def _deserialize(  # type: ignore[override]
        self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any
    ) -> tuple[str, str]:
        path, colon, wanted = super()._deserialize(value, attr, data, **kwargs).partition(":")
        if not colon or not is_path(path):
            message = "Must be a path below data, a colon and a value, such as price.currency:EUR"
            raise ValidationError([problem("value_error", message)])
        return path, wanted
