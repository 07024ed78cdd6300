"""Follow a group: what is new, changed or deleted, as it happens, with a cursor that survives a kill."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sds_client.errors import CursorExpired
from sds_client.paths import outputs_path, read_query, walk_query
from sds_client.transport import Transport
from sds_client.types import Deletion, Output

# Seconds that the service may hold a request while there is nothing to read; it allows 60.
WAIT = 30
# A service that is stopping ends the waiting at once: seconds before it is asked again.
_MIN_WAIT = 0.25
# Seconds after which a group that does not know the cursor is asked again.
_DOUBT_SECONDS = 2.0
# Seconds of items, or one page, that a kill may repeat.
_SAVE_EVERY = 1.0


class Follower:
    """Reads new and changed items, and remembers how many of them the consumer has taken.

    Leaving the `with` block saves the position; in between it is saved once per page, and once per second within one.
    A position is a cursor and, until a walk from cursor 0 has ended, the state of this walk.
    """

    def __init__(
        self,
        transport: Transport,
        group: str,
        *,
        position: Mapping[str, Any],
        page_size: int,
        options: Mapping[str, Any],
        deleted: bool = True,
        live: bool = False,
        cursor_file: str | os.PathLike[str] | None = None,
        owner: int | None = None,
    ) -> None:
        self._transport, self._path, self._live = transport, outputs_path(group), live
        self._query = read_query(options) | ({"deleted": "true"} if deleted else {})
        filters = {name: value for name, value in self._query.items() if name != "fields"}
        about = {"url": transport.url, "organization_id": owner, "group": group, "filters": filters}
        self._query["limit"] = str(page_size)
        self._belongs_to = {"group": group, "filters": {n: v for n, v in filters.items() if n != "deleted"}}
        _check_position(position, self._belongs_to)
        self._file = None if cursor_file is None else CursorFile(Path(cursor_file), about)
        self._saved = position if self._file is None else self._file.load(position)
        self._taken = self._read = self._saved["cursor"]
        self._walk = {name: value for name, value in self._saved.items() if name == "walk"}
        self._saved_at = time.monotonic()
        # Ctrl-C may end the block while a thread that runs for it saves.
        self._saving = threading.RLock()
        self._at_end = False

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self._save()

    @property
    def position(self) -> dict[str, Any]:
        """Where to continue after the last page, and what it belongs to."""
        return {"cursor": self._read} | ({} if self._at_end else self._walk) | self._belongs_to

    async def page(self) -> list[Output | Deletion] | None:
        """Return the next page that has items, waiting for one; None at the end when it is not live."""
        is_doubtful = False
        while True:
            self._taken = self._read  # the consumer came back: it has taken all of the last page
            if self._at_end:
                self._walk = {}
            self._save()
            if self._at_end and not self._live:
                return None
            wait, asked_at = (WAIT if self._at_end else 0), time.monotonic()
            query = {**self._query, "cursor": str(self._read), **self._walk} | ({"wait": str(wait)} if wait else {})
            try:
                response = await self._transport.call("GET", self._path, query=query, wait=wait)
            except CursorExpired as error:
                raise self._expired(error) from None
            items: list[Output | Deletion] = response.json["items"]
            metadata = response.json["metadata"]
            at_end = metadata["next_cursor"] is None
            # The filters were applied up to here: often beyond the last item, also on an empty page.
            applied = int(response.headers.get("X-Cursor", self._read)) if at_end else metadata["next_cursor"]
            if applied < self._read:
                if is_doubtful:
                    raise self._unknown(applied)
                # After a failover, a new primary may not know its newest ids for a moment.
                is_doubtful = True
                await asyncio.sleep(_DOUBT_SECONDS)
                continue
            self._at_end = at_end
            if self._file is not None and self._file.is_new:
                # The group knows the cursor that was given: the file keeps it, also if nothing comes after it.
                self._saved = {"cursor": 0}
            self._read = max(self._read, applied, *(item["id"] for item in items[-1:]))
            self._walk |= walk_query(metadata)
            if items:
                return items
            if wait and time.monotonic() - asked_at < _MIN_WAIT:
                await asyncio.sleep(_MIN_WAIT)

    def taken(self, item: Output | Deletion) -> None:
        """Note that the consumer came back for the next item: it has taken this one."""
        # Without a walk, a cursor within the first page may be too old for deletions: that page counts as a whole.
        if self._taken or self._walk or "deleted" not in self._query:
            self._taken = item["id"]
        if time.monotonic() - self._saved_at > _SAVE_EVERY:
            self._save()

    def _save(self) -> None:
        with self._saving:
            self._saved_at = time.monotonic()
            position = {"cursor": self._taken, **self._walk}
            if self._file is not None and position != self._saved:
                self._file.save(position)
                self._saved = position

    def _expired(self, error: CursorExpired) -> CursorExpired:
        message = f"the cursor {self._read} is too old to learn of every deletion since: {self._again}"
        if not self._read:  # cursor 0 is never too old
            message = "deletions since created_after were forgotten: leave it out, or take a later date"
        return CursorExpired(error.status, error.problems, message)

    def _unknown(self, last: int) -> ValueError:
        reason = f"the group has no id above {last}, so the cursor {self._read} is of another database"
        return ValueError(f"{reason}; was it replaced? Then {self._again}")

    @property
    def _again(self) -> str:
        first = "" if self._file is None else f"remove {self._file}, "
        return f"{first}empty the copy and follow again from cursor 0"


def _check_position(position: Mapping[str, Any], belongs_to: Mapping[str, Any]) -> None:
    """Refuse a position of another group or of other filters; one without either is a cursor given by hand."""
    if not isinstance(position, Mapping) or type(position.get("cursor")) is not int:
        raise ValueError(f"a position is the JSON object that came with a page, decoded, and not {position!r}")
    for name, value in belongs_to.items():
        if position.get(name, value) != value:
            raise ValueError(
                f"this position was kept with the {name} {position[name]!r} and not {value!r}: read on with the same, "
                "or begin a copy of its own without a position"
            )


class CursorFile:
    """A position in a file, with the service, organization, group and filters it belongs to; replaced atomically."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self._path, self._about = path, about
        self._kept = self._writing = self._content()

    def __str__(self) -> str:
        return str(self._path)

    @property
    def is_new(self) -> bool:
        """Whether there was no file, and nothing was saved since."""
        return self._kept is None

    def load(self, default: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the saved position. Raises ValueError for a file that belongs to something else."""
        if self._kept is None:
            return default
        try:
            kept = json.loads(self._kept)
            position = {"cursor": kept.pop("cursor")} | ({"walk": kept.pop("walk")} if "walk" in kept else {})
        except (ValueError, KeyError, AttributeError):
            raise ValueError(f"{self._path} is not a cursor file") from None
        # Earlier files do not name the service and the organization.
        kept = {name: self._about[name] for name in ("url", "organization_id")} | kept
        if kept["url"] != self._about["url"]:
            message = f'{self._path} is a cursor of {kept["url"]}: name another file, or change "url" in this one'
            raise ValueError(f"{message} if both are the same service")
        if kept != self._about or type(position["cursor"]) is not int:
            raise ValueError(f"{self._path} is the cursor of another organization, another group or other filters")
        return position

    def save(self, position: Mapping[str, Any]) -> None:
        """Write the position, durably. Raises ValueError if somebody else has written the file since."""
        if self._content() not in (self._kept, self._writing):  # Ctrl-C may have come when one was written
            raise ValueError(f"{self._path} was changed by another process: each consumer needs a file of its own")
        self._writing = json.dumps({**self._about, **position}).encode()
        replace_file(self._path, self._writing)
        self._kept = self._writing

    def _content(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole and durably: whoever reads it finds the old content or the new."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
