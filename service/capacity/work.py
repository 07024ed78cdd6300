"""What one request holds of the process, phase by phase.

A body is received at the speed of the client, the service works at its own, and a response is sent at the speed of the
client again. Each phase has a gate of its own, so that slow clients never keep the service from working. A request
passes the gates in one order and waits for none while it holds a later one: no two requests wait for each other.
"""

from __future__ import annotations

from contextvars import ContextVar

from service.capacity.gate import Gate, Holder, Reservation, Shares

_MIB = 1024 * 1024
# Encoded items per byte of a body, and the most of a body: a value of two bytes takes twelve.
_ENCODED_TIMES, _MAX_ENCODED = 5, 20 * _MIB
# Bytes that the server holds of a body before it is read.
_BUFFERED = 256 * 1024
# Making a piece of a response: documents as the database sent them, their values and their text.
_PIECE = 8 * _MIB
# Requests that may work at once, if each needs the least that is counted.
_MAX_WORKING = 256
# Searches at once: each keeps one of the driver's threads at work for up to a second. Large reads at once: threads that
# decode many large replies keep the event loop waiting.
_MAX_SEARCHES, _MAX_READS, _LARGE_READ = 5, 5, 2 * _MIB
# The default limit of connections, and how many of them are reserved for requests without a token.
_CONNECTIONS, _RESERVED = 10_000, 16
# Incomplete heads have no owner yet.
HEADS = Holder(-1, "")
_NOTHING = Reservation(Shares("", 0), HEADS, 0)


def body_bytes(size: int) -> int:
    """Return what a body of some bytes may take: its text, and what is encoded of it."""
    return 2 * size + min(_ENCODED_TIMES * size, _MAX_ENCODED) + _MIB


class Gates:
    """The gates of a process, which hold `total` bytes together."""

    def __init__(self, total: int) -> None:
        self.receiving = Gate("receiving", total // 4)
        self.searches = Gate("searches", _MAX_SEARCHES)
        self.reads = Gate("reads", _MAX_READS)
        self.working = Gate("working", total // 2)
        self.sending = Gate("sending", total // 4)
        self.least, self.piece = self.working.total // _MAX_WORKING, min(_PIECE, self.working.total // 8)
        self.connections, self.readers = Shares("connections", 0), Shares("readers", 0)  # that wait or follow
        self.set_connections(_CONNECTIONS)
        self.all = (
            self.connections,
            self.readers,
            self.receiving,
            self.searches,
            self.reads,
            self.working,
            self.sending,
        )

    def set_connections(self, count: int) -> None:
        """Set the limit of connections; some are reserved for health checks and clients without a token yet."""
        self.connections.resize(max(1, count - max(min(_RESERVED, count // 4), count // 8)))
        self.readers.resize(max(1, self.connections.total * 3 // 4))


class Work:
    """The reservations of one request, for a block in which it is the current one."""

    __slots__ = ("_body", "_gates", "_place", "_previous", "_working", "holder", "seconds")

    def __init__(self, gates: Gates, holder: Holder, seconds: float | None) -> None:
        self._gates, self.holder = gates, holder
        self.seconds = seconds  # to wait at a gate; None for a response that has begun, or a reader that waits
        self._body = self._place = self._working = _NOTHING

    def __enter__(self) -> Work:
        self._previous = WORK.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        WORK.reset(self._previous)

    @property
    def is_alone(self) -> bool:
        """Whether no other organization has requests at work."""
        return not self._gates.working.held_by_others(self.holder.organization_id)

    async def receive(self, size: int, seconds: float) -> None:
        """Begin to receive a body of at most so many bytes."""
        self._body = await self._gates.receiving.reserve(self.holder, size + _BUFFERED, seconds)

    async def begin(self, size: int = 0) -> None:
        """Begin to work on at most so many bytes; the body is received."""
        size = max(size, self._gates.least)
        if self._working.amount < size:
            self._working.close()
            self._working = await self._gates.working.reserve(self.holder, size, self.seconds)
        self._body.close()

    async def begin_piece(self) -> None:
        """Begin to make a piece of a response."""
        await self.begin(self._gates.piece)

    async def read(self, size: int, searches: bool) -> None:
        """Begin to read, and to work on what is read, which takes at most so many bytes."""
        if searches or size > _LARGE_READ:
            self._end_work()  # a request that waits for a place holds nothing that the one in the place may wait for
            gate = self._gates.searches if searches else self._gates.reads
            self._place = await gate.reserve(self.holder, 1, self.seconds)
        await self.begin(size)

    def shrink(self, size: int) -> None:
        """Keep no more than so many bytes: what was read or made is no larger."""
        self._place.close()
        self._working.shrink(max(size, self._gates.least))

    async def keep(self, size: int) -> Reservation:
        """End the work; return what its text, of so many bytes, takes until it is sent."""
        self.shrink(size)
        text = await self._gates.sending.reserve(self.holder, size, self.seconds)
        self._end_work()
        return text

    def close(self) -> None:
        """Return everything."""
        self._body.close()
        self._end_work()

    def _end_work(self) -> None:
        self._place.close()
        self._working.close()


# Of the current request.
WORK: ContextVar[Work | None] = ContextVar("work", default=None)


def organization() -> int:
    """Return the organization of the current request, -1 for none."""
    work = WORK.get()
    return -1 if work is None else work.holder.organization_id
