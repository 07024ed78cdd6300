"""Flattens nested objects into dotted names, bounded by the size of their content: for CSV and field statistics.

Every leaf repeats the keys of all objects above it. One key of 20,000 characters over 20,000 leaves, an item of 60 KB,
would become 400 MB of names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# An object whose members would have longer names stays whole.
MAX_NAME = 1024
# Characters of names per character of content, and the least and the most that an item may have.
_NAMES_PER_CONTENT, _MIN_NAMES, _MAX_NAMES = 8, 1024, 1024 * 1024
_OTHER_VALUE = 4  # approximate characters of a value that is not a string


_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object", None: "null"}


def type_of(value: Any) -> str:
    """Return the JSON type of a value; `other` for a date or the like, put there by hand in Mongo."""
    # BSON's 64-bit integers have a type of their own.
    return _TYPES.get(value if value is None else type(value)) or ("integer" if isinstance(value, int) else "other")


class Leaf(NamedTuple):
    """A value that is not an object, its dotted name, and the name with the dots of keys escaped."""

    name: str
    exact: str
    value: Any


def is_open(value: Any, name: str) -> bool:
    """Return whether a value is an object that is taken apart: no member's name becomes too long."""
    return isinstance(value, dict) and bool(value) and len(name) + bool(name) + max(map(len, value)) <= MAX_NAME


def leaves(item: dict[str, Any]) -> list[Leaf]:
    """Return the leaves of an item; its fields as they are, if the names would be much longer than the content."""
    flat: list[Leaf] = []
    flattening = _Flattening(flat)
    if flattening.add(item, "", "") and flattening.names <= _MIN_NAMES + _NAMES_PER_CONTENT * flattening.content:
        return flat
    return [Leaf(name, name, value) for name, value in item.items()]


class _Flattening:
    def __init__(self, found: list[Leaf]) -> None:
        self._found = found
        self.names = self.content = 0

    def add(self, value: dict[str, Any], prefix: str, exact_prefix: str) -> bool:
        """Add the leaves of an object; stop and return False if there are too many."""
        for key, item in value.items():
            name = prefix + key
            exact = exact_prefix + (key.replace("\\", "\\\\").replace(".", "\\.") if "." in key else key)
            self.content += len(key)
            if isinstance(item, dict) and is_open(item, name):
                if not self.add(item, name + ".", exact + "."):
                    return False
            else:
                self.names += len(name)
                self.content += len(item) if isinstance(item, str) else _OTHER_VALUE
                self._found.append(Leaf(name, exact, item))
                if self.names > _MAX_NAMES:
                    return False
        return True


class Room:
    """How many names a table may have, and how many characters in all of them."""

    def __init__(self, names: int, characters: int) -> None:
        self._names, self._characters = names, characters

    def take(self, name: str) -> bool:
        """Make room for one more name; return False if there is not enough."""
        if not self._names or len(name) > self._characters:
            return False
        self._names -= 1
        self._characters -= len(name)
        return True
