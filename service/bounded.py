"""A dictionary that stays small."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Bounded(dict[K, V]):
    """Forgets its oldest key when a new one would make it larger than `max_keys`.

    Setting an existing key keeps its place: delete it first to make it the newest.
    """

    def __init__(self, max_keys: int) -> None:
        super().__init__()
        self._max_keys = max_keys

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self._max_keys and key not in self:
            del self[next(iter(self))]
        super().__setitem__(key, value)
