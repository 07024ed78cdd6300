"""How the items of a group are compared, and for how long their earlier versions are kept."""

from __future__ import annotations

from typing import Any, NamedTuple

from service.bounded import Bounded
from service.store.connection import MAJORITY, Collection, Database
from service.store.contract import stored
from service.store.group import Group
from service.store.outputs import documents
from service.store.outputs.fields import Ignored, ignored, without

FIELDS = {"ignore": 1, "history_days": 1}
_MAX_REMEMBERED = 10_000


class Comparing(NamedTuple):
    """The settings of a group that writing depends on."""

    tree: Ignored = {}  # the paths that do not count as content
    mark: str = ""  # the end of content hashes made with these settings
    history_days: int = 0

    @classmethod
    def of(cls, document: dict[str, Any]) -> Comparing:
        """Return the settings in a group's document."""
        paths, days = document.get("ignore") or [], document.get("history_days") or 0
        mark = documents.sha256("\n".join(sorted(paths)).encode())[:8] if paths else ""
        return cls(ignored(paths), mark, days)

    def data_text(self, data: dict[str, Any]) -> bytes:
        """Return the canonical text of an item's data without ignored paths."""
        return documents.canonical(without(data, self.tree))


PLAIN = Comparing()


class ComparingCache:
    """A cache of the settings of groups, which every turn refreshes."""

    def __init__(self, database: Database) -> None:
        self._groups: Collection = database.get_collection("groups", read_concern=MAJORITY)
        self._known: Bounded[Group, Comparing] = Bounded(_MAX_REMEMBERED)

    async def of(self, group: Group) -> Comparing:
        """Return the settings of a group."""
        known = self._known.get(group)
        return known if known is not None else self.refresh(group, await self._read(group))

    @stored
    async def _read(self, group: Group) -> dict[str, Any]:
        return await self._groups.find_one(group.owner, FIELDS) or {}

    def refresh(self, group: Group, document: dict[str, Any]) -> Comparing:
        """Remember the settings in a group's document."""
        self._known[group] = comparing = Comparing.of(document)
        return comparing

    def forget(self, group: Group) -> None:
        """Read the settings of a group again when they are next needed."""
        self._known.pop(group, None)
