"""Live readers: those at the end of one query share its live page, which is read and rendered once for all of them.

A reader has a position: the id up to which it has everything. Readers that wait at the end get the next piece. Readers
that are still sending the previous piece find the next ones in a small buffer; if these have been dropped, the reader
is `Behind` and reads for itself.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple, Protocol

from service.store.group import Group
from service.store.outputs.documents import Page, id_of
from service.store.outputs.ids import Watermark
from service.store.outputs.pages import Reading
from service.store.outputs.query import Query
from service.store.time_budget import response_has_begun, time_budget
from service.store.watch import Watch

_BUFFER_BYTES = 4 * 1024 * 1024
_BUFFER_PIECES = 64
_RETRY_SECONDS = 1.0


class Behind(Exception):
    """The live page does not hold the next piece for a reader at this position, which must read for itself."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


class Room(Protocol):
    """Room for a text."""

    def close(self) -> None:
        """Return it."""


class LiveWork(Protocol):
    """The work of a live page; what it reads is counted in it."""

    def __enter__(self) -> LiveWork: ...

    def __exit__(self, *_: object) -> None: ...

    async def keep(self, size: int) -> Room:
        """Return room for a text of so many bytes, instead of for what it was made of."""


class Gate(Protocol):
    """Lets live pages read and their readers go on, organizations in turn."""

    def work(self, organization_id: int) -> LiveWork:
        """Return the work of a live page."""

    def wake(self, waiting: asyncio.Future[None]) -> None:
        """Let a reader go on, in turn."""


class Form(NamedTuple):
    """How pages are rendered, and the bytes at the end of each item; none if the text cannot be split."""

    render: Callable[[Page], Awaitable[bytes]]
    separator: bytes = b""


class Part(NamedTuple):
    """What a reader gets: rendered items, their number, and the metadata of their page.

    The text is a view of bytes that all readers share.
    """

    text: memoryview
    items: int
    next_cursor: int | None
    version: int


class _Piece:
    """A page that was rendered for all readers of a live page."""

    def __init__(self, page: Page, ids: list[int], texts: dict[Form, bytes]) -> None:
        self.room: Room
        self.ids, self.texts, self.position = ids, texts, page.position
        self.next_cursor, self.version = page.next_cursor, page.version
        self.size = sum(map(len, texts.values()))
        self.awaited: set[Reader] = set()

    def part(self, form: Form, position: int, max_items: int | None) -> Part:
        """Return the part after a position. Raises Behind if this piece does not hold it."""
        start, text = bisect_right(self.ids, position), self.texts.get(form)
        count = len(self.ids) - start
        if text is None or (start and not form.separator) or (max_items is not None and count > max_items):
            raise Behind(position)
        begin = 0
        for _ in range(start):
            begin = text.index(form.separator, begin) + len(form.separator)
        return Part(memoryview(text)[begin:], count, self.next_cursor, self.version)


class Reader:
    """A reader of a live page; `position` is the id up to which it has everything."""

    def __init__(self, page: LivePage, form: Form, position: int) -> None:
        self._page, self.form, self.position = page, form, position
        self.handed: _Piece | None = None
        self.error: tuple[Exception, TracebackType | None] | None = None  # instead of a piece

    async def next(self, seconds: float, max_items: int | None = None) -> Part | None:
        """Return the next piece; None after some seconds or when the service stops. Raises Behind."""
        piece = self._page.kept_for(self) or await self._page.wait(self, seconds)
        if piece is None:
            return None
        part = piece.part(self.form, self.position, max_items)
        self.position = piece.position
        return part


