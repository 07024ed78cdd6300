"""How the items of a group are compared, and for how long their earlier versions are kept."""

from __future__ import annotations

from typing import Any, NamedTuple

from schemas.paths import below_data
from service.bounded import Bounded
from service.store.connection import MAJORITY, Collection, Database
from service.store.contract import stored
from service.store.group import Group
from service.store.outputs import documents
from service.store.outputs.fields import Ignored, ignored, without

FIELDS = {"ignore": 1, "history_days": 1}
_MAX_REMEMBERED = 10_000
# Characters of ignored paths up to which settings are remembered: 10,000 groups with so many are at most 60 MB.
_MAX_CHARACTERS = 1024


class Comparing(NamedTuple):
    """The settings of a group that writing depends on."""

    tree: Ignored = {}  # the paths that do not count as content
    mark: str = ""  # the end of content hashes made with these settings
    history_days: int = 0

    @classmethod
    def of(cls, document: dict[str, Any], history_days: int) -> Comparing:
        """Return the settings in a group's document; `history_days` where it has not set its own."""
        paths, days = document.get("ignore") or [], document.get("history_days", history_days)
        resolved = sorted(set(map(below_data, paths)))
        mark = documents.sha256("\n".join(resolved).encode())[:8] if paths else ""
        return cls(ignored(paths), mark, days)

    def data_text(self, data: dict[str, Any]) -> bytes:
        """Return the canonical text of an item's data without ignored paths."""
        return documents.canonical(without(data, self.tree))


PLAIN = Comparing()


class ComparingCache:
    """A cache of the settings of groups, which every turn refreshes. It holds no trees, which are large."""

    def __init__(self, database: Database, history_days: int) -> None:
        self._history_days = history_days
        self._groups: Collection = database.get_collection("groups", read_concern=MAJORITY)
        self._known: Bounded[Group, dict[str, Any]] = Bounded(_MAX_REMEMBERED)

    async def of(self, group: Group) -> Comparing:
        """Return the settings of a group."""
        cached = self._known.get(group)
        return (
            Comparing.of(cached, self._history_days)
            if cached is not None
            else self.refresh(group, await self._read(group))
        )

    @stored
    async def _read(self, group: Group) -> dict[str, Any]:
        return await self._groups.find_one(group.owner, FIELDS) or {}

    def refresh(self, group: Group, document: dict[str, Any]) -> Comparing:
        """Return the settings in a group's document, and remember them unless they are long."""
        settings = {name: document[name] for name in FIELDS if document.get(name) is not None}
        if sum(map(len, settings.get("ignore", ()))) <= _MAX_CHARACTERS:
            self._known[group] = settings
        else:
            self.forget(group)
        return Comparing.of(settings, self._history_days)

    def forget(self, group: Group) -> None:
        """Read the settings of a group again when they are next needed."""
        self._known.pop(group, None)
