"""Finds clients that read their response too slowly, by the bytes that the kernel still has to send."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import sys
from typing import Any

# Linux: how many bytes of a socket the peer has not acknowledged.
_SIOCOUTQ = 0x5411
# A receiver whose window is full opens it again only when a sixteenth of its buffer is free: a slow one acknowledges
# nothing for a while. So this many times the time that a client has to send a request.
PATIENCE = 3


def unsent(transport: asyncio.Transport) -> int:
    """Return the number of bytes that a client has not acknowledged yet."""
    waiting = transport.get_write_buffer_size()
    socket: Any = transport.get_extra_info("socket")
    if sys.platform == "linux" and socket is not None and socket.fileno() >= 0:
        waiting += struct.unpack("i", fcntl.ioctl(socket.fileno(), _SIOCOUTQ, b"\0\0\0\0"))[0]
    return waiting


class SlowReader:
    """Cuts a connection whose client takes less than a minimum while a response waits for it."""

    def __init__(self, transport: asyncio.Transport, seconds: float, min_rate: float) -> None:
        self._transport = transport
        self._seconds, self._min_bytes = seconds * PATIENCE, seconds * PATIENCE * min_rate
        self._handle: asyncio.TimerHandle | None = None
        self._unsent = 0

    def watch(self) -> None:
        """Begin to watch: the client is behind."""
        if self._handle is None:
            self._begin()

    def stop(self) -> None:
        """Stop watching: the client has caught up, or is gone."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _begin(self) -> None:
        self._unsent = unsent(self._transport)
        self._handle = asyncio.get_running_loop().call_later(self._seconds, self._judge)

    def _judge(self) -> None:
        if self._unsent - unsent(self._transport) < self._min_bytes:
            self._transport.abort()
        else:
            self._begin()