class LivePage:
    """The end of one query of a group; exists while it has readers."""

    def __init__(self, reading: Reading, watch: Watch, group: Group, query: Query, timeout: float, gate: Gate) -> None:
        self._reading, self._watch, self._timeout, self._gate = reading, watch, timeout, gate
        self._group, self._query = group, query
        self.readers: set[Reader] = set()
        self.waiting: dict[Reader, asyncio.Future[None]] = {}
        self._wanted = asyncio.Event()  # somebody waits
        # What comes after `_begin`, up to `_end`, is in the buffer.
        self._begin = self._end = 0
        self._buffer: deque[_Piece] = deque()
        self._kept = 0  # bytes in it
        self._task = asyncio.create_task(self._follow())

    def leave(self, reader: Reader) -> None:
        """Remove a reader; end with the last one."""
        self.readers.discard(reader)
        for piece in self._buffer:
            piece.awaited.discard(reader)
        self._drop_passed()
        if not self.readers:
            while self._buffer:
                self._drop()
            self._task.cancel()

    def kept_for(self, reader: Reader) -> _Piece | None:
        """Return the next piece for a reader from the buffer; None if it is at the end. Raises Behind."""
        if reader.position < self._begin:
            raise Behind(reader.position)
        next_piece = None
        for piece in self._buffer:
            piece.awaited.discard(reader)
            if piece.position > reader.position:
                next_piece = piece
                break
        self._drop_passed()
        return next_piece

    async def wait(self, reader: Reader, seconds: float) -> _Piece | None:
        """Return the next piece as soon as there is one; None after some seconds, or when the service stops."""
        if self._watch.stopped:
            return None
        reader.handed = reader.error = None
        waiting = self.waiting[reader] = asyncio.get_running_loop().create_future()
        self._wanted.set()
        try:
            async with asyncio.timeout(seconds):
                await waiting
        except TimeoutError:
            if reader in self.waiting:  # else a piece has just come: it is in the buffer, or the reader is behind
                reader.position = max(reader.position, self._end)
            return None
        finally:
            self.waiting.pop(reader, None)
        if reader.error is not None:
            (error, trace), reader.error = reader.error, None
            raise error.with_traceback(trace)  # else the frames of all readers gather in it
        return reader.handed

    async def _follow(self) -> None:
        with self._watch.waiting(self._group) as changed:
            changed.set()  # for changes before the watch began
            while not self._watch.stopped:
                try:
                    if self.waiting:
                        changed.clear()
                        if await self._read():
                            changed.set()
                    else:
                        self._wanted.clear()
                except Exception as error:  # all waiting readers must get it, whatever it is
                    self._end_waiting(error)
                    changed.set()
                    await asyncio.sleep(_RETRY_SECONDS)
                await changed.wait()
                await self._wanted.wait()
            self._end_waiting(None)

    async def _read(self) -> bool:
        """Read the next page and hand it on, if there is something new; return whether there is more."""
        with time_budget(self._timeout):
            response_has_begun()  # waits for a failover, once for all readers
            watermark = await self._reading.watermark(self._group)
            present = watermark.position
            start = min((reader.position for reader in self.waiting), default=present)
            # All readers have read for themselves. Not beyond the present: a cursor may be of another group.
            if (begin := min(start, present)) > self._end:
                while self._buffer:
                    self._drop()
                self._begin = self._end = begin
            start = max(start, self._end)  # readers further back find the rest in the buffer
            if present <= start:
                return False
            with self._gate.work(self._group.organization_id) as work:
                piece = await self._piece(start, watermark)
                piece.room = await work.keep(piece.size)
                self._hand_on(piece)
        return piece.next_cursor is not None

    async def _piece(self, start: int, watermark: Watermark) -> _Piece:
        """Read and render what comes after a position."""
        limit = self._reading.fitting(self._group, self._query.fields)
        query = self._query._replace(cursor=start, limit=min(limit, self._query.limit or limit))
        page = await self._reading.below(self._group, query, watermark)
        forms = {reader.form for reader in self.readers} if page.documents else ()
        texts = {form: await form.render(page) for form in forms}
        return _Piece(page, list(map(id_of, page.documents)), texts)

    def _hand_on(self, piece: _Piece) -> None:
        """Give a piece to waiting readers, and keep it for those that are still sending the previous one."""
        self._end = piece.position
        if not piece.ids:
            piece.room.close()
            return
        piece.awaited = self.readers - self.waiting.keys()
        for reader in [reader for reader in self.waiting if reader.position < piece.ids[-1]]:
            reader.handed = piece
            self._gate.wake(self.waiting.pop(reader))
        self._buffer.append(piece)
        self._kept += piece.size
        self._drop_passed()

    def _end_waiting(self, error: Exception | None) -> None:
        """Wake all waiting readers with nothing, or with an error."""
        waiting, self.waiting = self.waiting, {}
        for reader, future in waiting.items():
            reader.error = None if error is None else (error, error.__traceback__)
            self._gate.wake(future)

    def _drop_passed(self) -> None:
        """Drop pieces that no reader still needs, and the oldest pieces of a full buffer."""
        while self._buffer and (
            not self._buffer[0].awaited or self._kept > _BUFFER_BYTES or len(self._buffer) > _BUFFER_PIECES
        ):
            self._drop()

    def _drop(self) -> None:
        piece = self._buffer.popleft()
        self._begin = piece.position
        self._kept -= piece.size
        piece.room.close()


class LivePages:
    """The live pages of this process."""

    def __init__(self, reading: Reading, watch: Watch, timeout: float) -> None:
        self._reading, self._watch, self._timeout = reading, watch, timeout
        self.gate: Gate  # the application's
        self._open: dict[tuple[Group, Query], LivePage] = {}

    @property
    def waiting(self) -> int:
        """How many readers wait for something new."""
        return sum(len(page.waiting) for page in self._open.values())

    @contextmanager
    def reader(self, group: Group, query: Query, form: Form) -> Iterator[Reader]:
        """Yield a reader at `query.cursor`; pages have at most `query.limit` items, 0 for a megabyte."""
        key = group, query._replace(cursor=0, walk=None)
        page = self._open.get(key)
        if page is None:
            page = self._open[key] = LivePage(self._reading, self._watch, *key, self._timeout, self.gate)
        reader = Reader(page, form, query.cursor)
        page.readers.add(reader)
        try:
            yield reader
        finally:
            page.leave(reader)
            if not page.readers:
                del self._open[key]
