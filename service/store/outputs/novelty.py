"""Which groups are being filled with items that nobody has stored before."""

from __future__ import annotations

from service.store.outputs.ids import GroupKey

# After this many new items in a row, the next ones are expected to be new as well.
_IN_A_ROW = 200
_MAX_REMEMBERED = 10_000


class Novelty:
    """Counts the new items of each group since the last one that was known.

    In a first crawl looking up the keys finds nothing, and takes 11 to 16 % of the database's work. A group that has
    seen new items only is written without it: the unique index refuses an item that is known after all, and that one
    goes again, looked up.
    """

    def __init__(self) -> None:
        self._in_a_row: dict[GroupKey, int] = {}

    def expected(self, group: GroupKey) -> bool:
        """Return whether the next items of a group are likely to be new."""
        return self._in_a_row.get(group, 0) >= _IN_A_ROW

    def saw(self, group: GroupKey, new: int, known: int) -> None:
        """Count the items of a round."""
        if known:
            self._in_a_row.pop(group, None)
            return
        if len(self._in_a_row) >= _MAX_REMEMBERED and group not in self._in_a_row:
            self._in_a_row.pop(next(iter(self._in_a_row)))
        self._in_a_row[group] = self._in_a_row.get(group, 0) + new
